"""Tools of MCP servers at a URL: a real endpoint of the SDK, and what is lost between it and us."""

import ast
import json
import socket
import time
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from tests.actions.mcp_program import SLOW_S, Book
from tests.actions.mcp_stage import Between, Cutting, Events, declare, opened, served
from tests.actions.told import observed, result

from doubtless.transports.base import Watch, open_gate
from doubtless.transports.mcp_servers import ServerRules
from doubtless.transports.mcp_upstream import Upstreams

WAIT_S = 20
ERAS = ["", "handshake = true"]


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """One endpoint for the module, and its book."""
    book = Book(str(tmp_path_factory.mktemp("far") / "far.db"))
    with served(book) as port:
        yield port, book


@pytest.fixture
def book(far):
    far[1].clear()
    return far[1]


def at(port, more=""):
    return f'url = "http://127.0.0.1:{port}/mcp"\n{more}'


async def charge(app, how="answer", operation_id="one", charge="ch_1"):
    return await app.call("charge", {"charge": charge, "how": how}, operation_id=operation_id)


async def called(rules, how="answer", **options):
    """Call without a ledger, and return what was seen, and how far it got."""
    upstreams, watch = Upstreams(lambda name: f"secret of {name}", time.monotonic), Watch()
    told: dict[str, Any] = {
        "meta": {},
        "headers": {},
        "gate": open_gate,
        "watch": watch,
        "limit_s": WAIT_S,
    }
    try:
        arguments = {"charge": "ch_1", "how": how}
        return await upstreams.call(rules, "charge", arguments, **{**told, **options}), watch
    finally:
        await upstreams.aclose()


def rules_at(port, **more):
    return ServerRules(name="pay", url=f"http://127.0.0.1:{port}/mcp", **more)


@pytest.mark.proves("MCP-1")
@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_at_a_url_is_called_once_and_a_repeat_calls_nothing(tmp_path, far, book, era):
    declare(tmp_path, at(far[0], era))
    async with opened(tmp_path) as app:
        outcome = await charge(app)
        again = await charge(app)
    assert outcome.status == "succeeded"
    assert again.already_done
    (row,) = book.rows()
    assert result(outcome) == {"number": row["number"]}
    meta = ast.literal_eval(book.metas()[0])
    assert meta["doubtless.dev/idempotency-key"] == meta["example.com/key"]


@pytest.mark.proves("MCP-3")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("how", "cause", "effects"),
    [
        ("before", "connection_reset", 0),
        ("after", "connection_reset", 1),
        ("half", "connection_reset", 1),
        ("ended", "connection_reset", 1),
        ("page", "unreadable", 1),
        ("shape", "unreadable", 1),
        (502, "gateway_error", 1),
        (403, "unproven_status", 1),
        (404, "unproven_status", 1),
    ],
)
async def test_an_answer_that_is_lost_or_no_answer_is_unknown(far, book, era, how, cause, effects):
    between = Between(far[0], how)
    async with between.serving() as port:
        seen, watch = await called(rules_at(port, handshake=bool(era)))
    if how == 404 and era:
        cause = None  # of a session that the endpoint doesn't know: told by the protocol itself
        assert seen.proof == "not_processed"
    else:
        assert (seen.proof, seen.cause) == (None, cause)
    assert watch.sent_bytes > 0
    assert len(between.heads) == 1
    assert len(book.rows()) == effects
    assert between.cancelled == 0


@pytest.mark.proves("MCP-3")
@pytest.mark.parametrize("how", ["error", "protocol error"])
@pytest.mark.parametrize("options", [{}, {"json_response": True}])
async def test_an_answered_error_proves_nothing(tmp_path, how, options):
    book = Book(str(tmp_path / "far.db"))
    with served(book, **options) as port:
        declare(tmp_path, at(port))
        async with opened(tmp_path) as app:
            first = await charge(app, how)
            last = await app.wait("one", timeout=WAIT_S)
    assert observed(first)["cause"] == "tool_error"
    assert last.status == "succeeded"
    assert len(book.rows()) == 1


@pytest.mark.proves("MCP-3")
async def test_what_is_lost_on_the_way_back_is_found_by_the_other_tool(tmp_path, far, book):
    between = Between(far[0], "after")
    async with between.serving() as port:
        declare(tmp_path, at(port))
        async with opened(tmp_path) as app:
            first = await charge(app)
            last = await app.wait("one", timeout=WAIT_S)
    assert first.status == "unknown_reconciliation_required"
    assert last.status == "succeeded"
    assert (len(book.rows()), len(between.heads)) == (1, 1)


@pytest.mark.proves("MCP-2")
@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1", "connection refused"), ("nowhere.invalid", "could not be resolved")],
)
async def test_an_endpoint_that_is_not_there_was_sent_nothing(tmp_path, host, why):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        declare(tmp_path, f'url = "http://{host}:{closed.getsockname()[1]}/mcp"', more="")
        async with opened(tmp_path) as app:
            outcome = await charge(app)
    assert outcome.status == "failed_safe_to_retry"
    assert observed(outcome)["class"] == "not_sent"
    assert why in observed(outcome)["detail"]


@pytest.mark.proves("MCP-2")
@pytest.mark.parametrize("era", ERAS)
async def test_an_endpoint_that_went_away_meanwhile_was_sent_nothing(tmp_path, era):
    book = Book(str(tmp_path / "far.db"))
    upstreams, watch = Upstreams(str, time.monotonic), Watch()
    told: dict[str, Any] = {"meta": {}, "headers": {}, "gate": open_gate, "limit_s": WAIT_S}
    with served(book) as port:
        rules = rules_at(port, handshake=bool(era))
        await upstreams.tools(rules)
    seen = await upstreams.call(rules, "charge", {"charge": "x"}, watch=watch, **told)
    again = await upstreams.call(rules, "charge", {"charge": "x"}, watch=Watch(), **told)
    await upstreams.aclose()
    assert (seen.proof, again.proof) == ("not_sent", "not_sent")
    assert (watch.sent_bytes, book.rows()) == (0, [])


@pytest.mark.proves("MCP-6")
async def test_a_session_that_the_endpoint_forgot_costs_no_unknown(tmp_path):
    book = Book(str(tmp_path / "far.db"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    declare(tmp_path, at(port, "handshake = true"), more="")
    async with opened(tmp_path) as app:
        with served(book, port=port):
            await charge(app)
        with served(book, port=port):
            outcome = await charge(app, "answer", "two", "ch_2")
    assert (outcome.status, outcome.attempts) == ("succeeded", 2)
    assert len(book.rows()) == 2


@pytest.mark.proves("MCP-13")
@pytest.mark.parametrize("era", ERAS)
async def test_no_redirect_sends_a_call_again(far, book, era):
    between = Between(far[0], 307)
    async with between.serving() as port:
        seen, _ = await called(rules_at(port, handshake=bool(era)))
    assert (seen.proof, seen.cause) == (None, "unproven_status")
    assert len(between.heads) == 1
    assert book.rows() == []


@pytest.mark.proves("MCP-13")
async def test_a_stream_that_broke_is_taken_up_again_and_the_call_is_not(tmp_path):
    book = Book(str(tmp_path / "far.db"))
    with served(book, event_store=Events(), retry_interval=50) as port:
        between = Cutting(port)
        async with between.serving() as cut:
            seen, _ = await called(rules_at(cut, handshake=True), "slow")
    assert seen.result is not None
    assert seen.result.structured_content == {"number": 1}
    assert (len(book.rows()), len(between.heads)) == (1, 1)


# --- time-outs ------------------------------------------------------------------------------------


@pytest.mark.proves("MCP-7")
@pytest.mark.parametrize("era", ERAS)
async def test_a_call_goes_on_beyond_its_time_out_and_its_late_answer_counts(
    tmp_path, far, book, era
):
    between = Between(far[0])
    async with between.serving() as port:
        declare(tmp_path, at(port, era), timeout="800ms", horizon="10s", more="")
        async with opened(tmp_path) as app:
            with anyio.move_on_after(0.5):
                await charge(app, "slow")  # a client that gives up first
            first = await charge(app, "slow")
            last = await app.wait("one", timeout=WAIT_S)
    assert observed(first)["cause"] == "timeout"
    assert last.status == "succeeded"
    assert (len(book.rows()), len(between.heads), between.cancelled) == (1, 1, 0)


@pytest.mark.proves("MCP-7")
async def test_the_sdk_by_itself_interrupts_what_it_has_called(far, book):
    async with Client(f"http://127.0.0.1:{far[0]}/mcp") as client:
        with pytest.raises(MCPError):
            await client.call_tool("charge", {"charge": "c", "how": "slow"}, 0.3)
        await anyio.sleep(SLOW_S)  # as long as it would have taken
    assert book.rows() == []


# --- secrets, and who may be sent to --------------------------------------------------------------


@pytest.mark.proves("MCP-10")
async def test_a_credential_goes_into_its_header_alone(tmp_path, far, book, monkeypatch):
    monkeypatch.setenv("DOUBTLESS_SECRET_PAY", "s3cret-token")
    between = Between(far[0])
    async with between.serving() as port:
        more = 'headers = { Idempotency-Key = "{operation.idempotency_key}" }'
        declare(tmp_path, at(port, 'credential = "pay"\nheader = "X-Api-Key"'), more=more)
        async with opened(tmp_path) as app:
            outcome = await charge(app)
    assert outcome.status == "succeeded"
    head = between.heads[0].decode().lower()
    assert "x-api-key: s3cret-token" in head
    key = ast.literal_eval(book.metas()[0])["example.com/key"]
    assert f"idempotency-key: {key}" in head
    for file in tmp_path.glob("d.db*"):
        assert b"s3cret-token" not in file.read_bytes()


@pytest.mark.proves("MCP-2")
async def test_a_gate_that_closes_lets_no_byte_out(far, book):
    upstreams, watch = Upstreams(str, lambda: 100.0), Watch()

    async def over() -> float:
        return 99.0

    told: dict[str, Any] = {
        "meta": {},
        "headers": {},
        "gate": over,
        "watch": watch,
        "limit_s": WAIT_S,
    }
    seen = await upstreams.call(rules_at(far[0]), "charge", {"charge": "x"}, **told)
    await upstreams.aclose()
    assert (seen.proof, watch.sent_bytes) == ("not_sent", 0)
    assert book.rows() == []


@pytest.mark.proves("MCP-6")
async def test_a_hundred_calls_at_once_are_a_hundred_effects(far, book):
    upstreams = Upstreams(str, time.monotonic)
    told: dict[str, Any] = {"meta": {}, "headers": {}, "gate": open_gate, "limit_s": WAIT_S}
    numbers: set[str] = set()

    async def one(name: str) -> None:
        arguments = {"charge": name}
        seen = await upstreams.call(rules_at(far[0]), "charge", arguments, watch=Watch(), **told)
        assert seen.result is not None
        numbers.add(json.dumps(seen.result.structured_content))

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(one, f"ch_{number}")
    await upstreams.aclose()
    assert len(numbers) == len(book.rows()) == 100
