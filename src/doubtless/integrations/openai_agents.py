"""Tools of openai-agents as durable operations: `guarded(app, tool, effect="money", …)`.

Function tools, tools of MCP servers, and the application's own. The framework keeps the
conversation, the ledger keeps the effect. It tells a model "Please try again" of whatever a tool
raises, and of a time-out that it "timed out"; here the model is told what is known instead.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, TypeAlias, Unpack, cast, overload

from agents import FunctionTool, ModelBehaviorError, RunContextWrapper, Tool, get_current_trace
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext
from pydantic import BaseModel

from doubtless.core.identity import NotCanonical, canonical
from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.surroundings import new_id
from doubtless.engine.tools import Call
from doubtless.errors import (
    BadRequest,
    LedgerUnavailable,
    Rejected,
    ServiceUnavailable,
    SettingsError,
)
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.crossing import App, application, crossed, on_loop
from doubtless.integrations.guarding import Guard, call_identity

WORD_MAX: Final = 128  # of what travels in a header
NOTHING_DONE: Final = (BadRequest, LedgerUnavailable)
BAD_JSON: Final = "the arguments are no JSON object. Correct them, then call again."

Context: TypeAlias = RunContextWrapper[Any]


# --- function tools ------------------------------------------------------------------------------


@overload
def guarded(
    app: App | Guard,
    tool: FunctionTool,
    *,
    scope: str | None = None,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
) -> FunctionTool: ...


@overload
def guarded(
    app: App | Guard,
    tool: FunctionTool,
    *,
    scope: str | None = None,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
    **keys: Unpack[ToolKeys],
) -> FunctionTool: ...


def guarded(
    app: App | Guard,
    tool: FunctionTool,
    *,
    scope: str | None = None,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
    **keys: object,
) -> FunctionTool:
    """Return the tool such that each call of it is an operation, carried out at most once.

    What the tool returns goes to the model as before. Else the model is told what is known: never
    an error, and never to try again. The tool's `timeout` becomes that of an attempt, and its
    `failure_error_function` is not asked any more.

    Args:
        app: An application that is open when the agent runs, or a guard of it.
        tool: Made by `@function_tool`, or a `FunctionTool`.
        scope: The session of its calls; by default the run's `group_id`, else the guard's scope.
        not_sent: Exceptions that prove, when they escape, that nothing was sent.
        rejected: Exceptions that prove that it was refused.
        keys: Its contract, as for `app.tool`. Without one an unknown goes straight to a person.

    Raises:
        SettingsError: It is an agent as a tool: guard the tools of that agent instead.
        ContractError: What is declared doesn't fit.
    """
    if tool._is_agent_tool:  # noqa: SLF001 - nothing public tells it
        raise SettingsError(f"{tool.name} is an agent: guard the tools of that agent instead")
    guard = guard_of(app)
    if keys and tool.timeout_seconds is not None:
        keys.setdefault("timeout", f"{max(1, round(tool.timeout_seconds * 1000))}ms")
    name = tool.qualified_name
    effect = guard.declare(
        name,
        schema=cast("dict[str, Json]", tool.params_json_schema),
        description=tool.description,
        keys=cast("ToolKeys", keys) if keys else _timed(tool),
        not_sent=not_sent,
        rejected=rejected,
    )
    # Its own failures must reach the ledger: the words in their place would count as success.
    bare = replace(tool, _failure_error_function=None, _use_default_failure_error_function=False)

    async def invoke(context: ToolContext[Any], input_json: str) -> object:
        return await _carried_out(guard, name, scope, bare, context, input_json)

    return _changed(tool, description=telling.described(tool.description, effect), invoke=invoke)


def _timed(tool: FunctionTool) -> ToolKeys | None:
    if tool.timeout_seconds is None:
        return None
    timeout = f"{max(1, round(tool.timeout_seconds * 1000))}ms"
    return ToolKeys(**guarding.UNDECLARED, timeout=timeout)


def _changed(tool: FunctionTool, *, description: str, invoke: Any) -> FunctionTool:
    """Return the tool with ours in place of its invocation; the framework stops no call of it."""
    prepare = getattr(tool.on_invoke_tool, "prepare_arguments", None)
    if prepare is not None:
        # Else a policy for approvals would judge arguments that the tool's own check changes.
        invoke.__agents_prepare_arguments__ = prepare
        invoke = with_function_tool_failure_error_handler(invoke, _nothing)
    return replace(
        tool,
        description=description,
        on_invoke_tool=invoke,
        timeout_seconds=None,
        timeout_behavior="error_as_result",
        timeout_error_function=None,
        output_json_schema=None,  # an unknown has another shape
        _output_type_adapter=None,
        _failure_error_function=None,
        _use_default_failure_error_function=False,
    )


def _nothing(_tool: FunctionTool, _error: Exception, _input: str) -> None:
    """Report nothing: no failure is turned into words there."""


@dataclass(slots=True)
class _Performed:
    """What the framework's own function returned, if it did in this very call."""

    value: object = None
    is_there: bool = False


async def _carried_out(
    guard: Guard,
    name: str,
    scope: str | None,
    bare: FunctionTool,
    context: ToolContext[Any],
    input_json: str,
) -> object:
    """Carry out one call of a function tool, and return what goes to the model."""
    arguments = _arguments(input_json)
    if arguments is None:
        return telling.not_done(BAD_JSON)
    performed = _Performed()

    async def act(_: Call) -> Json:
        try:
            performed.value = await bare.on_invoke_tool(context, input_json)
        except ModelBehaviorError as error:
            if _is_of_framework(error.__traceback__):
                raise Rejected(f"the arguments were refused: {error}") from error
            raise
        performed.is_there = True
        return _jsonable(performed.value)

    session = session_of(context, scope) or guard.scope
    try:
        outcome = await called(guard, name, arguments, act, context=context, session=session)
    except NOTHING_DONE as error:
        return telling.not_done(str(error))
    return _answer(outcome, performed)


def guard_of(app: App | Guard) -> Guard:
    """Return the guard that was given, or one of the application."""
    return app if isinstance(app, Guard) else Guard(application(app))


async def called(
    guard: Guard,
    name: str,
    arguments: Mapping[str, Json],
    act: Callable[[Call], Coroutine[object, object, Json]],
    *,
    context: Context | None,
    session: str | None,
) -> Outcome:
    """Make a call through the guard, on the application's event loop; `act` runs on this one."""
    home = asyncio.get_running_loop()
    call_id = approved_call(context, session, name, arguments)

    async def perform(call: Call) -> Json:
        if asyncio.get_running_loop() is home:
            return await act(call)
        return await on_loop(home, lambda: act(call))

    return await crossed(
        guard.app,
        lambda: guard.call(
            name,
            arguments,
            perform,
            call_id=call_id,
            session_id=session,
            correlation_id=getattr(context, "tool_call_id", None),
        ),
    )


def _answer(outcome: Outcome, performed: _Performed) -> object:
    if not telling.is_good(outcome) or outcome.already_done:
        return telling.in_full(outcome)
    return performed.value if performed.is_there else outcome.result


def _is_of_framework(trace: TracebackType | None) -> bool:
    """Whether an exception comes from the framework's own check of arguments: the tool never ran.

    Below our own frame there is no other code in the trace then.
    """
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_globals.get("__name__"))
        trace = trace.tb_next
    return set(names[1:]) == {"agents.tool"}


def _arguments(input_json: str) -> dict[str, Json] | None:
    try:
        found = json.loads(input_json) if input_json else {}
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _jsonable(value: object) -> Json:
    """Return what the ledger keeps of a tool's result."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    elif isinstance(value, list):
        value = [_jsonable(each) for each in value]
    try:
        canonical(cast("Json", value))
    except NotCanonical:
        return str(value)
    return cast("Json", value)


# --- whose call it is ----------------------------------------------------------------------------


def session_of(context: Context, scope: str | None) -> str | None:
    """Return the session of a call: what is said, or else the group of its run."""
    group = getattr(getattr(context, "run_config", None), "group_id", None)
    return scope or group or getattr(get_current_trace(), "group_id", None)


def approved_call(
    context: Context | None, session: str | None, tool: str, arguments: Mapping[str, Json]
) -> str | None:
    """Return the identity of a call that a person approved in the framework, or None.

    A stored `RunState` makes it under the same id however often it is resumed, and the approval is
    for one. All other calls get a new id when a model repeats them, after a crash too.
    """
    if not isinstance(context, ToolContext):
        return None
    try:
        if context.is_tool_approved(context.tool_name, context.tool_call_id) is not True:
            return None
        said = canonical(arguments).decode()
    except (NotCanonical, ModelBehaviorError):
        return None
    item = getattr(context.tool_call, "id", None) or ""
    return call_identity("openai-agents", session or "", tool, context.tool_call_id, item, said)


def _word(text: str | None) -> str | None:
    """Return what can travel in a header, or None."""
    fits = text and len(text) <= WORD_MAX and all("!" <= each <= "~" for each in text)
    return text if fits else None


# --- the application's own tools -----------------------------------------------------------------


async def tools(app: App, *, scope: str | None = None) -> list[Tool]:
    """Return the application's own tools, those of a contract file, and the two that read.

    Args:
        app: Open here, or that of a service elsewhere.
        scope: The session of their calls; by default the run's `group_id`.

    Raises:
        ServiceUnavailable: The service could not be asked which tools there are.
    """
    asked = application(app)
    found = await crossed(asked, lambda: guarding.offers(asked))
    return [*(_own(asked, each, scope) for each in found), *reading(asked, scope)]


def reading(app: App | Guard, scope: str | None = None) -> list[Tool]:
    """Return `operation_status` and `list_unresolved`. They read the ledger, and do nothing else.

    Args:
        app: The application, or the guard that the agent's tools have.
        scope: The same as that of the agent's tools.
    """
    own = app.scope if isinstance(app, Guard) else None
    asked = app.app if isinstance(app, Guard) else application(app)

    async def status(_: ToolContext[Any], input_json: str) -> str:
        name = str((_arguments(input_json) or {}).get("operation_id", ""))
        found = await crossed(asked, lambda: guarding.status(asked, name))
        return json.dumps(found, ensure_ascii=False)

    async def unresolved(context: ToolContext[Any], _: str) -> str:
        session = session_of(context, scope) or own
        found = await crossed(asked, lambda: guarding.unresolved(asked, session))
        return json.dumps(found, ensure_ascii=False)

    takes_id = {"operation_id": {"type": "string"}}
    return [
        _tool(telling.STATUS_TOOL, telling.STATUS_DESCRIPTION, takes_id, status),
        _tool(telling.UNRESOLVED_TOOL, telling.UNRESOLVED_DESCRIPTION, {}, unresolved),
    ]


def _tool(name: str, description: str, takes: dict[str, Any], invoke: Any) -> FunctionTool:
    schema = {"type": "object", "properties": takes, "required": list(takes)}
    return FunctionTool(name, description, schema, invoke)


def _own(app: Doubtless, offer: guarding.Offer, scope: str | None) -> FunctionTool:
    """Return a tool that calls one of the application's own."""

    async def invoke(context: ToolContext[Any], input_json: str) -> object:
        arguments = _arguments(input_json)
        if arguments is None:
            return telling.not_done(BAD_JSON)
        session = session_of(context, scope)
        name = approved_call(context, session, offer.name, arguments) or new_id()
        try:
            outcome = await crossed(
                app,
                lambda: doubting.ask(
                    app,
                    offer.name,
                    arguments,
                    request_id=name,
                    session_id=session,
                    correlation_id=_word(context.tool_call_id),
                ),
            )
        except NOTHING_DONE as error:
            return telling.not_done(str(error))
        except ServiceUnavailable as error:
            return telling.unheard(name, str(error))
        return _answer(outcome, _Performed())

    schema = cast("dict[str, Any]", dict(offer.schema))
    made = FunctionTool(offer.name, offer.description, schema, invoke, strict_json_schema=False)
    return _changed(made, description=offer.description, invoke=invoke)
