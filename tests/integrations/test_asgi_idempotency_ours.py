"""Our own client before an API with keys: an answer is lost on the wire, and one effect is made."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.clients.lossy import Lossy, first
from tests.integrations.idempotent_shop import Shop, served
from tests.scenarios.stories import UNKNOWN, comes_true

from doubtless import Doubtless
from doubtless.core.outcome import Outcome

# As docs/provider.md has it.
CONTRACT = """
[sources.shop]
base_url = "{url}"

[tools.refund]
effect            = "idempotent_call"
source            = "shop"
timeout           = "1s"
in_flight_horizon = "200ms"
recovery_deadline = "{deadline}"
request     = {{ method = "POST", path = "{path}", json = {{ amount = "{{args.amount}}" }} }}
idempotency = {{ header = "Idempotency-Key", ttl = "24h", stores = "all", in_progress = [409], mismatch = [422], replayed = "headers.\\"idempotency-replayed\\"" }}
retry       = {{ backoff = "100ms" }}

[tools.refund.arguments]
type = "object"
required = ["amount"]
properties.amount = {{ type = "integer" }}
"""  # noqa: E501 - a table of TOML stands on one line
OVER = ("succeeded", "failed", "manual_review")
LOOKUP = """
[tools.refund.lookup]
path          = "/operations/by-id/{operation.idempotency_key}"
applied       = "state == 'succeeded'"
in_progress   = "contains(['accepted', 'in_progress'], state)"
failed        = "state == 'failed'"
result        = "result"
authoritative = true
lag           = "0s"
timeout       = "1s"
interval      = "100ms"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[tuple[Shop, int]]:
    shop = Shop(tmp_path_factory.mktemp("shop") / "shop.db")
    shop.create()
    with served(shop.app(everybody="agent")) as url:
        yield shop, int(url.rpartition(":")[2])


@pytest.fixture
def shop(place) -> Shop:
    found: Shop = place[0]
    found.begin_anew()
    return found


@asynccontextmanager
async def client(
    folder: Path,
    link: Lossy,
    *,
    path: str = "/v1/refunds",
    lookup: str = "",
    deadline: str = "20s",
) -> AsyncIterator[Doubtless]:
    async with link.serving() as port:
        contracts = folder / "contracts.toml"
        url = f"http://127.0.0.1:{port}"
        text = CONTRACT.format(url=url, path=path, deadline=deadline)
        contracts.write_text(text + lookup, encoding="utf-8")
        async with Doubtless(f"sqlite:///{folder / 'ledger.db'}", contracts=contracts) as app:
            yield app


async def ended(app: Doubtless) -> Outcome:
    async def is_over() -> bool:
        return (await app.outcome("r1")).state in OVER

    await comes_true(is_over)
    return await app.outcome("r1")


@pytest.mark.proves("PROVIDER-15")
async def test_an_answer_lost_on_the_wire_is_asked_for_again_by_its_key(shop, place, tmp_path):
    link = Lossy(place[1], loses=first("rst"))
    async with client(tmp_path, link) as app:
        told = await app.call("refund", {"amount": 5}, operation_id="r1")
        assert told.status == UNKNOWN
        last = await ended(app)
        assert (last.status, last.result) == ("succeeded", {"id": 1})
    assert [each.status for each in link.posts("/v1/refunds")] == [201, 201]
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-15")
async def test_where_it_can_be_looked_up_by_its_key_it_is_settled_without_a_second_send(
    shop, place, tmp_path
):
    link = Lossy(place[1], loses=first("rst"))
    async with client(tmp_path, link, lookup=LOOKUP) as app:
        assert (await app.call("refund", {"amount": 5}, operation_id="r1")).status == UNKNOWN
        last = await ended(app)
        assert (last.status, last.result) == ("succeeded", {"id": 1})
    assert len(link.posts("/v1/refunds")) == 1
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-15")
async def test_a_request_that_never_arrived_is_absent_there_and_is_sent_again(
    shop, place, tmp_path
):
    link = Lossy(place[1], loses=first("before"))
    async with client(tmp_path, link, lookup=LOOKUP) as app:
        assert (await app.call("refund", {"amount": 5}, operation_id="r1")).status == UNKNOWN
        last = await ended(app)
        assert (last.status, last.result) == ("succeeded", {"id": 1})
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-15")
async def test_a_slow_execution_is_in_progress_there_until_its_answer_is_found(
    shop, place, tmp_path
):
    shop.goes_on.clear()
    link = Lossy(place[1])
    async with client(tmp_path, link, path="/v1/plain", lookup=LOOKUP) as app:
        assert (await app.call("refund", {"amount": 5}, operation_id="r1")).status == UNKNOWN

        async def looked() -> bool:
            return any(each.method == "GET" for each in link.seen)

        await comes_true(looked)
        shop.goes_on.set()
        assert (await ended(app)).status == "succeeded"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-15")
async def test_what_the_provider_does_not_know_goes_to_a_person_and_is_never_a_second_effect(
    shop, place, tmp_path
):
    shop.raises = RuntimeError("after the effect")
    link = Lossy(place[1])
    async with client(tmp_path, link, path="/v1/plain", lookup=LOOKUP, deadline="4s") as app:
        assert (await app.call("refund", {"amount": 5}, operation_id="r1")).status == UNKNOWN
        last = await ended(app)
        assert (last.state, last.outcome) == ("manual_review", "unknown")
        with shop.connection() as db:
            (key,) = db.execute("select key from idempotency").fetchone()
            assert shop.store.settle(db, caller="agent", key=key, body={"id": 1})
    assert shop.effects() == 1
