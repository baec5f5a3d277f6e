"""Who may send, and until when: key life, budgets, repeats of a closed operation, and the gate.

A lease, a queue's delivery or a restart is no permit. Permission is judged when a step is decided,
and once more by `gate`, immediately before the first byte.
"""

from dataclasses import dataclass
from typing import assert_never

from doubtless.core.approvals import approved, approved_until_ms
from doubtless.core.contract import ATTEMPTS_MAX, STALL_MARGIN_MS, Contract, Stores
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.evidence import FOREVER_MS, arrives_until_ms, counts, proof_of, weigh
from doubtless.core.model import (
    HARMLESS_CAUSES,
    Blocker,
    Cause,
    Now,
    Record,
    Shows,
    Source,
    State,
)

CONTINUES_ON = frozenset({State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW})


def blocked(record: Record) -> bool:
    """Whether another operation still has to be waited for: an earlier one, or on its object."""
    if record.waits_for is not None or record.object_taken_by is not None:
        return True
    return bool(record.blockers) and bool(blocking(record))


def blocking(record: Record) -> tuple[Blocker, ...]:
    """Return those of `after` that it has to wait for."""
    goes_on = CONTINUES_ON if record.operation.on_unknown == "continue" else frozenset()
    return tuple(
        blocker
        for blocker in record.blockers
        if blocker.state is not State.SUCCEEDED and blocker.state not in goes_on
    )


def failed_blocker(record: Record) -> str | None:
    """Return the first operation in `after` that has ended otherwise than as succeeded."""
    for blocker in record.blockers:
        if blocker.state.ends and blocker.state is not State.SUCCEEDED:
            return blocker.operation_id
    return None


def first_sent_ms(record: Record) -> int | None:
    """Return when the provider may first have seen the key; None if it surely has not."""
    for attempt in record.attempts:
        if proof_of(attempt, record.evidence) is not Cause.NOT_SENT:
            return attempt.opened_ms
    return None


def key_last_send_ms(record: Record, contract: Contract, now: Now) -> int:
    """Return the last instant at which a keyed send may begin; `FOREVER_MS` where no key binds.

    The life counts from the first send. An unknown one allows no further send, and so does a
    clock that can't be trusted since then.
    """
    first_ms = first_sent_ms(record)
    if contract.key is None or first_ms is None or contract.effect in NO_EFFECT:
        return FOREVER_MS
    if contract.key.ttl_ms is None or now.break_ms > first_ms:
        return 0
    takes_ms = STALL_MARGIN_MS + contract.timeout_ms + contract.horizon_ms
    return first_ms + contract.key.ttl_ms - takes_ms - contract.key.margin_ms


def key_lives(record: Record, contract: Contract, now: Now) -> bool:
    """Whether a send that begins now still meets the provider's memory of the key."""
    return now.ms <= key_last_send_ms(record, contract, now)


def tries_left(record: Record, contract: Contract) -> bool:
    """Whether one more send is within the budget for attempts that are proven not done."""
    counted = [
        attempt
        for attempt in record.attempts
        if attempt.number > record.operation.budget_from
        and (not attempt.resend or proof_of(attempt, record.evidence) is Cause.NOT_SENT)
    ]
    return len(record.attempts) < ATTEMPTS_MAX and len(counted) < contract.retry.attempts


def may_resend(record: Record, contract: Contract, now: Now, *, absent: bool) -> bool:
    """Whether policy permits a send after an unknown, `absent` saying if absence is confirmed."""
    if record.overtaken_by is not None or blocked(record) or not approved(record, contract, now):
        return False
    if now.ms >= record.operation.valid_until_ms or len(record.attempts) >= ATTEMPTS_MAX:
        return False
    if resends_left(record, contract) <= 0 or not key_lives(record, contract, now):
        return False
    if not tries_left(record, contract) and _last_never_left(record):
        return False
    if contract.duplicates_acceptable:
        return True
    match RULES[contract.effect].resend:
        case Resend.NEVER:
            return False
        case Resend.FREELY | Resend.ONCE | Resend.SAME_OBJECT:
            return True
        case Resend.VERSIONED:
            return contract.condition is not None and not contract.condition.version_reuse
        case Resend.REPLAYED:
            replays = contract.key is not None and contract.key.stores in (
                Stores.ALL,
                Stores.CURRENT_STATE,
            )
            kept = replays and not _broke_its_promise(record)
            return kept or (absent and contract.key is not None)
        case Resend.AFTER_ABSENCE:
            return absent
        case Resend.AFTER_ABSENCE_WITH_KEY:
            return absent and contract.key is not None
        case _:
            assert_never(RULES[contract.effect].resend)


def _last_never_left(record: Record) -> bool:
    """Whether the last send provably never left: such a one is free, but not without end."""
    return proof_of(record.attempts[-1], record.evidence) is Cause.NOT_SENT


def _broke_its_promise(record: Record) -> bool:
    """Whether a repeat under the key got an answer of its own instead of the first one.

    Then the provider doesn't replay, whatever it documents, and the next repeat may act.
    """
    doubtful = [a.number for a in record.attempts if proof_of(a, record.evidence) is None]
    first = min(doubtful, default=0)
    refused = any(
        item.shows is Shows.REFUSED
        and item.source is Source.RESPONSE
        and item.attempt is not None
        and item.attempt > first
        for item in record.evidence
    )
    own = (Cause.UNPROVEN_STATUS, Cause.KEY_MISMATCH)
    return refused or any(
        attempt.number > first and attempt.observation and attempt.observation.cause in own
        for attempt in record.attempts
    )


def resends_left(record: Record, contract: Contract) -> int:
    """Return how many sends after an unknown are left; one that provably never left is free."""
    used = sum(
        1
        for attempt in record.attempts
        if attempt.resend
        and attempt.number > record.operation.budget_from
        and proof_of(attempt, record.evidence) is not Cause.NOT_SENT
    )
    at_most = RULES[contract.effect].resends_max
    allowed = contract.retry.resend if at_most is None else min(contract.retry.resend, at_most)
    return allowed - used


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Whether a closed operation may act again under its own id, and if not, why."""

    allowed: bool
    may_arrive: bool = False  # something of it can still arrive
    from_ms: int | None = None  # until when, where that is known
    why: str = ""


def may_repeat(record: Record, contract: Contract, now: Now, *, authorised: bool = False) -> Repeat:
    """Judge a repeated call with the same id, or an operator's retry, of a failed operation.

    Args:
        record: The operation.
        contract: The one that it was prepared with.
        now: The ledger's clock.
        authorised: By whoever asks: an operator's retry needs no approval besides.
    """
    operation = record.operation
    if operation.state is not State.FAILED:
        return Repeat(allowed=False, why="it did not end as provably not done")
    arrives_ms = 0
    if operation.cause not in (Cause.CONFIRMED_ABSENT, Cause.DEFINITE_FAILURE):
        arrives_ms = arrives_unless_absent_ms(record, contract, now)
    may_arrive = arrives_ms > now.ms
    reasons = {
        "it did not end as provably not done": operation.cause not in HARMLESS_CAUSES,
        "the object is being worked on by another operation": record.object_taken_by is not None,
        "a newer operation on the same object exists": record.newer_twin is not None,
        "it was overtaken": record.overtaken_by is not None,
        "its intent is void": now.ms >= operation.valid_until_ms,
        UNAPPROVED: not authorised and not approved(record, contract, now),
        "the provider may have forgotten the key": not key_lives(record, contract, now),
        "all attempts are used up": len(record.attempts) >= ATTEMPTS_MAX,
        "something of it may still arrive": may_arrive,
        HASTY: _hasty(record, contract, arrives_ms),
    }
    if operation.cause is Cause.CONFIRMED_ABSENT:
        stands = weigh(record, contract, now).basis is Cause.CONFIRMED_ABSENT
        reasons["its absence is not proven any more"] = not stands
    why = next((why for why, holds in reasons.items() if holds), "")
    return Repeat(
        allowed=not why,
        may_arrive=may_arrive,
        from_ms=arrives_ms if may_arrive and arrives_ms < FOREVER_MS else None,
        why=why,
    )


UNAPPROVED = "its approval does not stand any more"
HASTY = "it was decided to be not done before the last of it could have arrived: look again"


def _hasty(record: Record, contract: Contract, arrives_ms: int) -> bool:
    """Whether a person said "not done" too early for it to be known by now.

    What was true then says nothing of what arrived between the word and the end of the horizon.
    """
    words = [
        item.at_ms
        for item in record.evidence
        if item.source is Source.OPERATOR and item.shows is Shows.NOT_APPLIED
    ]
    relies = record.operation.cause is Cause.OPERATOR_NOT_DONE
    return relies and max(words, default=0) < arrives_ms + contract.lag_ms


def arrives_unless_absent_ms(record: Record, contract: Contract, now: Now) -> int:
    """As `arrives_until_ms`, but an operator's word doesn't stop what is on its way."""
    facts = tuple(item for item in record.evidence if item.source is not Source.OPERATOR)
    bare = Record(operation=record.operation, attempts=record.attempts, evidence=facts)
    return arrives_until_ms(bare, contract, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Permission to write the first byte until `write_by_ms`, by the ledger's clock."""

    write_by_ms: int

    @property
    def sent_by_ms(self) -> int:
        """The last instant at which the first byte can leave: a process may stall that long."""
        return self.write_by_ms + STALL_MARGIN_MS


def gate(record: Record, contract: Contract, now: Now, *, attempt: int, fence: int) -> Pass | str:
    """Judge, immediately before the first byte, whether it may be written. A text says why not."""
    operation = record.operation
    current = record.attempts[-1] if record.attempts else None
    if operation.state is not State.EXECUTING or operation.fence != fence:
        return "another worker holds the operation now"
    if current is None or current.number != attempt or current.ended_ms is not None:
        return "this attempt has ended"
    earlier = Record(
        operation=operation,
        attempts=record.attempts[:-1],
        evidence=record.evidence,
    )
    key_last_ms = key_last_send_ms(earlier, contract, now)
    lease_last_ms = current.lease_end_ms - STALL_MARGIN_MS
    if now.ms >= lease_last_ms:
        return "its lease has run out"
    if now.ms >= operation.valid_until_ms:
        return "its intent is void"
    if now.ms > key_last_ms:
        return "the provider may have forgotten the key"
    if _settled_meanwhile(record, contract, current.opened_ms):
        return "evidence came in that settles it"
    if record.overtaken_by is not None:
        return "a newer operation replaces it"
    if blocked(record) or failed_blocker(record) is not None:
        return "an operation that it comes after does not stand"
    approved_ms = approved_until_ms(record, contract, now)
    if now.ms >= approved_ms:
        return UNAPPROVED
    return Pass(write_by_ms=min(lease_last_ms, operation.valid_until_ms, key_last_ms, approved_ms))


def _settled_meanwhile(record: Record, contract: Contract, opened_ms: int) -> bool:
    """Whether evidence about the effect arrived since the attempt was opened."""
    settles = (Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS, Shows.CONFLICT)
    return any(
        item.shows in settles and item.at_ms >= opened_ms and counts(item, record, contract)
        for item in record.evidence
    )
