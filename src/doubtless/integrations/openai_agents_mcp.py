"""MCP servers of openai-agents, each call an operation: `GuardedServer(app, MCPServerStdio(…))`.

The framework repeats a call after any exception if it is told to, gives up after five seconds, and
tells the model "Please try again". Giving up interrupts the server in the midst of its work.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Final, Self, cast

from agents import AgentBase, ModelBehaviorError, RunContextWrapper
from agents.mcp import MCPServer, MCPToolMetaContext
from mcp_types import (
    CallToolResult,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    TextContent,
)
from mcp_types import Tool as MCPTool

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Effect, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.tools import Call
from doubtless.errors import DoubtlessError, NotSent, Rejected
from doubtless.integrations import telling
from doubtless.integrations.crossing import App
from doubtless.integrations.guarding import Guard
from doubtless.integrations.openai_agents import (
    BAD_JSON,
    NOTHING_DONE,
    Context,
    called,
    guard_of,
    session_of,
)
from doubtless.transports.mcp_servers import (
    CORRELATION_ID,
    IDEMPOTENCY_KEY,
    OPERATION_ID,
    START_MS,
)

_asking: ContextVar[Context | None] = ContextVar("asking", default=None)


class ToolFailed(DoubtlessError):
    """An MCP server answered with `isError`, which proves nothing about the effect."""


class GuardedServer(MCPServer):
    """An MCP server whose tools act once: give it to an agent in place of `server`.

    The server's own retries and time-out of its session are switched off; what counts is the
    `timeout` of a tool's contract. Each call carries the operation's id and key in `_meta`.

    Args:
        app: An application that is open when the agent runs, or a guard of it.
        server: Not connected yet. It is connected and closed through this one.
        scope: The session of its calls; by default the run's `group_id`, else the guard's scope.
        contracts: By tool. A tool that has none is a read if the server claims so, else its
            unknown goes straight to a person.
        definitive: Of which tools an `isError` proves that nothing was done; True: of all.
        prefix: Goes before the names of its tools in the ledger, where two servers have the same.
    """

    def __init__(
        self,
        app: App | Guard,
        server: MCPServer,
        *,
        scope: str | None = None,
        contracts: Mapping[str, ToolKeys] | None = None,
        definitive: bool | Collection[str] = (),
        prefix: str = "",
    ) -> None:
        super().__init__(
            use_structured_content=server.use_structured_content,
            failure_error_function=_failed,
            tool_meta_resolver=self._meta,
            custom_data_extractor=server.custom_data_extractor,
            tool_input_guardrails=server.tool_input_guardrails,
            tool_output_guardrails=server.tool_output_guardrails,
        )
        self._needs_approval_policy = server._needs_approval_policy  # noqa: SLF001 - as it was said
        self._server, self._scope, self._prefix = server, scope, prefix
        self._guard = guard_of(app)
        self._contracts, self._definitive = dict(contracts or {}), definitive
        self._effects: dict[str, Effect] = {}
        self._limit_s: float | None = (
            getattr(server, "client_session_timeout_seconds", None) or None
        )
        self._switch_off()

    def _switch_off(self) -> None:
        """Let the server neither repeat a call nor give up on one."""
        for setting, value in (("max_retry_attempts", 0), ("client_session_timeout_seconds", None)):
            if hasattr(self._server, setting):
                setattr(self._server, setting, value)

    def _is_over(self) -> bool:
        """Whether there is no connection any more, so that nothing can be sent."""
        if not hasattr(self._server, "session"):
            return False
        session = self._server.session
        dispatcher = getattr(session, "_dispatcher", None)
        return session is None or getattr(dispatcher, "_closed", False) is True

    # --- what is called --------------------------------------------------------------------------

    async def call_tool(
        self,
        tool_name: str,
        arguments: dict[str, Json] | None,
        meta: dict[str, Json] | None = None,
    ) -> CallToolResult:
        """Carry out one call at most once; what is not known of it is told as such."""
        effect = await self._effect(tool_name)
        said, came = arguments or {}, list[CallToolResult]()

        async def act(call: Call) -> Json:
            if self._is_over():
                raise NotSent("the server's connection is closed")
            self._switch_off()
            found = await self._server.call_tool(
                tool_name, arguments, {**(meta or {}), **_ids(call)}
            )
            if found.is_error and effect not in NO_EFFECT:
                raise self._failure(tool_name, found)
            came.append(found)
            return cast("Json", found.model_dump(mode="json", by_alias=True, exclude_none=True))

        context = _asking.get()
        session = (
            session_of(context, self._scope) if context else self._scope
        ) or self._guard.scope
        name = self._prefix + tool_name
        try:
            outcome = await called(self._guard, name, said, act, context=context, session=session)
        except NOTHING_DONE as error:
            return _text(telling.not_done(str(error)))
        return _answer(outcome, came)

    def _failure(self, tool: str, found: CallToolResult) -> DoubtlessError:
        proves = self._definitive is True or tool in (self._definitive or ())
        words = " ".join(part.text for part in found.content if isinstance(part, TextContent))
        return (Rejected if proves else ToolFailed)(words)

    async def _effect(self, tool: str) -> Effect:
        """Return a tool's effect; its schema is asked for if nobody has listed the tools yet."""
        if tool not in self._effects:
            await self.list_tools()
        if tool not in self._effects:
            keys = self._contracts.get(tool)
            self._effects[tool] = self._guard.declare(self._prefix + tool, schema=None, keys=keys)
        return self._effects[tool]

    async def _meta(self, asked: MCPToolMetaContext) -> dict[str, Any] | None:
        """Keep which run asks: `call_tool` isn't told. Then do as the server's own resolver."""
        _asking.set(asked.run_context)
        resolver = self._server.tool_meta_resolver
        found = resolver(asked) if resolver is not None else None
        return await found if isawaitable(found) else found

    # --- what is listed --------------------------------------------------------------------------

    async def list_tools(
        self, run_context: Context | None = None, agent: AgentBase | None = None
    ) -> list[MCPTool]:
        """Return the server's tools, described with what their callers must know."""
        async with self._in_time():
            found = await self._server.list_tools(run_context, agent)
        return [self._declared(tool) for tool in found]

    @property
    def cached_tools(self) -> list[MCPTool] | None:
        """The tools as they were listed last, if the server keeps them."""
        found = self._server.cached_tools
        return None if found is None else [self._declared(tool) for tool in found]

    def _declared(self, tool: MCPTool) -> MCPTool:
        effect = self._effects[tool.name] = self._guard.declare(
            self._prefix + tool.name,
            schema=tool.input_schema,
            description=tool.description or "",
            is_read=bool(tool.annotations and tool.annotations.read_only_hint),
            keys=self._contracts.get(tool.name),
        )
        description = telling.described(tool.description or "", effect)
        return tool.model_copy(update={"description": description})

    # --- all else is the server's ----------------------------------------------------------------

    @property
    def name(self) -> str:
        """The server's name."""
        return self._server.name

    async def connect(self) -> None:
        """Connect to the server.

        Raises:
            TimeoutError: It took longer than the server's own time-out, and than 30 s.
        """
        async with self._in_time(START_MS / 1000):
            await self._server.connect()  # type: ignore[no-untyped-call]
        session = getattr(self._server, "session", None)
        if hasattr(session, "validate_tool_result"):
            # It would make an error of a success that came with another shape than promised.
            setattr(session, "validate_tool_result", _as_it_came)  # noqa: B010 - it is a method

    async def cleanup(self) -> None:
        """Close the connection."""
        await self._server.cleanup()  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def list_prompts(self) -> ListPromptsResult:
        """Do as the server does."""
        return await self._server.list_prompts()

    async def get_prompt(
        self, name: str, arguments: dict[str, Json] | None = None
    ) -> GetPromptResult:
        """Do as the server does."""
        return await self._server.get_prompt(name, arguments)

    async def list_resources(self, cursor: str | None = None) -> ListResourcesResult:
        """Do as the server does."""
        return await self._server.list_resources(cursor)

    async def list_resource_templates(
        self, cursor: str | None = None
    ) -> ListResourceTemplatesResult:
        """Do as the server does."""
        return await self._server.list_resource_templates(cursor)

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Do as the server does."""
        return await self._server.read_resource(uri)

    @asynccontextmanager
    async def _in_time(self, least_s: float = 0) -> AsyncIterator[None]:
        """Hold what only asks to the time-out that the server's session had."""
        limit_s = self._limit_s
        async with asyncio.timeout(None if limit_s is None else max(limit_s, least_s)):
            yield


def _ids(call: Call) -> dict[str, Json]:
    return {
        OPERATION_ID: call.operation_id,
        IDEMPOTENCY_KEY: call.idempotency_key,
        CORRELATION_ID: call.correlation_id,
    }


def _answer(outcome: Outcome, came: list[CallToolResult]) -> CallToolResult:
    if not telling.is_good(outcome) or outcome.already_done:
        answer = _text(telling.in_full(outcome), is_error=not telling.is_good(outcome))
        return answer.model_copy(update={"structured_content": outcome.to_json()})
    if came:
        return came[-1]
    return CallToolResult.model_validate(outcome.result)


def _text(words: str, *, is_error: bool = True) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=words)], is_error=is_error)


async def _as_it_came(_name: str, _result: CallToolResult) -> None:
    """Check nothing."""


_ARGUMENTS: Final = "Invalid JSON input for tool"


def _failed(_: RunContextWrapper[Any], error: Exception) -> str:
    """Word what the framework raises before a call; anything else goes on as it is."""
    if isinstance(error, ModelBehaviorError) and str(error).startswith(_ARGUMENTS):
        return telling.not_done(BAD_JSON)
    raise getattr(error, "cancelled_error", error)
