"""Effects inside Temporal activities: `await activities.call_async(…)`, in an activity.

An activity whose effect isn't known yet gives its slot back and is completed later, from outside,
by its task token. Temporal neither retries it meanwhile nor is told a result.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NoReturn

from temporalio import activity, workflow
from temporalio.client import AsyncActivityCancelledError, AsyncActivityHandle, Client
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import DoubtlessError, EffectError
from doubtless.integrations.carrying import (
    FINAL,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    ROUND_S,
    App,
    Carrier,
    Closed,
    Effect,
    Place,
    effect,
    is_open,
    result_of,
)

HEADER: Final = "doubtless-origin"
"""The run that a workflow's history began with: a reset leaves it, a new run has its own."""


class Activities(Interceptor):
    """Carries out effects in Temporal activities, and is an interceptor of their worker.

        Worker(client, …, interceptors=[activities])

    Workers of the workflows need the interceptor too: it tells activities which run they are of.

    Args:
        app: A `Doubtless` or a `Doubtless.sync`, open while the worker runs.
        client: Completes activities whose effect was not known at once.

    Raises:
        RuntimeError: No event loop is running here.
    """

    def __init__(self, app: App, client: Client) -> None:
        self._carrier = Carrier(app)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._origins: dict[bytes, str] = {}  # of the activities that run, by task token
        self._watches: set[asyncio.Task[None]] = set()

    async def call_async(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Carry the effect out, at most once, and return its result. In an asynchronous activity.

        Retries of the activity, and a workflow that was reset, find the same operation, by the
        workflow's id, the run that its history began with and the activity's id. A run that was
        continued as new, and one that was started anew under the same id, mean another intent.

        Args:
            tool: The tool's name.
            arguments: JSON-ready. Others at the same place are refused.
            operation_id: An id of the intent itself, in place of the one by the activity.
            part: Tells several calls of a tool in one activity apart.

        Raises:
            ApplicationError: `NotDone` provably had no effect, and Temporal may retry. All others
                can't be retried: `WontBeDone` failed or was refused for good, `NoIdentity` can't
                tell which operation is meant, `BadRequest` can't be carried out as written.
            BaseException: That of `activity.raise_complete_async()`: it is open (unknown, accepted,
                awaiting approval), and will be completed later. Let it through.
        """
        try:
            asked = self._asked(tool, arguments, operation_id, part)
            if activity.info().is_local:  # can't be completed from outside
                return result_of(await self._carrier.carry_async(asked, go_on=_go_on_async))
            outcome = await self._carrier.begin_async(asked, go_on=_beat_async)
            if not is_open(outcome):
                return result_of(outcome)
        except DoubtlessError as error:
            raise application_error(error) from error
        return self._complete_later(outcome)

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Do as `call_async` does, in an activity on a thread."""
        try:
            asked = self._asked(tool, arguments, operation_id, part)
            if activity.info().is_local:
                return result_of(self._carrier.carry(asked, go_on=_go_on))
            outcome = self._carrier.begin(asked, go_on=_beat)
            if not is_open(outcome):
                return result_of(outcome)
        except DoubtlessError as error:
            raise application_error(error) from error
        return self._complete_later(outcome)

    def _asked(
        self, tool: str, arguments: Mapping[str, Json], operation_id: str | None, part: str
    ) -> Effect:
        about = activity.info()
        origin = self._origins.get(about.task_token)
        place = None
        if about.workflow_id is not None and (origin or operation_id):
            place = Place(
                engine="temporal",
                flow=(about.namespace, about.workflow_id, origin or ""),
                step=(about.activity_id,),
            )
        return effect(
            place,
            tool,
            arguments,
            run=f"{about.workflow_id}/{about.workflow_run_id}",
            operation_id=operation_id,
            part=part,
            otherwise=(
                "which run of its workflow is meant can't be told: no interceptors=[activities] on"
                " the workflow's worker, or the workflow is a child, or is itself retried, or there"
                " is none"
            ),
        )

    def _complete_later(self, outcome: Outcome) -> NoReturn:
        watch = _Watch(self._carrier, self._client, outcome)
        self._loop.call_soon_threadsafe(self._watch, watch)
        activity.raise_complete_async()

    def _watch(self, watch: "_Watch") -> None:
        task = self._loop.create_task(watch.run())
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    # --- as an interceptor -----------------------------------------------------------------------

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's own name
        """Take in which run an activity is of."""
        return _TakesOrigin(next, self._origins)

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - as above
    ) -> type[WorkflowInboundInterceptor]:
        """Tell activities which run they are of."""
        return _TellsOrigin


class _Watch:
    """Waits for the end of an operation, and completes its activity."""

    def __init__(self, carrier: Carrier, client: Client, outcome: Outcome) -> None:
        about = activity.info()
        self._carrier, self._operation_id = carrier, outcome.operation_id
        self._handle: AsyncActivityHandle = client.get_async_activity_handle(
            task_token=about.task_token
        )
        within = about.heartbeat_timeout or timedelta()
        self._beats = bool(within)
        self._every_s = min(ROUND_S, within.total_seconds() / 2) if within else ROUND_S

    async def run(self) -> None:
        """Wait, and complete it. Where this process ends before, Temporal starts it again."""
        try:
            outcome = await self._carrier.end_async(
                self._operation_id, go_on=self._beat, every_s=self._every_s
            )
            await self._tell(outcome)
        except (_Over, Closed):
            return

    async def _beat(self) -> None:
        """Say that it is still waited for, and hear whether it has to be."""
        if not self._beats:
            return
        try:
            await self._handle.heartbeat()
        except AsyncActivityCancelledError:
            await self._handle.report_cancellation()
            raise _Over from None
        except RPCError as error:
            _check(error)

    async def _tell(self, outcome: Outcome) -> None:
        """Complete the activity, or fail it, as soon as Temporal can be reached."""
        pause_s = PAUSE_MIN_S
        while True:
            try:
                try:
                    result = result_of(outcome)
                except EffectError as error:
                    await self._handle.fail(application_error(error))
                else:
                    await self._handle.complete(result)
                return
            except RPCError as error:
                _check(error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)


class _Over(Exception):
    """Nobody waits for the activity any more; its operation goes on."""


def _check(error: RPCError) -> None:
    """End the waiting for an activity that timed out, or whose workflow has ended."""
    if error.status is RPCStatusCode.NOT_FOUND:
        raise _Over from error


def application_error(error: DoubtlessError) -> ApplicationError:
    """Return the error as Temporal understands it: whether it retries is the outcome's word."""
    return ApplicationError(
        str(error),
        {
            "operation_id": getattr(error, "operation_id", None),
            "status": getattr(error, "status", None),
            "code": getattr(error, "code", None),
        },
        type=type(error).__name__,
        non_retryable=isinstance(error, FINAL),
    )


def _beat() -> None:
    """Let a heartbeat be sent, and a cancelled activity end: the SDK raises it in its thread."""
    activity.heartbeat()


async def _beat_async() -> None:
    activity.heartbeat()


def _go_on() -> None:
    """Wait on: a local activity has no heartbeat."""


async def _go_on_async() -> None:
    """Wait on, as above."""


# --- which run an activity is of -----------------------------------------------------------------


class _TakesOrigin(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, origins: dict[bytes, str]) -> None:
        super().__init__(following)
        self._origins = origins

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - as above
        token, header = activity.info().task_token, input.headers.get(HEADER)
        if header is not None:
            self._origins[token] = PayloadConverter.default.from_payload(header, str)
        try:
            return await super().execute_activity(input)
        finally:
            self._origins.pop(token, None)


class _TellsOrigin(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_AddsOrigin(outbound))


class _AddsOrigin(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - as above
        _add_origin(input)
        return super().start_activity(input)

    def start_local_activity(
        self,
        input: StartLocalActivityInput,  # noqa: A002 - as above
    ) -> workflow.ActivityHandle[Any]:
        _add_origin(input)
        return super().start_local_activity(input)


def _add_origin(asked: StartActivityInput | StartLocalActivityInput) -> None:
    """Add it where it is certain: a parent's reset and a retry give a workflow another run."""
    about = workflow.info()
    if about.attempt == 1 and about.parent is None:
        origin = PayloadConverter.default.to_payload(about.original_execution_run_id)
        asked.headers = {**asked.headers, HEADER: origin}
