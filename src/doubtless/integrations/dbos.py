"""Effects inside the steps of DBOS workflows: `Steps(app).call(…)`, in a step.

DBOS records a step after it has run, so whatever kills the process in between makes it run the
step again. Here that finds the operation of the first run. A step whose outcome isn't known waits
for it: it neither fails, which DBOS would record or retry, nor returns.
"""

from collections.abc import Mapping
from typing import Final

from dbos import DBOS, WorkflowStatus, WorkflowStatusString
from dbos import error as dbos_errors

from doubtless.core.model import Json
from doubtless.errors import NoIdentity
from doubtless.integrations.carrying import (
    FINAL,
    App,
    Carrier,
    Closed,
    Effect,
    Place,
    effect,
    result_of,
)

KNOWN_MAX: Final = 10_000  # workflows whose origin is remembered


class StepLeft(BaseException):
    """The process is being closed while a step waits. Nothing of the step is recorded.

    Its workflow stays pending, and the next launch goes on with it. No `Exception`: DBOS would
    record that as the step's end.
    """


class Steps:
    """Carries out effects in the steps of DBOS workflows.

    Args:
        app: A `Doubtless`, or a `Doubtless.sync`, open before `DBOS.launch()`, which recovers
            workflows at once. Close it after `DBOS.destroy()`.
        scope: A word for this DBOS system database, if several of them share a principal and have
            workflows under the same ids.

    Raises:
        SettingsError: An asynchronous application, and no event loop is running here.
    """

    def __init__(self, app: App, *, scope: str = "") -> None:
        self._carrier = Carrier(app)
        self._scope = scope
        self._origins: dict[str, str] = {}

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Carry the effect out, at most once, and return its result. In a step.

        A retry, a recovery, a resumed or rewound workflow and a fork find the same operation, by
        the workflow that it was forked from at first and the step's number in it. While it is open
        (unknown, accepted, awaiting approval) the step waits.

        Args:
            tool: The tool's name.
            arguments: JSON-ready. Others at the same place are refused.
            operation_id: An id of the intent itself, in place of the one by the place.
            part: Tells several calls of a tool in one step apart.

        Raises:
            NotDone: It provably had no effect, and a retry of the step may act.
            WontBeDone: It failed or was refused for good.
            NoIdentity: It isn't in a step, or the origin of a fork has been deleted.
            BadRequest: It can't be carried out as it was written.
        """
        origin = workflow_id = _in_step()
        if workflow_id is not None and operation_id is None:
            origin = self._origins.get(workflow_id) or self._origin(workflow_id)
        asked = self._asked(origin, tool, arguments, operation_id, part)
        try:
            return result_of(self._carrier.carry(asked, go_on=_go_on))
        except Closed as error:
            raise StepLeft(str(error)) from error

    async def call_async(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Do as `call` does, in an asynchronous step. No thread is held while it waits."""
        origin = workflow_id = _in_step()
        if workflow_id is not None and operation_id is None:
            origin = self._origins.get(workflow_id) or await self._origin_async(workflow_id)
        asked = self._asked(origin, tool, arguments, operation_id, part)
        try:
            return result_of(await self._carrier.carry_async(asked, go_on=_go_on_async))
        except Closed as error:
            raise StepLeft(str(error)) from error

    def _asked(
        self,
        origin: str | None,
        tool: str,
        arguments: Mapping[str, Json],
        operation_id: str | None,
        part: str,
    ) -> Effect:
        place = None
        if origin is not None:
            place = Place(engine="dbos", flow=(self._scope, origin), step=(str(DBOS.step_id),))
        return effect(
            place,
            tool,
            arguments,
            run=DBOS.workflow_id or "",
            operation_id=operation_id,
            part=part,
            otherwise="it isn't called in a step of a DBOS workflow",
        )

    # --- which workflow it was at first ----------------------------------------------------------

    def _origin(self, workflow_id: str) -> str:
        line = _Line(workflow_id)
        while line.asks is not None:
            found = DBOS.list_workflows(
                workflow_ids=[line.asks], load_input=False, load_output=False
            )
            line.told(found)
        return self._remembered(workflow_id, line.origin)

    async def _origin_async(self, workflow_id: str) -> str:
        line = _Line(workflow_id)
        while line.asks is not None:
            found = await DBOS.list_workflows_async(
                workflow_ids=[line.asks], load_input=False, load_output=False
            )
            line.told(found)
        return self._remembered(workflow_id, line.origin)

    def _remembered(self, workflow_id: str, origin: str) -> str:
        if len(self._origins) >= KNOWN_MAX:
            self._origins.clear()
        self._origins[workflow_id] = origin
        return origin


class _Line:
    """A workflow's line: whom it was forked from, and whose child that is, up to the first.

    A child gets its parent's id and a number, unless it was given one. So the children that a fork
    starts anew have other ids than those of the first run, and the same origin.
    """

    def __init__(self, workflow_id: str) -> None:
        self.asks: str | None = workflow_id
        self._ends: list[str] = []

    @property
    def origin(self) -> str:
        return "".join(reversed(self._ends))

    def told(self, found: list[WorkflowStatus]) -> None:
        """Go on with what DBOS knows of the workflow that was asked for."""
        workflow_id = self.asks or ""
        if not found:
            raise NoIdentity(
                f"DBOS does not know workflow {workflow_id!r} any more, from which this one comes:"
                " give operation_id=, an id of the intent itself"
            )
        head, _, number = workflow_id.rpartition("-")
        parent = found[0].parent_workflow_id
        if found[0].forked_from is not None:
            self.asks = found[0].forked_from
        elif parent is not None and number.isdigit() and head.endswith(parent):
            self._ends.append(f"-{number}")
            self.asks = parent
        else:
            self._ends.append(workflow_id)
            self.asks = None


def may_retry(error: BaseException) -> bool:
    """Whether a retry of the step may help: for `should_retry=` of `DBOS.step`."""
    return not isinstance(error, FINAL)


def _in_step() -> str | None:
    return DBOS.workflow_id if DBOS.step_id is not None else None


def _go_on() -> None:
    """End the waiting of a cancelled workflow's step, and of one whose DBOS is gone."""
    workflow_id = DBOS.workflow_id
    if workflow_id is None:
        return
    try:
        found = DBOS.list_workflows(workflow_ids=[workflow_id], load_input=False, load_output=False)
    except dbos_errors.DBOSException as error:
        raise StepLeft(str(error)) from error
    _check(workflow_id, found)


async def _go_on_async() -> None:
    workflow_id = DBOS.workflow_id
    if workflow_id is None:
        return
    try:
        found = await DBOS.list_workflows_async(
            workflow_ids=[workflow_id], load_input=False, load_output=False
        )
    except dbos_errors.DBOSException as error:
        raise StepLeft(str(error)) from error
    _check(workflow_id, found)


def _check(workflow_id: str, found: list[WorkflowStatus]) -> None:
    if found and found[0].status == WorkflowStatusString.CANCELLED.value:
        raise dbos_errors.DBOSWorkflowCancelledError(f"Workflow {workflow_id} is cancelled")
