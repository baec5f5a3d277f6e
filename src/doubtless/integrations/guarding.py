"""Tools of a framework as durable operations: each call is made through the ledger.

What the adapters of the agent frameworks share. The framework keeps the conversation, the ledger
keeps the effect: a repeat by the framework, by its retry or by its model finds the operation.
"""

import asyncio
import contextvars
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import anyio.to_thread

from doubtless.core import identity
from doubtless.core.model import Effect, Json, State
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import ToolKeys, build_contract
from doubtless.engine.registry import Tool, code_lookups
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.engine.surroundings import new_id
from doubtless.engine.tools import Call
from doubtless.errors import (
    BadRequest,
    NotSent,
    OperationNotFound,
    SettingsError,
)
from doubtless.integrations import telling
from doubtless.transports.function import Body

Perform: TypeAlias = Callable[[Call], "Awaitable[Json] | Json"]
"""The framework's own way of executing one call, asynchronous or blocking. Returns JSON."""

LIVE_MAX: Final = 10_000  # calls whose framework has gone away, kept for attempts that go on

UNDECLARED: Final = ToolKeys(effect=Effect.TIME_SENSITIVE, valid_for="1h")
"""What counts for a tool that acts and has no contract: never looked up, never sent again."""

UNDECLARED_READ: Final = ToolKeys(effect=Effect.READ)


@dataclass(frozen=True, slots=True)
class _Live:
    """One call as its framework would execute it, in the context in which it was asked for."""

    perform: Perform
    context: contextvars.Context


class _Kept:
    """What all guards of one application share: a tool declared by one may be called by another."""

    def __init__(self) -> None:
        self.live: OrderedDict[str, _Live] = OrderedDict()
        self.ours: set[str] = set()


_KEPT: Final[WeakKeyDictionary[Doubtless, _Kept]] = WeakKeyDictionary()


class Guard:
    """Carries out the tools of a framework as operations of an application.

    The application must be open when a call is made, and work on a ledger in this process: a
    service elsewhere has none of the framework's functions.

    Args:
        app: The application.
        scope: The session of all calls for which none is said: one agent, one task, one user.
            What is unresolved in it bars the same call again.

    Raises:
        SettingsError: The application is one of a service elsewhere.
    """

    def __init__(self, app: Doubtless, *, scope: str | None = None) -> None:
        if isinstance(app, RemoteDoubtless):
            raise SettingsError(
                "a service can't call functions of this process: open the ledger here, or use the"
                " service's own tools"
            )
        self.app, self.scope = app, scope
        kept = _KEPT.setdefault(app, _Kept())
        self._live, self._ours = kept.live, kept.ours

    def declare(
        self,
        tool: str,
        *,
        schema: Mapping[str, Json] | None,
        description: str = "",
        is_read: bool = False,
        keys: ToolKeys | None = None,
        not_sent: Sequence[type[BaseException]] = (),
        rejected: Sequence[type[BaseException]] = (),
    ) -> Effect:
        """Register a tool of the framework, once; what was declared first stays.

        Args:
            tool: Its name in calls.
            schema: JSON Schema of its arguments; None lets the framework alone check them.
            description: For people and models.
            is_read: Whether its author says that it changes nothing; counts only without `keys`.
            keys: Its contract, as for `app.tool`. Without one it is `time_sensitive`, valid for an
                hour, and an unknown goes straight to a person.
            not_sent: Exceptions that prove, when they escape, that nothing was sent.
            rejected: Exceptions that prove that it was refused.

        Returns:
            The effect that counts.

        Raises:
            ContractError: What is declared doesn't fit.
        """
        found = self.app.registry.find(tool)
        if found is not None:
            if tool not in self._ours and found.body is None:
                raise SettingsError(
                    f"{tool!r} is a tool of the contract file already: rename one of them"
                )
            self._ours.add(tool)
            return found.contract.effect
        said = ToolKeys(**(keys or (UNDECLARED_READ if is_read else UNDECLARED)))
        if description:
            said.setdefault("description", description)
        contract = build_contract(
            tool,
            arguments_schema=schema if schema is not None else {"type": "object"},
            declared_in=f"(framework):{tool}",
            **said,
        )
        body = Body(function=self._run, not_sent=tuple(not_sent), rejected=tuple(rejected))
        looks = code_lookups(contract, said.get("lookup"))
        self.app.registry.add(Tool(contract=contract, body=body, lookups=looks))
        self._ours.add(tool)
        return contract.effect

    def is_ours(self, tool: str) -> bool:
        """Whether a tool was declared here, so that `call` may be given its execution."""
        return tool in self._ours

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        perform: Perform,
        *,
        call_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
    ) -> Outcome:
        """Carry out one call at most once, and say what is known of its effect.

        Args:
            tool: A declared one.
            arguments: JSON-ready.
            perform: Executes it in the framework; called once per attempt, behind the gate.
            call_id: The framework's name of this call, if it keeps it over its own repeats and
                after a crash, with all that makes it unique (`call_identity`). A repeat under it
                is told of the first one's operation, even once that is settled.
            session_id: Which session; by default the guard's scope.
            correlation_id: For the logs of both sides.

        Raises:
            BadArguments: They don't fit the schema: nothing was recorded or sent.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        """
        name = call_id or new_id()
        self._live[name] = _Live(perform, contextvars.copy_context())
        self._live.move_to_end(name)
        while len(self._live) > LIVE_MAX:
            self._live.popitem(last=False)
        outcome = await self.app.call(
            tool,
            arguments,
            request_id=name,
            session_id=session_id or self.scope,
            correlation_id=correlation_id,
        )
        # A caller that was cancelled leaves it: its attempt goes on, and may have to begin again.
        if outcome.operation_id != name or State(outcome.state).ends:
            self._live.pop(name, None)
        return outcome

    async def _run(self, call: Call, **_: Json) -> Json:
        """Execute what the operation stands for, in the context of whoever asked for it."""
        live = self._live.get(call.operation_id)
        if live is None:
            raise NotSent("the run that asked for it has ended, and nothing of it was executed")
        if iscoroutinefunction(live.perform):
            running = asyncio.get_running_loop()
            return await running.create_task(live.perform(call), context=live.context)
        found = await anyio.to_thread.run_sync(
            live.context.run, live.perform, call, abandon_on_cancel=True
        )
        return await found if isawaitable(found) else found


def call_identity(framework: str, *parts: str) -> str:
    """Return a call id from a framework's own: `parts` together never name two calls."""
    named = identity.canonical([framework, list(parts)])
    return f"{framework}:{hashlib.sha256(named).hexdigest()[:40]}"


# --- what every gateway and adapter offers besides -----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool that an agent may call by name, as a framework has to describe it."""

    name: str
    description: str  # with what its caller must know
    schema: Mapping[str, Json]  # of its arguments
    effect: Effect


async def offers(app: Doubtless) -> list[Offer]:
    """Return the application's own tools, in order of their names; of a service, the service's.

    Tools of a framework that a guard declared aren't among them: the framework offers those.

    Raises:
        ServiceUnavailable: The service could not be asked.
    """
    if isinstance(app, RemoteDoubtless):
        return [_offer(each) for each in await app.offered()]
    kept = _KEPT.get(app, _Kept())
    found = [tool.contract for tool in app.registry if tool.contract.tool not in kept.ours]
    return [
        Offer(
            name=each.tool,
            description=telling.described(each.description, each.effect),
            schema=dict(each.arguments),
            effect=each.effect,
        )
        for each in sorted(found, key=lambda contract: contract.tool)
    ]


def _offer(told: Mapping[str, Json]) -> Offer:
    effect = Effect(str(told["effect"]))
    schema = told["arguments"]
    return Offer(
        name=str(told["name"]),
        description=telling.described(str(told["description"] or ""), effect),
        schema=dict(schema) if isinstance(schema, Mapping) else {"type": "object"},
        effect=effect,
    )


async def status(app: Doubtless, operation_id: str) -> dict[str, Json]:
    """Answer `operation_status`. Reads the ledger only.

    Returns the outcome, or `{"error": …}` where there is no such operation of this principal.
    """
    try:
        outcome = await app.outcome(operation_id)
    except (OperationNotFound, BadRequest) as error:
        return {"operation_id": operation_id, "error": str(error)}
    return {**outcome.to_json(), "message": telling.told(outcome)}


async def unresolved(app: Doubtless, session_id: str | None = None) -> list[dict[str, Json]]:
    """Answer `list_unresolved`: what is not settled in a session, newest first. Reads only."""
    found = await app.session(session_id)
    return [telling.brief(outcome) for outcome in found.unresolved]
