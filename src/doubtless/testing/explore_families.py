"""The scenes: per effect one small search for each family of faults that can matter to it.

Families are not multiplied together, but for a few pairs of faults at the end. Each has, besides
its own faults, all that a plain scene has: requests that take effect at any time up to their
horizon or never, connections lost at any time, refusals, 429, keys that expire, reads that trail by
up to `lag`, three attempts. What no scene has:

* a stop and a crash in one life where a key ties repeats together; two stops; more than two
  crashes, or than one where it resends;
* refusals and 429 together with a stop, an operator, an event or accepted work;
* a decision of an operator together with a stop, or with a crash where it resends;
* a repeat or an event together with a crash or a stop;
* a look-up that answers from a stray copy together with anything else;
* two look-ups, an approval by two people or for a session, and a clock that can't be trusted.

An effect whose row of rules equals that of an earlier one has the first few families alone, before
a plainer provider, which neither refuses nor answers 429: the core reads the row, not the effect's
name. Only `time_sensitive` is read by name: there a transaction id proves that it was done.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from doubtless.core.contract import ApprovalRules, OnAbsent, Stores
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Effect
from doubtless.testing.explore_scenes import EVENTS, contract, hurried
from doubtless.testing.explore_world import TICK, Budget, Scene

KIND = {"keyed": (Resend.REPLAYED, Resend.AFTER_ABSENCE_WITH_KEY)}


BY_NAME: Final = frozenset({Effect.TIME_SENSITIVE})
"""The effects that the core doesn't tell from others by their rules alone."""


def plain(effect: Effect) -> Scene:
    """Return the scene of an effect in which no fault is left to the environment."""
    row = RULES[effect]
    rules = contract(effect)
    resends = row.on_absent is OnAbsent.RESEND  # by default: three attempts are common
    replays = row.resend is Resend.REPLAYED
    return Scene(
        name=f"{effect}/plain",
        contract=hurried(rules) if resends else rules,
        refuses=not replays,
        busy=not replays,
        budget=Budget(),
        same_object=row.resend in (Resend.SAME_OBJECT, Resend.VERSIONED),
        repeatable=row.resend is Resend.ONCE,
        numbers=effect in BY_NAME,
    )


def with_faults(scene: Scene, family: str, **faults: int) -> Scene:
    """Name a scene after its family, and let the environment do this much."""
    effect = scene.contract.effect
    return replace(scene, name=f"{effect}/{family}", budget=Budget(**faults))


def _crash(scene: Scene) -> Scene:
    return with_faults(scene, "crash", crashes=1 if _resends(scene) else 2)


def _late(scene: Scene) -> Scene:
    return with_faults(scene, "late", late=1, crashes=0 if _resends(scene) else 1)


def _stall(scene: Scene) -> Scene:
    return with_faults(_narrow(scene), "stall", stalls=1)


def _resend(scene: Scene) -> Scene:
    """Absence orders a resend, which is not the row's default."""
    rules = replace(hurried(scene.contract), on_absent=OnAbsent.RESEND)
    return with_faults(replace(scene, contract=rules), "resend", crashes=1)


def _recorded(scene: Scene) -> Scene:
    """The sending itself is recorded, in the gate."""
    rules = replace(hurried(scene.contract), record_sending=True, on_absent=OnAbsent.RESEND)
    return with_faults(_narrow(replace(scene, contract=rules)), "recorded", crashes=1)


def _lookups(scene: Scene) -> Scene:
    return with_faults(scene, "lookups", blind=2, stray=1)


def _operator(scene: Scene) -> Scene:
    """The deadline comes before absence can be confirmed."""
    rules = replace(scene.contract, recovery_deadline_ms=3 * TICK)
    return with_faults(
        _narrow(replace(scene, contract=rules)), "operator", words=1 if _resends(scene) else 2
    )


def _repeat(scene: Scene) -> Scene:
    return with_faults(_narrow(scene), "repeat", repeats=1, words=1)


def _webhook(scene: Scene) -> Scene:
    rules = replace(scene.contract, events=EVENTS)
    return with_faults(
        _narrow(replace(scene, contract=rules)), "webhook", hooks=1 if _resends(scene) else 2
    )


def _hearsay(scene: Scene) -> Scene:
    """An event is expected soon, and is only a reason to look."""
    heard = replace(EVENTS, authoritative=False, expect_ms=2 * TICK)
    rules = replace(hurried(scene.contract), events=heard)
    return with_faults(
        _narrow(replace(scene, contract=rules)), "hearsay", hooks=1 if _resends(scene) else 2
    )


def _approval(scene: Scene) -> Scene:
    """A person has to approve it, and what they say soon expires."""
    rules = replace(hurried(scene.contract), approval=ApprovalRules(expires_ms=3 * TICK))
    few = _resends(scene)
    faults = {"votes": 1} if few else {"votes": 2, "repeats": 1}
    return with_faults(_narrow(replace(scene, contract=rules)), "approval", stalls=1, **faults)


def _accepted(scene: Scene) -> Scene:
    taken = replace(_narrow(scene), accepts=True)
    return with_faults(taken, "accepted", crashes=0 if _resends(scene) else 1)


def _partial(scene: Scene) -> Scene:
    """The provider remembers successes alone, and runs two requests under one key side by side."""
    key = hurried(scene.contract).key
    stores = replace(key, stores=Stores.SUCCESS_ONLY) if key is not None else None
    rules = replace(hurried(scene.contract), key=stores, on_absent=OnAbsent.RESEND)
    return with_faults(_narrow(replace(scene, contract=rules)), "partial", crashes=1)


# --- pairs of faults -----------------------------------------------------------------------------


def _stop_and_crash(scene: Scene) -> Scene:
    quick = replace(_narrow(scene), contract=hurried(scene.contract))
    return with_faults(quick, "stop-and-crash", stalls=1, crashes=1)


def _word_and_crash(scene: Scene) -> Scene:
    return with_faults(_operator(scene), "word-and-crash", words=1, crashes=1)


def _work_and_stop(scene: Scene) -> Scene:
    quick = replace(_accepted(scene), contract=hurried(scene.contract))
    return with_faults(quick, "work-and-stop", stalls=1)


def _work_and_word(scene: Scene) -> Scene:
    quick = replace(_accepted(scene), contract=hurried(scene.contract))
    return with_faults(quick, "work-and-word", words=1)


def _resends(scene: Scene) -> bool:
    return scene.keyed or scene.contract.on_absent is OnAbsent.RESEND


def _narrow(scene: Scene) -> Scene:
    return replace(scene, refuses=False, busy=False)


Family = Callable[[Scene], Scene]

ALWAYS: Final[tuple[Family, ...]] = (_crash, _late)
FULLY: Final[tuple[Family, ...]] = (_stall, _operator, _repeat)
LOOKED_UP: Final[tuple[Family, ...]] = (_recorded, _accepted)


def families(effect: Effect) -> Iterator[Family]:
    """Yield the families that can matter to an effect."""
    row = RULES[effect]
    yield from ALWAYS
    if row.looks_up:
        yield _lookups
    if first_of_its_row(effect) is not effect:
        return
    yield from FULLY
    yield from more(effect)
    if effect in NO_EFFECT:
        return
    yield _webhook
    yield _hearsay
    if row.looks_up:
        yield from LOOKED_UP
        if row.on_absent is not OnAbsent.RESEND:  # else every scene has resends
            yield _resend
    if row.resend in KIND["keyed"]:
        yield _partial


def more(effect: Effect) -> Iterator[Family]:
    """Yield approvals, and the pairs of faults that are few enough to be explored for an effect."""
    row = RULES[effect]
    yield _approval
    if row.resend in KIND["keyed"]:
        return
    yield _stop_and_crash
    if effect in NO_EFFECT or row.on_absent is OnAbsent.RESEND:
        return
    yield _word_and_crash
    if row.looks_up:
        yield _work_and_stop
        yield _work_and_word


def first_of_its_row(effect: Effect) -> Effect:
    """Return the first effect that the core can't tell from this one."""
    if effect in BY_NAME:
        return effect
    return next(other for other, row in RULES.items() if row == RULES[effect])


def _scenes() -> Iterator[Scene]:
    for effect in RULES:
        scene = plain(effect)
        if first_of_its_row(effect) is not effect:
            scene = _narrow(scene)
        for family in families(effect):
            yield family(scene)


ALIKE: Final[Mapping[Effect, Effect]] = {
    effect: first_of_its_row(effect) for effect in RULES if first_of_its_row(effect) is not effect
}
"""The effects that have the first few families alone, and which one has them all in their place."""

SCENES: Final[Mapping[str, Scene]] = {scene.name: scene for scene in _scenes()}
"""Every scene by its name: the effect and the family."""
