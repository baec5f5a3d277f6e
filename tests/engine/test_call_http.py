"""What a function sends through `call.http`: seen by the provider, and counted by us."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.engine.functions import UNKNOWN, WRITE, application, comes_true, ends

from doubtless import Call, Doubtless, Key
from doubtless.core.contract import SourceRules
from doubtless.testing.provider import Provider

POST = {"method": "POST"}
ORDERS = "/v1/orders"
ERRORS = (httpx2.TransportError,)
ONE_TRY = {"retry": {"attempts": 1, "backoff": "20ms"}}


def shop(provider: Provider, **changes: Any) -> dict[str, Any]:
    """Return the keys of a write at the provider."""
    source = SourceRules(name="shop", base_url=provider.url)
    return {**WRITE, **ONE_TRY, "source": source, **changes}


def declare(app: Doubtless, provider: Provider, **changes: Any) -> None:
    """Declare `act`, which orders once and says what it was answered."""

    @app.tool(**shop(provider, **changes))
    async def act(call: Call, item: str) -> int:
        body = {"item": item, "metadata": {"operation": call.ref}}
        return (await call.http.post(ORDERS, json=body)).status_code


async def ordered(app: Doubtless, **options: Any):
    return await app.call("act", {"item": "tea"}, operation_id="o1", **options)


@pytest.mark.proves("TOOL-11")
async def test_the_key_and_the_correlation_id_arrive_with_the_request(tmp_path):
    async with Provider() as provider, application(tmp_path) as app:
        declare(app, provider, idempotency=Key(ttl="24h"))
        told = await ordered(app, correlation_id="run-7")
        (sent,) = provider.arrivals()
        (effect,) = provider.effects()
    assert (told.status, told.result) == ("succeeded", 201)
    assert (sent.key, sent.correlation_id) == (told.idempotency_key, "run-7")
    assert effect.operation == told.ref


@pytest.mark.proves("TOOL-11")
@pytest.mark.parametrize(
    ("changes", "header", "correlated"),
    [
        ({}, None, True),
        ({"idempotency": Key(header="X-Once", ttl="24h")}, "x-once", True),
        ({"idempotency": Key(ttl="24h"), "correlation": False}, "idempotency-key", False),
    ],
    ids=["no key", "a header of its own", "no correlation"],
)
async def test_headers_are_those_that_the_contract_declares(tmp_path, changes, header, correlated):
    async with Provider() as provider, application(tmp_path) as app:
        declare(app, provider, **changes)
        told = await ordered(app)
        (sent,) = provider.arrivals()
    if header is None:
        assert (told.idempotency_key, sent.key) == (None, None)
    else:
        assert sent.headers[header] == told.idempotency_key
    assert sent.correlation_id == (f"{told.ref}-1" if correlated else None)


@pytest.mark.proves("TOOL-11")
@pytest.mark.parametrize(
    ("then", "effects"),
    [
        ({"action": "commit_then_rst"}, 1),
        ({"action": "commit_then_fin"}, 1),
        ({"action": "drop_before_commit"}, 0),
    ],
    ids=lambda value: value["action"] if isinstance(value, dict) else str(value),
)
async def test_a_lost_answer_is_unknown_and_was_sent_once(tmp_path, then, effects):
    async with Provider([{"match": POST, "then": then}]) as provider:
        async with application(tmp_path) as app:
            declare(app, provider, not_sent=ERRORS)
            told = await ordered(app)
        assert len(provider.arrivals()) == 1
        assert len(provider.effects()) == effects
    assert (told.status, told.attempts) == (UNKNOWN, 1)
    assert "call.http had sent something" in str(told.transport_observation)


@pytest.mark.proves("TOOL-11")
@pytest.mark.parametrize("status", [301, 303, 307, 308])
@pytest.mark.parametrize("follow", [True, False])
async def test_a_redirect_never_becomes_a_second_request(tmp_path, status, follow):
    moved = {"action": "status", "status": status, "headers": {"location": "/v1/elsewhere"}}
    async with Provider([{"match": POST, "then": moved}]) as provider:
        async with application(tmp_path) as app:

            @app.tool(**shop(provider, not_sent=ERRORS))
            async def act(call: Call, item: str) -> int:
                found = await call.http.post(ORDERS, json={}, follow_redirects=follow)
                return found.status_code

            told = await ordered(app)
        assert [sent.path for sent in provider.arrivals()] == [ORDERS]
    if follow:
        assert told.status == UNKNOWN
    else:
        assert (told.status, told.result) == ("succeeded", status)


@pytest.mark.proves("TOOL-2")
async def test_a_declared_exception_is_believed_where_the_connection_was_refused(tmp_path):
    async with Provider() as provider, application(tmp_path) as app:
        declare(app, provider, not_sent=ERRORS, retry={"attempts": 3, "backoff": "20ms"})
        await provider.close_for(None)
        first = await ordered(app, wait_s=0)
        before = await ends(app, "prepared")
        assert before.observation is not None
        assert before.observation["class"] == "not_sent"
        provider.reopen()
        told = await ends(app, "succeeded")
        assert len(provider.effects()) == 1
        assert [sent.key for sent in provider.arrivals()] == [None]
    assert told.attempts > 1
    assert told.ref == first.ref


@pytest.mark.proves("TOOL-2")
async def test_one_request_that_left_takes_the_proof_from_all_of_them(tmp_path):
    async with Provider() as provider, application(tmp_path) as app:

        @app.tool(**shop(provider, not_sent=ERRORS))
        async def act(call: Call, item: str) -> None:
            await call.http.get(ORDERS)
            await call.http.post("http://localhost:1/", json={})  # another origin: it is halted

        told = await ordered(app)
        assert [sent.method for sent in provider.arrivals()] == ["GET"]
    assert told.status == UNKNOWN


@pytest.mark.proves("TOOL-2")
@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "https://127.0.0.1/", "http://127.0.0.1:1/"], ids=range(3)
)
async def test_what_would_go_to_another_origin_is_halted_and_provably_not_sent(tmp_path, url):
    async with Provider() as provider, application(tmp_path) as app:

        @app.tool(**shop(provider, not_sent=ERRORS))
        async def act(call: Call, item: str) -> None:
            await call.http.post(url, json={})

        told = await ordered(app)
        assert provider.arrivals() == []
    assert (told.status, told.error) == ("failed_safe_to_retry", {"code": "not_sent"})


@pytest.mark.proves("TOOL-2")
async def test_a_declared_exception_is_believed_where_nothing_was_tried(tmp_path):
    async with Provider() as provider, application(tmp_path) as app:

        @app.tool(**shop(provider, not_sent=(KeyError,)))
        async def act(call: Call, item: str) -> None:
            _ = call.http
            raise KeyError(item)

        told = await ordered(app)
        assert provider.arrivals() == []
    assert told.status == "failed_safe_to_retry"
    assert "tea" not in str(told.to_json())


def used_before(call: Call) -> None:
    _ = call.http


def not_used_before(call: Call) -> None:
    """Leave the client to be made by whoever uses it first."""


@pytest.mark.proves("TOOL-11")
@pytest.mark.parametrize(
    "prepare",
    [
        used_before,
        not_used_before,
    ],
    ids=["used before", "not used before"],
)
async def test_what_a_function_leaves_behind_sends_nothing_after_its_end(
    tmp_path, prepare: Callable[[Call], None]
):
    go, left = asyncio.Event(), []

    async def later(call: Call) -> None:
        await go.wait()
        await call.http.post(ORDERS, json={"metadata": {"operation": call.ref}})

    async with Provider() as provider, application(tmp_path) as app:

        @app.tool(**shop(provider))
        async def act(call: Call, item: str) -> None:
            prepare(call)
            left.append(asyncio.create_task(later(call)))

        assert (await ordered(app)).status == "succeeded"
        go.set()
        await comes_true(left[0].done)
        assert left[0].exception() is not None
        assert provider.arrivals() == []
