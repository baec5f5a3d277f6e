"""Evidence → verdict: attribution, absence over time, contradiction.

The fold is monotone. Nothing that is added later turns `applied` back into `unknown`; time alone
proves nothing; and what speaks for one attempt never speaks for the operation.

* An operator's decision closes what came before it; what comes after is held against it.
* Every other authoritative item about the effect counts. Two that disagree are a contradiction,
  unless the provider's own clock says that one of them was overtaken by the other.
* Proof about attempts adds up to `not_applied` only when it covers every one of them.
* Absence adds up only by the four conditions of `absence`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from doubtless.core.contract import Contract, LookupRules
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import (
    Attempt,
    Cause,
    Evidence,
    Now,
    Record,
    Shows,
    Source,
    Strength,
    Verdict,
)

FOREVER_MS = 2**62
EVENT_TOLERANCE_MS = 300_000  # how much older than the first attempt an event may be

ASKED = frozenset({Source.LOOKUP, Source.OBJECT, Source.MARKER})
"""Who speaks only when asked: each of these speaks for the moment at which the asking began."""

ATTEMPT_PROOF = {
    Shows.NOT_SENT: Cause.NOT_SENT,
    Shows.NOT_PROCESSED: Cause.NOT_PROCESSED,
    Shows.REFUSED: Cause.REFUSED,
}
"""What one attempt's own end may prove about that attempt."""

SOMETHING_IS_THERE = frozenset(
    {Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS, Shows.PRESENT, Shows.CONFLICT}
)
"""Sightings that end the count of absences: "not found" after one of them is drift, not proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """How far "not found" has become proof."""

    provable: bool  # a look-up is declared whose absence counts, and nothing speaks against it
    confirmed: bool
    seen: int  # absences that count, of the look-up that has fewest
    settled_from_ms: int  # nothing of any attempt can arrive after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict, what it rests on, and the evidence that says so."""

    verdict: Verdict
    basis: Cause | None  # for `applied` and `not_applied`: which kind of proof
    numbers: tuple[int, ...]  # of the evidence that decided
    absence: Absence


NOT_ASKED = Absence(provable=False, confirmed=False, seen=0, settled_from_ms=0)
NOTHING_DONE = Finding(
    verdict=Verdict.NOT_APPLIED, basis=Cause.NOT_SENT, numbers=(), absence=NOT_ASKED
)
"""What is known of an operation of which nothing was ever tried."""


def proof_of(attempt: Attempt, evidence: Iterable[Evidence]) -> Cause | None:
    """Return how it is proven that `attempt` did nothing, or None. Refusals outweigh the rest.

    A stored first answer that the provider replays (`key_replay`) speaks for the attempts before
    it too: it is their answer. An operator's "not done" speaks for the attempts opened before it.
    """
    found: Cause | None = None
    for item in evidence:
        cause = ATTEMPT_PROOF.get(item.shows)
        if item.source is Source.OPERATOR and item.shows is Shows.NOT_APPLIED:
            if attempt.opened_ms < item.at_ms and found is None:
                found = Cause.OPERATOR_NOT_DONE
        elif cause is not None and item.attempt is not None:
            replay = item.source is Source.KEY_REPLAY and item.attempt >= attempt.number
            if item.attempt == attempt.number or replay:
                found = Cause.REFUSED if Cause.REFUSED in (found, cause) else cause
    return found


def unproven(record: Record, contract: Contract) -> tuple[Attempt, ...]:
    """Return the attempts that may have had an effect, as far as their own ends tell.

    Reading and computing have none, however they ended.
    """
    if contract.effect in NO_EFFECT:
        return tuple(attempt for attempt in record.attempts if attempt.ended_ms is None)
    return tuple(
        attempt for attempt in record.attempts if proof_of(attempt, record.evidence) is None
    )


def arrives_until_ms(record: Record, contract: Contract, now: Now) -> int:
    """Return the instant after which nothing of this operation can take effect any more.

    The greatest over all attempts that aren't proven not done counts; `FOREVER_MS` while the owner
    of one of them may still be alive. A clock that can't be trusted starts the wait again.
    """
    open_attempts = unproven(record, contract)
    latest = 0
    for attempt in open_attempts:
        if attempt.closed_ms is None:
            return FOREVER_MS
        sent_by = attempt.lease_end_ms if attempt.sent_by_ms is None else attempt.sent_by_ms
        arrives = sent_by + contract.timeout_ms + contract.horizon_ms
        latest = max(latest, arrives, attempt.closed_ms)
    if not open_attempts:
        return 0
    if now.break_ms > open_attempts[0].opened_ms:
        latest = max(latest, now.break_ms + contract.timeout_ms + contract.horizon_ms)
    for item in record.evidence:
        if item.shows is Shows.SIGHTED:
            latest = max(latest, item.at_ms + contract.timeout_ms + contract.horizon_ms)
    return latest


def absence(record: Record, contract: Contract, now: Now) -> Absence:
    """Say whether "not found" proves something, by the four conditions of the model."""
    settled_from = arrives_until_ms(record, contract, now)
    proving = contract.proving_lookups
    opened = max((attempt.opened_ms for attempt in unproven(record, contract)), default=0)
    from_ms = max(opened, now.break_ms)
    speaks_against = any(
        item.shows in SOMETHING_IS_THERE and item.source is not Source.OPERATOR
        for item in since_decision(record)
    )
    sighted = [item.at_ms for item in record.evidence if item.shows is Shows.SIGHTED]
    from_ms = max([from_ms, *sighted])
    provable = bool(proving) and not speaks_against and settled_from < FOREVER_MS
    counts = [_counted(record, look, from_ms, settled_from) for look in proving]
    enough = all(seen >= look.confirmations for seen, look in zip(counts, proving, strict=True))
    return Absence(
        provable=provable,
        confirmed=provable and enough,
        seen=min(counts, default=0),
        settled_from_ms=settled_from,
    )


def _counted(record: Record, look: LookupRules, from_ms: int, settled_from_ms: int) -> int:
    """Count the absences of one look-up, spaced by its interval, the last one late enough."""
    begun = sorted(
        item.begun_ms
        for item in record.evidence
        if item.source is look.speaks
        and item.shows is Shows.ABSENT
        and item.strength is Strength.AUTHORITATIVE
        and item.by == look.name
        and item.begun_ms >= from_ms
    )
    if not begun or begun[-1] < settled_from_ms + look.lag_ms:
        return 0
    seen, last = 1, begun[-1]
    for instant in reversed(begun):
        if instant <= last - look.interval_ms:
            seen, last = seen + 1, instant
    return seen


def since_decision(record: Record) -> tuple[Evidence, ...]:
    """Return the last operator's word and all that was recorded after it, or everything."""
    last = max(
        (
            index
            for index, item in enumerate(record.evidence)
            if item.source is Source.OPERATOR and item.shows in (Shows.APPLIED, Shows.NOT_APPLIED)
        ),
        default=0,
    )
    return record.evidence[last:]


def weigh(record: Record, contract: Contract, now: Now) -> Finding:
    """Fold all evidence of all attempts into one verdict. Pure and monotone."""
    if not record.attempts and not record.evidence:
        return NOTHING_DONE

    claims = _Claims.of(record, contract)
    proofs = [proof_of(attempt, record.evidence) for attempt in record.attempts]
    tie = claims.is_tie and bool(contract.lookups) and not record.operation.state.ends
    if not tie:  # where they tie, the object itself is read before a person is asked
        if claims.disagree or claims.disowned(record, proofs):
            return _finding(Verdict.CONTRADICTION, Cause.CONTRADICTION, claims.all)
        if claims.applied:
            by_operator = claims.applied[0].source is Source.OPERATOR
            basis = Cause.OPERATOR_DONE if by_operator else Cause.PROVEN
            return _finding(Verdict.APPLIED, basis, claims.applied)
        if claims.failed:
            return _finding(Verdict.NOT_APPLIED, Cause.DEFINITE_FAILURE, claims.failed)
    found = absence(record, contract, now)
    if tie:
        return _finding(Verdict.UNKNOWN, None, (), found)
    if claims.going_on:
        return _finding(Verdict.IN_PROGRESS, None, claims.going_on, found)
    if not unproven(record, contract):
        basis = _weakest(proofs, contract)
        words = [
            item
            for item in record.evidence
            if item.source is Source.OPERATOR and item.shows is Shows.NOT_APPLIED
        ]
        said = words[-1:] if basis is Cause.OPERATOR_NOT_DONE else []
        return _finding(Verdict.NOT_APPLIED, basis, said, found)
    if found.confirmed:
        absences = [item for item in record.evidence if item.shows is Shows.ABSENT]
        return _finding(Verdict.NOT_APPLIED, Cause.CONFIRMED_ABSENT, absences, found)
    return _finding(Verdict.UNKNOWN, None, (), found)


def why_unknown(record: Record) -> Cause:
    """Return the cause of the last attempt that ended without proof."""
    for attempt in reversed(record.attempts):
        if attempt.observation is not None and attempt.observation.cause is not None:
            return attempt.observation.cause
    return Cause.CRASH


def seen_at_work(record: Record) -> bool:
    """Whether a look-up saw the accepted work going on."""
    return any(
        item.source in ASKED
        and item.shows is Shows.IN_PROGRESS
        and item.at_ms >= (record.operation.accepted_ms or 0)
        for item in record.evidence
    )


def asked_since_last_attempt(record: Record, contract: Contract) -> bool:
    """A declared look-up is asked, and answers, before any resend."""
    opened_ms = record.attempts[-1].opened_ms if record.attempts else 0
    answers = {
        item.by
        for item in record.evidence
        if item.source in ASKED
        and item.shows is not Shows.COULD_NOT_ASK
        and item.begun_ms >= opened_ms
    }
    return all(look.name in answers for look in contract.lookups)


def _finding(
    verdict: Verdict,
    basis: Cause | None,
    items: Iterable[Evidence],
    found: Absence = NOT_ASKED,
) -> Finding:
    numbers = tuple(item.number for item in items)
    return Finding(verdict=verdict, basis=basis, numbers=numbers, absence=found)


@dataclass(frozen=True, slots=True)
class _Claims:
    """What authoritative items say about the effect itself, the overtaken ones left out."""

    applied: tuple[Evidence, ...]
    failed: tuple[Evidence, ...]
    going_on: tuple[Evidence, ...]
    conflicts: tuple[Evidence, ...]

    @classmethod
    def of(cls, record: Record, contract: Contract) -> "_Claims":
        """Sort what was recorded since the last decision of an operator."""
        items = [item for item in since_decision(record) if counts(item, record, contract)]

        def those(shows: Shows) -> list[Evidence]:
            return [item for item in items if item.shows is shows]

        applied = those(Shows.APPLIED)
        failed = [
            item
            for item in those(Shows.NOT_APPLIED)
            if item.source is not Source.OPERATOR  # it speaks for attempts: see `proof_of`
            and not _overtaken(item, applied, contract)
        ]
        claims = cls(
            tuple(applied),
            tuple(failed),
            tuple(those(Shows.IN_PROGRESS)),
            tuple(those(Shows.CONFLICT)),
        )
        return claims._read_again(contract) if claims.is_tie else claims

    @property
    def all(self) -> tuple[Evidence, ...]:
        """Everything that was claimed."""
        return (*self.conflicts, *self.applied, *self.failed, *self.going_on)

    @property
    def disagree(self) -> bool:
        """Whether a person has to decide between them."""
        return bool(self.conflicts) or bool(self.applied and self.failed)

    @property
    def is_tie(self) -> bool:
        """Whether events of the very same instant disagree."""
        applied = {item.occurred_ms for item in self.applied if item.source is Source.WEBHOOK}
        failed = {item.occurred_ms for item in self.failed if item.source is Source.WEBHOOK}
        return not self.conflicts and bool((applied & failed) - {None})

    def disowned(self, record: Record, proofs: list[Cause | None]) -> bool:
        """Whether the effect is seen although every attempt provably did nothing.

        An operator knew the proofs that were there when she decided; newer ones count.
        """
        seen = (*self.applied, *self.going_on)
        if not seen or not record.attempts or not all(proofs):
            return False
        by_operator = seen[0].source is Source.OPERATOR
        return not by_operator or any(i.shows in ATTEMPT_PROOF for i in since_decision(record))

    def _read_again(self, contract: Contract) -> "_Claims":
        """Let a look-up that was begun after tied events decide between them."""
        applied = {item.occurred_ms for item in self.applied if item.source is Source.WEBHOOK}
        tied_ms = max(
            item.occurred_ms
            for item in self.failed
            if item.occurred_ms is not None and item.occurred_ms in applied
        )

        def fresh(item: Evidence) -> bool:
            speaks_ms = item.begun_ms - contract.lag_ms
            return item.source in ASKED and speaks_ms >= tied_ms

        if not any(fresh(item) for item in (*self.applied, *self.failed)):
            return self

        def stands(item: Evidence) -> bool:
            return item.source is not Source.WEBHOOK or item.occurred_ms != tied_ms

        return _Claims(
            tuple(item for item in self.applied if stands(item)),
            tuple(item for item in self.failed if stands(item)),
            self.going_on,
            self.conflicts,
        )


def counts(item: Evidence, record: Record, contract: Contract) -> bool:
    """Whether an item may settle anything: authoritative, and not about some earlier time."""
    if item.strength is Strength.ADVISORY:
        return False
    if item.source is Source.WEBHOOK:
        if not record.attempts:
            return False  # held: it counts from the first attempt on
        tolerance_ms = contract.events.tolerance_ms if contract.events else EVENT_TOLERANCE_MS
        earliest_ms = record.attempts[0].opened_ms - tolerance_ms
        return item.occurred_ms is None or item.occurred_ms >= earliest_ms
    return True


def _speaks_for_ms(item: Evidence, contract: Contract) -> int | None:
    """The moment that an item speaks for, on the provider's side; None where it names none."""
    if item.source in ASKED:
        return item.begun_ms - contract.lag_ms
    return item.occurred_ms


def _overtaken(item: Evidence, applied: Iterable[Evidence], contract: Contract) -> bool:
    """Whether a "failed" is older, by the provider's clock, than an event that says "applied".

    The reverse never holds: a "failed" after an "applied" is a contradiction.
    """
    mine = _speaks_for_ms(item, contract)
    return mine is not None and any(
        other.occurred_ms is not None and other.occurred_ms > mine for other in applied
    )


def _weakest(proofs: list[Cause | None], contract: Contract) -> Cause:
    """Name the proof that covers all attempts: a refusal where there was one."""
    order = (Cause.REFUSED, Cause.OPERATOR_NOT_DONE, Cause.NOT_PROCESSED, Cause.NOT_SENT)
    for cause in order:
        if cause in proofs and (contract.effect not in NO_EFFECT or cause is Cause.REFUSED):
            return cause
    return Cause.NO_EFFECT if contract.effect in NO_EFFECT else Cause.NOT_SENT
