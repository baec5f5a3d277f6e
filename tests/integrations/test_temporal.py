"""Effects inside Temporal activities.

Temporal's server can't be had here. Activities run in the SDK's own test environment, workflows in
its replayer, and a stand-in for its client notes how an activity is completed from outside.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import AsyncActivityCancelledError, WorkflowHistory
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    UnsandboxedWorkflowRunner,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from tests.integrations import examples
from tests.integrations.children import eventually
from tests.integrations.temporal_workflows import Pays
from tests.scenarios.contracts import Changes

from doubtless import Doubtless
from doubtless.core.model import Json
from doubtless.integrations import carrying, temporal
from doubtless.integrations.temporal import HEADER, Activities

OURS, PLAIN = 500, 700
REFUND: dict[str, Json] = {"charge": "ch_1", "amount": OURS}
LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
DROPPED = [{"match": {"method": "POST"}, "then": {"action": "drop_before_commit"}, "times": 1}]
NOBODY_KNOWS: Changes = {"effect": "write", "lookup": None, "on_absent": None}


class Client:
    """Notes what is said of activities from outside; `away` is what the server answers with."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.away: list[Exception] = []
        self.cancelled = False

    def get_async_activity_handle(self, *, task_token: bytes) -> "Client":
        assert task_token
        return self

    def _says(self, word: str, what: Any = None) -> None:
        if self.away:
            raise self.away.pop()
        self.said.append((word, what))

    async def complete(self, result: Any) -> None:
        self._says("complete", result)

    async def fail(self, error: Exception) -> None:
        self._says("fail", error)

    async def heartbeat(self) -> None:
        self._says("heartbeat")
        if self.cancelled:
            raise AsyncActivityCancelledError

    async def report_cancellation(self) -> None:
        self._says("cancelled")

    async def ended(self) -> tuple[str, Any]:
        """Wait until the activity has ended, and return how."""
        return await asyncio.to_thread(
            eventually, lambda: next((each for each in self.said if each[0] != "heartbeat"), None)
        )


class Stage:
    """Runs activities as a worker would."""

    def __init__(self, app: Any) -> None:
        self.client = Client()
        self.activities = Activities(app, cast("Any", self.client))

    async def run(
        self,
        asked: Callable[..., Any],
        *arguments: Any,
        origin: str | None = "run-1",
        **about: Any,
    ) -> Any:
        """Run an activity, of that run of its workflow; `about` changes what it is told."""
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, **about)
        header = {}
        if origin is not None:
            header = {HEADER: PayloadConverter.default.to_payload(origin)}

        class Runs(ActivityInboundInterceptor):
            def __init__(self) -> None:
                pass

            async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's own name
                if asyncio.iscoroutinefunction(input.fn):
                    return await environment.run(input.fn, *input.args)
                return await asyncio.to_thread(environment.run, input.fn, *input.args)

        inbound = self.activities.intercept_activity(Runs())

        async def within() -> Any:
            return await inbound.execute_activity(
                ExecuteActivityInput(fn=asked, args=arguments, executor=None, headers=header)
            )

        return await environment.run(within)

    async def refund(self, arguments: Any = None, **ids: str) -> Any:
        return await self.activities.call_async("refund", arguments or REFUND, **ids)

    def refund_blocking(self, arguments: Any = None, **ids: str) -> Any:
        return self.activities.call("refund", arguments or REFUND, **ids)


@pytest.fixture
async def stage(shop) -> AsyncIterator[Stage]:
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        yield Stage(app)


async def later(running: Any) -> None:
    """Be sure that an activity says that it will be completed later."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - the class is private
        await running
    assert type(raised.value).__name__ == "_CompleteAsyncError", raised.value


@pytest.mark.proves("TEMPORAL-1")
@pytest.mark.parametrize("kind", ["refund", "refund_blocking"])
async def test_an_unknown_is_completed_later_with_the_result_and_gives_the_slot_back(
    stage, shop, kind
):
    shop.provider.configure(LOST)
    await later(stage.run(getattr(stage, kind)))
    word, told = await stage.client.ended()
    assert (word, told["amount"]) == ("complete", OURS)
    assert shop.effects(OURS) == 1


@pytest.mark.proves("TEMPORAL-1")
async def test_a_blocking_application_serves_activities_too(shop, opened):
    shop.declare(NOBODY_KNOWS)
    app = await asyncio.to_thread(opened)
    stage = Stage(app)
    shop.provider.configure(LOST)
    await later(stage.run(stage.refund))
    (found,) = await asyncio.to_thread(app.operations)
    await asyncio.to_thread(
        app.resolve, found.operation_id, "done", operator="night-shift", note="seen"
    )
    assert (await stage.client.ended())[0] == "complete"
    assert shop.effects(OURS) == 1


@pytest.mark.proves("TEMPORAL-2")
async def test_retries_and_resets_find_the_operation_and_other_runs_mean_another(stage, shop):
    told = await stage.run(stage.refund, attempt=1, workflow_run_id="run-1")
    again = await stage.run(stage.refund_blocking, attempt=2, workflow_run_id="run-1")
    reset = await stage.run(stage.refund, workflow_run_id="run-2")  # its history began with run-1
    assert told == again == reset
    assert shop.effects(OURS) == 1
    await stage.run(stage.refund, origin="run-3")  # continued as new, or started anew
    await stage.run(stage.refund, activity_id="2")
    await stage.run(stage.refund, namespace="other")
    assert shop.effects(OURS) == 4
    with pytest.raises(ApplicationError) as refused:
        await stage.run(stage.refund, {"charge": "ch_1", "amount": PLAIN})
    assert refused.value.details[0]["code"] == "payload_mismatch"
    assert refused.value.non_retryable
    assert shop.effects(PLAIN) == 0


@pytest.mark.proves("TEMPORAL-2")
async def test_without_a_certain_run_only_an_id_of_the_intent_is_taken(stage, shop):
    with pytest.raises(ApplicationError, match="which run") as unclear:
        await stage.run(stage.refund, origin=None)
    assert (unclear.value.type, unclear.value.non_retryable) == ("NoIdentity", True)

    def named() -> Any:
        return stage.refund_blocking(operation_id="refund_7")

    await stage.run(named, origin=None, workflow_run_id="run-1")
    await stage.run(named, origin="run-9", workflow_run_id="run-9")
    await stage.run(named, origin=None, workflow_id=None)
    assert shop.effects(OURS) == 1


@pytest.mark.proves("TEMPORAL-3")
async def test_what_provably_did_nothing_is_retried_and_a_refusal_is_not(stage, shop):
    shop.provider.configure(DROPPED)
    await later(stage.run(stage.refund))
    word, error = await stage.client.ended()
    assert (word, error.type, error.non_retryable) == ("fail", "NotDone", False)
    assert shop.effects(OURS) == 0
    assert (await stage.run(stage.refund, attempt=2))["amount"] == OURS
    assert shop.effects(OURS) == 1
    shop.provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]
    )
    with pytest.raises(ApplicationError) as refused:
        await stage.run(stage.refund, {"charge": "ch_2", "amount": OURS}, activity_id="2")
    assert (refused.value.type, refused.value.non_retryable) == ("WontBeDone", True)
    assert refused.value.details[0]["status"] == "failed"
    with pytest.raises(ApplicationError) as wrong:
        await stage.run(stage.refund_blocking, {"charge": 7}, activity_id="3")
    assert (wrong.value.type, wrong.value.non_retryable) == ("BadArguments", True)


@pytest.mark.proves("TEMPORAL-4")
async def test_it_says_that_it_waits_until_nobody_wants_to_know(stage, shop, monkeypatch):
    monkeypatch.setattr(temporal, "PAUSE_MIN_S", 0.05)
    shop.declare(NOBODY_KNOWS)
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        stage = Stage(app)
        shop.provider.configure(LOST)
        await later(stage.run(stage.refund, heartbeat_timeout=timedelta(seconds=0.1)))
        await asyncio.to_thread(
            eventually, lambda: stage.client.said.count(("heartbeat", None)) > 2
        )
        stage.client.cancelled = True
        assert (await stage.client.ended())[0] == "cancelled"
        (found,) = await app.operations()

        again = Stage(app)
        again.client.away = [RPCError("away", RPCStatusCode.UNAVAILABLE, b"")]
        await later(again.run(again.refund))
        await app.resolve(found.operation_id, "done", operator="night-shift", note="seen")
        assert (await again.client.ended())[0] == "complete"

        gone = Stage(app)
        gone.client.away = [RPCError("gone", RPCStatusCode.NOT_FOUND, b"")] * 9
        shop.provider.configure(LOST)
        beats: dict[str, Any] = {"heartbeat_timeout": timedelta(seconds=0.1), "activity_id": "2"}
        await later(gone.run(gone.refund, **beats))
        await asyncio.to_thread(eventually, lambda: not gone.activities._watches)  # noqa: SLF001 - nothing else tells
        assert gone.client.said == []
    assert shop.effects(OURS) == 2


@pytest.mark.proves("TEMPORAL-4")
async def test_a_local_activity_waits_where_it_is(stage, shop, monkeypatch):
    monkeypatch.setattr(carrying, "ROUND_S", 0.1)
    for number, kind in enumerate((stage.refund, stage.refund_blocking)):
        shop.provider.configure(LOST)
        told = await stage.run(kind, is_local=True, activity_id=str(number))
        assert told["amount"] == OURS
    assert stage.client.said == []
    assert shop.effects(OURS) == 2


@pytest.mark.proves("ENGINES-1")
async def test_the_example_runs_as_it_is_written(stage, shop):
    refunds = examples.of("Temporal")["Refunds"](stage.activities)
    assert (await stage.run(refunds.refund, "ch_1", OURS))["amount"] == OURS
    assert shop.effects(OURS) == 1


# --- workflows, replayed -------------------------------------------------------------------------


class Notes(Interceptor):
    """Notes the headers that the activities of a workflow are started with."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []

    def workflow_interceptor_class(self, input: Any) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - as above
        headers = self.headers

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> Any:  # noqa: A002 - as above
                headers.append(
                    {
                        name: PayloadConverter.default.from_payload(value)
                        for name, value in input.headers.items()
                    }
                )
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


def history(**started: Any) -> WorkflowHistory:
    """Return a history up to the start of the activity, of a workflow that is in run-2."""
    first = HistoryEvent(event_id=1, event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
    attributes = first.workflow_execution_started_event_attributes
    attributes.workflow_type.name = "Pays"
    attributes.task_queue.name = "shop"
    attributes.original_execution_run_id = "run-1"
    attributes.first_execution_run_id = "run-0"
    attributes.attempt = started.get("attempt", 1)
    if "parent" in started:
        attributes.parent_workflow_execution.workflow_id = started["parent"]
        attributes.parent_workflow_execution.run_id = "run-7"
    second = HistoryEvent(event_id=2, event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
    second.workflow_task_scheduled_event_attributes.SetInParent()
    third = HistoryEvent(event_id=3, event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
    third.workflow_task_started_event_attributes.scheduled_event_id = 2
    fourth = HistoryEvent(event_id=4, event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
    fourth.workflow_task_completed_event_attributes.scheduled_event_id = 2
    fourth.workflow_task_completed_event_attributes.started_event_id = 3
    fifth = HistoryEvent(event_id=5, event_type=EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)
    scheduled = fifth.activity_task_scheduled_event_attributes
    scheduled.activity_id, scheduled.activity_type.name = "1", "refund"
    scheduled.workflow_task_completed_event_id = 4
    events = [first, second, third, fourth, fifth]
    for event in events:
        event.event_time.FromSeconds(1)
    return WorkflowHistory(workflow_id="order-7", events=events)


@pytest.mark.proves("TEMPORAL-2")
@pytest.mark.parametrize(
    ("started", "told"),
    [
        ({}, {HEADER: "run-1"}),
        ({"attempt": 2}, {}),
        ({"parent": "batch-1"}, {}),
    ],
)
async def test_workflows_tell_activities_which_run_their_history_began_with(stage, started, told):
    notes = Notes()
    replayer = Replayer(
        workflows=[Pays],
        interceptors=[notes, stage.activities],
        workflow_runner=UnsandboxedWorkflowRunner(),
        build_id="test",
    )
    await replayer.replay_workflow(history(**started))
    assert notes.headers == [told]


@pytest.mark.proves("TEMPORAL-2")
async def test_the_interceptor_works_in_the_sandbox_of_workflows(stage):
    replayer = Replayer(workflows=[Pays], interceptors=[stage.activities], build_id="test")
    await replayer.replay_workflow(history())
