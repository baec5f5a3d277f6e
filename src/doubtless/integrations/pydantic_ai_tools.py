"""Tools of ours for Pydantic AI: those of an application's contracts, and those that read."""

from collections.abc import Callable
from typing import Final, TypeAlias

from pydantic_ai import RunContext, Tool, ToolReturn
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import FunctionToolset

from doubtless.core.model import Json
from doubtless.engine.app import Doubtless
from doubtless.engine.blocking import BlockingDoubtless
from doubtless.errors import BadRequest
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.crossing import crossed, waited
from doubtless.integrations.guarding import Offer
from doubtless.integrations.pydantic_ai_calls import Held, Place, done_before, marked, not_done

MARK: Final = "doubtless"
"""In a tool's metadata: it is one of ours, which is not carried out a second time."""

SessionOf: TypeAlias = Callable[[RunContext[AgentDepsT]], str | None]

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


def reading_tools(
    app: Doubtless, session_of: "SessionOf[AgentDepsT]"
) -> FunctionToolset[AgentDepsT]:
    """Return `operation_status` and `list_unresolved`."""
    return FunctionToolset(_reading(app, session_of))


def _reading(app: Doubtless, session_of: "SessionOf[AgentDepsT]") -> list[Tool[AgentDepsT]]:

    async def status(_: RunContext[AgentDepsT], operation_id: str) -> dict[str, Json]:
        return await crossed(app, lambda: guarding.status(app, operation_id))

    async def unresolved(ctx: RunContext[AgentDepsT]) -> list[dict[str, Json]]:
        session_id = session_of(ctx)
        return await crossed(app, lambda: guarding.unresolved(app, session_id))

    return [
        _made(status, telling.STATUS_TOOL, telling.STATUS_DESCRIPTION, ID_SCHEMA),
        _made(unresolved, telling.UNRESOLVED_TOOL, telling.UNRESOLVED_DESCRIPTION, NO_ARGUMENTS),
    ]


async def tools(
    app: Doubtless, *, scope: "str | SessionOf[AgentDepsT] | None" = None
) -> FunctionToolset[AgentDepsT]:
    """Return the application's own tools, of its contracts and functions, or of a service.

    With them come `operation_status` and `list_unresolved`. Each call of the others is an
    operation, with or without the capability.

    Args:
        app: The application, open.
        scope: The session, as for `DurableTools`.

    Raises:
        ServiceUnavailable: The service could not be asked.
    """
    return _toolset(app, await crossed(app, lambda: guarding.offers(app)), scope)


def tools_sync(
    app: BlockingDoubtless, *, scope: "str | SessionOf[AgentDepsT] | None" = None
) -> FunctionToolset[AgentDepsT]:
    """Do as `tools` does, for `Doubtless.sync`."""
    itself = app.asynchronous
    return _toolset(itself, waited(itself, lambda: guarding.offers(itself)), scope)


def _toolset(
    app: Doubtless, offers: list[Offer], scope: "str | SessionOf[AgentDepsT] | None"
) -> FunctionToolset[AgentDepsT]:
    def session_of(ctx: RunContext[AgentDepsT]) -> str | None:
        return scope(ctx) if callable(scope) else scope

    acting = [_tool(app, offer, session_of) for offer in offers]
    return FunctionToolset([*acting, *_reading(app, session_of)])


def _tool(app: Doubtless, offer: Offer, session_of: "SessionOf[AgentDepsT]") -> Tool[AgentDepsT]:
    async def carry(ctx: RunContext[AgentDepsT], /, **arguments: Json) -> object:
        place = Place.of(ctx, session_of(ctx))
        try:
            outcome = await crossed(
                app,
                lambda: doubting.ask(
                    app,
                    offer.name,
                    arguments,
                    request_id=place.call_id,
                    session_id=place.session_id,
                    correlation_id=place.correlation_id,
                ),
            )
        except BadRequest as error:
            raise not_done(error) from error
        if outcome.outcome != "success":
            return Held(False).answer(outcome, place)
        result = done_before(outcome) if place.is_of_another(outcome) else outcome.result
        return ToolReturn(return_value=result, metadata=marked(outcome))

    return _made(carry, offer.name, offer.description, dict(offer.schema))


def _made(
    function: Callable[..., object], name: str, description: str, schema: dict[str, Json]
) -> Tool[AgentDepsT]:
    tool: Tool[AgentDepsT] = Tool.from_schema(
        function, name=name, description=description, json_schema=schema, takes_ctx=True
    )
    tool.metadata = {MARK: True}
    return tool
