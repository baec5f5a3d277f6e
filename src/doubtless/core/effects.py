"""The effects, and what policy may do with an unknown of each. One row per effect, no default.

The rows are floors: a contract may be stricter, and is refused when it is looser.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from doubtless.core.contract import OnAbsent
from doubtless.core.model import Effect


class Resend(StrEnum):
    """What must hold before the same bytes may be sent again after an unknown."""

    FREELY = "freely"  # nothing outside changes
    ONCE = "once"
    SAME_OBJECT = "same_object"  # the repeat meets the object that the caller named
    VERSIONED = "versioned"  # the repeat is refused if the first one worked
    REPLAYED = "replayed"  # the provider documents that a live key replays the first answer
    AFTER_ABSENCE = "after_absence"
    AFTER_ABSENCE_WITH_KEY = "after_absence_with_key"  # and the key must be alive
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRule:
    """One row: what an unknown of this effect permits, and the defaults that go with it."""

    looks_up: bool  # may be settled by a declared look-up
    resend: Resend
    on_absent: OnAbsent = OnAbsent.REPORT
    irreversible: bool = False
    confirmations: int = 2  # absences that make one confirmed
    resends: int = 1  # sends after an unknown
    resends_max: int | None = None  # however many a contract says


def _irreversible(resend: Resend, *, looks_up: bool = True) -> EffectRule:
    return EffectRule(looks_up=looks_up, resend=resend, irreversible=True, confirmations=3)


_FREE = EffectRule(looks_up=False, resend=Resend.FREELY)
_AFTER_ABSENCE = _irreversible(Resend.AFTER_ABSENCE)
_WITH_KEY = _irreversible(Resend.AFTER_ABSENCE_WITH_KEY)
_NEVER = _irreversible(Resend.NEVER, looks_up=False)


def _once(resend: Resend) -> EffectRule:
    return EffectRule(looks_up=True, resend=resend, on_absent=OnAbsent.RESEND, resends_max=1)


def _by_the_provider(resend: Resend) -> EffectRule:
    return EffectRule(looks_up=True, resend=resend, on_absent=OnAbsent.RESEND, resends=4)


RULES: Mapping[Effect, EffectRule] = MappingProxyType(
    {
        Effect.READ: _FREE,
        Effect.COMPUTE: _FREE,
        Effect.FILE: _once(Resend.AFTER_ABSENCE),
        Effect.SHELL_READ: _once(Resend.ONCE),
        Effect.SHELL_WRITE: _AFTER_ABSENCE,
        Effect.KEYED_CREATE: _by_the_provider(Resend.SAME_OBJECT),
        Effect.CONDITIONAL_UPDATE: _by_the_provider(Resend.VERSIONED),
        Effect.IDEMPOTENT_CALL: _by_the_provider(Resend.REPLAYED),
        Effect.WRITE: EffectRule(looks_up=True, resend=Resend.AFTER_ABSENCE),
        Effect.MONEY: _WITH_KEY,
        Effect.MESSAGE: _WITH_KEY,
        Effect.ACCESS: _AFTER_ABSENCE,
        Effect.DELETE: _AFTER_ABSENCE,
        Effect.PUBLISH: _AFTER_ABSENCE,
        Effect.ORDER: _WITH_KEY,
        Effect.BOOKING: _WITH_KEY,
        Effect.PHYSICAL: _WITH_KEY,
        Effect.BROWSER: _NEVER,
        Effect.TIME_SENSITIVE: _NEVER,
    }
)

NO_EFFECT = frozenset({Effect.READ, Effect.COMPUTE})
"""Nothing outside changes, so that every ended attempt counts as proven not done."""
