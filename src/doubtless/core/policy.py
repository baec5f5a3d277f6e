"""Verdict + contract + now → the next step. The model that asked has no say in it.

`decide` is total over the states. It permits; it never acts, and it never reads a clock. Whoever
carries a `Send` out still has to pass the gate (`gate`), where the same conditions are judged again
immediately before the first byte.
"""

from typing import assert_never

from doubtless.core.approvals import approved
from doubtless.core.contract import Contract, OnAbsent
from doubtless.core.effects import NO_EFFECT, RULES
from doubtless.core.evidence import (
    FOREVER_MS,
    Finding,
    asked_since_last_attempt,
    proof_of,
    seen_at_work,
    since_decision,
    weigh,
    why_unknown,
)
from doubtless.core.model import Cause, Now, Record, Shows, Source, State, Verdict
from doubtless.core.permission import (
    blocked,
    failed_blocker,
    key_lives,
    may_resend,
    tries_left,
)
from doubtless.core.schedule import (
    expected_ms,
    next_look_ms,
    next_review_look_ms,
    next_send_ms,
    next_turn_ms,
)
from doubtless.core.steps import Decision, Escalate, LookUp, Move, Note, Send, Settle, Step, Wait

IDLE_DUE_MS = 86_400_000  # what only a person can move on is due again after a day


def decide(
    record: Record, contract: Contract, now: Now, *, finding: Finding | None = None
) -> Decision:
    """Choose the next step. Pure: the same arguments always give the same step.

    Args:
        record: The operation with all that was seen of it.
        contract: The one that it was prepared with.
        now: The ledger's clock.
        finding: What the same attempts and evidence were found to say; weighed here if None.
    """
    if finding is None:
        finding = weigh(record, contract, now)
    return Decision(step=_step(record, contract, now, finding), finding=finding)


def _step(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    match record.operation.state:
        case State.PREPARED:
            return _when_prepared(record, contract, now, finding)
        case State.AWAITING_APPROVAL:
            return _when_awaiting(record, contract, now)
        case State.EXECUTING:
            return _when_executing(record, contract, now, finding)
        case State.ACCEPTED:
            return _when_accepted(record, contract, now, finding)
        case State.UNKNOWN | State.RECONCILING:
            return _when_unknown(record, contract, now, finding)
        case State.MANUAL_REVIEW:
            return _when_in_review(record, contract, now, finding)
        case State.SUCCEEDED | State.FAILED | State.REJECTED | State.CANCELLED:
            return _when_ended(record, contract, finding)
        case _:
            assert_never(record.operation.state)


# --- before anything is sent ---------------------------------------------------------------------


def _when_prepared(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    operation = record.operation
    void = _void(record, contract, now)
    if void is None and record.attempts and finding.verdict is not Verdict.NOT_APPLIED:
        void = Cause.POLICY  # what had permitted one more send no longer stands
    if void is not None:
        if _traceless(record) and void is not Cause.POLICY:
            return Settle(to=State.REJECTED, cause=void)
        return Settle(to=State.FAILED, cause=_last_proof(record, finding))
    if not approved(record, contract, now):
        if not _traceless(record):  # nobody is asked for one more send after it was sent once
            return Settle(to=State.FAILED, cause=_last_proof(record, finding))
        return Move(to=State.AWAITING_APPROVAL, cause=None)
    if blocked(record):
        return Wait(until_ms=min(next_turn_ms(record, now), operation.valid_until_ms))
    if operation.not_before_ms is not None and operation.not_before_ms > now.ms:
        return Wait(until_ms=min(operation.not_before_ms, operation.valid_until_ms))
    if finding.basis is Cause.CONFIRMED_ABSENT:
        if not may_resend(record, contract, now, absent=True):
            return Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
        return Send(resend=True, why=Cause.CONFIRMED_ABSENT)
    return Send(resend=False, why=finding.basis if record.attempts else None)


def _traceless(record: Record) -> bool:
    """Whether no attempt can have left a trace outside."""
    return all(
        proof_of(attempt, record.evidence) in (Cause.NOT_SENT, Cause.NOT_PROCESSED)
        for attempt in record.attempts
    )


def _last_proof(record: Record, finding: Finding) -> Cause:
    """Return what proved, when it became `prepared` again, that nothing had been done."""
    if finding.verdict is Verdict.NOT_APPLIED and finding.basis is not None:
        return finding.basis
    return record.operation.cause or Cause.CONFIRMED_ABSENT


def _void(record: Record, contract: Contract, now: Now) -> Cause | None:
    """Say why the intent may not be carried out any more; POLICY where a budget is spent."""
    if failed_blocker(record) is not None:
        return Cause.AFTER_FAILED
    if now.ms >= record.operation.valid_until_ms:
        return Cause.INTENT_EXPIRED
    if record.overtaken_by is not None:
        return Cause.OVERTAKEN
    if _too_late_to_send(record, contract, now):
        return Cause.POLICY
    if record.attempts and (
        not tries_left(record, contract) or not key_lives(record, contract, now)
    ):
        return Cause.POLICY
    return None


def _when_awaiting(record: Record, contract: Contract, now: Now) -> Step:
    operation = record.operation
    if failed_blocker(record) is not None or record.overtaken_by is not None:
        late = Cause.OVERTAKEN if failed_blocker(record) is None else Cause.AFTER_FAILED
        return Settle(to=State.REJECTED, cause=late)  # whatever people would say
    if approved(record, contract, now):
        return Move(to=State.PREPARED, cause=None)
    expires_ms = operation.not_before_ms or operation.valid_until_ms
    if now.ms >= min(expires_ms, operation.valid_until_ms):
        return Settle(to=State.REJECTED, cause=Cause.APPROVAL_EXPIRED)
    return Wait(until_ms=min(expires_ms, operation.valid_until_ms))


# --- after an attempt ----------------------------------------------------------------------------


def _when_executing(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    operation = record.operation
    if record.open_attempt is not None:
        return Wait(until_ms=operation.lease_end_ms or now.ms)
    match finding.verdict:
        case Verdict.APPLIED:
            return Settle(to=State.SUCCEEDED, cause=finding.basis or Cause.PROVEN)
        case Verdict.CONTRADICTION:
            return Escalate(cause=Cause.CONTRADICTION)
        case Verdict.IN_PROGRESS:
            return Move(to=State.ACCEPTED, cause=None)
        case Verdict.NOT_APPLIED:
            return _not_done(record, contract, now, finding, again=State.PREPARED)
        case Verdict.UNKNOWN:
            return Move(to=State.UNKNOWN, cause=why_unknown(record))
        case _:
            assert_never(finding.verdict)


def _not_done(
    record: Record, contract: Contract, now: Now, finding: Finding, *, again: State
) -> Step:
    """Nothing happened, provably. `again` is the state from which a further send would start."""
    basis = finding.basis or Cause.NOT_SENT
    failed = Settle(to=State.FAILED, cause=basis)
    if _too_late_to_send(record, contract, now):
        return failed
    match basis:
        case Cause.CONFIRMED_ABSENT:
            return _absent(record, contract, now, again=again)
        case Cause.NOT_SENT | Cause.NOT_PROCESSED | Cause.NO_EFFECT:
            if _void(record, contract, now) is not None:
                return failed
            if again is State.PREPARED:
                return Move(to=State.PREPARED, cause=basis)
            if not approved(record, contract, now):
                return failed
            at_ms = next_send_ms(record, contract)
            return Send(resend=False, why=basis) if at_ms <= now.ms else Wait(until_ms=at_ms)
        case _:
            return failed


def _absent(record: Record, contract: Contract, now: Now, *, again: State) -> Step:
    """Confirmed absence permits a resend; only `on_absent` orders one."""
    match contract.on_absent:
        case OnAbsent.REVIEW:
            if again is State.PREPARED:  # an attempt just ended: it is unknown first
                return Move(to=State.UNKNOWN, cause=why_unknown(record))
            return Escalate(cause=Cause.ABSENT_REVIEW)
        case OnAbsent.REPORT:
            return Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
        case OnAbsent.RESEND:
            if not may_resend(record, contract, now, absent=True):
                return Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
            if again is State.PREPARED:
                return Move(to=State.PREPARED, cause=Cause.CONFIRMED_ABSENT)
            return Send(resend=True, why=Cause.CONFIRMED_ABSENT)
        case _:
            assert_never(contract.on_absent)


def _when_accepted(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    operation = record.operation
    match finding.verdict:
        case Verdict.APPLIED:
            return Settle(to=State.SUCCEEDED, cause=finding.basis or Cause.PROVEN)
        case Verdict.NOT_APPLIED:
            return Settle(to=State.FAILED, cause=finding.basis or Cause.DEFINITE_FAILURE)
        case Verdict.CONTRADICTION:
            return Escalate(cause=Cause.CONTRADICTION)
        case Verdict.IN_PROGRESS | Verdict.UNKNOWN:
            end_ms = operation.completes_by_ms or now.ms
            if now.ms >= end_ms:
                if contract.effect in NO_EFFECT:
                    return Settle(to=State.FAILED, cause=Cause.NO_EFFECT)
                if seen_at_work(record) or not _asks(contract):
                    return _ask_a_person(record, contract, Cause.OVERDUE, now)
                return Move(to=State.UNKNOWN, cause=Cause.NO_NEWS_AFTER_ACCEPTED)
            if _asks(contract):
                return LookUp(at_ms=min(next_look_ms(record, contract, finding), end_ms))
            return _await_event(record, contract, now, end_ms)
        case _:
            assert_never(finding.verdict)


# --- while it is not known -----------------------------------------------------------------------


def _when_unknown(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    """A worker that is looking holds back the next look or send, but no proof."""
    operation = record.operation
    if operation.state is State.RECONCILING:
        asked = operation.owner is None and operation.looks == 0 and _asks(contract)
        if asked and not _a_person_spoke(record):
            return LookUp(at_ms=now.ms)  # a person asked to look again: it is looked at first
        if (operation.lease_end_ms or 0) > now.ms:
            step = _by_verdict(record, contract, now, finding)
            if isinstance(step, Settle) or step == Escalate(cause=Cause.CONTRADICTION):
                return step
            return Wait(until_ms=operation.lease_end_ms or now.ms)
    return _by_verdict(record, contract, now, finding)


def _by_verdict(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    operation = record.operation
    match finding.verdict:
        case Verdict.APPLIED:
            return Settle(to=State.SUCCEEDED, cause=finding.basis or Cause.PROVEN)
        case Verdict.CONTRADICTION:
            return Escalate(cause=Cause.CONTRADICTION)
        case Verdict.IN_PROGRESS:
            if _in_time(record, now):
                return Move(to=State.ACCEPTED, cause=None)
            if seen_at_work(record):
                return _ask_a_person(record, contract, Cause.OVERDUE, now)
            if operation.deadline_ms is None:
                return Move(to=State.UNKNOWN, cause=Cause.NO_NEWS_AFTER_ACCEPTED)
            return _still_unknown(record, contract, now, finding)
        case Verdict.NOT_APPLIED:
            return _not_done(record, contract, now, finding, again=operation.state)
        case Verdict.UNKNOWN:
            return _still_unknown(record, contract, now, finding)
        case _:
            assert_never(finding.verdict)


def _too_late_to_send(record: Record, contract: Contract, now: Now) -> bool:
    """Whether its deadline is over and nobody reviews it: then it is never sent again."""
    deadline_ms = record.operation.deadline_ms
    return not contract.review and deadline_ms is not None and now.ms >= deadline_ms


def _still_unknown(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    deadline_ms = record.operation.deadline_ms or now.ms
    if now.ms >= deadline_ms:
        return _ask_a_person(record, contract, Cause.DEADLINE, now)
    settled = now.ms >= finding.absence.settled_from_ms + contract.lag_ms
    if settled and any(item.shows is Shows.PRESENT for item in since_decision(record)):
        return _ask_a_person(record, contract, Cause.NOT_ATTRIBUTED, now)
    resend_ms = FOREVER_MS
    taken = finding.verdict is Verdict.IN_PROGRESS
    ordered = contract.on_absent is OnAbsent.RESEND or contract.duplicates_acceptable
    if ordered and not taken and may_resend(record, contract, now, absent=False):
        resend_ms = next_send_ms(record, contract)
        asked = not _asks(contract) or asked_since_last_attempt(record, contract)
        if resend_ms <= now.ms and asked:
            return Send(resend=True)
    if _asks(contract):
        return LookUp(at_ms=min(next_look_ms(record, contract, finding), deadline_ms))
    if resend_ms < FOREVER_MS:
        return Wait(until_ms=min(resend_ms, deadline_ms))
    if contract.events is not None:
        return _await_event(record, contract, now, deadline_ms)
    return _ask_a_person(record, contract, Cause.NOTHING_LEFT, now)


def _await_event(record: Record, contract: Contract, now: Now, until_ms: int) -> Step:
    """Wait for the provider's own word, and tell where it is missing. No deadline moves."""
    operation, expected = record.operation, expected_ms(record, contract)
    late = expected is not None and now.ms >= expected
    told = operation.cause is Cause.WEBHOOK_MISSING
    if late and not told:
        return Note(cause=Cause.WEBHOOK_MISSING)
    if told and not late:
        going_on = operation.state is State.ACCEPTED
        return Note(cause=None if going_on else why_unknown(record))
    return Wait(until_ms=until_ms if late or expected is None else min(expected, until_ms))


def _ask_a_person(record: Record, contract: Contract, cause: Cause, now: Now) -> Step:
    """`review = "none"` leaves it unknown: looked at now and then, alerted, and never sent."""
    return Escalate(cause=cause) if contract.review else _idle(record, contract, now)


def _idle(record: Record, contract: Contract, now: Now) -> Step:
    """Go on looking slowly, where there is something to look at."""
    if _asks(contract):
        return LookUp(at_ms=next_review_look_ms(record))
    return Wait(until_ms=now.ms + IDLE_DUE_MS)


def _asks(contract: Contract) -> bool:
    return bool(contract.lookups) and RULES[contract.effect].looks_up


def _when_in_review(record: Record, contract: Contract, now: Now, finding: Finding) -> Step:
    """A person decides; but late authoritative evidence settles what only ran out of time."""
    operation = record.operation
    if operation.cause is Cause.CONTRADICTION and not _a_person_spoke(record):
        return Wait(until_ms=now.ms + IDLE_DUE_MS)
    absent = finding.basis is Cause.CONFIRMED_ABSENT and contract.on_absent is OnAbsent.REVIEW
    match finding.verdict:
        case Verdict.APPLIED:
            return Settle(to=State.SUCCEEDED, cause=finding.basis or Cause.PROVEN)
        case Verdict.CONTRADICTION if operation.cause is not Cause.CONTRADICTION:
            return Escalate(cause=Cause.CONTRADICTION)
        case Verdict.NOT_APPLIED if not absent:
            return Settle(to=State.FAILED, cause=finding.basis or Cause.DEFINITE_FAILURE)
        case Verdict.NOT_APPLIED if operation.cause is not Cause.ABSENT_REVIEW:
            return Escalate(cause=Cause.ABSENT_REVIEW)
        case Verdict.IN_PROGRESS if _in_time(record, now):
            return Move(to=State.ACCEPTED, cause=None)
        case _:
            return _idle(record, contract, now)


def _a_person_spoke(record: Record) -> bool:
    """Whether the last thing that was recorded is an operator's decision."""
    last = record.evidence[-1] if record.evidence else None
    return last is not None and last.source is Source.OPERATOR


def _in_time(record: Record, now: Now) -> bool:
    completes_by_ms = record.operation.completes_by_ms
    return completes_by_ms is None or now.ms < completes_by_ms


def _when_ended(record: Record, contract: Contract, finding: Finding) -> Step:
    """A closed operation opens again only where authoritative evidence contradicts it."""
    contradicts = {
        State.SUCCEEDED: (Verdict.NOT_APPLIED, Verdict.CONTRADICTION),
        State.FAILED: (Verdict.APPLIED, Verdict.IN_PROGRESS, Verdict.CONTRADICTION),
    }
    operation = record.operation
    if operation.cause is Cause.OPERATOR_UNSURE or contract.effect in NO_EFFECT:
        return Wait(until_ms=FOREVER_MS)  # closed in doubt, or without any effect
    if finding.verdict in contradicts.get(operation.state, ()):
        return Escalate(cause=Cause.CONTRADICTION)
    return Wait(until_ms=FOREVER_MS)
