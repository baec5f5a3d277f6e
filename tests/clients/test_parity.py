"""Local, blocking, remote: the same scenarios are told the same."""

import re
from typing import Any

import anyio
import pytest
from tests.clients.conftest import KINDS, OPERATOR, contracts_of, opened
from tests.scenarios.stories import POLL_S, WITHIN_S

from doubtless.core.model import State
from doubtless.errors import (
    BadArguments,
    BadOperationId,
    DecisionRefused,
    EventNotFound,
    GrantRefused,
    OperationNotFound,
    PayloadNotShown,
    SettingsError,
    StaleVersion,
    UnknownSource,
    UnknownTool,
)

LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
DROPPED = [{"match": {"method": "POST"}, "then": {"action": "drop_before_commit"}, "times": 1}]
REFUSED = [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]
SLOW = [{"match": {"method": "POST"}, "then": {"action": "delay_then_commit", "delay_s": 1.5}}]
PATIENT = {"timeout": "20s"}  # for what is slow: a busy machine must not make it unknown


async def call(app: Any, operation_id: str | None = "r1", **options: Any) -> Any:
    arguments = {"charge": "ch_1", "amount": 500, **options.pop("arguments", {})}
    return await app.call("refund", arguments, operation_id=operation_id, **options)


async def until(app: Any, state: str, operation_id: str = "r1") -> Any:
    with anyio.fail_after(WITHIN_S):
        while (found := await app.outcome(operation_id)).state != state:  # noqa: ASYNC110
            await anyio.sleep(POLL_S)
    return found


# --- the scenarios: each returns all that was told, in order -------------------------------------


async def succeeds(hands, provider) -> list[Any]:
    first = await call(hands.agent)
    again = await call(hands.agent)
    return [first, again, await hands.agent.outcome("r1")]


async def is_lost_and_found(hands, provider) -> list[Any]:
    provider.configure(LOST)
    first = await call(hands.agent)
    return [first, await hands.agent.wait("r1", timeout=WITHIN_S)]


async def is_proven_absent_and_repeated(hands, provider) -> list[Any]:
    provider.configure(DROPPED)
    await call(hands.agent)
    absent = await hands.agent.wait("r1", timeout=WITHIN_S)
    return [absent, await call(hands.agent)]


async def is_refused_by_the_provider(hands, provider) -> list[Any]:
    provider.configure(REFUSED)
    return [await call(hands.agent), await call(hands.agent)]


async def is_refused_by_policy(hands, provider) -> list[Any]:
    provider.configure(LOST)
    await call(hands.agent)
    variant = await call(hands.agent, "r2", arguments={"amount": 501})
    mismatch = await call(hands.agent, "r1", arguments={"amount": 501})
    return [variant, mismatch]


async def joins_without_an_id(hands, provider) -> list[Any]:
    provider.configure(SLOW)
    first = await call(hands.agent, "r1", wait_s=0)
    joined = await call(hands.agent, None, wait_s=WITHIN_S)
    return [first, joined]


async def waits_for_approval(hands, provider) -> list[Any]:
    waits = await hands.agent.call("approved", {"charge": "ch_5"}, operation_id="a1")
    said = {"operator": OPERATOR, "note": "as agreed"}
    await hands.operator.approve("a1", payload_hash=waits.payload_hash, **said)
    done = await until(hands.agent, "succeeded", "a1")
    await hands.agent.call("approved", {"charge": "ch_6"}, operation_id="a2")
    denied = await hands.operator.deny("a2", payload_hash=None, **said)
    return [waits, done, denied]


async def is_withdrawn(hands, provider) -> list[Any]:
    await hands.agent.call("approved", {"charge": "ch_7"}, operation_id="a1")
    return [await hands.agent.cancel("a1")]


async def is_granted_for_a_session(hands, provider) -> list[Any]:
    said = {"operator": OPERATOR, "note": "for this evening"}
    granted = await hands.operator.grant(
        "s1", tool="approved", principal="agent-1", expires_s=60, **said
    )
    done = await hands.agent.call(
        "approved", {"charge": "ch_8"}, operation_id="a1", session_id="s1"
    )
    taken = await hands.operator.revoke_grant("s1", granted.id, operator=OPERATOR)
    (found,) = await hands.operator.grants("s1")
    assert (found.id, found.revoked_by) == (granted.id, OPERATOR)
    assert (taken.tool, taken.principal) == ("approved", "agent-1")
    return [done]


async def comes_after_another(hands, provider) -> list[Any]:
    await call(hands.agent, "r1", correlation_id="run-1")
    second = await call(
        hands.agent, "r2", arguments={"charge": "ch_2"}, after=["r1"], correlation_id="run-2"
    )
    return [second]


SCENARIOS = (
    succeeds,
    is_lost_and_found,
    is_proven_absent_and_repeated,
    is_refused_by_the_provider,
    is_refused_by_policy,
    joins_without_an_id,
    waits_for_approval,
    is_withdrawn,
    is_granted_for_a_session,
    comes_after_another,
)

ONCE = KINDS[:3]  # the fourth is the third behind the second
TIMES = ("sent_at", "observed_at", "created_at", "updated_at")
OURS = ("ref", "idempotency_key", "correlation_id", "provider_operation_id")


def alike(outcome: Any) -> dict[str, Any]:
    """Return an outcome without what differs from ledger to ledger and from run to run."""
    told = outcome.to_json()
    for name in TIMES + OURS:
        told[name] = told[name] is not None
    told["version"] = told["version"] > 0
    found = repr(told).replace(outcome.ref or "no ref", "(the reference)")
    found = re.sub(r"'\d{4}-\d\d-\d\dT[^']*'", "'(instant)'", found)
    found = re.sub(r"\b(refund|re|rf)_\w+", "(the provider's id)", found)
    found = re.sub(r"'created': [0-9.]+", "'created': (instant)", found)
    found = re.sub(r"127\.0\.0\.1:\d+", "(the provider)", found)
    if outcome.state in ("executing", "prepared", "reconciling"):
        found = re.sub(r"'next_check_at': [^,]*", "'next_check_at': …", found)
    return {"told": re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "(instant)", found)}


@pytest.mark.proves("CLIENT-1")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_every_application_is_told_the_same_outcomes(provider, tmp_path, scenario):
    told = {}
    for kind in ONCE:
        provider.configure({})
        provider.reset()
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        changes = PATIENT if scenario is joins_without_an_id else None
        async with opened(kind, folder, contracts_of(provider, changes)) as hands:
            outcomes = await scenario(hands, provider)
        told[kind] = [alike(outcome) for outcome in outcomes]
        told[kind].append({"effects": len(provider.effects())})
    for kind in ONCE[1:]:
        assert told[kind] == told["local"], kind


# --- what is read --------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-1")
async def test_what_was_done_is_read_by_every_application(hands, provider):
    await call(hands.agent, "r1", session_id="s1")
    await call(hands.agent, "r2", arguments={"charge": "ch_2"})
    provider.configure(LOST)
    await hands.agent.call("approved", {"charge": "ch_3"}, operation_id="a1", session_id="s1")
    record = await hands.agent.session("s1")
    assert (record.session_id, record.principal) == ("s1", "agent-1")
    assert [each.operation_id for each in record.unresolved] == ["a1"]
    assert [each.operation_id for each in record.recent] == ["r1"]
    assert [each.operation_id for each in (await hands.agent.session()).recent] == ["r2"]
    told = await hands.operator.timeline("r1")
    assert [entry["kind"] for entry in told][:2] == ["prepared", "transition"]
    assert told[0]["principal"] == "agent-1"
    found = await hands.operator.operations()
    assert [each.operation_id for each in found] == ["a1", "r2", "r1"]
    found = await hands.operator.operations(states=[State.SUCCEEDED], limit=1)
    assert [each.operation_id for each in found] == ["r2"]
    open_ones = [state for state in State if not state.ends]
    found = await hands.operator.operations(states=open_ones, tool="approved")
    assert [each.operation_id for each in found] == ["a1"]
    ends = [State.SUCCEEDED, State.AWAITING_APPROVAL]
    found = await hands.operator.operations(states=ends, session_id="s1")
    assert sorted(each.operation_id for each in found) == ["a1", "r1"]


@pytest.mark.proves("CLIENT-1")
async def test_settlements_are_told_to_every_application(hands):
    ids: list[tuple[int, str]] = []

    async def told(settlement) -> None:
        ids.append((settlement.id, settlement.outcome.operation_id))

    hands.agent.on_settled(told, name="billing")
    for number in (1, 2, 3):
        await call(hands.agent, f"r{number}", arguments={"charge": f"ch_{number}"})
    with anyio.fail_after(WITHIN_S):
        while len(ids) < 3:  # noqa: ASYNC110
            await anyio.sleep(POLL_S)
    page = await hands.agent.settlements(limit=2)
    rest = await hands.agent.settlements(page.after)
    found = [*page.settlements, *rest.settlements]
    assert ids == [(each.id, each.outcome.operation_id) for each in found]
    assert [each.outcome.operation_id for each in found] == ["r1", "r2", "r3"]
    assert all(each.state == "succeeded" and each.version == 3 for each in found)


@pytest.mark.proves("CLIENT-1")
async def test_the_inbox_is_looked_after_by_every_application(hands, provider):
    app, worker = hands.operator, hands.worker
    event = {
        "id": "evt_1",
        "type": "refund.created",
        "status": "succeeded",
        "metadata": {"operation": "nobody"},
    }
    taken = await worker.ingest("payments", event)
    assert (taken.event_id, taken.new, taken.reason) == ("evt_1", True, "no_operation")
    assert not (await worker.ingest("payments", event)).new
    (found,) = (await app.events(matched=False)).events
    assert (found.event_id, found.matched) == ("evt_1", False)
    await call(hands.agent)
    told = await app.match("evt_1", "r1", operator=OPERATOR, note="the same charge")
    assert told.status == "succeeded"
    assert (await app.events(matched=False)).events == ()
    with pytest.raises(UnknownSource):
        await worker.ingest("nobody", event)
    with pytest.raises(EventNotFound):
        await app.match("evt_9", "r1", operator=OPERATOR, note="x")


# --- what is wrong -------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-4")
async def test_what_is_wrong_raises_the_same_everywhere(hands, provider):
    app = hands.agent
    with pytest.raises(UnknownTool) as unknown:
        await app.call("nothing", {})
    assert (unknown.value.tool, "approved, refund" in str(unknown.value)) == ("nothing", True)
    with pytest.raises(BadArguments) as bad:
        await app.call("refund", {"charge": "ch_1", "amount": "5"})
    assert (bad.value.tool, bad.value.where) == ("refund", "amount")
    assert str(bad.value).startswith("arguments of refund: amount: ")
    for value in (float("nan"), "\ud800", 2**60):
        with pytest.raises(BadArguments):
            await app.call("refund", {"charge": "ch_1", "amount": value})
    for wrong in ("a b", "x" * 129, ""):
        with pytest.raises(BadOperationId) as bad_id:
            await call(app, wrong)
        assert bad_id.value.operation_id == wrong
    for missing in ("nobody", "a-b"):
        with pytest.raises(OperationNotFound) as nothing:
            await app.outcome(missing)
        assert nothing.value.operation_id == missing
        for ask in (app.cancel(missing), app.wait(missing, timeout=0)):
            with pytest.raises(OperationNotFound):
                await ask
    assert provider.effects() == []


@pytest.mark.proves("CLIENT-4")
async def test_decisions_that_can_t_be_taken_raise_the_same_everywhere(hands):
    app, ops = hands.agent, hands.operator
    said = {"operator": OPERATOR, "note": "seen"}
    await call(app)
    with pytest.raises(DecisionRefused, match=r"^r1: ") as refused:
        await ops.resolve("r1", "done", **said)
    assert refused.value.operation_id == "r1"
    assert refused.value.why.startswith("done is not possible while it is succeeded")
    with pytest.raises(StaleVersion) as stale:
        await ops.resolve("r1", "done", version=1, **said)
    assert (stale.value.expected, stale.value.version) == (1, 3)
    with pytest.raises(SettingsError, match="no decision 'perhaps'"):
        await ops.resolve("r1", "perhaps", **said)
    with pytest.raises(DecisionRefused):
        await app.cancel("r1")
    waits = await app.call("approved", {"charge": "ch_5"}, operation_id="a1")
    with pytest.raises(PayloadNotShown):
        await ops.approve("a1", payload_hash="sha256:" + "0" * 64, **said)
    await app.cancel("a1")
    with pytest.raises(DecisionRefused):
        await app.cancel("a1")
    with pytest.raises(DecisionRefused):
        await ops.approve("a1", payload_hash=waits.payload_hash, **said)
    with pytest.raises(GrantRefused):
        await ops.grant("s1", tool="refund", principal="agent-1", expires_s=60, **said)


@pytest.mark.proves("CLIENT-1")
async def test_a_decision_is_carried_out_by_every_application(hands, provider):
    provider.configure(
        [
            {"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1},
            {"match": {"method": "GET"}, "then": {"action": "status", "status": 500}},
        ]
    )
    await call(hands.agent)
    await until(hands.agent, "unknown")
    told = await hands.operator.resolve("r1", "done", operator=OPERATOR, note="seen there")
    assert (told.status, told.last_confirmed["source"]) == ("succeeded", "operator")
    told = await hands.operator.timeline("r1")
    assert {entry["principal"] for entry in told if entry["role"] == "operator"} == {OPERATOR}
