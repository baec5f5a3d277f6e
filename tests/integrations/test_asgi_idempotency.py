"""Keys on real sockets: one execution, and the right answer for everybody who repeats."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.integrations.idempotent_shop import Shop, served

from doubtless.integrations.asgi_idempotency import Settings
from doubtless.integrations.idempotency_requests import fixdate

ME = {"Authorization": "me"}
REFUND = {"amount": 500, "note": "late"}
REPLAYED = "idempotency-replayed"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[tuple[Shop, str]]:
    shop = Shop(tmp_path_factory.mktemp("shop") / "shop.db")
    shop.create()
    with served(shop.app()) as url:
        yield shop, url


@pytest.fixture
def shop(place) -> Shop:
    found: Shop = place[0]
    found.begin_anew()
    return found


@pytest.fixture
def api(place) -> str:
    return str(place[1])


@pytest.fixture
async def client(api) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=api, headers=ME, timeout=20) as found:
        yield found


async def post(
    client: httpx2.AsyncClient,
    path: str = "/v1/refunds",
    key: str | None = "k",
    body: Any = REFUND,
    **headers: str,
) -> httpx2.Response:
    said = headers if key is None else {"Idempotency-Key": key, **headers}
    return await client.post(path, json=body, headers=said)


async def look(client: httpx2.AsyncClient, key: str = "k", **headers: str) -> httpx2.Response:
    return await client.get(f"/operations/by-id/{key}", headers=headers)


def is_problem(response: httpx2.Response, status: int, code: str) -> bool:
    document = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert document["status"] == response.status_code
    return (response.status_code, document["code"]) == (status, code)


@pytest.mark.proves("PROVIDER-1")
@pytest.mark.parametrize("path", ["/v1/refunds", "/v1/plain"])
async def test_of_fifty_at_once_under_one_key_one_is_executed_and_all_get_its_answer(
    shop, client, path
):
    shop.goes_on.clear()
    asked = [asyncio.create_task(post(client, path)) for _ in range(50)]
    await asyncio.to_thread(shop.entered.acquire, timeout=10)
    shop.goes_on.set()
    answers = await asyncio.gather(*asked)
    assert Counter(each.status_code for each in answers) == {201: 50}
    assert {each.text for each in answers} == {'{"id":1}'}
    assert Counter(each.headers.get(REPLAYED) for each in answers) == {"true": 49, None: 1}
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-1")
async def test_two_keys_are_two_executions(shop, client):
    answers = await asyncio.gather(*(post(client, key=key) for key in ("a", "b")))
    assert {each.json()["id"] for each in answers} == {1, 2}
    assert shop.effects() == 2


@pytest.mark.proves("PROVIDER-2")
@pytest.mark.parametrize("path", ["/v1/refunds", "/v1/plain"])
async def test_a_repeat_gets_the_first_answer_with_a_mark_and_its_expiry(shop, client, path):
    first, again = await post(client, path), await post(client, path, key='"k"')
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert first.headers["x-shop"] == again.headers["x-shop"]
    assert first.headers["idempotency-expires"] == again.headers["idempotency-expires"]
    assert (first.headers.get(REPLAYED), again.headers[REPLAYED]) == (None, "true")
    assert "set-cookie" not in again.headers
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-3")
async def test_another_request_under_a_used_key_is_refused_and_not_executed(shop, client):
    await post(client, "/v1/plain")
    assert is_problem(await post(client, "/v1/plain", body={"amount": 7}), 422, "key_reused")
    assert is_problem(await post(client), 422, "key_reused")
    assert is_problem(await post(client, "/v1/plain?really=1"), 422, "key_reused")
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-3")
async def test_white_space_and_order_are_no_other_payload_and_an_owner_lists_what_counts(
    shop, client
):
    await post(client, "/v1/plain")
    said = {**ME, "Idempotency-Key": "k"}
    swapped = b'{ "note": "late",\n "amount": 500 }'
    again = await client.post("/v1/plain", content=swapped, headers=said)
    assert again.headers[REPLAYED] == "true"
    await post(client, "/v1/some", key="s")
    assert (await post(client, "/v1/some", key="s", body={"amount": 500})).status_code == 201
    assert (await post(client, "/v1/some", key="s", body={"amount": 501})).status_code == 422
    assert shop.effects() == 2


@pytest.mark.proves("PROVIDER-4")
@pytest.mark.parametrize(
    "key",
    ['"open', '"a" "b"', "a, b", '"a", "b"', '""', "two words", "x" * 256, '"' + "x" * 256 + '"'],
)
async def test_a_key_that_is_no_string_or_too_long_is_refused_and_not_executed(shop, client, key):
    assert is_problem(await post(client, key=key), 400, "key_invalid")
    assert (shop.effects(), shop.keys()) == (0, [])


@pytest.mark.proves("PROVIDER-4")
async def test_a_key_is_said_once_and_where_it_is_required_it_is_said(shop, client):
    twice = [*ME.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    assert is_problem(
        await client.post("/v1/refunds", json=REFUND, headers=twice), 400, "key_invalid"
    )
    missing = await post(client, key=None)
    assert is_problem(missing, 400, "key_missing")
    assert missing.json()["title"] == "Idempotency-Key is missing"
    assert is_problem(await post(client, "/v1/refunds/", key=None), 400, "key_missing")
    assert shop.effects() == 0
    for _ in range(2):  # here a key may be missing, and then each request acts
        assert (await post(client, "/v1/lenient", key=None)).status_code == 201
    assert shop.effects() == 2


@pytest.mark.proves("PROVIDER-5")
async def test_callers_share_no_keys_and_see_nothing_of_each_other(shop, client):
    mine, yours = await post(client), await post(client, Authorization="you")
    assert (mine.json()["id"], yours.json()["id"]) == (1, 2)
    assert (await look(client)).json()["result"] == {"id": 1}
    assert is_problem(await look(client, Authorization="him"), 404, "no_such_operation")
    assert is_problem(await post(client, Authorization=""), 401, "who_are_you")
    assert is_problem(await look(client, Authorization=""), 401, "who_are_you")
    assert shop.effects() == 2


@pytest.mark.proves("PROVIDER-6")
async def test_a_key_is_forgotten_when_its_published_time_is_over_and_no_earlier(shop, client):
    first = await post(client)
    shop.clock.ahead_s = 86_390
    assert (await post(client)).headers[REPLAYED] == "true"
    told = (await look(client)).json()
    assert told["expires_at"] == first.headers["idempotency-expires"]
    shop.clock.ahead_s = 86_401
    assert is_problem(await look(client), 404, "no_such_operation")
    again = await post(client)
    assert (again.status_code, again.headers.get(REPLAYED), again.json()) == (201, None, {"id": 2})
    await post(client, key="other")
    shop.clock.ahead_s *= 2.1
    shop.store.clean()
    assert shop.keys() == []


@pytest.mark.proves("PROVIDER-7")
async def test_who_lost_the_answer_asks_by_the_key(shop, client):
    shop.goes_on.clear()
    assert is_problem(await look(client, "a%2Fb%20c"), 404, "no_such_operation")
    first = asyncio.create_task(post(client, key='"a/b c"'))
    await asyncio.to_thread(shop.entered.acquire, timeout=10)
    running = (await look(client, "a%2Fb%20c")).json()
    assert (running["state"], running["result"]) == ("in_progress", None)
    shop.goes_on.set()
    assert (await first).status_code == 201
    told = await look(client, "a%2Fb%20c")
    assert (told.json()["state"], told.json()["result"]) == ("succeeded", {"id": 1})
    assert told.json()["operation_id"] == "a/b c"
    assert told.json()["status_url"] == "/operations/by-id/a%2Fb%20c"
    assert told.headers["cache-control"] == "no-store"


@pytest.mark.proves("PROVIDER-1")
async def test_who_does_not_wait_is_told_that_the_first_still_runs(shop):
    shop.goes_on.clear()
    async with serving(shop, wait_s=0) as client:
        first = asyncio.create_task(post(client))
        await asyncio.to_thread(shop.entered.acquire, timeout=10)
        told = await post(client)
        assert is_problem(told, 409, "in_progress")
        assert told.headers["retry-after"] == "1"
        assert told.json()["status_url"] == "/operations/by-id/k"
        assert is_problem(await post(client, body={"amount": 1}), 422, "key_reused")
        shop.goes_on.set()
        assert (await first).status_code == 201
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-8")
@pytest.mark.parametrize(
    ("path", "status", "again", "effects"),
    [
        ("/v1/plain", 422, (422, None), 1),  # all answers are kept
        ("/v1/plain", 503, (503, None), 1),
        ("/v1/lenient", 422, (201, None), 2),  # a 4xx says that nothing was done
        ("/v1/lenient", 503, (409, "outcome_unknown"), 1),
        ("/v1/lenient", 201, (201, None), 1),
    ],
)
async def test_which_errors_are_kept_is_declared_and_a_5xx_never_executes_again(
    shop, client, path, status, again, effects
):
    shop.status = status
    assert (await post(client, path)).status_code == status
    shop.status = 201
    repeated = await post(client, path)
    assert (repeated.status_code, repeated.json().get("code")) == again
    assert shop.effects() == effects
    told = (await look(client)).json()["state"]
    assert told == {201: "succeeded", 422: "failed"}.get(repeated.status_code, "unknown")


@pytest.mark.proves("PROVIDER-8")
@pytest.mark.parametrize(
    ("path", "again"), [("/v1/plain", "internal_error"), ("/v1/lenient", "outcome_unknown")]
)
async def test_a_handler_that_raised_is_not_executed_again_and_its_outcome_is_unknown(
    shop, client, path, again
):
    shop.raises = RuntimeError("after the effect")
    first = await post(client, path)
    assert is_problem(first, 500, "internal_error")
    assert first.json()["state"] == "unknown"
    shop.raises = None
    assert (await post(client, path)).json()["code"] == again
    assert (await look(client)).json()["state"] == "unknown"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-9")
async def test_what_was_committed_with_the_record_is_told_though_the_handler_raised_after_it(
    shop, client
):
    shop.raises = RuntimeError("after the commit")
    first = await post(client)
    assert (first.status_code, first.json()) == (201, {"id": 1})
    assert (await post(client)).headers[REPLAYED] == "true"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-9")
async def test_an_atomic_route_that_fails_before_its_record_has_done_nothing(shop):
    async with serving(shop, stores="success_only") as client:
        bad = {"amount": ["no", "number"]}  # the driver refuses it: the transaction is rolled back
        assert (await post(client, body=bad)).status_code == 500
        assert (shop.effects(), shop.keys()) == (0, [])
        assert (await post(client)).status_code == 201
    async with serving(shop) as client:
        assert (await post(client, key="kept", body=bad)).status_code == 500
        assert (await look(client, "kept")).json()["state"] == "failed"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-9")
async def test_an_atomic_route_that_records_no_success_is_told_of_at_once(shop, client, caplog):
    assert is_problem(await post(client, "/v1/forgets"), 500, "not_recorded")
    assert is_problem(await post(client, "/v1/forgets"), 409, "outcome_unknown")
    assert "/v1/forgets is declared atomic" in caplog.text
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-10")
async def test_an_answer_in_parts_is_kept_whole(shop, client):
    answers = [await post(client, "/v1/streams?parts=40") for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert answers[1].content.endswith(b"part 39;")
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-10")
async def test_an_answer_too_long_to_keep_goes_out_and_its_repeat_says_that_it_was_given(shop):
    async with serving(shop, settings=Settings(answer_max=100)) as client:
        first = await post(client, "/v1/streams?parts=90")
        assert (first.status_code, first.content.count(b";")) == (200, 90)
        again = await post(client, "/v1/streams?parts=90")
        assert is_problem(again, 409, "answer_not_kept")
        assert (again.json()["state"], again.json()["answered_status"]) == ("succeeded", 200)
        assert (await look(client)).json()["state"] == "succeeded"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-10")
async def test_a_body_too_long_to_compare_is_refused(shop):
    async with serving(shop, settings=Settings(request_max=10)) as client:
        assert is_problem(await post(client), 413, "too_large")
    assert (shop.effects(), shop.keys()) == (0, [])


@pytest.mark.proves("PROVIDER-11")
async def test_accepted_work_is_answered_at_once_and_its_end_is_told_at_its_status_url(
    shop, client
):
    first, again = await post(client, "/v1/jobs"), await post(client, "/v1/jobs")
    said = {"operation_id": "k", "state": "accepted", "status_url": "/operations/by-id/k"}
    assert (first.status_code, first.json()) == (again.status_code, again.json()) == (202, said)
    assert first.headers["location"] == again.headers["location"] == said["status_url"]
    told = (await client.get(said["status_url"])).json()
    assert (told["state"], told["result"]) == ("accepted", None)
    with shop.connection() as db:
        assert db.execute("select key from queue").fetchall() == [("k",)]
        assert shop.store.settle(db, caller="me", key="k", body={"sent": True})
        assert not shop.store.settle(db, caller="me", key="k", body={"sent": False})
    told = (await client.get(said["status_url"])).json()
    assert (told["state"], told["result"]) == ("succeeded", {"sent": True})
    assert (await post(client, "/v1/jobs")).status_code == 202  # the first answer


@pytest.mark.proves("PROVIDER-12")
async def test_a_repeatable_request_is_executed_once_and_told_so(shop, client):
    pair = repeatable()
    upper = {**pair, "Repeatability-Request-ID": pair["Repeatability-Request-ID"].upper()}
    first = await post(client, key=None, **pair)
    again = await post(client, key=None, **upper)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    for each in (first, again):
        assert each.headers["repeatability-result"] == "accepted"
    assert again.headers[REPLAYED] == "true"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-12")
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"Repeatability-First-Sent": ""}, 400),
        ({"Repeatability-First-Sent": "2026-12-01T10:00:00Z"}, 400),
        ({"Repeatability-First-Sent": "Mon, 26 Mar 2019 16:06:51 GMT"}, 400),  # it was a Tuesday
        ({"Repeatability-Request-ID": None}, 400),
        ({"Repeatability-First-Sent": None}, 400),
        ({"Repeatability-First-Sent": "Tue, 26 Mar 2019 16:06:51 GMT"}, 412),
        ({"Repeatability-First-Sent": "Fri, 01 Jan 2100 00:00:00 GMT"}, 412),
        ({"Idempotency-Key": "both"}, 400),
    ],
)
async def test_a_repeatable_request_is_refused_as_the_standard_has_it(
    shop, client, changes, status
):
    said = {name: value for name, value in {**repeatable(), **changes}.items() if value is not None}
    told = await post(client, key=None, **said)
    assert (told.status_code, told.headers["repeatability-result"]) == (status, "rejected")
    assert (shop.effects(), shop.keys()) == (0, [])


@pytest.mark.proves("PROVIDER-12")
async def test_a_repeatable_request_means_what_it_meant_first_and_only_where_keys_are_kept(
    shop, client
):
    pair = repeatable()
    await post(client, key=None, **pair)
    earlier = repeatable(-5)
    for body, said in ((REFUND, earlier), ({"amount": 1}, pair)):
        told = await post(client, key=None, body=body, **said)
        assert (told.status_code, told.headers["repeatability-result"]) == (400, "rejected")
    told = await post(client, "/v1/open", key=None, **pair)
    assert (told.status_code, told.headers["repeatability-result"]) == (501, "rejected")
    assert shop.effects() == 1
    assert (await post(client, "/v1/open", key="k")).status_code == 201  # a key is no promise there


@pytest.mark.proves("PROVIDER-1", "PROVIDER-10")
@pytest.mark.parametrize("path", ["/v1/refunds", "/v1/plain", "/v1/streams?parts=3"])
async def test_that_the_client_left_stops_nothing_and_its_repeat_gets_the_answer(
    shop, client, path
):
    shop.goes_on.clear()
    with pytest.raises(httpx2.ReadTimeout):
        await client.post(path, json=REFUND, headers={"Idempotency-Key": "k"}, timeout=0.3)
    again = asyncio.create_task(post(client, path))
    assert await asyncio.to_thread(shop.entered.acquire, timeout=10)
    shop.goes_on.set()
    told = await again
    assert (told.is_success, told.headers[REPLAYED]) == (True, "true")
    assert "streams" not in path or told.text == "part 0;part 1;part 2;"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-9")
async def test_an_execution_that_is_taken_for_dead_and_lives_commits_nothing(shop):
    async with serving(shop, run_limit_s=0.3) as client:
        shop.goes_on.clear()
        asked = [asyncio.create_task(post(client)) for _ in range(2)]
        for _ in asked:  # the second one has taken over
            assert await asyncio.to_thread(shop.entered.acquire, timeout=10)
        shop.goes_on.set()
        answers = await asyncio.gather(*asked)
        # The one that lost its key is told what holds of it: the other's answer, or to come again.
        assert {each.status_code for each in answers} <= {201, 409}
        assert (await post(client)).json() == {"id": 1}
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-8")
async def test_an_answer_that_comes_after_all_ends_an_unknown(shop):
    async with serving(shop, run_limit_s=0.3) as client:
        shop.goes_on.clear()
        first = asyncio.create_task(post(client, "/v1/plain"))
        assert await asyncio.to_thread(shop.entered.acquire, timeout=10)
        assert is_problem(await post(client, "/v1/plain"), 409, "outcome_unknown")
        assert (await look(client)).json()["state"] == "unknown"
        shop.goes_on.set()
        assert (await first).status_code == 201
        assert (await look(client)).json()["state"] == "succeeded"
        assert (await post(client, "/v1/plain")).headers[REPLAYED] == "true"
    assert shop.effects() == 1


@pytest.mark.proves("PROVIDER-3", "PROVIDER-7")
async def test_a_mounted_application_is_guarded_by_its_own_paths(shop):
    mounted = {path: Mount(path, app=shop.app()) for path in ("/one", "/other")}
    with served(Starlette(routes=list(mounted.values()))) as url:
        async with httpx2.AsyncClient(base_url=url, headers=ME, timeout=20) as client:
            for _ in range(2):
                assert (await post(client, "/one/v1/refunds")).json() == {"id": 1}
            told = await client.get("/one/operations/by-id/k")
            assert told.json()["state"] == "succeeded"
            assert is_problem(await post(client, "/one/v1/refunds", key=None), 400, "key_missing")
            assert is_problem(await post(client, "/other/v1/refunds"), 422, "key_reused")
    assert shop.effects() == 1


def repeatable(seconds: int = 0) -> dict[str, str]:
    """The headers of a repeatable request that was made so many seconds from now."""
    at_ms = int((time.time() + seconds) * 1000)
    return {
        "Repeatability-Request-ID": "112a3a3e-f94c-4f56-b49b-5aab3d97e5b7",
        "Repeatability-First-Sent": fixdate(at_ms),
    }


@asynccontextmanager
async def serving(
    shop: Shop, *, settings: Settings | None = None, **changes: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the shop with other declarations of its routes."""
    with served(shop.app(settings=settings, **changes)) as url:
        async with httpx2.AsyncClient(base_url=url, headers=ME, timeout=20) as found:
            yield found
