"""Tasks of MCP: a long call is answered by a task, whose id is that of its operation.

The operation is durable before the task is told, so a task outlives client and gateway, and to ask
for it only reads the ledger. The protocol has no word for "unknown", and "failed" would be a lie:
what is not known is `working`, and said in words. A task never asks for input: nothing that comes
back over the agent's connection approves anything.

Two kinds of them: those of the protocol 2025-11-25, for which a client asks with each call, and the
extension of 2026-07-28, where a client says that it can take them, and we decide.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias, cast

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from doubtless.core.model import Effect, Json, State
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.errors import BadCursor, DecisionRefused, OperationNotFound
from doubtless.integrations import doubting, mcp_answers, telling
from doubtless.integrations.mcp_asking import Asking
from doubtless.integrations.mcp_calls import Caller
from doubtless.integrations.mcp_tools import Catalogue, Served, Unlisted
from doubtless.transports.mcp_servers import OPERATION_ID

EXTENSION: Final = "io.modelcontextprotocol/tasks"
ASKED_AT: Final = "2025-11-25"
"""The one version of the protocol where a client asks for a task with its call."""
RELATED: Final = "io.modelcontextprotocol/related-task"
AT_ONCE: Final = "io.modelcontextprotocol/model-immediate-response"
ABILITIES: Final[Mapping[str, Json]] = {
    "list": {},
    "cancel": {},
    "requests": {"tools": {"call": {}}},
}
PROMPT_S: Final = 1.0
"""How long a call may take that is answered by its result, though its client can take a task."""
POLL_MS: Final = 1_000  # of what is under way
SLOW_POLL_MS: Final = 5_000  # of what waits for a person, a look-up or another side's work
LOOK_S: Final = 1.0  # how often it is seen whether whoever waits for a result is gone
PAGE: Final = 50

Context: TypeAlias = ServerRequestContext[dict[str, object], object]
Told: TypeAlias = Callable[[Caller, Outcome, Served], Awaitable[types.CallToolResult]]
"""Says how a call ended, as one that was waited for is told."""


class Tasks:
    """Answers calls by tasks, and what is asked about them.

    Args:
        catalogue: The tools.
        asking: Says where a person approves.
        who_calls: Principal and session of a request.
        told: Says how a call ended.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        asking: Asking,
        who_calls: Callable[[Context], Caller],
        told: Told,
    ) -> None:
        self._catalogue, self._asking = catalogue, asking
        self._who_calls, self._told = who_calls, told
        self._mark = f"doubtless.dev/task-{secrets.token_hex(8)}"  # no server can write it

    def serve(self, front: Server[dict[str, object]]) -> None:
        """Let a server say that it has tasks, and answer what is asked about them."""
        front.extensions[EXTENSION] = {}  # the SDK leaves it out before 2026-07-28
        front.middleware.append(self._shaped)
        one = types.GetTaskRequestParams
        front.add_request_handler("tasks/get", one, self._get)
        front.add_request_handler("tasks/cancel", one, self._cancel)
        front.add_request_handler("tasks/update", one, self._update)
        front.add_request_handler("tasks/result", one, self._result)
        front.add_request_handler("tasks/list", types.PaginatedRequestParams, self._list)

    # --- how a call is answered ------------------------------------------------------------------

    def shown(self, tool: types.Tool, version: str) -> types.Tool:
        """Say of a tool that it can be called as a task, where a client wants to know that."""
        if version != ASKED_AT or self._only_reads(tool.name):
            return tool
        return tool.model_copy(update={"execution": types.ToolExecution(task_support="optional")})

    def is_asked(self, context: Context, params: types.CallToolRequestParams) -> bool:
        """Whether a client asks for a task, and nothing else.

        Raises:
            MCPError: That tool has none.
        """
        asked = context.protocol_version == ASKED_AT and params.task is not None
        if asked and self._only_reads(params.name):
            what = f"{params.name} is answered at once: call it without a task"
            raise MCPError(types.METHOD_NOT_FOUND, what)
        return asked

    def wait_s(self, context: Context, params: types.CallToolRequestParams) -> float | None:
        """Return how long a call is waited for in seconds; None: as long as its tool may take."""
        if self.is_asked(context, params):
            return 0.0
        return PROMPT_S if _can_take(context) else None

    async def is_wanted(
        self,
        caller: Caller,
        context: Context,
        params: types.CallToolRequestParams,
        outcome: Outcome,
    ) -> bool:
        """Whether a call is answered by a task, as its operation stands.

        Without being asked for one only what is under way becomes a task: a model hears at once
        that something is not known.
        """
        asked = self.is_asked(context, params) and outcome.version > 0  # not of a refused call
        if not asked and not (_can_take(context) and outcome.outcome == "pending"):
            return False
        try:  # a caller's own id may name an operation of another session, which has no task here
            await caller.actor.outcome_in_session(outcome.operation_id, caller.session_id)
        except OperationNotFound:
            return False
        return True

    def created(self, context: Context, outcome: Outcome) -> types.CallToolResult:
        """Answer a call by a task. On its way out it gets the shape that the protocol gives it."""
        task = self._task(context, outcome)
        if context.protocol_version == ASKED_AT:
            shape: Json = {"task": task, "_meta": {AT_ONCE: task["statusMessage"]}}
        else:
            shape = {"resultType": "task", **task}
        return types.CallToolResult(content=[], _meta={self._mark: shape})

    def only_task(self, result: types.CallToolResult) -> types.CallToolResult:
        """Return a task's answer; what was not even recorded has none, so an error tells of it.

        Raises:
            MCPError: With our words, and our object as its data.
        """
        meta = result.meta or {}
        if self._mark in meta:
            return result
        told = result.structured_content
        text = "\n".join(e.text for e in result.content if isinstance(e, types.TextContent))
        if not result.is_error:
            known, told = meta.get(OPERATION_ID), None
            text = (
                f"Nothing was sent now: this call is operation {known} of another session, so that"
                f' it has no task here. To learn the result: {self._ask()}operation_id="{known}").'
            )
        refused = isinstance(told, dict) and told.get("outcome") == "rejected"
        raise MCPError(types.INVALID_PARAMS if refused else types.INTERNAL_ERROR, text, told)

    async def _shaped(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Give results of tasks their shape: the SDK lets none through where 2025-11-25 is spoken.

        It has the types only, and takes the answer to a call for an ordinary result.
        """
        result = await call_next(ctx)
        if not isinstance(result, dict):
            return result
        if ctx.method == "initialize" and result.get("protocolVersion") == ASKED_AT:
            return {**result, "capabilities": {**result["capabilities"], "tasks": dict(ABILITIES)}}
        if ctx.method == "tools/call" and isinstance(meta := result.get("_meta"), dict):
            return cast("dict[str, object]", meta.get(self._mark, result))
        return result

    # --- what is asked about a task --------------------------------------------------------------

    async def _get(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, object]:
        _must_have(context, ASKED_AT, *MODERN_PROTOCOL_VERSIONS)
        caller, outcome = await self._of(context, params)
        task: dict[str, object] = {**self._task(context, outcome)}
        if context.protocol_version != ASKED_AT and task["status"] == "completed":
            result = await self._ended(context, caller, outcome)
            task["result"] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        doubting.told(cast("Doubtless", caller.actor), outcome)
        return task

    async def _result(
        self, context: Context, params: types.GetTaskRequestParams
    ) -> types.CallToolResult:
        """Wait for the end of a task, as the protocol demands, for as long as somebody listens."""
        _must_have(context, ASKED_AT)
        caller, outcome = await self._of(context, params)
        while not State(outcome.state).ends:
            began_s = anyio.current_time()
            outcome = await caller.actor.wait(outcome.operation_id, timeout=LOOK_S)
            is_ending = anyio.current_time() - began_s < LOOK_S / 2  # nobody may wait any more
            if not State(outcome.state).ends and (is_ending or await caller.is_gone()):
                raise MCPError(types.INTERNAL_ERROR, self._words(outcome))
        result = await self._ended(context, caller, outcome)
        doubting.told(cast("Doubtless", caller.actor), outcome)
        meta = {**(result.meta or {}), RELATED: {"taskId": outcome.operation_id}}
        return result.model_copy(update={"meta": meta})

    async def _cancel(
        self, context: Context, params: types.GetTaskRequestParams
    ) -> dict[str, object]:
        """Withdraw what was not sent. What was sent goes on, and says so: it isn't called off."""
        _must_have(context, ASKED_AT, *MODERN_PROTOCOL_VERSIONS)
        caller, outcome = await self._of(context, params)
        is_asked = context.protocol_version == ASKED_AT
        if is_asked and State(outcome.state).ends:
            raise MCPError(types.INVALID_PARAMS, f"It has ended. {self._words(outcome)}")
        more = ""
        try:
            outcome = await caller.actor.cancel(outcome.operation_id)
        except DecisionRefused:
            outcome = await caller.actor.outcome(outcome.operation_id)
            more = "It was not cancelled: something of it may have been sent. "
        if not is_asked:
            return {}  # a mere acknowledgement; `tasks/get` tells
        task = self._task(context, outcome)
        return {**task, "statusMessage": f"{more}{task['statusMessage']}"}

    async def _update(
        self, context: Context, params: types.GetTaskRequestParams
    ) -> dict[str, object]:
        """Take no notice of what a client answers: it was asked nothing."""
        _must_have(context, *MODERN_PROTOCOL_VERSIONS)
        await self._of(context, params)
        return {}

    async def _list(
        self, context: Context, params: types.PaginatedRequestParams
    ) -> dict[str, object]:
        """List the operations of the session, newest first."""
        _must_have(context, ASKED_AT)
        caller = self._who_calls(context)
        try:
            page = await caller.actor.page(
                filters={"session_id": caller.session_id}, limit=PAGE, cursor=params.cursor
            )
        except BadCursor as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        found: dict[str, object] = {"tasks": [self._task(context, each) for each in page.outcomes]}
        return found if page.cursor is None else {**found, "nextCursor": page.cursor}

    async def _of(
        self, context: Context, params: types.GetTaskRequestParams
    ) -> tuple[Caller, Outcome]:
        """Return who asks, and how the operation of the task stands.

        Raises:
            MCPError: There is no such task in this session.
        """
        caller = self._who_calls(context)
        try:
            return caller, await caller.actor.outcome_in_session(params.task_id, caller.session_id)
        except OperationNotFound:
            raise MCPError(types.INVALID_PARAMS, f"Task not found: {params.task_id}") from None

    async def _ended(
        self, context: Context, caller: Caller, outcome: Outcome
    ) -> types.CallToolResult:
        """Say how the call of a task ended, as one is told that has waited for it."""
        result = await self._told(caller, outcome, await self._served(outcome))
        return mcp_answers.fitting(result, context.protocol_version)

    async def _served(self, outcome: Outcome) -> Served:
        """Return the tool of an operation; where its server can't say what it is, the strictest."""
        for _ in range(2):
            for each in self._catalogue.served():
                if each.contract == outcome.tool:
                    return each
            with suppress(Unlisted):
                await self._catalogue.tools()
        # Whatever results it may promise: only as an error an answer of ours may differ from them.
        tool = types.Tool(name=outcome.tool, input_schema={}, output_schema={})
        return Served(
            name=outcome.tool,
            contract=outcome.tool,
            tool=tool,
            effect=Effect.TIME_SENSITIVE,
            is_upstream=True,
            is_declared=False,
        )

    # --- words -----------------------------------------------------------------------------------

    def _task(self, context: Context, outcome: Outcome) -> dict[str, Json]:
        """Return a task in the form of the protocol's version; it is kept without end."""
        state, is_asked = State(outcome.state), context.protocol_version == ASKED_AT
        task: dict[str, Json] = {
            "taskId": outcome.operation_id,
            "status": _status(state, is_asked=is_asked),
            "statusMessage": self._words(outcome),
            "createdAt": outcome.created_at,
            "lastUpdatedAt": outcome.updated_at,
            "ttl" if is_asked else "ttlMs": None,
        }
        if not state.ends:
            under_way = state in (State.PREPARED, State.EXECUTING)
            pause_ms = POLL_MS if under_way else SLOW_POLL_MS
            task["pollInterval" if is_asked else "pollIntervalMs"] = pause_ms
        return task

    def _words(self, outcome: Outcome) -> str:
        text = telling.told(outcome).replace(f"{telling.STATUS_TOOL}(", self._ask())
        waits = outcome.state == State.AWAITING_APPROVAL
        return f"{text}\n{self._asking.words(outcome)}" if waits else text

    def _ask(self) -> str:
        return f"{self._catalogue.reading.status}("

    def _only_reads(self, name: str) -> bool:
        return name in (self._catalogue.reading.status, self._catalogue.reading.unresolved)


def _status(state: State, *, is_asked: bool) -> types.TaskStatus:
    """Return the protocol's word. Only an end has another one than `working`."""
    if not state.ends:
        return "working"
    if state is State.CANCELLED:
        return "cancelled"
    # The extension keeps `failed` for errors of the protocol: what a tool refused has a result.
    return "completed" if state is State.SUCCEEDED or not is_asked else "failed"


def _can_take(context: Context) -> bool:
    """Whether a client of the modern era says of this very request that it can take a task."""
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    abilities = context.session.client_capabilities
    return abilities is not None and EXTENSION in (abilities.extensions or {})


def _must_have(context: Context, *versions: str) -> None:
    """Be sure that a client may ask that.

    Raises:
        MCPError: The version of the protocol has no such request, or the client has not said that
            it can take tasks.
    """
    version = context.protocol_version
    if version not in versions:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", context.method)
    if version in MODERN_PROTOCOL_VERSIONS and not _can_take(context):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Missing required client capability: {EXTENSION}",
            {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
        )
