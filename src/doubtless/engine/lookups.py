"""Look-ups in Python code: what they are asked about, and their three answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from doubtless.core.model import Json, Shows
from doubtless.transports.base import Sighting, could_not_ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The operation that a look-up is asked about."""

    operation_id: str
    ref: str  # ours, unique everywhere
    idempotency_key: str
    tool: str
    arguments: Mapping[str, Json]
    session_id: str
    provider_operation_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The effect was found, and it is this operation's."""

    provider_operation_id: str | None = None
    state: Literal["applied", "in_progress", "failed"] = "applied"
    result: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A complete look found nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouldNotAsk:
    """Nobody could be asked; any exception means this too."""

    why: str = ""


Answer: TypeAlias = Present | Absent | CouldNotAsk

_STATES = {
    "applied": Shows.APPLIED,
    "in_progress": Shows.IN_PROGRESS,
    "failed": Shows.NOT_APPLIED,
}


def sighting(found: object) -> Sighting:
    """Turn what a look-up's code returned into what it shows; nonsense could not be asked."""
    match found:
        case Present(provider_operation_id=name, state=state, result=result) if state in _STATES:
            return Sighting(
                shows=_STATES[state],
                detail=f"found, {state.replace('_', ' ')}",
                provider_operation_id=name,
                result=result,
            )
        case Absent():
            return Sighting(shows=Shows.ABSENT, detail="the look-up found nothing")
        case CouldNotAsk(why=why):
            return could_not_ask(why or "the look-up could not ask")
        case _:
            return could_not_ask(
                f"the look-up returned {type(found).__name__}, not Present, Absent or CouldNotAsk"
            )
