"""The network between a remote application and its service fails; nothing is done twice for it."""

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import anyio
import pytest
from tests.clients.conftest import contracts_of
from tests.clients.lossy import Lossy, first
from tests.engine.functions import WRITE, application
from tests.scenarios.fronts import listening
from tests.scenarios.stories import POLL_S, UNKNOWN, WITHIN_S
from tests.service.serving import Serving, staged

from doubtless import Call, Doubtless
from doubtless.core.model import Json, Principal, Role
from doubtless.engine.remote import app as remote
from doubtless.engine.remote import wire as remote_wire
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.errors import (
    NotPermitted,
    OperationNotFound,
    ServiceUnavailable,
    SettingsError,
    StaleVersion,
)
from doubtless.ledger.store import open_ledger
from doubtless.service import auth
from doubtless.testing.provider import ProviderProcess

SLOW = [{"match": {"method": "POST"}, "then": {"action": "delay_then_commit", "delay_s": 0.7}}]
LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]


def plain(provider: ProviderProcess) -> str:
    """Return contracts without webhooks, and so without a secret for them."""
    return contracts_of(provider, {"source.webhook": None, "events": None})


@pytest.fixture(scope="module")
def shared(running_provider, tmp_path_factory):
    with staged(tmp_path_factory.mktemp("shared"), plain(running_provider)) as found:
        yield found


@pytest.fixture
def stage(shared, provider):
    """A service that others used before, with an agent that is new."""
    with open_ledger(shared.shell.ledger) as ledger:
        token = auth.issue(ledger, f"agent-{uuid4().hex}", Role.AGENT).secret
    return replace(shared, tokens={**shared.tokens, "agent": token})


@pytest.fixture
def own_stage(provider, tmp_path):
    with staged(tmp_path, plain(provider)) as found:
        yield found


@pytest.fixture
def refund() -> dict[str, Json]:
    """Arguments for a charge that nobody else refunds."""
    return {"charge": f"ch_{uuid4().hex}", "amount": 500}


@asynccontextmanager
async def through(stage: Any, loses: Any = None, *, role: str = "agent"):
    """Open a remote application behind a proxy that loses answers."""
    lossy = Lossy(stage.serving.port)
    if loses is not None:
        lossy.loses = loses
    async with lossy.serving() as port:
        url = f"http://127.0.0.1:{port}"
        async with Doubtless(url, token=stage.tokens[role]) as app:
            yield app, lossy


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-2")
@pytest.mark.parametrize("said", [True, False], ids=["with an id", "without an id"])
@pytest.mark.parametrize("how", ["rst", "fin", "half", "502", "before"])
async def test_a_lost_answer_of_the_service_makes_no_second_operation(
    stage, provider, how, said, refund
):
    operation_id = uuid4().hex if said else None
    async with through(stage, first(how, times=2)) as (app, lossy):
        told = await app.call("refund", refund, operation_id=operation_id)
        assert told.status == "succeeded"
        assert len(provider.effects()) == 1
        assert len(await app.operations()) == 1
        posts = lossy.posts()
    assert len(posts) == (1 if how == "before" else 3)
    ids = {(each.body.get("operation_id"), each.body.get("request_id")) for each in posts}
    assert len(ids) == 1, "the very same request is repeated"
    if operation_id is None:
        assert not told.already_done
        assert told.operation_id == posts[0].body["request_id"]


@pytest.mark.proves("CLIENT-2")
async def test_a_call_whose_answers_are_all_lost_is_asked_for_by_its_id(
    stage, provider, monkeypatch, refund
):
    monkeypatch.setattr(RemoteDoubtless, "retry_for_s", 0.5)
    async with through(stage, first("rst", times=1000)) as (app, lossy):
        told = await app.call("refund", refund)
        assert told.status == "succeeded"
        assert len(provider.effects()) == 1
        assert len(lossy.posts()) > 1


@pytest.mark.proves("CLIENT-2")
async def test_an_answer_that_does_not_come_is_asked_for(stage, provider, monkeypatch, refund):
    monkeypatch.setattr(remote, "HELD_S", 0.2)
    monkeypatch.setattr(remote, "ANSWER_EXTRA_S", 0.3)
    monkeypatch.setattr(RemoteDoubtless, "retry_for_s", 0.2)
    provider.configure(SLOW)
    async with through(stage, first("silence", times=1000)) as (app, _):
        told = await app.call("refund", refund)
        assert told.status == "succeeded"
        assert len(provider.effects()) == 1


@pytest.mark.proves("CLIENT-1")
async def test_a_long_wait_is_held_by_the_service_for_a_part_and_asked_for_later(
    stage, provider, monkeypatch, refund
):
    monkeypatch.setattr(remote, "HELD_S", 0.1)
    provider.configure(SLOW)
    async with through(stage) as (app, lossy):
        told = await app.call("refund", refund, wait_s=WITHIN_S)
        assert told.status == "succeeded"
        assert [each.body["wait"] for each in lossy.posts()] == ["100ms"]
        assert any(each.method == "GET" for each in lossy.seen)


@pytest.mark.proves("CLIENT-7")
async def test_a_repeat_is_told_what_its_first_answer_would_have_been(stage, provider, refund):
    """The first request joined what was open; that has been settled when it is repeated."""
    provider.configure(LOST)
    async with through(stage) as (app, lossy):
        first_told = await app.call("refund", refund)
        assert first_told.status == UNKNOWN
        lossy.loses = first("rst", times=lossy.told["POST", "/v1/operations"] + 1)
        joined: list[Any] = []
        settled = anyio.Event()

        async def lose_until_settled() -> None:
            await app.wait(first_told.operation_id, timeout=WITHIN_S)
            settled.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose_until_settled)
            lossy.loses = lambda method, path, number: (
                "rst" if method == "POST" and not settled.is_set() else None
            )
            joined.append(await app.call("refund", refund))
        assert joined[0].operation_id == first_told.operation_id
        assert len(lossy.posts()) > 2
        assert len(provider.effects()) == 1
        assert len(await app.operations()) == 1
        request_id = lossy.posts()[-1].body["request_id"]
        assert (await app.outcome(request_id)).operation_id == first_told.operation_id


@pytest.mark.proves("CLIENT-7")
async def test_a_request_that_joined_means_the_same_operation_for_ever(tmp_path):
    acted: list[str] = []
    lose = True
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call) -> str:
            acted.append(call.operation_id)
            if lose:
                raise OSError
            await anyio.lowlevel.checkpoint()
            return "done"

        await app.call("act", {}, operation_id="o1")
        lose = False
        joined = await app.call("act", {}, request_id="q1")
        assert (joined.operation_id, joined.status) == ("o1", UNKNOWN)
        await app.resolve("o1", "done", operator="ops", note="seen")
        repeat = await app.call("act", {}, request_id="q1")
        assert (repeat.operation_id, repeat.already_done) == ("o1", True)
        assert (await app.outcome("q1")).operation_id == "o1"
        fresh = await app.call("act", {}, request_id="q2")
        again = await app.call("act", {}, request_id="q2")
        assert (fresh.operation_id, again.operation_id) == ("q2", "q2")
        assert not again.already_done
        changed = await app.call("act", {}, operation_id="q2")
        assert changed.already_done
    assert acted == ["o1", "q2"]


# --- a service that is away ----------------------------------------------------------------------


@pytest.mark.proves("CLIENT-3")
async def test_a_service_that_is_killed_meanwhile_is_waited_for(own_stage, provider, refund):
    provider.configure(SLOW)
    port = own_stage.serving.port
    async with Doubtless(own_stage.serving.url, token=own_stage.tokens["agent"]) as app:
        outcomes: list[Any] = []

        async def call() -> None:
            outcomes.append(await app.call("refund", refund))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.to_thread.run_sync(lambda: provider.wait_for(lambda it: it.arrivals()))
            await anyio.to_thread.run_sync(own_stage.serving.kill)
            again = Serving(own_stage.shell, "--port", str(port))
        with again:
            last = await app.wait(outcomes[0].operation_id, timeout=WITHIN_S)
    assert outcomes[0].status == UNKNOWN
    assert last.status == "succeeded"
    assert len(provider.effects()) == 1


@pytest.mark.proves("CLIENT-3")
async def test_a_service_that_is_not_there_is_told_in_time_with_what_to_do(monkeypatch, refund):
    monkeypatch.setattr(RemoteDoubtless, "retry_for_s", 0.3)
    async with Lossy(0).serving() as port:
        pass  # nobody listens there any more
    async with Doubtless(f"http://127.0.0.1:{port}", token="dbt_x") as app:
        with anyio.fail_after(5), pytest.raises(ServiceUnavailable) as away:
            await app.call("refund", refund)
        assert away.value.request_id is not None
        assert f"request_id={away.value.request_id!r}" in str(away.value)
        assert "may have been recorded" in str(away.value)
        with pytest.raises(ServiceUnavailable) as away:
            await app.call("refund", refund, operation_id="r1")
        assert away.value.operation_id == "r1"
        with pytest.raises(ServiceUnavailable, match="not reached"):
            await app.outcome("r1")
    with pytest.raises(ServiceUnavailable, match="not open"):
        await app.outcome("r1")


@pytest.mark.proves("CLIENT-3")
async def test_a_service_that_comes_back_is_found_by_the_same_request(stage, provider, refund):
    lossy = Lossy(stage.serving.port)
    async with lossy.serving() as port:
        pass
    async with Doubtless(f"http://127.0.0.1:{port}", token=stage.tokens["agent"]) as app:
        outcomes: list[Any] = []

        async def call() -> None:
            outcomes.append(await app.call("refund", refund))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.sleep(POLL_S)
            async with lossy.serving(port):
                while not outcomes:  # noqa: ASYNC110
                    await anyio.sleep(POLL_S)
    assert outcomes[0].status == "succeeded"
    assert len(provider.effects()) == 1


# --- decisions -----------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-2")
async def test_a_decision_whose_answer_is_lost_is_told_so_and_not_repeated(
    own_stage,
):
    async with through(own_stage) as (agent, _):
        await agent.call("approved", {"charge": "ch_1"}, operation_id="a1")
    async with through(own_stage, first("rst"), role="operator") as (ops, lossy):
        with pytest.raises(ServiceUnavailable):
            await ops.deny("a1", operator="night-shift", note="no", payload_hash=None)
        assert [each.status for each in lossy.posts("/v1/operations/a1/deny")] == [200]
        assert (await ops.outcome("a1")).status == "rejected_by_policy"


@pytest.mark.proves("CLIENT-1")
async def test_a_decision_on_no_version_is_taken_although_a_look_up_came_in_between(
    own_stage, provider, refund
):
    provider.configure(
        [*LOST, {"match": {"method": "GET"}, "then": {"action": "status", "status": 500}}]
    )
    async with through(own_stage) as (agent, _):
        await agent.call("refund", refund, operation_id="r1")
    async with through(own_stage, role="operator") as (ops, lossy):
        real, asked = ops.outcome, 0

        async def outdated(operation_id: str) -> Any:
            nonlocal asked
            asked += 1
            found = await real(operation_id)
            return replace(found, version=found.version - 1) if asked == 1 else found

        ops.outcome = outdated
        told = await ops.resolve("r1", "done", operator="night-shift", note="seen")
        assert told.status == "succeeded"
        assert asked > 1
        with pytest.raises(StaleVersion):
            await ops.resolve("r1", "done", operator="x", note="x", version=1)
        assert lossy.posts("/v1/operations/r1/resolve")[0].status == 409


@pytest.mark.proves("CLIENT-2")
async def test_a_withdrawal_whose_answer_is_lost_is_repeated_and_told(own_stage):
    async with through(own_stage, first("rst", times=0)) as (app, lossy):
        await app.call("approved", {"charge": "ch_1"}, operation_id="a1")
        lossy.loses = first("rst")
        told = await app.cancel("a1")
        assert told.state == "cancelled"
        assert len(lossy.posts("/v1/operations/a1/cancel")) == 2


# --- settlements ---------------------------------------------------------------------------------


@pytest.mark.proves("STREAM-3")
async def test_a_remote_subscriber_goes_on_where_it_was_over_lost_answers(own_stage, monkeypatch):
    ids: list[str] = []

    def told(settlement) -> None:
        ids.append(settlement.outcome.operation_id)

    def every_third(method: str, path: str, number: int) -> str | None:
        return "rst" if path != "/v1/operations" and number % 3 == 0 else None

    async def calls(*numbers: int) -> None:
        async with through(own_stage, every_third) as (app, _):
            app.on_settled(told, name="billing")
            for number in numbers:
                arguments = {"charge": f"ch_{number}", "amount": 5}
                await app.call("refund", arguments, operation_id=f"r{number}")
            with anyio.fail_after(WITHIN_S):
                while f"r{numbers[-1]}" not in ids:  # noqa: ASYNC110
                    await anyio.sleep(POLL_S)
            await noted(app)

    async def noted(app: Doubtless) -> None:
        last = (await app.settlements(limit=200)).after
        with anyio.fail_after(WITHIN_S):
            while await app.position("billing", holder="").read() < last:  # noqa: ASYNC110
                await anyio.sleep(POLL_S)

    await calls(1, 2, 3)
    await calls(4, 5)
    assert sorted(set(ids)) == ["r1", "r2", "r3", "r4", "r5"]
    assert ids == ["r1", "r2", "r3", "r4", "r5"]


# --- what a remote application is not ------------------------------------------------------------


@pytest.mark.proves("CLIENT-4")
async def test_a_token_that_is_none_or_may_not_is_not_permitted(stage):
    async with Doubtless(stage.serving.url, token="dbt_nobody") as app:
        with pytest.raises(NotPermitted, match="live token"):
            await app.outcome("r1")
    async with Doubtless(stage.serving.url, token=stage.tokens["agent"]) as app:
        with pytest.raises(OperationNotFound):
            await app.outcome("r1")
        with pytest.raises(NotPermitted, match="needs the role"):
            await app.timeline("r1")


@pytest.mark.proves("CLIENT-6")
@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("http://127.0.0.1:1", {}, "doubtless token create"),
        ("http://127.0.0.1:1", {"token": "a b"}, "no token has"),
        ("https://", {"token": "x"}, "no address of a service"),
        ("http://user@127.0.0.1:1", {"token": "x"}, "no address of a service"),
        (
            "HTTP://127.0.0.1:1",
            {"token": "x", "contracts": "c.toml"},
            "contracts: with the address",
        ),
        (
            "http://127.0.0.1:1",
            {"token": "x", "principal": "a", "worker": True},
            "principal, worker",
        ),
    ],
)
def test_what_does_not_fit_a_service_is_refused(url, options, why):
    with pytest.raises(SettingsError, match=why):
        Doubtless(url, **options)


@pytest.mark.proves("CLIENT-6")
async def test_what_needs_the_ledger_says_why_it_can_t_be_done(stage, refund):
    async with Doubtless(stage.serving.url, token=stage.tokens["agent"]) as app:
        with pytest.raises(SettingsError, match="runs where the ledger is"):
            app.tool(effect="write")
        with pytest.raises(SettingsError, match="needs the ledger itself"):
            _ = app.ledger
        with pytest.raises(SettingsError, match="needs the ledger itself"):
            app.transaction()
        with pytest.raises(SettingsError, match="needs the ledger itself"):
            await app.prepare("refund", refund)
        with pytest.raises(SettingsError, match="/metrics"):
            await app.metrics()
        with pytest.raises(SettingsError, match="token says who acts"):
            app.actor(Principal(name="other", role=Role.AGENT))
        with pytest.raises(SettingsError, match="webhooks"):
            app.check_webhooks()
        with pytest.raises(SettingsError, match="SIGTERM"):
            await app.drain(grace_s=1)
        assert isinstance(app, Doubtless)


@pytest.mark.proves("CLIENT-6")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example\r\n", "leads on to"),
        (b"HTTP/1.1 200 OK\r\n", "no doubtless service"),
    ],
)
async def test_what_is_no_service_is_told_so_and_gets_the_token_once(answer, why):
    heads: list[bytes] = []

    async def serve(reader, writer) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()

    async with listening(serve) as port, Doubtless(f"http://127.0.0.1:{port}", token="t") as app:
        with pytest.raises(SettingsError, match=why):
            await app.outcome("r1")
    assert len(heads) == 1


@pytest.mark.proves("CLIENT-6")
def test_a_token_that_crosses_the_network_in_the_clear_is_warned_of(caplog):
    remote_wire.checked_url("http://127.0.0.1:8787")
    remote_wire.checked_url("https://doubtless.internal")
    assert caplog.records == []
    assert remote_wire.checked_url("http://doubtless.internal/") == "http://doubtless.internal"
    assert "in the clear" in caplog.text
