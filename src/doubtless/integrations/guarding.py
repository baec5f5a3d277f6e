"""Tools of a framework as durable operations: each call is made through the ledger.

What the adapters of the agent frameworks share. The framework keeps the conversation, the ledger
keeps the effect: a repeat by the framework, by its retry or by its model finds the operation.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from doubtless.core import identity
from doubtless.core.model import Effect, Json, State
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.blocking import Hands
from doubtless.engine.contracts import ToolKeys, build_contract
from doubtless.engine.registry import Tool, code_lookups
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.engine.surroundings import new_id
from doubtless.errors import (
    BadRequest,
    ContractError,
    OperationNotFound,
    SettingsError,
)
from doubtless.integrations import doubting, telling
from doubtless.integrations.performing import Perform, Said, performers_of
from doubtless.transports.function import Body

UNDECLARED: Final = ToolKeys(effect=Effect.TIME_SENSITIVE, valid_for="1h")
"""What counts for a tool that acts and has no contract: never looked up, never sent again."""

UNDECLARED_READ: Final = ToolKeys(effect=Effect.READ)

WORD_MAX: Final = 128  # of what travels in a header


class Guard:
    """Carries out the tools of a framework as operations of an application.

    The application must be open when a call is made, and work on a ledger in this process: a
    service elsewhere has none of the framework's functions.

    Args:
        app: The application.
        scope: The session of all calls for which none is said: one agent, one task, one user.
            What is unresolved in it bars the same call again.

    Raises:
        SettingsError: The application is one of a service elsewhere, or one that blocks.
    """

    def __init__(self, app: Doubtless, *, scope: str | None = None) -> None:
        if isinstance(app, RemoteDoubtless):
            raise SettingsError(
                "a service can't call functions of this process: open the ledger here, or use the"
                " service's own tools"
            )
        given: object = app
        if isinstance(given, Hands):
            raise SettingsError(
                "a blocking application can't be guarded: open it with `async with Doubtless(…)`,"
                " or take its `asynchronous` and call on that one's event loop"
            )
        self.app, self.scope = app, scope
        self._performers = performers_of(app)

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
        """Register a tool of the framework. It may be declared again, by any guard.

        The newest schema and description count. What the tool does may not change: of two that
        only claim it the stricter claim counts, and contracts have to agree.

        Args:
            tool: Its name in calls.
            schema: JSON Schema of its arguments. One that isn't understood, or None, lets the
                framework alone check them.
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
            SettingsError: The application has another tool of that name, or it was declared with
                another contract.
        """
        said = Said(schema, description, is_read, keys, tuple(not_sent), tuple(rejected))
        found = self.app.registry.find(tool)
        if found is not None and not self.is_ours(tool):
            raise SettingsError(
                f"{tool!r} is a tool of the application already: rename one of them"
            )
        if found is not None and self._performers.declared[tool] == said:
            return found.contract.effect
        table = ToolKeys(**(keys or (UNDECLARED_READ if is_read else UNDECLARED)))
        if description.strip():
            table.setdefault("description", description.encode(errors="replace").decode())
        contract = build_contract(
            tool,
            arguments_schema=_understood(schema, table),
            declared_in=f"(framework):{tool}",
            **table,
        )
        body = Body(
            function=partial(self._performers.run, tool),
            not_sent=said.not_sent,
            rejected=said.rejected,
            has_run=self._performers.has_run,
        )
        new = Tool(
            contract=contract, body=body, lookups=code_lookups(contract, table.get("lookup"))
        )
        if found is None:
            self.app.registry.add(new)
        elif not self._renews(found, new, claimed=keys is None):
            return found.contract.effect
        self._performers.declared[tool] = said
        return contract.effect

    def _renews(self, old: Tool, new: Tool, *, claimed: bool) -> bool:
        """Let a tool that is declared again stand for the old one, if that is safe."""
        was, now = old.contract, new.contract
        same = replace(now, description=was.description, arguments=was.arguments) == was
        claimed = claimed and self._performers.declared[was.tool].keys is None
        if not same and not claimed:
            raise SettingsError(f"{was.tool!r} was declared before with another contract")
        if not same and now.effect is Effect.READ:
            return False
        self.app.registry.renew(new)
        return True

    def is_ours(self, tool: str) -> bool:
        """Whether a tool was declared by a guard, so that `call` may be given its execution."""
        return tool in self._performers.declared

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

        Cancelling it stops nothing: the attempt goes on and is recorded, and a repeat joins it.

        Args:
            tool: A declared one.
            arguments: JSON-ready.
            perform: Executes it in the framework, in the context variables of this call; called
                once per attempt, behind the gate. What it does after its contract's time-out is
                awaited for as long as something of it may arrive, and its late answer counts.
            call_id: The framework's name of this call, if it keeps it over its own repeats and
                after a crash, with all that makes it unique (`call_identity`). A repeat under it
                is told of the first one's operation, even once that is settled; one with other
                arguments is refused.
            session_id: Which session; by default the guard's scope.
            correlation_id: For the logs of both sides.

        Raises:
            BadArguments: They don't fit the schema: nothing was recorded or sent.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
            UnknownTool: Nobody declared it.
        """
        if not self.is_ours(tool):
            self.app.registry.tool(tool)
            raise SettingsError(f"{tool!r} was not declared here: `app.call` carries it out")
        await self._forget_what_is_over()
        key = self._performers.ask(call_id or new_id(), tool, arguments, perform)
        try:
            outcome = await doubting.ask(
                self.app,
                tool,
                arguments,
                request_id=key[0],
                session_id=session_id or self.scope,
                correlation_id=_word(correlation_id),
            )
        except BadRequest:
            self._performers.let_go(key)
            raise
        except BaseException:
            self._performers.leave(key)  # its attempt goes on, and may have to begin again
            raise
        if State(outcome.state).ends:
            self._performers.let_go(key, outcome.operation_id)
        elif outcome.operation_id != key[0]:
            self._performers.let_go(key)
        else:
            self._performers.leave(key)
        return outcome

    async def _forget_what_is_over(self) -> None:
        """Look at one call that nobody waits for, each time another one is made."""
        key = self._performers.oldest_left()
        if key is None:
            return
        try:
            outcome = await self.app.outcome(key[0])
        except OperationNotFound:
            self._performers.let_go(key)
        else:
            if State(outcome.state).ends:
                self._performers.let_go(key)


def _word(text: str | None) -> str | None:
    """Return a correlation id that can travel in a header: the text itself, or a digest of it."""
    if not text or (len(text) <= WORD_MAX and all("!" <= each <= "~" for each in text)):
        return text or None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _understood(schema: Mapping[str, Json] | None, keys: ToolKeys) -> Mapping[str, Json]:
    """Return a schema that the engine can check by; of one that it can't, the arguments' names.

    Tools come with schemas of all ages, and some with none. Where one isn't understood its own
    framework still checks the arguments, as it does without us.
    """
    if schema is None:
        named = [*keys.get("business_key", ()), *keys.get("volatile", ())]
        needed: Json = list(keys.get("business_key", ()))
        return {"type": "object", "properties": {name: {} for name in named}, "required": needed}
    # An older draft that is also one of today's says the same, but for rare corners.
    members = {name: value for name, value in schema.items() if name != "$schema"}
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, Mapping) else []
    given = required if isinstance(required, Sequence) else ()
    bare: dict[str, Json] = {
        "type": "object",
        "properties": {name: {} for name in names},
        "required": [each for each in given if isinstance(each, str) and each in names],
    }
    tried: list[dict[str, Json]] = [{"type": "object", **members}, bare]
    return next(filter(_is_read, tried), {"type": "object"})


def _is_read(schema: Mapping[str, Json]) -> bool:
    try:
        build_contract("schema", arguments_schema=schema, effect=Effect.READ)
    except ContractError:
        return False
    return True


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
    declared = performers_of(app).declared
    found = [tool.contract for tool in app.registry if tool.contract.tool not in declared]
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
    doubting.told(app, outcome)
    return {**outcome.to_json(), "message": telling.told(outcome)}


async def unresolved(app: Doubtless, session_id: str | None = None) -> list[dict[str, Json]]:
    """Answer `list_unresolved`: what is not settled in a session, newest first. Reads only."""
    found = await app.session(session_id)
    return [telling.brief(outcome) for outcome in found.unresolved]
