"""Rules switched off, one at a time: each must be missed by a story of what goes wrong without it.

A mutant replaces a function of the core, or of what calls the core here, while a search runs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from unittest.mock import patch

from doubtless.core import evidence, permission, policy
from doubtless.core.contract import ApprovalRules, Contract, LookupRules, Stores
from doubtless.core.model import Attempt, Now, Record, State
from doubtless.core.steps import Step, Wait
from doubtless.testing import explore_steps as steps
from doubtless.testing.explore_families import SCENES
from doubtless.testing.explore_world import TICK, Budget, Look, Scene, Sending, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule switched off."""

    drops: str  # what is no longer heeded, in words
    where: tuple[tuple[object, str], ...]  # every name under which the rule is called
    makes: Callable[..., Callable[..., object]]  # from the real rule
    scene: Scene  # the small world in which it is missed
    breaks: str  # the invariant, as the story ends


@contextmanager
def switched_off(mutant: Mutant) -> Iterator[None]:
    """Replace the rule while this runs."""
    patches = [
        patch.object(module, name, mutant.makes(getattr(module, name)))
        for module, name in mutant.where
    ]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


# --- the rules, without their point --------------------------------------------------------------


def _last_alone(real: Callable[[Record, Contract, Now], int]) -> Callable[..., int]:
    def horizon_of_the_last_attempt(record: Record, contract: Contract, now: Now) -> int:
        return real(replace(record, attempts=record.attempts[-1:]), contract, now)

    return horizon_of_the_last_attempt


def _fold_ignored(
    real: Callable[[Record, Contract], tuple[Attempt, ...]],
) -> Callable[..., tuple[Attempt, ...]]:
    def unproven_of_the_last_attempt(record: Record, contract: Contract) -> tuple[Attempt, ...]:
        return real(replace(record, attempts=record.attempts[-1:]), contract)

    return unproven_of_the_last_attempt


def _no_lease(real: Callable[..., object]) -> Callable[..., object]:
    def gate(record: Record, contract: Contract, now: Now, *, attempt: int, fence: int) -> object:
        last = replace(record.attempts[-1], lease_end_ms=evidence.FOREVER_MS)
        timeless = replace(record, attempts=(*record.attempts[:-1], last))
        return real(timeless, contract, now, attempt=attempt, fence=fence)

    return gate


def _no_fence(real: Callable[..., object]) -> Callable[..., object]:
    def gate(record: Record, contract: Contract, now: Now, *, attempt: int, fence: int) -> object:
        del fence
        mine = record.attempts[attempt - 1]
        opened = replace(mine, ended_ms=None, lease_end_ms=evidence.FOREVER_MS)
        operation = replace(record.operation, state=State.EXECUTING)
        as_it_was = replace(
            record, operation=operation, attempts=(*record.attempts[: attempt - 1], opened)
        )
        return real(as_it_was, contract, now, attempt=attempt, fence=operation.fence)

    return gate


def _keyless_gate(real: Callable[..., object]) -> Callable[..., object]:
    def gate(record: Record, contract: Contract, now: Now, *, attempt: int, fence: int) -> object:
        return real(record, replace(contract, key=None), now, attempt=attempt, fence=fence)

    return gate


def _for_ever(real: Callable[..., int]) -> Callable[..., int]:
    del real
    return lambda record, contract, now: evidence.FOREVER_MS  # noqa: ARG005 — as it is called


def _one_is_enough(real: Callable[..., int]) -> Callable[..., int]:
    def counted(record: Record, look: LookupRules, from_ms: int, settled_from_ms: int) -> int:
        seen = real(record, look, from_ms, settled_from_ms)
        return look.confirmations if seen else 0

    return counted


def _no_lag(real: Callable[..., int]) -> Callable[..., int]:
    def counted(record: Record, look: LookupRules, from_ms: int, settled_from_ms: int) -> int:
        return real(record, replace(look, lag_ms=0), from_ms, settled_from_ms)

    return counted


def _stores_ignored(real: Callable[..., bool]) -> Callable[..., bool]:
    def may_resend(record: Record, contract: Contract, now: Now, *, absent: bool) -> bool:
        key = replace(contract.key, stores=Stores.ALL) if contract.key is not None else None
        return real(record, replace(contract, key=key), now, absent=absent)

    return may_resend


def _unclaimed(real: Callable[..., Step]) -> Callable[..., Step]:
    del real

    def when_prepared(
        record: Record, contract: Contract, now: Now, finding: evidence.Finding
    ) -> Step:
        del contract, now, finding
        return Wait(until_ms=record.operation.valid_until_ms)

    return when_prepared


def _never_hasty(real: Callable[..., bool]) -> Callable[..., bool]:
    del real
    return lambda record, contract, arrives_ms: False  # noqa: ARG005 — the rule's own signature


def _at_the_gate(real: Callable[..., object]) -> Callable[..., object]:
    del real

    def sent_by(sending: Sending) -> int | None:
        return sending.gate_ms

    return sent_by


def _at_its_end(real: Callable[..., object]) -> Callable[..., object]:
    del real

    def speaks_for(world: World, look: Look) -> int:
        del look
        return world.now

    return speaks_for


# --- where each is missed ------------------------------------------------------------------------


def _in(name: str, **faults: int) -> Scene:
    """Return a scene with just these faults, before a provider that answers nothing special."""
    return replace(SCENES[name], name=f"{name}, narrowed", budget=Budget(**faults))


def _forgetful(scene: Scene) -> Scene:
    """The provider forgets keys soon."""
    key = scene.contract.key
    short = replace(key, ttl_ms=5 * TICK) if key is not None else None
    return replace(scene, contract=replace(scene.contract, key=short))


def _brief(scene: Scene) -> Scene:
    """An approval stands for one tick."""
    contract = replace(scene.contract, approval=ApprovalRules(expires_ms=TICK))
    return replace(scene, contract=contract)


def _busy(scene: Scene) -> Scene:
    return replace(scene, busy=True)


_ARRIVES = ((evidence, "arrives_until_ms"), (permission, "arrives_until_ms"))
_GATE = ((permission, "gate"),)
_COUNTED = ((evidence, "_counted"),)

MUTANTS: Final[Mapping[str, Mutant]] = {
    "last-horizon": Mutant(
        drops="the horizons of all attempts but the last",
        where=_ARRIVES,
        makes=_last_alone,
        scene=_busy(_in("idempotent_call/crash")),
        breaks="truth",
    ),
    "no-lease": Mutant(
        drops="the end of the lease, in the gate",
        where=_GATE,
        makes=_no_lease,
        scene=_in("write/resend", stalls=1),
        breaks="gate",
    ),
    "no-fence": Mutant(
        drops="the fence, in the gate",
        where=_GATE,
        makes=_no_fence,
        scene=_in("write/resend", stalls=1),
        breaks="gate",
    ),
    "unapproved": Mutant(
        drops="the end of an approval, in the gate",
        where=((permission, "approved_until_ms"),),
        makes=_for_ever,
        scene=_brief(_in("write/approval", votes=1, stalls=1)),
        breaks="approval",
    ),
    "one-confirmation": Mutant(
        drops="every confirmation of an absence but one",
        where=_COUNTED,
        makes=_one_is_enough,
        scene=_in("write/lookups", blind=2, stray=1),
        breaks="truth",
    ),
    "no-lag": Mutant(
        drops="the lag of the read side",
        where=_COUNTED,
        makes=_no_lag,
        scene=_in("write/lookups"),
        breaks="truth",
    ),
    "key-once": Mutant(
        drops="the life of the key, in the gate",
        where=_GATE,
        makes=_keyless_gate,
        scene=_forgetful(_in("idempotent_call/stall", stalls=1)),
        breaks="key",
    ),
    "no-fold": Mutant(
        drops="the proofs that the earlier attempts lack",
        where=((evidence, "unproven"),),
        makes=_fold_ignored,
        scene=_busy(_in("idempotent_call/crash")),
        breaks="truth",
    ),
    "unclaimed": Mutant(
        drops="operations that are prepared, when the due ones are taken up",
        where=((policy, "_when_prepared"),),
        makes=_unclaimed,
        scene=_in("write/crash", crashes=1),
        breaks="progress",
    ),
    "sent-at-gate": Mutant(
        drops="the time between the gate and the first byte",
        where=((steps, "sent_by"),),
        makes=_at_the_gate,
        scene=_in("write/stall", stalls=1),
        breaks="truth",
    ),
    "hasty-word": Mutant(
        drops="that a word was said before the last of it could arrive",
        where=((permission, "_hasty"),),
        makes=_never_hasty,
        scene=_in("write/operator", words=1, repeats=1),
        breaks="effects",
    ),
    "stamped-at-end": Mutant(
        drops="the beginning of a look-up, and stamps it at its end",
        where=((steps, "speaks_for"),),
        makes=_at_its_end,
        scene=_in("write/lookups"),
        breaks="truth",
    ),
    "stores": Mutant(
        drops="what the provider stores under a key",
        where=((policy, "may_resend"), (permission, "may_resend")),
        makes=_stores_ignored,
        scene=_in("idempotent_call/partial"),
        breaks="effects",
    ),
}
"""Every mutant by its name."""
