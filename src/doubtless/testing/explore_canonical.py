"""One key for all worlds that can't be told apart by anything that still may happen.

Two worlds with the same key have the same future, shifted in time. What is left out, and why:

* Instants are relative to now: the rules compare them only with now, with each other, and with such
  an instant plus a declared duration. All lie on the grid of ticks.
* A limit that only has to be passed (validity, due, a lease's end) is cut where it has been passed.
  An instant to which a duration is still added is cut where that sum has been passed.
* An attempt's opening is compared with absences, which are counted per attempt here, and starts the
  key's life, which is kept. Its horizon is kept until look-ups at any later time are late enough;
  whether the last absence already was late enough is kept apart. Neither matters once the attempt's
  own end proves that it did nothing, for that proof is never taken back.
* Absences are one interval apart, which is a tick, or at the same instant: only their number above
  each threshold counts, `confirmations` at most, and whether the last one was begun just now.
* Other evidence is a set, cut in two by the last word of an operator; the order within either part
  is never read. When "not done" was last said is kept. Instants matter where the provider's clock
  orders events, and to the gate: whether any came since the last attempt was opened, or just now,
  when the next one may be. "Nothing" never changes a verdict, and "could not ask" only while it is
  the last answer.
* Versions, names, texts, journalled inputs and the causes of an unknown are read by no rule, save
  that an event is missing. Of fences only equality is, and only while the attempt is open.
* Beyond the second look-up the pause no longer grows.
"""

from collections.abc import Hashable

from doubtless.core.approvals import approved_until_ms
from doubtless.core.evidence import proof_of, seen_at_work
from doubtless.core.model import (
    Attempt,
    Cause,
    Evidence,
    Record,
    Seen,
    Shows,
    Source,
    State,
    Strength,
)
from doubtless.core.permission import arrives_unless_absent_ms
from doubtless.core.schedule import expected_ms
from doubtless.testing.explore_world import (
    DEAD,
    FLYING,
    GATED,
    GONE,
    OVER,
    RUNNING,
    SENT,
    TICK,
    Scene,
    Sending,
    World,
)

REVIEW_TICKS = 4
PASSED = -8  # ticks: longer ago than any pause, horizon with lag, or patience of the checks
FLOOR = -16  # ticks: longer ago than the life of any key

_TIMELESS = frozenset({Shows.NOT_SENT, Shows.NOT_PROCESSED, Shows.REFUSED})
_SILENT = frozenset({Shows.NOTHING, Shows.COULD_NOT_ASK, Shows.ABSENT})
_CAUSELESS = frozenset({State.UNKNOWN, State.RECONCILING, State.EXECUTING, State.ACCEPTED})
_SETTLES = (Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS, Shows.CONFLICT)


def canonical(scene: Scene, world: World) -> tuple[Hashable, ...]:
    """Return the key of a world."""
    record, now = world.record, world.now
    absences = _absences(scene, record)
    attempts = tuple(
        (_life(scene, world, sending, attempt), _attempt(scene, world, attempt, absences))
        for sending, attempt in zip(world.sendings, record.attempts, strict=True)
    )
    return (
        world.budget,
        _truth(scene, world),
        attempts,
        _operation(record, now),
        _approved(scene, world) if record.operation.needs_approval else None,
        _evidence(scene, world, absences),
        _news(scene, world) if scene.contract.events is not None else None,
    )


def _cut(instant: int | None, now: int, floor: int) -> int | None:
    return None if instant is None else max((instant - now) // TICK, floor)


def _truth(scene: Scene, world: World) -> Hashable:
    now = world.now
    told = scene.contract.events is not None and world.budget.hooks > 0
    lag = -(scene.contract.lag_ms // TICK)
    look = world.look
    key = scene.contract.key
    life = -((key.ttl_ms or 0) // TICK) if key is not None else 0
    return (
        world.effects,
        _cut(world.committed_ms, now, FLOOR) if told else None,
        _cut(world.work_ended_ms, now, FLOOR) if told else None,
        _cut(world.sign_ms, now, lag),
        _cut(world.key_seen_ms, now, life) if key is not None else None,
        world.stored,
        world.work,
        look and ((look.begun_ms - now) // TICK, look.absent, look.fence == world.operation.fence),
        world.answered and world.budget.stray > 0,
    )


def _life(scene: Scene, world: World, sending: Sending, attempt: Attempt) -> Hashable:
    now = world.now
    acts = world.may_act(sending)
    request = sending.request
    if request in (FLYING, RUNNING) and not acts:
        request = OVER
    is_open = attempt.ended_ms is None
    worker = sending.worker if is_open or sending.worker != DEAD else GONE
    hears = sending.worker == SENT
    return (
        worker,
        sending.stalled,
        _cut(sending.gate_ms, now, PASSED) if is_open and worker in (GATED, SENT) else None,
        _cut(sending.write_by_ms, now, -2) if worker == GATED else None,
        _cut(sending.first_byte_ms, now, FLOOR) if scene.keyed else sending.first_byte_ms is None,
        _cut(sending.first_byte_ms, now, -(scene.contract.timeout_ms // TICK)) if hears else None,
        request,
        (sending.until_ms - now) // TICK if acts else 0,
        sending.answer,
        is_open and attempt.fence == world.operation.fence,
        sending.worker == DEAD and attempt.closed_ms is None,
    )


def _attempt(scene: Scene, world: World, attempt: Attempt, absences: tuple[int, ...]) -> Hashable:
    record, now, rules = world.record, world.now, scene.contract
    proof = proof_of(attempt, record.evidence)
    operation = record.operation
    traceless = attempt.seen in (Seen.NOT_SENT, Seen.NOT_PROCESSED)
    fixed = (proof, traceless, attempt.resend, attempt.number > operation.budget_from)
    opened = _cut(attempt.opened_ms, now, FLOOR) if scene.keyed else None
    if proof is not None and proof is not Cause.OPERATOR_NOT_DONE:
        return (*fixed, opened)
    if attempt.ended_ms is None:
        return (*fixed, opened, _cut(attempt.sent_by_ms, now, PASSED))
    sent_by_ms = attempt.lease_end_ms if attempt.sent_by_ms is None else attempt.sent_by_ms
    arrives_ms = sent_by_ms + rules.timeout_ms + rules.horizon_ms
    closes_ms = max(arrives_ms, attempt.closed_ms or 0)
    return (
        *fixed,
        opened,
        attempt.closed_ms is None,
        _cut(closes_ms, now, PASSED),
        sum(begun_ms >= attempt.opened_ms for begun_ms in absences),
        bool(absences) and absences[-1] >= closes_ms + rules.lag_ms,
    )


def _operation(record: Record, now: int) -> Hashable:
    operation = record.operation
    closed = operation.state in (State.SUCCEEDED, State.FAILED)
    return (
        operation.state,
        None if operation.state in _CAUSELESS else operation.cause,
        operation.origin,
        _cut(operation.due_ms, now, 0),
        _cut(operation.lease_end_ms, now, 0),
        _cut(operation.valid_until_ms, now, 0),
        None if closed else _cut(operation.deadline_ms, now, PASSED),
        operation.accepted_ms is not None and seen_at_work(record),
        _cut(operation.completes_by_ms, now, PASSED),
        _cut(operation.not_before_ms, now, 0),
        min(operation.looks, 2),
    )


def _absences(scene: Scene, record: Record) -> tuple[int, ...]:
    """Return when the absences began that a later verdict may still count."""
    begun = {
        item.begun_ms
        for item in record.evidence
        if item.source is Source.LOOKUP and item.shows is Shows.ABSENT
    }
    most = max((look.confirmations for look in scene.contract.lookups), default=0)
    return tuple(sorted(begun)[-most:]) if most else ()


def _evidence(scene: Scene, world: World, absences: tuple[int, ...]) -> Hashable:
    record, now = world.record, world.now
    word = max((n for n, item in enumerate(record.evidence) if _is_word(item)), default=-1)
    rules = scene.contract
    ordered, restarts_ms = (
        rules.events is not None,
        rules.timeout_ms + rules.horizon_ms + rules.lag_ms,
    )
    items = frozenset(
        _item(item, now, absences, restarts_ms, after=number > word, ordered=ordered)
        for number, item in enumerate(record.evidence)
        if item.shows not in _SILENT
    )
    looks = [item for item in record.evidence if item.source is Source.LOOKUP]
    last_attempt = record.attempts[-1] if record.attempts else None
    ends = [attempt.ended_ms or attempt.opened_ms for attempt in record.attempts]
    opened_ms = last_attempt.opened_ms if last_attempt else 0
    settled = last_attempt is not None and any(
        item.shows in _SETTLES and item.at_ms >= opened_ms for item in record.evidence
    )
    asked = any(
        item.begun_ms >= opened_ms and item.shows is not Shows.COULD_NOT_ASK for item in looks
    )
    return (
        items,
        word >= 0,
        _not_done(scene, world),
        settled,
        any(item.shows in _SETTLES and item.at_ms == now for item in record.evidence),
        asked,
        bool(looks) and looks[-1].shows is Shows.COULD_NOT_ASK,
        _cut(max([*ends, *(item.begun_ms for item in looks)], default=now), now, PASSED),
        _cut(ends[-1] if ends else None, now, PASSED),
        len(absences),
        bool(absences) and absences[-1] == now,
    )


def _approved(scene: Scene, world: World) -> int | None:
    """Until when people's approval stands: all that is read of them."""
    return _cut(approved_until_ms(world.record, scene.contract, world.clock), world.now, -2)


def _news(scene: Scene, world: World) -> Hashable:
    """What the provider told by itself, or should have."""
    record, now = world.record, world.now
    hearsay = [item.at_ms for item in record.evidence if item.strength is Strength.ADVISORY]
    return (
        world.operation.cause is Cause.WEBHOOK_MISSING,
        _cut(expected_ms(record, scene.contract), now, FLOOR),
        _cut(max(hearsay, default=None), now, FLOOR),
    )


def _not_done(scene: Scene, world: World) -> Hashable:
    """When "not done" was last said, and whether all could have arrived by then."""
    record, now = world.record, world.now
    words = [
        item.at_ms
        for item in record.evidence
        if item.source is Source.OPERATOR and item.shows is Shows.NOT_APPLIED
    ]
    if not words:
        return None
    arrives_ms = arrives_unless_absent_ms(record, scene.contract, world.clock)
    early = words[-1] < arrives_ms + scene.contract.lag_ms
    return early, _cut(words[-1], now, PASSED)


def _is_word(item: Evidence) -> bool:
    return item.source is Source.OPERATOR and item.shows in (Shows.APPLIED, Shows.NOT_APPLIED)


def _item(
    item: Evidence,
    now: int,
    absences: tuple[int, ...],
    restarts_ms: int,
    *,
    after: bool,
    ordered: bool,
) -> Hashable:
    kind = (item.source, item.shows, item.attempt, after)
    if item.shows is Shows.SIGHTED:
        later = sum(begun_ms >= item.at_ms for begun_ms in absences)
        enough = bool(absences) and absences[-1] >= item.at_ms + restarts_ms
        return (*kind, _cut(item.at_ms, now, PASSED), later, enough)
    if item.shows in _TIMELESS or not ordered:
        return kind
    return (*kind, _cut(item.begun_ms, now, FLOOR), _cut(item.occurred_ms, now, FLOOR))
