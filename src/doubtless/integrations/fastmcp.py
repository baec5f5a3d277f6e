"""Tools of a fastmcp server as durable operations: `mcp.add_middleware(Guarded(app))`.

fastmcp interrupts a tool when its client gives up, when its own time-out is over, and tells what
escapes from it as an error; its retry middleware repeats it. Each call is an operation here: what
is not known of it is told as such, and nothing around the tool makes it act twice.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, TypeAlias, cast
from weakref import WeakSet

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.server.dependencies import get_access_token, get_context
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools import Tool
from fastmcp.tools.base import InputRequiredToolResult, ToolResult
from fastmcp.utilities.versions import VersionSpec
from mcp.server.auth.provider import principal_components
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import PrivateAttr

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Effect, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.tools import Call
from doubtless.errors import (
    BadRequest,
    DoubtlessError,
    LedgerUnavailable,
    OperationNotFound,
    Rejected,
)
from doubtless.integrations import guarding, telling
from doubtless.integrations.fastmcp_mounted import Permit, permit_once
from doubtless.integrations.guarding import Guard, call_identity
from doubtless.ledger import operations
from doubtless.transports.mcp_servers import CORRELATION_ID, OPERATION_ID

NOTHING_DONE: Final = (BadRequest, LedgerUnavailable)
Message: TypeAlias = MiddlewareContext[Any]
Next: TypeAlias = CallNext[Any, Any]

_FRAMEWORK: Final = ("fastmcp.", "anyio", "asyncio.", "pydantic")


Server: TypeAlias = FastMCP[Any]
Lifespan: TypeAlias = Callable[[Server], AbstractAsyncContextManager[dict[str, object]]]


def opened(app: Doubtless) -> Lifespan:
    """Return the lifespan of a server that has the application open.

        mcp = FastMCP("shop", lifespan=opened(app), middleware=[Guarded(app)])

    It lives in a task of its own: fastmcp ends a lifespan in another cancel scope than it began it.
    """

    async def held(ready: asyncio.Event, closing: asyncio.Event) -> None:
        async with app:
            ready.set()
            await closing.wait()

    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[dict[str, object]]:
        ready, closing = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(held(ready, closing))
        begun = asyncio.create_task(ready.wait())
        await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        try:
            if ready.is_set():
                yield {}
        finally:
            closing.set()
            await task

    return lifespan


class ToolFailed(DoubtlessError):
    """A tool answered with an error, which proves nothing about its effect."""


class Guarded(Middleware, Transform):
    """Middleware that carries out each tool of a server as an operation, at most once.

    Wherever it stands among other middleware, the operation is around the tool alone: what checks,
    caches or retries calls is around the operation. The tool's own `timeout` becomes that of an
    attempt, and nothing interrupts it then: its late answer counts.

    The server gets the tools `operation_status` and `list_unresolved` besides.

    Args:
        app: The application, open while the server runs (`opened`); or a guard of it.
        scope: The session of all calls. By default that of whoever is authenticated, else one for
            all of them. Never the MCP session, which may be another for each request.
        contracts: By tool. One that has none is a read if its annotation says so, else its unknown
            goes straight to a person.
        definitive: Of which tools an error that they raise or return proves that nothing was done;
            True: of all.
    """

    def __init__(
        self,
        app: Doubtless | Guard,
        *,
        scope: str | None = None,
        contracts: Mapping[str, ToolKeys] | None = None,
        definitive: bool | Collection[str] = (),
    ) -> None:
        self._guard = app if isinstance(app, Guard) else Guard(app)
        self._scope, self._contracts = scope, dict(contracts or {})
        self._definitive = definitive
        self._servers: WeakSet[FastMCP[Any]] = WeakSet()
        self._reading = _reading(self, self._guard.app)

    # --- where it stands -------------------------------------------------------------------------

    async def on_message(self, context: Message, call_next: Next) -> object:
        """Take its place around the server's tools, with the first message that comes."""
        if context.fastmcp_context is not None:
            server = context.fastmcp_context.fastmcp
            if server not in self._servers:
                self._servers.add(server)
                server.add_transform(self)
        return await call_next(context)

    async def list_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Describe the tools with what their callers must know."""
        return [*(self._around(tool) for tool in tools), *self._reading]

    async def get_tool(
        self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None
    ) -> Tool | None:
        """Return a tool whose calls are operations."""
        for tool in self._reading:
            if tool.name == name:
                return tool
        found = await call_next(name, version=version)
        return None if found is None else self._around(found)

    def _around(self, tool: Tool) -> Tool:
        if isinstance(tool, _Operation):
            return tool
        claimed = bool(tool.annotations and tool.annotations.read_only_hint)
        effect = self._guard.declare(
            tool.name,
            schema=cast("dict[str, Json]", tool.parameters),
            description=tool.description or "",
            is_read=claimed,
            keys=self._keys(tool, is_read=claimed),
        )
        return _Operation.around(self, tool, effect)

    def _keys(self, tool: Tool, *, is_read: bool) -> ToolKeys | None:
        said = self._contracts.get(tool.name)
        if tool.timeout is None or (said is not None and "timeout" in said):
            return said
        usual = guarding.UNDECLARED_READ if is_read else guarding.UNDECLARED
        keys = ToolKeys(**(said or usual))
        keys["timeout"] = f"{max(1, round(tool.timeout * 1000))}ms"
        return keys

    # --- one call --------------------------------------------------------------------------------

    async def carry_out(
        self, tool: Tool, effect: Effect, arguments: Mapping[str, Json]
    ) -> ToolResult:
        """Carry out one call at most once; what is not known of it is told as such."""
        came: list[ToolResult] = []

        async def perform(_: Call) -> Json:
            found = await self._performed(tool, effect, arguments)
            came.append(found)
            if isinstance(found, InputRequiredToolResult):
                raise Rejected("it asks its caller for more before it acts")
            return cast("Json", _wire(found).model_dump(mode="json", by_alias=True))

        session, meta = self.session(), _meta()
        given = meta.get(OPERATION_ID)
        parts = (session or "", tool.name, str(given))
        try:
            outcome = await self._guard.call(
                tool.name,
                arguments,
                perform,
                call_id=call_identity("mcp", *parts) if given else None,
                session_id=session,
                correlation_id=str(meta.get(CORRELATION_ID) or "") or None,
            )
        except NOTHING_DONE as error:
            return _text(telling.not_done(str(error)))
        return _answer(outcome, came)

    async def _performed(
        self, tool: Tool, effect: Effect, arguments: Mapping[str, Json]
    ) -> ToolResult:
        """Execute the tool itself, without its own time-out: nothing is gained by interrupting."""
        bare = tool.model_copy(update={"timeout": None})
        permit = permit_once(tool)
        try:
            found = await bare._run(dict(arguments))  # noqa: SLF001 - as the server does
        except Exception as error:
            self._tell_proof(tool.name, error, permit)
            raise
        if found.is_error and effect not in NO_EFFECT:
            raise (Rejected if self._proves(tool.name) else ToolFailed)(_words(found))
        return found

    def _tell_proof(self, tool: str, error: Exception, permit: Permit | None) -> None:
        """Raise what an exception proves, if it proves that nothing was done."""
        if permit is not None and permit.is_repeated:
            return  # it is about the repeat, and the first execution may have acted
        if isinstance(error, ValidationError) and _is_of_framework(error.__traceback__):
            raise Rejected(f"the arguments were refused: {error}") from error
        if isinstance(error, ToolError) and self._proves(tool):
            raise Rejected(str(error)) from error

    def _proves(self, tool: str) -> bool:
        return self._definitive is True or tool in (self._definitive or ())

    def session(self) -> str | None:
        """Return the session of the call that is being made."""
        if self._scope or self._guard.scope:
            return self._scope or self._guard.scope
        return _caller()

    def may_see(self, operation_id: str) -> bool:
        """Whether an operation is of the session of whoever asks, where callers are told apart."""
        caller = _caller()
        if self._scope or self._guard.scope or caller is None:
            return True
        app = self._guard.app
        found = app.ledger.read(lambda tx: operations.get(tx, app.tenant, operation_id))
        return found is None or found.session_id == caller


def _caller() -> str | None:
    """Return the session of whoever is authenticated: client, issuer and subject."""
    token = get_access_token()
    return None if token is None else json.dumps(principal_components(token))


class _Operation(Tool):
    """A tool each of whose calls is an operation."""

    _guarded: Guarded = PrivateAttr()
    _inner: Tool = PrivateAttr()
    _effect: Effect = PrivateAttr()

    @classmethod
    def around(cls, guarded: Guarded, inner: Tool, effect: Effect) -> "_Operation":
        """Return it, described as callers must know. No task can be made of it: it would go by."""
        fields = {name: getattr(inner, name) for name in Tool.model_fields if name != "task_config"}
        fields["description"] = telling.described(inner.description or "", effect)
        made = cls(**fields)
        made._guarded, made._inner, made._effect = guarded, inner, effect
        return made

    async def _run(self, arguments: dict[str, Any]) -> ToolResult:
        return await self._guarded.carry_out(self._inner, self._effect, arguments)

    async def run(self, arguments: dict[str, Json]) -> ToolResult:
        """Carry it out."""
        return await self._run(arguments)


# --- what goes over the wire ---------------------------------------------------------------------


def _answer(outcome: Outcome, came: list[ToolResult]) -> ToolResult:
    if came and isinstance(came[-1], InputRequiredToolResult):
        return came[-1]
    if not telling.is_good(outcome):
        return _text(telling.told(outcome), outcome.to_json())
    if came and not outcome.already_done:
        return came[-1]
    found = ToolResult.from_mcp_result(CallToolResult.model_validate(outcome.result))
    if not outcome.already_done:
        return found
    told = TextContent(type="text", text=telling.told(outcome))
    return found.model_copy(update={"content": [told, *found.content]})


def _text(words: str, members: dict[str, Json] | None = None) -> ToolResult:
    """Return what is no result: clients take it as such, whatever the tool's schema promises."""
    content = [TextContent(type="text", text=words)]
    return ToolResult(content=content, structured_content=members, is_error=True)


def _wire(found: ToolResult) -> CallToolResult:
    sent = found.to_mcp_result()
    if isinstance(sent, CallToolResult):
        return sent
    content, structured = sent if isinstance(sent, tuple) else (sent, None)
    return CallToolResult(content=content, structured_content=structured)


def _words(found: ToolResult) -> str:
    return " ".join(part.text for part in found.content if isinstance(part, TextContent))


def _meta() -> Mapping[str, object]:
    """Return the `_meta` of the request, if there is one."""
    try:
        request = get_context().request_context
    except RuntimeError:
        return {}
    return cast("Mapping[str, object]", (request.meta if request else None) or {})


def _is_of_framework(trace: TracebackType | None) -> bool:
    """Whether an exception comes from the check of arguments alone: the tool never ran."""
    names: list[str] = []
    while trace is not None:
        names.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return all(name.startswith(_FRAMEWORK) for name in names if name != __name__)


def _reading(guarded: Guarded, app: Doubtless) -> tuple[Tool, ...]:
    """Return the tools that read the ledger, and do nothing else."""

    async def status(operation_id: str) -> dict[str, Any]:
        if not guarded.may_see(operation_id):
            return {"operation_id": operation_id, "error": str(OperationNotFound(operation_id))}
        return await guarding.status(app, operation_id)

    async def unresolved() -> list[dict[str, Any]]:
        return [dict(each) for each in await guarding.unresolved(app, guarded.session())]

    named = (
        (status, telling.STATUS_TOOL, telling.STATUS_DESCRIPTION),
        (unresolved, telling.UNRESOLVED_TOOL, telling.UNRESOLVED_DESCRIPTION),
    )
    reads = ToolAnnotations(read_only_hint=True)
    return tuple(
        Tool.from_function(function, name=name, description=description, annotations=reads)
        for function, name, description in named
    )
