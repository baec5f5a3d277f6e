"""The steps that policy can choose. What each one does to an operation stands in `progress`."""

from dataclasses import dataclass
from typing import TypeAlias

from doubtless.core.evidence import Finding
from doubtless.core.model import Cause, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Carry the action out (again): same operation, same key, same bytes."""

    resend: bool  # some earlier attempt is not proven not done by its own end
    why: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """Ask the declared look-ups at `at_ms`."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before `until_ms`."""

    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Go on in another open state."""

    to: State
    cause: Cause | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """It stays where it stands, and another reason is told."""

    cause: Cause | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Close the operation, with the evidence that proves it."""

    to: State
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """Ask a person."""

    cause: Cause


Step: TypeAlias = Send | LookUp | Wait | Note | Move | Settle | Escalate


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A step, and what the evidence was found to say."""

    step: Step
    finding: Finding
