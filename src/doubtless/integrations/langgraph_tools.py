"""Tools of ours for LangChain: those of an application's contracts, and those that read."""

import json
from collections.abc import Mapping
from typing import Final, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import interrupt
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.blocking import BlockingDoubtless
from doubtless.errors import BadRequest
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.carrying import is_open
from doubtless.integrations.crossing import App, application, crossed, waited
from doubtless.integrations.guarding import Offer
from doubtless.integrations.langgraph_messages import mark, message
from doubtless.integrations.langgraph_places import Place, place_of, thread_of

Runtime = ToolRuntime[object, object]

ID_SCHEMA: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {"operation_id": {"type": "string"}},
    "required": ["operation_id"],
    "additionalProperties": False,
}
NO_ARGUMENTS: Final[dict[str, Json]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class Own(StructuredTool):
    """A tool of ours: no middleware carries it out a second time."""


class Desk:
    """An application, for calls from a graph."""

    def __init__(self, app: App, *, scope: str | None, waits: bool) -> None:
        self.app = application(app)
        self.scope, self._waits = scope, waits

    async def asettled(self, outcome: Outcome) -> Outcome:
        """Interrupt the graph as long as a person is waited for.

        Raises:
            GraphInterrupt: One is. Resumed, the call comes here again, and the ledger is read.
        """
        name = outcome.operation_id
        while self._waits and is_open(outcome):
            interrupt(_shown(outcome))
            outcome = await crossed(self.app, lambda: self._look(name))
        return outcome

    def settled(self, outcome: Outcome) -> Outcome:
        """Do as `asettled` does, in a thread."""
        name = outcome.operation_id
        while self._waits and is_open(outcome):
            interrupt(_shown(outcome))
            outcome = waited(self.app, lambda: self._look(name))
        return outcome

    async def _look(self, operation_id: str) -> Outcome:
        outcome = await self.app.outcome(operation_id)
        doubting.told(self.app, outcome)
        return outcome

    async def call(self, offer: Offer, place: Place, arguments: Mapping[str, object]) -> Outcome:
        """Carry a tool of the application out."""
        return await doubting.ask(
            self.app,
            offer.name,
            cast("Mapping[str, Json]", arguments),
            request_id=place.identity(),
            session_id=place.session_id,
            correlation_id=place.correlation_id,
        )

    def session(self, config: RunnableConfig) -> str | None:
        """Return the session that a graph works in."""
        return self.scope or thread_of(config)


def _shown(outcome: Outcome) -> dict[str, Json]:
    """Return what whoever resumes the graph is shown."""
    note = (
        "A person settles or approves this operation in the console, or with `doubtless resolve`"
        " or `doubtless approve`. Then resume with any value: it is not believed, the ledger is"
        " read."
    )
    return {**telling.brief(outcome), "how": note}


def arguments_of(tool: BaseTool, given: Mapping[str, object]) -> Mapping[str, Json]:
    """Return a call's arguments as what they mean: "5" for a number is that number.

    So the same call written otherwise is the same call. What a graph injects is none of them.

    Raises:
        ValidationError: They don't fit. Nothing was executed.
    """
    schema = tool.tool_call_schema
    raw = cast("Mapping[str, Json]", given)
    if isinstance(schema, dict) or not issubclass(schema, BaseModel):
        return dict(raw)
    whole = tool.args_schema
    if isinstance(whole, type) and issubclass(whole, BaseModel):
        # With its own validators, unless it wants what only the graph can give.
        same = set(whole.model_fields) == set(schema.model_fields)
        schema = whole if same else schema
    read = schema.model_validate(given)
    made = {
        name
        for name, field in schema.model_fields.items()
        if name not in read.model_fields_set and field.default_factory is not None
    }
    try:
        found: dict[str, Json] = read.model_dump(mode="json", exclude=made, warnings=False)
    except PydanticSerializationError:
        return dict(raw)
    return found


# --- tools that read -----------------------------------------------------------------------------


def own_tools(desk: Desk) -> list[BaseTool]:
    """Return `operation_status` and `list_unresolved`."""
    app = desk.app

    # `Json` can't stand in these signatures: the framework evaluates them where they are.
    def status(operation_id: str) -> object:
        return waited(app, lambda: guarding.status(app, operation_id))

    async def astatus(operation_id: str) -> object:
        return await crossed(app, lambda: guarding.status(app, operation_id))

    def unresolved(config: RunnableConfig) -> object:
        return waited(app, lambda: guarding.unresolved(app, desk.session(config)))

    async def aunresolved(config: RunnableConfig) -> object:
        return await crossed(app, lambda: guarding.unresolved(app, desk.session(config)))

    return [
        Own(
            name=telling.STATUS_TOOL,
            description=telling.STATUS_DESCRIPTION,
            args_schema=ID_SCHEMA,
            func=status,
            coroutine=astatus,
        ),
        Own(
            name=telling.UNRESOLVED_TOOL,
            description=telling.UNRESOLVED_DESCRIPTION,
            args_schema=NO_ARGUMENTS,
            func=unresolved,
            coroutine=aunresolved,
        ),
    ]


# --- tools of an application ---------------------------------------------------------------------


async def tools(
    app: Doubtless, *, scope: str | None = None, wait_for_operator: bool = False
) -> list[BaseTool]:
    """Return the application's own tools, of its contracts and functions, or of a service.

    With them come `operation_status` and `list_unresolved`. Each call of the others is an
    operation, with or without the middleware.

    Args:
        app: The application, open.
        scope: The session, as for `DurableTools`.
        wait_for_operator: As for `DurableTools`.

    Raises:
        ServiceUnavailable: The service could not be asked.
    """
    desk = Desk(app, scope=scope, waits=wait_for_operator)
    offers = await crossed(app, lambda: guarding.offers(app))
    return [*(_tool(desk, offer) for offer in offers), *own_tools(desk)]


def tools_sync(
    app: BlockingDoubtless, *, scope: str | None = None, wait_for_operator: bool = False
) -> list[BaseTool]:
    """Do as `tools` does, for `Doubtless.sync`."""
    desk = Desk(app, scope=scope, waits=wait_for_operator)
    offers = waited(desk.app, lambda: guarding.offers(desk.app))
    return [*(_tool(desk, offer) for offer in offers), *own_tools(desk)]


def _tool(desk: Desk, offer: Offer) -> BaseTool:
    def place(runtime: Runtime) -> Place:
        return place_of(offer.name, runtime, runtime.state, desk.scope)

    def carry(*, doubtless_runtime: Runtime, **arguments: object) -> ToolMessage:
        where = place(doubtless_runtime)
        try:
            outcome = waited(desk.app, lambda: desk.call(offer, where, arguments))
        except BadRequest as error:
            return where.refused(error)
        return _said(desk.settled(outcome), where)

    async def acarry(*, doubtless_runtime: Runtime, **arguments: object) -> ToolMessage:
        where = place(doubtless_runtime)
        try:
            outcome = await crossed(desk.app, lambda: desk.call(offer, where, arguments))
        except BadRequest as error:
            return where.refused(error)
        return _said(await desk.asettled(outcome), where)

    return Own(
        name=offer.name,
        description=offer.description,
        args_schema=dict(offer.schema),
        func=carry,
        coroutine=acarry,
    )


def _said(outcome: Outcome, place: Place) -> ToolMessage:
    if outcome.outcome != "success":
        return message(outcome, name=place.name, call_id=place.call_id)
    result = outcome.result
    words = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    if place.is_of_another(outcome):
        return message(outcome, name=place.name, call_id=place.call_id, words=words)
    return ToolMessage(
        content=words,
        artifact=outcome.to_json(),
        name=place.name,
        tool_call_id=place.call_id,
        response_metadata=mark(outcome),
    )
