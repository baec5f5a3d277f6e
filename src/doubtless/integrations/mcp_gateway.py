"""The gateway: MCP in front of tools, and every call of one a durable operation.

The same for a client on pipes and over HTTP, and for both eras of the protocol.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

import doubtless
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import State
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.surroundings import new_id
from doubtless.errors import (
    BadRequest,
    ExhibitNotFound,
    LedgerError,
    LedgerUnavailable,
    OperationNotFound,
)
from doubtless.integrations import doubting, guarding, mcp_answers
from doubtless.integrations.mcp_asking import Asking
from doubtless.integrations.mcp_calls import Asked, Caller, Unanswered, call_key
from doubtless.integrations.mcp_passing import Passing
from doubtless.integrations.mcp_tasks import Tasks
from doubtless.integrations.mcp_tools import Catalogue, Served, Unlisted
from doubtless.transports.mcp import RESULT

INSTRUCTIONS: Final = (
    "Tools that act outside are carried out at most once. An answer may be that it is unknown"
    " whether one took effect: then don't repeat the call or try a variant, and ask {status} with"
    " the operation_id of the answer. Before starting over, ask {unresolved}."
)

_log = logging.getLogger("doubtless.gateway")

Context: TypeAlias = ServerRequestContext[dict[str, object], object]
WhoCalls: TypeAlias = Callable[[Context], Caller]
"""Says who makes a request, by what the transport knows for certain."""
Result: TypeAlias = types.CallToolResult | types.InputRequiredResult


class Gateway:
    """Answers requests of MCP clients by operations of an application.

    Args:
        catalogue: The tools.
        passing: What servers offer besides.
        who_calls: Principal and session of a request.
        asking: Shows a person where to approve.
    """

    def __init__(
        self, catalogue: Catalogue, passing: Passing, who_calls: WhoCalls, asking: Asking
    ) -> None:
        self._catalogue, self._passing = catalogue, passing
        self._who_calls, self._asking = who_calls, asking
        self._tasks = Tasks(catalogue, asking, who_calls, self._told)
        self._unanswered = Unanswered()
        self._name = secrets.token_hex(4)  # of this process, in correlation ids

    def front(self) -> Server[dict[str, object]]:
        """Return the server that clients speak with; any number of connections share it."""
        names = self._catalogue.reading
        front = Server[dict[str, object]](
            "doubtless",
            version=doubtless.__version__,
            instructions=INSTRUCTIONS.format(status=names.status, unresolved=names.unresolved),
            # Without it the SDK would list the tools, which asks all servers, before each call.
            get_tool_input_schema=self._catalogue.schema,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_resources=self._passing.resources,
            on_list_resource_templates=self._passing.templates,
            on_read_resource=self._passing.read,
            on_list_prompts=self._passing.prompts,
            on_get_prompt=self._passing.prompt,
        )
        self._tasks.serve(front)
        return front

    async def _list(
        self, context: Context, _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        try:
            found = await self._catalogue.tools()
        except Unlisted as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from error
        version = context.protocol_version
        return types.ListToolsResult(
            tools=[
                self._tasks.shown(mcp_answers.fitting_tool(tool, version), version)
                for tool in found
            ]
        )

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> Result:
        caller, wants_task = self._who_calls(context), self._tasks.is_asked(context, params)
        try:
            result = await self._answer(caller, context, params)
        except (BadRequest, LedgerUnavailable) as error:
            result = mcp_answers.refused(params.name, error)
        except MCPError:
            raise
        except Exception:  # noqa: BLE001 - an error of the protocol would invite a repeat
            _log.exception("a call of %s could not be answered", params.name)
            result = mcp_answers.unanswered(params.name, self._catalogue.reading.unresolved)
        if not isinstance(result, types.CallToolResult):
            return result
        if wants_task:
            return self._tasks.only_task(result)
        return mcp_answers.fitting(result, context.protocol_version)

    async def _answer(
        self, caller: Caller, context: Context, params: types.CallToolRequestParams
    ) -> Result:
        names = self._catalogue.reading
        if params.name == names.status:
            return await self._status(caller, params)
        actor = cast("Doubtless", caller.actor)
        if params.name == names.unresolved:
            return mcp_answers.read_only(await guarding.unresolved(actor, caller.session_id))
        try:
            served = await self._catalogue.find(params.name)
        except Unlisted as error:
            return mcp_answers.refused(params.name, BadRequest(str(error)))
        if served is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        if (shown := self._asking.asked_before(params)) is not None:
            outcome = await self._asking.afterwards(caller, shown)
            if outcome.tool != served.contract:
                raise BadRequest("requestState: it is not of this tool")
            return await self._said(caller, context, params, outcome, served)
        return await self._carried_out(caller, context, params, served)

    async def _carried_out(
        self,
        caller: Caller,
        context: Context,
        params: types.CallToolRequestParams,
        served: Served,
    ) -> Result:
        """Make the call. A client that gives up or goes away stops only its own waiting."""
        arguments = params.arguments or {}
        asked = Asked.of(context.meta, f"mcp-{self._name}-{context.request_id}")
        wait_s = self._tasks.wait_s(context, params)
        if asked.operation_id is not None:
            outcome = await caller.actor.call(
                served.contract,
                arguments,
                operation_id=asked.operation_id,
                session_id=caller.session_id,
                correlation_id=asked.correlation_id,
                wait_s=wait_s,
            )
            return await self._answered(caller, context, params, outcome, served)
        call = call_key(caller, served.contract, arguments)
        request_id = asked.request_id or self._unanswered.request_id(call) or new_id()
        is_noted = asked.request_id is None and served.effect not in NO_EFFECT
        try:
            outcome = await doubting.ask(
                cast("Doubtless", caller.actor),
                served.contract,
                arguments,
                request_id=request_id,
                session_id=caller.session_id,
                correlation_id=asked.correlation_id,
                wait_s=wait_s,
            )
            result = await self._answered(caller, context, params, outcome, served)
        except (BadRequest, LedgerUnavailable):
            raise  # nothing was recorded
        except BaseException:  # cancelled, or a fault of ours
            if is_noted:
                self._unanswered.add(call, request_id)
            raise
        if is_noted and await caller.is_gone():
            self._unanswered.add(call, request_id)
        else:
            self._unanswered.told(call, request_id)
        return result

    async def _answered(
        self,
        caller: Caller,
        context: Context,
        params: types.CallToolRequestParams,
        outcome: Outcome,
        served: Served,
    ) -> Result:
        """Say how a call ended; where a person has to approve it, show the place first."""
        is_asked = self._tasks.is_asked(context, params)  # for a task, which is told at once
        if outcome.state == State.AWAITING_APPROVAL and not is_asked:
            shown = await self._asking.show(context, caller, outcome)
            if isinstance(shown, types.InputRequiredResult):
                return shown
            outcome = shown
        return await self._said(caller, context, params, outcome, served)

    async def _said(
        self,
        caller: Caller,
        context: Context,
        params: types.CallToolRequestParams,
        outcome: Outcome,
        served: Served,
    ) -> types.CallToolResult:
        doubting.told(cast("Doubtless", caller.actor), outcome)
        if await self._tasks.is_wanted(caller, context, params, outcome):
            return self._tasks.created(context, outcome)
        return await self._told(caller, outcome, served)

    async def _told(self, caller: Caller, outcome: Outcome, served: Served) -> types.CallToolResult:
        waits = outcome.state == State.AWAITING_APPROVAL
        more = self._asking.words(outcome) if waits else ""
        status = self._catalogue.reading.status
        if not served.is_upstream:
            return mcp_answers.answered(outcome, status_tool=status, more=more)
        try:
            kept = await caller.actor.exhibit(outcome.operation_id, RESULT)
        except (ExhibitNotFound, OperationNotFound, LedgerError):
            kept = None  # it was refused, or can't be read: how it ended is known all the same
        return mcp_answers.handed_on(
            outcome,
            kept,
            tool=served.tool,
            is_read=served.effect in NO_EFFECT,
            status_tool=status,
            more=more,
        )

    async def _status(
        self, caller: Caller, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        operation_id = (params.arguments or {}).get("operation_id")
        if not isinstance(operation_id, str):
            raise BadRequest("operation_id must be given, as text")
        found = await guarding.status(cast("Doubtless", caller.actor), operation_id)
        return mcp_answers.read_only(found)
