"""Models that don't give in: a small agent loop of our own, and scripts of what they do.

Each script is what a model does after the first call of its turn, whatever it is told. They do what
models were seen to do after a time-out: call again, vary, split, rephrase, start over.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from doubtless import Doubtless, Effect
from doubtless.engine.contracts import Key, ToolKeys
from doubtless.engine.tools import Call
from doubtless.errors import BadRequest
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.guarding import Guard


@dataclass(frozen=True, slots=True)
class Turn:
    """One tool call of a model."""

    tool: str
    arguments: Mapping[str, Any]
    session: str = "agent"

    def but(self, **arguments: Any) -> "Turn":
        """Make a variant; what is None is left out."""
        found = {**self.arguments, **arguments}
        kept = {name: value for name, value in found.items() if value is not None}
        return replace(self, arguments=kept)


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a call: the words that the model read."""

    turn: Turn
    text: str


Script: TypeAlias = Callable[[Turn, list[Said]], Iterator[Turn]]
Tools: TypeAlias = Mapping[str, Callable[[Mapping[str, Any], str], Awaitable[str]]]

FIRST = Turn("refund", {"charge": "ch_1", "amount": 500})


async def run(script: Script, tools: Tools, first: Turn = FIRST) -> list[Said]:
    """Let a model have its way: the first call, then whatever its script does."""
    heard: list[Said] = []

    async def take(turn: Turn) -> None:
        text = await tools[turn.tool](turn.arguments, turn.session)
        heard.append(Said(turn, text))

    await take(first)
    for turn in script(first, heard):
        await take(turn)
    return heard


# --- what they do --------------------------------------------------------------------------------


def repeats(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield from [first] * 3


def reorders(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield replace(first, arguments=dict(reversed(list(first.arguments.items()))))


def writes_the_number_in_another_way(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(amount=500.0)


def rounds(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(amount=499)
    yield first.but(amount=501)


def adds_a_note(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(note="second try, the first timed out")


def rephrases(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(note="Refund for the customer")
    yield first.but(note="refund for the Customer.")


def splits(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(amount=250)
    yield first.but(amount=250)


def uses_another_tool(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield replace(first, tool="credit")


def starts_over(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield replace(first, session="agent-2")
    yield replace(first.but(amount=499), session="agent-2")


def makes_an_id_up(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield first.but(operation_id="refund-2")
    yield first.but(idempotency_key="retry-2")
    yield Turn("operation_status", {"operation_id": "refund-2"})
    yield first


def asks_and_goes_on(first: Turn, heard: list[Said]) -> Iterator[Turn]:
    yield Turn("operation_status", {"operation_id": named_in(heard[0].text)})
    yield first
    yield Turn("list_unresolved", {})
    yield first.but(note="still not there")
    yield Turn("operation_status", {"operation_id": named_in(heard[0].text)})
    yield first.but(amount=499)


SCRIPTS: tuple[Script, ...] = (
    repeats,
    reorders,
    writes_the_number_in_another_way,
    rounds,
    adds_a_note,
    rephrases,
    splits,
    uses_another_tool,
    starts_over,
    makes_an_id_up,
    asks_and_goes_on,
)


def named_in(text: str) -> str:
    """Return the operation id that a text tells to ask for."""
    return text.partition('operation_id="')[2].partition('"')[0]


# --- what they act on ----------------------------------------------------------------------------

ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "required": ["charge", "amount"],
    "additionalProperties": False,
    "properties": {
        "charge": {"type": "string"},
        "amount": {"type": "number"},
        "note": {"type": "string"},
    },
}
BARRED: ToolKeys = {
    "effect": Effect.MONEY,
    "source": "payments",
    "business_key": ["charge"],
    "idempotency": Key(ttl="24h"),
}


@dataclass(slots=True)
class FarSide:
    """The far side of function tools: it takes effect, and its answer is lost."""

    effects: list[tuple[str, Any]] = field(default_factory=list)

    def loses_the_answer(self, tool: str, arguments: Mapping[str, Any]) -> Callable[[Call], Any]:
        async def perform(call: Call) -> Any:
            self.effects.append((tool, dict(arguments)))
            raise ConnectionError("the connection was reset")

        return perform

    def plainly(self) -> Tools:
        """Return the tools as a framework has them without us: each call acts."""

        async def act(tool: str, arguments: Mapping[str, Any]) -> str:
            self.effects.append((tool, dict(arguments)))
            return f"Error calling {tool}: the connection was reset. Please try again."

        async def none(arguments: Mapping[str, Any], session: str) -> str:
            return "There is no such tool."

        return {
            "refund": lambda arguments, _: act("refund", arguments),
            "credit": lambda arguments, _: act("credit", arguments),
            "operation_status": none,
            "list_unresolved": none,
        }


def guarded(guard: Guard, far: FarSide, keys: ToolKeys | None) -> Tools:
    """Return function tools behind a guard."""
    for name in ("refund", "credit"):
        guard.declare(name, schema=ARGUMENTS, description="Gives money back.", keys=keys)

    def tool(name: str) -> Callable[[Mapping[str, Any], str], Awaitable[str]]:
        async def called(arguments: Mapping[str, Any], session: str) -> str:
            perform = far.loses_the_answer(name, arguments)
            try:
                outcome = await guard.call(name, arguments, perform, session_id=session)
            except BadRequest as error:
                return telling.not_done(str(error))
            return telling.in_full(outcome)

        return called

    return {"refund": tool("refund"), "credit": tool("credit"), **asking(guard.app)}


def offered(app: Doubtless) -> Tools:
    """Return the tools of a contract file, as a gateway or an adapter offers them."""

    def tool(name: str) -> Callable[[Mapping[str, Any], str], Awaitable[str]]:
        async def called(arguments: Mapping[str, Any], session: str) -> str:
            try:
                outcome = await doubting.ask(app, name, arguments, session_id=session)
            except BadRequest as error:
                return telling.not_done(str(error))
            return telling.in_full(outcome)

        return called

    return {"refund": tool("refund"), "credit": tool("credit"), **asking(app)}


def asking(app: Doubtless) -> Tools:
    """Return the two tools that only read."""

    async def status(arguments: Mapping[str, Any], session: str) -> str:
        return str(await guarding.status(app, arguments["operation_id"]))

    async def unresolved(arguments: Mapping[str, Any], session: str) -> str:
        return str(await guarding.unresolved(app, session))

    return {"operation_status": status, "list_unresolved": unresolved}


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[Doubtless]:
    """Open an application on a ledger of its own."""
    async with Doubtless(f"sqlite:///{folder / 'ledger.db'}", **options) as app:
        yield app
