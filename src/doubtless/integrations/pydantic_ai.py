"""Tools of Pydantic AI as durable operations: `DurableTools(app)`.

    agent = Agent(model, tools=…, toolsets=…, capabilities=[DurableTools(app)])

It stands around all toolsets of the agent, those of MCP servers included. A time-out, a retry of
the model or a run that goes on from its messages finds the operation of the first call.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.tools import AgentDepsT, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from doubtless.core.model import Effect, Json
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.tools import Call
from doubtless.errors import BadRequest
from doubtless.integrations import telling
from doubtless.integrations.crossing import App, application, crossed, on_loop
from doubtless.integrations.guarding import UNDECLARED, Guard
from doubtless.integrations.pydantic_ai_calls import Held, Place, arguments_of, not_done
from doubtless.integrations.pydantic_ai_tools import MARK, reading_tools, tools, tools_sync

__all__ = ["DurableTools", "tools", "tools_sync"]

DEFAULT_S: Final = 30.0  # of contracts
SPARE_S: Final = 5.0

Scope: TypeAlias = str | Callable[[RunContext[AgentDepsT]], str]


class DurableTools(AbstractCapability[AgentDepsT]):
    """Carries the tools of an agent out as operations: each call acts at most once.

    What a tool returns goes to the model as it is. Where it isn't known what a call did, the model
    gets our words as the tool's return value, with the outcome as its metadata; what provably did
    nothing is a `ToolFailed`. It never asks the model to retry. `ApprovalRequired` and
    `CallDeferred` go on as ever.

    Args:
        app: A `Doubtless`, or a `Doubtless.sync`, open when tools are called.
        scope: The session, as a word, or made of the run's context: one user, one task. What is
            unresolved in it bars the same call again. By default all that this principal does.
        contracts: Contracts of tools by name, as for `app.tool`. A tool without one that acts is
            never sent again, and an unknown of it goes to a person.
        timeout: How long a tool without a contract may take, such as "5m"; by default 30 s, or a
            little more than a longer `timeout` of its own. After that it isn't known what it did,
            until it answers after all.
        reads: Names of tools that change nothing themselves: they are left alone. Name agents that
            are tools here. Tools of MCP servers that claim `readOnlyHint` are left alone, too.
        definitive: Names of tools whose own errors (`ModelRetry`, `ToolFailed`, the error answer
            of an MCP tool) prove that nothing was done. Without that, an error proves nothing, and
            a time-out never does.
        not_sent: Exceptions that prove, when a tool raises them, that nothing was sent.
        rejected: Exceptions that prove that it was refused.

    Raises:
        SettingsError: The application is one of a service elsewhere; use `tools(app)` with it.
    """

    def __init__(
        self,
        app: App,
        *,
        scope: "Scope[AgentDepsT] | None" = None,
        contracts: Mapping[str, ToolKeys] | None = None,
        timeout: str | None = None,
        reads: Collection[str] = (),
        definitive: Collection[str] = (),
        not_sent: Sequence[type[BaseException]] = (),
        rejected: Sequence[type[BaseException]] = (),
    ) -> None:
        self.app, self.scope = application(app), scope
        self.guard = Guard(self.app)
        self.definitive = frozenset(definitive)
        self._contracts, self._reads = dict(contracts or {}), frozenset(reads)
        self._timeout = timeout
        self._not_sent, self._rejected = tuple(not_sent), tuple(rejected)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Say that it can't be written in a specification: it takes an application."""
        return None

    def get_ordering(self) -> CapabilityOrdering | None:
        """Stand closest to the tools: whatever repeats a call finds its operation."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(
        self, toolset: AbstractToolset[AgentDepsT]
    ) -> AbstractToolset[AgentDepsT]:
        """Stand around all toolsets, and offer `operation_status` and `list_unresolved`."""
        return _Durable(toolset, self, reading_tools(self.app, self.session_of))

    async def prepare_tools(
        self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Let the model read what its tools may answer."""
        return [self._told(each) for each in tool_defs]

    def _told(self, tool: ToolDefinition) -> ToolDefinition:
        if not self.acts(tool):
            return tool
        words = telling.described(tool.description or "", self.declare(tool))
        return replace(tool, description=words)

    def session_of(self, ctx: RunContext[AgentDepsT]) -> str | None:
        """Return the session of a run."""
        return self.scope(ctx) if callable(self.scope) else self.scope

    def acts(self, tool: ToolDefinition) -> bool:
        """Whether a tool is one that is carried out as an operation."""
        known = tool.metadata or {}
        if MARK in known or tool.name in self._reads:
            return False
        claims = known.get("annotations") or {}
        claimed = isinstance(claims, Mapping) and claims.get("readOnlyHint") is True
        return tool.name in self._contracts or not claimed

    def declare(self, tool: ToolDefinition) -> Effect:
        """Make a tool known; its effect."""
        schema = cast("dict[str, Json]", tool.parameters_json_schema)
        if "annotations" not in (tool.metadata or {}):
            # Its own validation has run, and has turned what it takes into what it means.
            properties = schema.get("properties")
            names = properties if isinstance(properties, Mapping) else {}
            needed = schema.get("required") or []
            named: dict[str, Json] = {name: {} for name in names}
            schema = {"type": "object", "properties": named, "required": needed}
        return self.guard.declare(
            tool.name,
            schema=schema,
            keys=self._contracts.get(tool.name) or self._undeclared(tool),
            not_sent=self._not_sent,
            rejected=self._rejected,
        )

    def _undeclared(self, tool: ToolDefinition) -> ToolKeys | None:
        timeout = self._timeout
        if timeout is None and (tool.timeout or 0) + SPARE_S > DEFAULT_S:
            timeout = f"{round(((tool.timeout or 0) + SPARE_S) * 1000)}ms"  # its own comes first
        return None if timeout is None else ToolKeys(**UNDECLARED, timeout=timeout)


@dataclass
class _Durable(WrapperToolset[AgentDepsT]):
    """All toolsets of an agent, with each call as an operation."""

    capability: DurableTools[AgentDepsT]
    reading: FunctionToolset[AgentDepsT]

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """Return all tools; those that read only where the agent hasn't got them already."""
        return {**await self.reading.get_tools(ctx), **await self.wrapped.get_tools(ctx)}

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, object],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> object:
        """Carry the call out once, and return what is known of it.

        Raises:
            ToolFailed: Nothing was done, and it is known.
            ApprovalRequired, CallDeferred: The tool says so.
            LedgerUnavailable: Nothing could be recorded, so nothing was done.
        """
        asks = self.capability
        if tool.toolset is self.reading:
            return await self.reading.call_tool(name, tool_args, ctx, tool)
        if not asks.acts(tool.tool_def):
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)
        asks.declare(tool.tool_def)
        held, home = Held(name in asks.definitive), asyncio.get_running_loop()

        async def execute() -> Json:
            with held.judging():
                held.returned(await self.wrapped.call_tool(name, tool_args, ctx, tool))
            return held.kept()

        async def perform(_: Call) -> Json:
            if asyncio.get_running_loop() is home:
                return await execute()
            return await on_loop(home, execute)

        place = Place.of(ctx, asks.session_of(ctx))
        try:
            arguments = arguments_of(tool_args, ctx)
            outcome = await crossed(
                asks.app,
                lambda: asks.guard.call(name, arguments, perform, **place.ids()),
            )
        except BadRequest as error:
            raise not_done(error) from error
        return held.answer(outcome, place)
