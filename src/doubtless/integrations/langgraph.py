"""Tools of LangChain and LangGraph as durable operations: `DurableTools(app)`.

    agent = create_agent(model, tools, middleware=[DurableTools(app)])

A repeat by a retry middleware, a node's retry, a resumed run or the model finds the operation of
the first call. In a graph of your own: `ToolNode(tools, awrap_tool_call=durable.awrap_tool_call,
wrap_tool_call=durable.wrap_tool_call)`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ContextT,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ResponseT,
)
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from pydantic import BaseModel, ValidationError

from doubtless.core.model import Effect, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.tools import Call
from doubtless.errors import BadRequest, SettingsError
from doubtless.integrations import telling
from doubtless.integrations.crossing import App, crossed, on_loop, waited
from doubtless.integrations.guarding import UNDECLARED, Guard
from doubtless.integrations.langgraph_attempts import Held, Proofs, async_only
from doubtless.integrations.langgraph_messages import Answer, not_done
from doubtless.integrations.langgraph_places import Place, place_of
from doubtless.integrations.langgraph_tools import (
    Desk,
    Own,
    Runtime,
    arguments_of,
    own_tools,
    tools,
    tools_sync,
)
from doubtless.integrations.performing import Perform

__all__ = ["DurableTools", "tools", "tools_sync"]

Handler = Callable[[ToolCallRequest], ToolMessage | Command[object]]
AsyncHandler = Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[object]]]
ModelAnswer = ModelResponse[ResponseT] | AIMessage | ExtendedModelResponse[ResponseT]

KNOWN_MAX: Final = 1_000  # tools of which a copy is kept, for agents that are built anew
READ_CLAIMS: Final = ("readOnlyHint", "read_only_hint")  # as MCP adapters put them into `metadata`


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call of a tool that acts."""

    tool: BaseTool
    arguments: Mapping[str, Json]
    place: Place


class DurableTools(AgentMiddleware[AgentState[ResponseT], ContextT, ResponseT]):
    """Carries the tools of an agent out as operations: each call acts at most once.

    Make it the last of the middleware; a retry further out then finds the operation, and one
    further in can't execute a tool twice either. Agents may be invoked both ways; synchronously,
    only from another thread than that of the application's event loop, or with `Doubtless.sync`.

    The answer of a tool goes to the model as it is. Where it didn't succeed, the message holds our
    words, and as its artifact the whole outcome; it is marked as an error only if it is known that
    nothing was done. Nothing is raised for an unknown.

    Args:
        app: A `Doubtless`, or a `Doubtless.sync`, open when tools are called.
        scope: The session: what is unresolved in it bars the same call again. By default the
            thread of the checkpointer, and without one all that this principal does.
        contracts: Contracts of tools by name, as for `app.tool`. A tool without one that acts is
            never sent again, and an unknown of it goes to a person.
        timeout: How long a tool without a contract may take, such as "5m"; by default 30 s. After
            that it isn't known what it did, until it answers after all.
        reads: Names of tools that change nothing themselves: they are left alone. Name agents that
            are tools here, and hand-offs to others. Tools whose metadata claim `readOnlyHint`, as
            MCP adapters pass it on, are left alone, too.
        definitive: Names of tools whose errors prove that nothing was done. Without that, an
            error proves nothing.
        interrupting: Names of tools that call `interrupt()` before they act, as LangGraph asks
            for. Of any other, an interrupt from within is an unknown.
        not_sent: Exceptions that prove, when a tool raises them, that nothing was sent.
        rejected: Exceptions that prove that it was refused.
        wait_for_operator: Interrupt the graph while it isn't known what a call did, or a person
            has to approve it. The value that it is resumed with is not believed: the ledger is
            read, and the graph interrupted again until it knows.

    Raises:
        SettingsError: The application is one of a service elsewhere; use `tools(app)` with it.
    """

    def __init__(  # noqa: PLR0913 - what may be told, each by its name
        self,
        app: App,
        *,
        scope: str | None = None,
        contracts: Mapping[str, ToolKeys] | None = None,
        timeout: str | None = None,
        reads: Collection[str] = (),
        definitive: Collection[str] = (),
        interrupting: Collection[str] = (),
        not_sent: Sequence[type[BaseException]] = (),
        rejected: Sequence[type[BaseException]] = (),
        wait_for_operator: bool = False,
    ) -> None:
        super().__init__()
        self._desk = Desk(app, scope=scope, waits=wait_for_operator)
        self._guard = Guard(self._desk.app)
        self._contracts, self._reads = dict(contracts or {}), frozenset(reads)
        self._undeclared = None if timeout is None else ToolKeys(**UNDECLARED, timeout=timeout)
        self._proofs = Proofs(frozenset(definitive), frozenset(interrupting))
        self._not_sent, self._rejected = tuple(not_sent), tuple(rejected)
        self._described: dict[int, tuple[BaseTool, BaseTool]] = {}
        self.tools = own_tools(self._desk)

    # --- what the model is told of the tools -----------------------------------------------------

    def described(self, tools: Sequence[BaseTool]) -> list[BaseTool]:
        """Return tools that say what their caller must know, to bind to a model of your own.

        It also makes their contracts known, so that what a crash left can be looked up before the
        first call. `create_agent` needs no call of it.
        """
        return [self._telling(tool) for tool in tools]

    def wrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], ModelResponse[ResponseT]],
    ) -> ModelAnswer[ResponseT]:
        """Let the model read what its tools may answer."""
        return handler(self._told(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[ContextT],
        handler: Callable[[ModelRequest[ContextT]], Awaitable[ModelResponse[ResponseT]]],
    ) -> ModelAnswer[ResponseT]:
        """Do as `wrap_model_call` does."""
        return await handler(self._told(request))

    def _told(self, request: ModelRequest[ContextT]) -> ModelRequest[ContextT]:
        told: list[BaseTool | dict[str, object]] = []
        own: set[str] = set()
        for tool in request.tools:
            if not isinstance(tool, Own):
                told.append(self._telling(tool) if isinstance(tool, BaseTool) else tool)
            elif tool.name not in own:  # with `tools(app)` those that read come a second time
                own.add(tool.name)
                told.append(tool)
        return request.override(tools=told)

    def _telling(self, tool: BaseTool) -> BaseTool:
        if not self._acts(tool):
            return tool
        known = self._described.get(id(tool))
        if known is None or known[0] is not tool:
            words = telling.described(tool.description, self._declare(tool))
            known = (tool, tool.model_copy(update={"description": words}))
            if len(self._described) >= KNOWN_MAX:
                self._described.clear()
            self._described[id(tool)] = known
        return known[1]

    def _acts(self, tool: BaseTool) -> bool:
        if isinstance(tool, Own) or tool.name in self._reads:
            return False
        claims = tool.metadata or {}
        return tool.name in self._contracts or not any(
            claims.get(name) is True for name in READ_CLAIMS
        )

    def _declare(self, tool: BaseTool) -> Effect:
        schema = tool.tool_call_schema
        if isinstance(schema, dict):
            known: dict[str, Json] = schema
        else:
            # Its own validation has run, and has turned what it takes into what it means.
            fields = schema.model_fields if issubclass(schema, BaseModel) else {}
            needed: list[Json] = [name for name, each in fields.items() if each.is_required()]
            named: dict[str, Json] = {name: {} for name in fields}
            known = {"type": "object", "properties": named, "required": needed}
        return self._guard.declare(
            tool.name,
            schema=known,
            description=tool.description,
            keys=self._contracts.get(tool.name, self._undeclared),
            not_sent=self._not_sent,
            rejected=self._rejected,
        )

    # --- calls -----------------------------------------------------------------------------------

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: AsyncHandler
    ) -> ToolMessage | Command[object]:
        """Carry the call out once, and return what is known of it.

        Raises:
            LedgerUnavailable: Nothing could be recorded, so nothing was done.
            GraphInterrupt: The graph waits, for a tool's own interrupt or for an operator.
        """
        asked = self._asked(request)
        if asked is None:
            return await handler(request)
        if isinstance(asked, ToolMessage):
            return asked
        held, home = Held(asked.tool, self._proofs), asyncio.get_running_loop()

        async def execute() -> Json:
            attempt = held.begin()
            try:
                found = await handler(request.override(tool=attempt.tool))
            except Exception as error:  # noqa: BLE001 - whatever is between us and the tool
                return attempt.failed(error)
            return attempt.ended(found)

        async def perform(_: Call) -> Json:
            if asyncio.get_running_loop() is home:
                return await execute()
            return await on_loop(home, execute)

        try:
            outcome = await crossed(self._desk.app, lambda: self._call(held, asked, perform))
        except BadRequest as error:
            return asked.place.refused(error)
        held.check()
        return _single(held.answer(await self._desk.asettled(outcome), asked.place))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Handler
    ) -> ToolMessage | Command[object]:
        """Do as `awrap_tool_call` does, for an agent that is invoked synchronously.

        Raises:
            DoubtlessError: The application's event loop waits for this thread. Nothing was done.
        """
        asked = self._asked(request, blocking=True)
        if asked is None:
            return handler(request)
        if isinstance(asked, ToolMessage):
            return asked
        held = Held(asked.tool, self._proofs)

        def perform(_: Call) -> Json:
            attempt = held.begin()
            try:
                found = handler(request.override(tool=attempt.tool))
            except Exception as error:  # noqa: BLE001 - whatever is between us and the tool
                return attempt.failed(error)
            return attempt.ended(found)

        try:
            outcome = waited(self._desk.app, lambda: self._call(held, asked, perform))
        except BadRequest as error:
            return asked.place.refused(error)
        held.check()
        return _single(held.answer(self._desk.settled(outcome), asked.place))

    def _asked(
        self, request: ToolCallRequest, *, blocking: bool = False
    ) -> _Asked | ToolMessage | None:
        """Return the call that is to be carried out, or why it can't be; None: it is none of ours.

        A name that no tool has is the framework's to answer.
        """
        tool = request.tool
        if tool is None or not self._acts(tool):
            return None
        place = place_of(
            tool.name, cast("Runtime", request.runtime), request.state, self._desk.scope
        )
        self._declare(tool)
        if blocking and async_only(tool):
            why = f"{tool.name} has no synchronous function: call the agent asynchronously"
            raise SettingsError(why)
        try:
            arguments = arguments_of(tool, request.tool_call["args"])
        except ValidationError as error:
            why = f"the arguments don't fit: {error}. Correct them and call again"
            return not_done(why, name=place.name, call_id=place.call_id)
        return _Asked(tool, arguments, place)

    async def _call(self, held: Held, asked: _Asked, perform: Perform) -> Outcome:
        """Ask for the operation; where that of an earlier run executed nothing, for a new one."""
        number = 0
        while True:
            number += 1
            outcome = await self._guard.call(
                asked.tool.name,
                asked.arguments,
                perform,
                call_id=asked.place.identity(number),
                session_id=asked.place.session_id,
                correlation_id=asked.place.correlation_id,
            )
            if held.has_begun or not held.is_to_be_asked_anew(outcome):
                return outcome


def _single(answer: "Answer | list[Answer]") -> ToolMessage | Command[object]:
    """Return an answer as the hook's signature has it; nodes take a list of several as well."""
    return cast("ToolMessage | Command[object]", answer)
