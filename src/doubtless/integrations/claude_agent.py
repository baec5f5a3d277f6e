"""Tools of claude-agent-sdk as durable operations, and the gateway for all its other MCP servers.

The program that the SDK drives calls MCP servers itself, so that a hook can stop a call and not
carry it out. What acts goes through the gateway (`gateway`), or is a tool of this process
(`guarded`). A hook (`unrepeated`) stops the repeat of what is unresolved before it is made.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, Unpack, cast, overload

from claude_agent_sdk import HookContext, HookInput, HookMatcher, SdkMcpTool, ToolAnnotations
from claude_agent_sdk import _build_input_schema as schema_of
from claude_agent_sdk.types import HookJSONOutput, McpStdioServerConfig

from doubtless.core.effects import NO_EFFECT
from doubtless.core.identity import NotCanonical, payload_hash
from doubtless.core.model import Effect, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.surroundings import new_id
from doubtless.engine.tools import Call
from doubtless.errors import (
    BadRequest,
    DoubtlessError,
    LedgerUnavailable,
    Rejected,
    ServiceUnavailable,
    SettingsError,
)
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.guarding import Guard

T = TypeVar("T")
SdkTool: TypeAlias = SdkMcpTool[Any]

NOTHING_DONE: Final = (BadRequest, LedgerUnavailable)
HOOK_S: Final = 30.0
_SERVER: Final = re.compile(r"mcp__.+?__")


class ToolFailed(DoubtlessError):
    """A tool answered with an error, which proves nothing about its effect."""


# --- the gateway ---------------------------------------------------------------------------------


def gateway(
    *command: str,
    scope: str,
    ledger: str | None = None,
    contracts: str | Path | None = None,
    config: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> McpStdioServerConfig:
    """Return what `ClaudeAgentOptions(mcp_servers={"shop": …})` takes for an MCP server behind us.

    Args:
        command: What starts the server; none where `config` names several.
        scope: The session of all calls: one agent, one task, one user.
        ledger: By default what `doubtless.toml` or the environment say.
        contracts: A contract file.
        config: A gateway file.
        env: Variables that the command needs.

    Raises:
        SettingsError: Neither a command nor a file, or both.
    """
    if bool(command) == (config is not None):
        raise SettingsError("say what starts the server, or config= for several")
    said = {"scope": scope, "ledger": ledger, "contracts": contracts, "config": config}
    flags = [part for name, value in said.items() if value for part in (f"--{name}", str(value))]
    args = ["-m", "doubtless.cli", "mcp", *flags, *(("--", *command) if command else ())]
    found = McpStdioServerConfig(type="stdio", command=sys.executable, args=args)
    if env is not None:
        found["env"] = dict(env)
    return found


# --- tools of this process -----------------------------------------------------------------------


@overload
def guarded(
    app: Doubtless | Guard,
    tool: SdkMcpTool[T],
    *,
    scope: str | None = None,
    definitive: bool = False,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
) -> SdkMcpTool[T]: ...


@overload
def guarded(
    app: Doubtless | Guard,
    tool: SdkMcpTool[T],
    *,
    scope: str | None = None,
    definitive: bool = False,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
    **keys: Unpack[ToolKeys],
) -> SdkMcpTool[T]: ...


def guarded(
    app: Doubtless | Guard,
    tool: SdkMcpTool[T],
    *,
    scope: str | None = None,
    definitive: bool = False,
    not_sent: Sequence[type[BaseException]] = (),
    rejected: Sequence[type[BaseException]] = (),
    **keys: object,
) -> SdkMcpTool[T]:
    """Return the tool such that each call of it is an operation, carried out at most once.

    What it returns goes to the model as before. Else the model is told what is known.

    Args:
        app: An application that is open on this event loop, or a guard of it.
        tool: Made by `@tool`.
        scope: The session of its calls; the SDK tells a tool nothing of its own.
        definitive: Whether an answer with `is_error` proves that nothing was done.
        not_sent: Exceptions that prove, when they escape, that nothing was sent.
        rejected: Exceptions that prove that it was refused.
        keys: Its contract, as for `app.tool`. Without one it is a read if its annotations say so,
            else an unknown goes straight to a person.

    Raises:
        ContractError: What is declared doesn't fit.
    """
    guard = app if isinstance(app, Guard) else Guard(app)
    effect = guard.declare(
        tool.name,
        schema=cast("dict[str, Json]", schema_of(tool)),
        description=tool.description,
        is_read=_claims_to_read(tool),
        keys=cast("ToolKeys", keys) if keys else None,
        not_sent=not_sent,
        rejected=rejected,
    )

    async def handler(arguments: T) -> dict[str, Any]:
        return await _carried_out(guard, tool, effect, arguments, scope, definitive=definitive)

    description = telling.described(tool.description, effect)
    return replace(tool, description=description, handler=handler)


def _claims_to_read(tool: SdkTool) -> bool:
    """Whether its author says so; the attribute's name depends on the installed mcp."""
    name = "read_only_hint" if hasattr(tool.annotations, "read_only_hint") else "readOnlyHint"
    return getattr(tool.annotations, name, None) is True


async def _carried_out(
    guard: Guard,
    tool: SdkMcpTool[T],
    effect: Effect,
    arguments: T,
    scope: str | None,
    *,
    definitive: bool,
) -> dict[str, Any]:
    came: list[dict[str, Any]] = []

    async def perform(_: Call) -> Json:
        found = await tool.handler(arguments)
        if found.get("is_error") and effect not in NO_EFFECT:
            raise (Rejected if definitive else ToolFailed)(_words(found))
        came.append(found)
        return cast("Json", found)

    try:
        outcome = await guard.call(
            tool.name, cast("dict[str, Json]", arguments), perform, session_id=scope
        )
    except NOTHING_DONE as error:
        return _text(telling.not_done(str(error)), is_error=True)
    return _answer(outcome, came)


def _answer(outcome: Outcome, came: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    if not telling.is_good(outcome) or outcome.already_done:
        return _text(telling.in_full(outcome), is_error=not telling.is_good(outcome))
    return came[-1] if came else cast("dict[str, Any]", outcome.result)


def _text(words: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], "is_error": is_error}


def _words(found: Mapping[str, Any]) -> str:
    return " ".join(str(part.get("text", "")) for part in found.get("content", ()))


# --- the application's own tools -----------------------------------------------------------------


async def tools(app: Doubtless, *, scope: str | None = None) -> list[SdkTool]:
    """Return the application's own tools, those of a contract file, and the two that read.

    Args:
        app: Open here, or that of a service elsewhere.
        scope: The session of their calls.

    Raises:
        ServiceUnavailable: The service could not be asked which tools there are.
    """
    return [*(_own(app, each, scope) for each in await guarding.offers(app)), *reading(app, scope)]


def _own(app: Doubtless, offer: guarding.Offer, scope: str | None) -> SdkTool:
    async def handler(arguments: dict[str, Json]) -> dict[str, Any]:
        name = new_id()
        try:
            outcome = await doubting.ask(
                app, offer.name, arguments, request_id=name, session_id=scope
            )
        except NOTHING_DONE as error:
            return _text(telling.not_done(str(error)), is_error=True)
        except ServiceUnavailable as error:
            return _text(telling.unheard(name, str(error)), is_error=True)
        if telling.is_good(outcome) and not outcome.already_done:
            return _text(json.dumps(outcome.result, ensure_ascii=False))
        return _answer(outcome)

    return SdkMcpTool(offer.name, offer.description, dict(offer.schema), handler)


def reading(app: Doubtless | Guard, scope: str | None = None) -> list[SdkTool]:
    """Return `operation_status` and `list_unresolved`. They read the ledger, and do nothing else.

    Args:
        app: The application, or the guard that the agent's tools have.
        scope: The same as that of the agent's tools.
    """
    asked = app.app if isinstance(app, Guard) else app
    session = scope or (app.scope if isinstance(app, Guard) else None)

    async def status(arguments: dict[str, str]) -> dict[str, Any]:
        found = await guarding.status(asked, arguments["operation_id"])
        return _text(json.dumps(found, ensure_ascii=False))

    async def unresolved(_: dict[str, Any]) -> dict[str, Any]:
        return _text(json.dumps(await guarding.unresolved(asked, session), ensure_ascii=False))

    reads = ToolAnnotations(readOnlyHint=True)
    takes_id = {"operation_id": str}
    return [
        SdkMcpTool(telling.STATUS_TOOL, telling.STATUS_DESCRIPTION, takes_id, status, reads),
        SdkMcpTool(telling.UNRESOLVED_TOOL, telling.UNRESOLVED_DESCRIPTION, {}, unresolved, reads),
    ]


# --- the hook ------------------------------------------------------------------------------------


def unrepeated(
    app: Doubtless, *, scope: str | None = None, matcher: str | None = None
) -> HookMatcher:
    """Return a `PreToolUse` hook that stops the repeat of what is unresolved, and nothing else.

    A repeat has the same tool and arguments, or the same tool and business key, as an operation of
    the session that is not settled. The model is told of that one. Should the hook fail, such as
    for want of the ledger, the call is stopped as well: with a CLI that can't do so the SDK refuses
    to connect.

    Args:
        app: On the ledger and as the principal of the gateway or the guarded tools; or a service.
        scope: Their session.
        matcher: Which tools it is asked for, as in Claude's settings; by default all.
    """

    async def hook(said: HookInput, _: str | None, __: HookContext) -> HookJSONOutput:
        if said["hook_event_name"] != "PreToolUse":
            return {}
        record = await app.session(scope)
        for outcome in record.unresolved:
            if _repeats(app, outcome, said["tool_name"], said["tool_input"]):
                return _denied(outcome)
        return {}

    return HookMatcher(matcher=matcher, hooks=[hook], timeout=HOOK_S, on_failure="block")


def _denied(outcome: Outcome) -> HookJSONOutput:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": telling.told(outcome),
        }
    }


def _repeats(app: Doubtless, outcome: Outcome, name: str, arguments: Mapping[str, Json]) -> bool:
    """Whether a call would repeat an operation: the same payload, or the same object."""
    if outcome.tool not in (name, _SERVER.sub("", name, count=1)):
        return False
    known = app.registry.find(outcome.tool)
    try:
        same = payload_hash(outcome.tool, arguments, known.contract.volatile if known else ())
    except NotCanonical:
        return False  # nothing was ever recorded under it
    business_key = outcome.target.get("business_key")
    is_object = isinstance(business_key, Mapping) and all(
        arguments.get(key) == value for key, value in business_key.items()
    )
    return same == outcome.payload_hash or is_object
