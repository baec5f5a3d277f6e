"""Effects inside the steps of DBOS workflows, on a real PostgreSQL."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from dbos import DBOS, DBOSClient, DBOSConfig
from tests.integrations import examples
from tests.integrations.children import eventually
from tests.integrations.conftest import LONG
from tests.scenarios.contracts import Changes

from doubtless import BlockingDoubtless, Doubtless
from doubtless.errors import NoIdentity, SettingsError, WontBeDone
from doubtless.integrations import carrying
from doubtless.integrations.dbos import StepLeft, Steps, may_retry

OURS, PLAIN = 500, 700  # as `tests.integrations.dbos_child` has them

NEVER_ANSWERED = [
    {
        "match": {"method": "POST"},
        "then": {"action": "commit_then_delay", "delay_s": 20},
        "times": 2,
    }
]


@pytest.fixture(scope="module")
def database(postgres) -> str:
    """A database of DBOS that does not exist yet."""
    base: str = postgres.base
    return base.replace("/postgres?", f"/dbos_{os.getpid()}?")


@pytest.mark.proves("DBOS-1")
@pytest.mark.timeout(150)  # a process imports the engine, and two of it run
def test_a_kill_in_the_middle_of_a_step_leads_to_one_effect_and_without_us_to_two(
    shop, database, nursery
):
    shop.declare({**LONG, "on_absent": "resend"})
    shop.provider.configure(NEVER_ANSWERED)
    options: dict[str, Any] = {
        "database": database,
        "ledger": shop.ledger,
        "contracts": str(shop.contracts),
        "provider": shop.provider.url,
    }
    first = nursery.bear("dbos_child", begins=True, **options)
    eventually(lambda: shop.effects(OURS) == shop.effects(PLAIN) == 1)
    first.kill()
    second = nursery.bear("dbos_child", begins=False, **options)
    client = DBOSClient(system_database_url=database)
    try:
        results: dict[str, Any] = {
            name: client.retrieve_workflow(name).get_result(polling_interval_sec=0.1)
            for name in ("ours", "plain")
        }
    finally:
        client.destroy()
        second.kill()
    assert results["ours"]["amount"] == OURS
    assert results["plain"]["amount"] == PLAIN
    assert (shop.effects(OURS), shop.effects(PLAIN)) == (1, 2)


# --- in this process -----------------------------------------------------------------------------

LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
DROPPED = [{"match": {"method": "POST"}, "then": {"action": "drop_before_commit"}, "times": 1}]
NOBODY_KNOWS: Changes = {"effect": "write", "lookup": None, "on_absent": None}
at: dict[str, Any] = {}
ran: Counter[str] = Counter()
REFUND = {"charge": "ch_1", "amount": OURS}


@DBOS.step(retries_allowed=True, interval_seconds=0.05, max_attempts=3, should_retry=may_retry)
def refund(arguments: dict[str, Any], **ids: str) -> Any:
    ran["refund"] += 1
    return at["steps"].call("refund", arguments, **ids)


@DBOS.step(retries_allowed=True, interval_seconds=0.05, max_attempts=3, should_retry=may_retry)
async def refund_async(arguments: dict[str, Any], **ids: str) -> Any:
    ran["refund_async"] += 1
    return await at["steps"].call_async("refund", arguments, **ids)


@DBOS.step(retries_allowed=True, interval_seconds=0.05, max_attempts=3)
def refund_plain(amount: int) -> Any:
    answer = httpx2.post(
        f"{at['url']}/v1/refunds", json={"charge": "ch_2", "amount": amount}, timeout=5
    )
    return answer.json()


@DBOS.workflow()
def paying(**ids: str) -> Any:
    return refund(at["arguments"], **ids)


@DBOS.workflow()
async def paying_async(**ids: str) -> Any:
    return await refund_async(at["arguments"], **ids)


@DBOS.workflow()
def paying_plainly(amount: int) -> Any:
    return refund_plain(amount)


@DBOS.workflow()
def parent() -> Any:
    return DBOS.start_workflow(paying).get_result(polling_interval_sec=0.05)


@DBOS.workflow()
def paying_twice() -> Any:
    return [refund(at["arguments"])["id"], refund(at["arguments"])["id"]]


@pytest.fixture(scope="module")
def engine(database) -> Iterator[None]:
    config: DBOSConfig = {
        "name": "shop",
        "system_database_url": database,
        "log_level": "CRITICAL",
        "executor_id": "test",
        "notification_listener_polling_interval_sec": 0.05,
    }
    DBOS(config=config)
    DBOS.launch()
    yield
    DBOS.destroy()


@pytest.fixture
def app(engine, shop, opened) -> BlockingDoubtless:
    """A blocking application, with the steps on it."""
    found: BlockingDoubtless = opened()
    at.update(steps=Steps(found), arguments=REFUND, url=shop.provider.url)
    ran.clear()
    return found


def status_of(handle: Any) -> str:
    return str(handle.get_status().status)


def operation_of(app: BlockingDoubtless) -> Any:
    """Return the only operation that there is."""
    (found,) = eventually(app.operations)
    return found


def result(handle: Any) -> Any:
    return handle.get_result(polling_interval_sec=0.05)


@pytest.mark.proves("DBOS-2")
@pytest.mark.parametrize("workflow", [paying, paying_async])
def test_an_unknown_stops_the_retry_of_a_step_and_the_step_ends_with_the_result(
    app, shop, workflow
):
    shop.provider.configure(LOST)
    told = result(DBOS.start_workflow(workflow))
    assert told["amount"] == OURS
    assert ran.total() == 1
    assert shop.effects(OURS) == 1


@pytest.mark.proves("DBOS-2")
def test_without_us_the_retry_of_a_step_acts_twice(app, shop):
    shop.provider.configure(LOST)
    result(DBOS.start_workflow(paying_plainly, PLAIN))
    assert shop.effects(PLAIN) == 2


@pytest.mark.proves("DBOS-2")
async def test_an_asynchronous_application_serves_steps_of_both_kinds(engine, shop):
    """Workflows run on threads, and on an event loop that isn't the application's."""
    async with Doubtless(shop.ledger, contracts=shop.contracts) as asynchronous:
        at.update(steps=Steps(asynchronous), arguments=REFUND)
        shop.provider.configure(LOST)
        told = await asyncio.to_thread(lambda: result(DBOS.start_workflow(paying)))
        at["arguments"] = {"charge": "ch_2", "amount": PLAIN}
        also = await (await DBOS.start_workflow_async(paying_async)).get_result()
    assert (told["amount"], also["amount"]) == (OURS, PLAIN)
    assert len(shop.provider.effects()) == 2
    with pytest.raises(SettingsError, match="belongs to an event loop"):
        await asyncio.to_thread(Steps, asynchronous)


@pytest.mark.proves("DBOS-3")
@pytest.mark.parametrize("workflow", [paying, paying_async])
def test_a_step_waits_for_the_person_who_decides_and_its_workflow_with_it(
    app, shop, opened, workflow
):
    shop.declare(NOBODY_KNOWS)
    app = opened()
    at["steps"] = Steps(app)
    shop.provider.configure(LOST)
    handle = DBOS.start_workflow(workflow)
    found = eventually(lambda: [x for x in app.operations() if x.state == "manual_review"])[0]
    assert status_of(handle) == "PENDING"
    app.resolve(found.operation_id, "done", operator="night-shift", note="seen")
    result(handle)
    assert status_of(handle) == "SUCCESS"
    assert ran.total() == 1
    assert shop.effects(OURS) == 1


@pytest.mark.proves("DBOS-4")
def test_a_fork_finds_the_operation_and_without_us_acts_again(app, shop):
    first = DBOS.start_workflow(paying)
    told = result(first)
    fork = DBOS.fork_workflow(first.workflow_id, 1)
    assert result(fork) == told
    assert result(DBOS.fork_workflow(fork.workflow_id, 1)) == told
    assert ran["refund"] == 3
    assert shop.effects(OURS) == 1

    plain = DBOS.start_workflow(paying_plainly, PLAIN)
    result(plain)
    result(DBOS.fork_workflow(plain.workflow_id, 1))
    assert shop.effects(PLAIN) == 2


@pytest.mark.proves("DBOS-4")
def test_children_that_a_fork_starts_anew_and_rewound_workflows_find_the_operation(app, shop):
    first = DBOS.start_workflow(parent)
    told = result(first)
    fork = DBOS.fork_workflow(first.workflow_id, 1)
    assert result(fork) == told
    child = DBOS.list_workflows(parent_workflow_id=fork.workflow_id)[0]
    assert result(DBOS.fork_workflow(child.workflow_id, 1)) == told
    assert result(DBOS.rewind_workflow(child.workflow_id)) == told
    assert ran["refund"] == 4
    assert shop.effects(OURS) == 1


@pytest.mark.proves("DBOS-4")
def test_a_repair_that_changes_the_arguments_is_refused_and_an_id_of_the_intent_is_kept(app, shop):
    first = DBOS.start_workflow(paying)
    result(first)
    at["arguments"] = {"charge": "ch_1", "amount": PLAIN}
    fork = DBOS.fork_workflow(first.workflow_id, 1)
    with pytest.raises(WontBeDone) as refused:
        result(fork)
    assert refused.value.code == "payload_mismatch"
    assert shop.effects(PLAIN) == 0
    at["arguments"] = REFUND
    result(DBOS.start_workflow(paying, operation_id="refund_7"))
    result(DBOS.start_workflow(paying_async, operation_id="refund_7"))
    assert shop.effects(OURS) == 2


@pytest.mark.proves("DBOS-4")
def test_the_same_call_in_another_step_or_workflow_is_meant_anew(app, shop):
    one, two = result(DBOS.start_workflow(paying_twice))
    assert one != two
    result(DBOS.start_workflow(paying))
    assert shop.effects(OURS) == 3


@pytest.mark.proves("DBOS-4")
def test_what_can_t_be_told_apart_is_not_sent(app, shop):
    with pytest.raises(NoIdentity, match="isn't called in a step"):
        at["steps"].call("refund", REFUND)
    first = DBOS.start_workflow(paying)
    result(first)
    fork = DBOS.fork_workflow(first.workflow_id, 1)
    result(fork)
    at["steps"] = Steps(app)
    DBOS.delete_workflow(first.workflow_id)
    with pytest.raises(NoIdentity, match="does not know workflow"):
        result(DBOS.fork_workflow(fork.workflow_id, 1))
    assert shop.effects(OURS) == 1


@pytest.mark.proves("DBOS-5")
def test_what_provably_did_nothing_is_retried_and_a_refusal_is_not(app, shop):
    shop.provider.configure(DROPPED)
    told = result(DBOS.start_workflow(paying))
    assert told["amount"] == OURS
    assert ran["refund"] == 2
    assert shop.effects(OURS) == 1

    ran.clear()
    at["arguments"] = {"charge": "ch_2", "amount": PLAIN}
    shop.provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]
    )
    handle = DBOS.start_workflow(paying_async)
    with pytest.raises(WontBeDone) as refused:
        result(handle)
    assert refused.value.status == "failed"
    assert refused.value.operation_id.startswith("dbos:")
    assert ran.total() == 1


@pytest.mark.proves("DBOS-6")
def test_a_cancelled_workflow_stops_waiting_and_its_operation_goes_on(
    app, shop, opened, monkeypatch
):
    monkeypatch.setattr(carrying, "ROUND_S", 0.1)
    shop.declare(NOBODY_KNOWS)
    app = opened()
    at["steps"] = Steps(app)
    shop.provider.configure(LOST)
    handle = DBOS.start_workflow(paying)
    found = operation_of(app)
    DBOS.cancel_workflow(handle.workflow_id)
    eventually(lambda: status_of(handle) == "CANCELLED")
    app.resolve(found.operation_id, "done", operator="night-shift", note="seen")
    DBOS.resume_workflow(handle.workflow_id)
    result(handle)
    assert shop.effects(OURS) == 1


@pytest.mark.proves("DBOS-6")
def test_an_application_that_is_closed_leaves_the_workflow_pending(engine, shop, monkeypatch):
    monkeypatch.setattr(carrying, "ROUND_S", 0.1)
    shop.declare(NOBODY_KNOWS)
    shop.provider.configure(LOST)
    at["arguments"] = REFUND
    with shop.open() as app:
        at["steps"] = Steps(app)
        handle = DBOS.start_workflow(paying)
        eventually(lambda: [x for x in app.operations() if x.state == "manual_review"])
    with pytest.raises(StepLeft):
        result(handle)
    assert status_of(handle) == "PENDING"
    assert DBOS.list_workflow_steps(handle.workflow_id) == []
    with shop.open() as app:
        at["steps"] = Steps(app)
        (found,) = app.operations()
        app.resolve(found.operation_id, "done", operator="night-shift", note="seen")
        again = DBOS.resume_workflow(handle.workflow_id)
        result(again)
        assert status_of(again) == "SUCCESS"
    assert shop.effects(OURS) == 1


@pytest.mark.proves("ENGINES-1")
def test_the_example_runs_as_it_is_written(engine, shop, monkeypatch):
    monkeypatch.chdir(shop.folder)
    shop.provider.configure(LOST)
    names = examples.of("DBOS")
    with names["app"]:
        told = result(DBOS.start_workflow(names["cancel_order"], "ch_1", OURS))
    assert told["amount"] == OURS
    assert shop.effects(OURS) == 1
