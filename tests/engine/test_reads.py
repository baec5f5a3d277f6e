"""How far a read may be relied on, as time goes by."""

from datetime import UTC, datetime

import pytest
from tests.engine.functions import application, comes_true
from tests.transports.http_peer import answering, serving

from doubtless import Doubtless

FILE = """
[sources.shop]
base_url = "http://127.0.0.1:{port}"
[tools.plans]
effect = "read"
source = "shop"
timeout = "2s"
[tools.plans.arguments]
type = "object"
[tools.plans.request]
method = "GET"
path = "/plans"
[tools.plans.read]
consistency = "etag"
value = "headers.etag"
complete = "!has_more"
{settles}
"""


def answer(headers: str, body: str = '{"has_more": false}') -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def read(app: Doubtless):
    found = await app.outcome("o1")
    assert found.status == "succeeded"
    assert found.read is not None
    return found.read


async def first_and_settled(folder, content: bytes):
    """Return what a read says of itself at once, and after it has settled."""
    async with serving(answering(content)) as peer:
        said = 'settles_within = "100ms"'
        path = folder / "contracts.toml"
        path.write_text(FILE.format(port=peer.port, settles=said), encoding="utf-8")
        async with application(folder, contracts=path) as app:
            first = (await app.call("plans", {}, operation_id="o1")).read
            assert first is not None
            end = datetime.fromisoformat(str(first["settles_at"]))
            await comes_true(lambda: datetime.now(UTC) > end)
            return first, await read(app)


@pytest.mark.proves("ENGINE-10")
async def test_a_whole_and_fresh_read_may_be_relied_on_once_it_has_settled(tmp_path):
    first, later = await first_and_settled(tmp_path, answer('ETag: "7"\r\n'))
    assert (first["value"], first["complete"]) == ('"7"', True)
    assert not first["usable_for_decision"]
    assert later["usable_for_decision"]


@pytest.mark.proves("ENGINE-10")
@pytest.mark.parametrize(
    "content",
    [
        answer('ETag: "7"\r\nAge: 30\r\n'),
        answer(""),
        answer('ETag: "7"\r\n', '{"has_more": true}'),
        answer('ETag: "7"\r\n', '{"has_more": '),
    ],
    ids=["cached", "no version", "a part", "unreadable"],
)
async def test_a_cached_or_partial_read_without_settling_time_may_not_be_relied_on(
    tmp_path, content
):
    async with serving(answering(content)) as peer:
        path = tmp_path / "contracts.toml"
        path.write_text(FILE.format(port=peer.port, settles=""), encoding="utf-8")
        async with application(tmp_path, contracts=path) as app:
            told = await app.call("plans", {}, operation_id="o1", wait_s=0.3)
    if told.read is not None:
        assert not told.read["usable_for_decision"]


@pytest.mark.proves("ENGINE-10")
@pytest.mark.parametrize(
    "content",
    [answer('ETag: "7"\r\nAge: 30\r\n'), answer("")],
    ids=["cached", "no version"],
)
async def test_time_alone_does_not_make_a_cached_read_fit_for_a_decision(tmp_path, content):
    _, later = await first_and_settled(tmp_path, content)
    assert not later["usable_for_decision"]
