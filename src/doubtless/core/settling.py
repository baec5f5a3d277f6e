"""Entering a state, and applying what policy chooses until nothing is left to do now."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from doubtless.core.contract import Contract
from doubtless.core.evidence import proof_of, unproven
from doubtless.core.lifecycle import Need, advance
from doubtless.core.model import (
    Cause,
    Json,
    Now,
    Operation,
    Record,
    Source,
    State,
    Verdict,
    revised,
)
from doubtless.core.policy import decide
from doubtless.core.reasons import explain
from doubtless.core.schedule import next_send_ms
from doubtless.core.steps import Decision, Escalate, LookUp, Move, Note, Send, Settle, Wait

SETTLE_STEPS_MAX = 6  # unknown → accepted → review is the longest chain that policy can take


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step of an operation, to be stored and journalled with what it was decided from."""

    before: Operation
    after: Operation
    reason: str
    inputs: Mapping[str, Json]


# --- entering a state ----------------------------------------------------------------------------


def enter(
    operation: Operation,
    target: State,
    now: Now,
    *,
    cause: Cause | None,
    contract: Contract,
    holds: frozenset[Need] = frozenset(),
    **also: Json,
) -> Operation:
    """Return `operation` in `target`, with what every entry brings: fence, lease, deadlines, due.

    `also` are further fields to set in the same step.

    Raises:
        IllegalTransition: The step isn't in the table, or what it needs isn't proven.
    """
    source = operation.state
    advance(source, target, holds=holds)
    changes: dict[str, object] = {
        "state": target,
        "cause": cause,
        "owner": None,
        "lease_end_ms": None,
        "fence": operation.fence + (1 if source is State.EXECUTING else 0),
        "origin": None,
        "due_ms": None if target.ends else now.ms,
    }
    if target is State.UNKNOWN and operation.deadline_ms is None:
        changes["deadline_ms"] = now.ms + contract.recovery_deadline_ms
    if target is State.UNKNOWN and source is State.EXECUTING:
        changes["looks"] = 0
    if target is State.ACCEPTED and operation.accepted_ms is None:
        told = bool(contract.lookups) or contract.events is not None
        takes_ms = contract.completes_within_ms if told else contract.recovery_deadline_ms
        changes |= {"accepted_ms": now.ms, "completes_by_ms": now.ms + takes_ms, "looks": 0}
    if target is State.AWAITING_APPROVAL and contract.approval is not None:
        changes["not_before_ms"] = now.ms + contract.approval.expires_ms
    if source is State.AWAITING_APPROVAL:
        changes["not_before_ms"] = None
    if target is State.MANUAL_REVIEW and source is not State.MANUAL_REVIEW:
        changes["looks"] = 0
    return revised(operation, {**changes, **also})


def settle(record: Record, contract: Contract, now: Now) -> tuple[Change, ...]:
    """Apply what policy chooses until it chooses to send, to look, or to wait.

    The last change carries the due time. An empty result means that nothing changed at all.
    """
    changes: list[Change] = []
    decision = decide(record, contract, now)
    for _ in range(SETTLE_STEPS_MAX):
        after = _applied(record, contract, now, decision)
        if after is None:
            break
        changes.append(_change(record, contract, now, after, decision))
        record = replace(record, operation=after)
        # Steps add no evidence: what was found stands, save that a tie which is still to be read
        # while it is open is a contradiction once it has ended.
        reread = after.state.ends and decision.finding.verdict is Verdict.UNKNOWN
        finding = None if reread else decision.finding
        decision = decide(record, contract, now, finding=finding)
    due_ms = due_of(decision, record.operation, now)
    if due_ms != record.operation.due_ms:
        timed = replace(record.operation, due_ms=due_ms)
        if changes:
            changes[-1] = replace(changes[-1], after=timed)
        else:
            changes.append(_change(record, contract, now, timed, decision))
    return tuple(changes)


def _change(
    record: Record, contract: Contract, now: Now, after: Operation, decision: Decision
) -> Change:
    before = record.operation
    step = type(decision.step).__name__.lower()
    moved = after.state is not before.state or after.cause is not before.cause
    cause = f": {after.cause}" if after.cause and moved else ""
    inputs = explain(record, contract, now, decision.finding)
    return Change(before=before, after=after, reason=f"{step}{cause}", inputs=inputs)


def due_of(decision: Decision, operation: Operation, now: Now) -> int | None:
    """Return when the operation is due again; None only where it has ended."""
    match decision.step:
        case _ if operation.state.ends:
            return None
        case LookUp(at_ms=at_ms) if at_ms > now.ms:
            return at_ms
        case Wait(until_ms=until_ms):
            return until_ms
        case _:  # at once; what was due already stays so, for whoever can take it up
            return now.ms if operation.due_ms is None else min(operation.due_ms, now.ms)


def _applied(record: Record, contract: Contract, now: Now, decision: Decision) -> Operation | None:
    """Return the operation after a step that changes its state here and now, or None."""
    operation = record.operation
    holds = held(record, contract, decision)
    match decision.step:
        case Settle(to=to, cause=cause) | Move(to=to, cause=cause):
            also = _confirmation(to, record, decision, now)
            if to is State.PREPARED and record.attempts:
                also["not_before_ms"] = next_send_ms(record, contract)
            return enter(operation, to, now, cause=cause, contract=contract, holds=holds, **also)
        case Escalate(cause=cause):
            to = State.MANUAL_REVIEW
            return enter(operation, to, now, cause=cause, contract=contract, holds=holds)
        case Note(cause=cause):
            return revised(operation, {"cause": cause})
        case LookUp(at_ms=at_ms) if at_ms <= now.ms:
            return None  # it is taken up from where it stands
        case LookUp() | Wait() if _look_ended(operation, now):
            cause = operation.cause
            return enter(operation, State.UNKNOWN, now, cause=cause, contract=contract)
        case _:
            return None


def _look_ended(operation: Operation, now: Now) -> bool:
    """Whether it is still called `reconciling` although nobody is looking any more."""
    return operation.state is State.RECONCILING and (operation.lease_end_ms or 0) <= now.ms


def held(record: Record, contract: Contract, decision: Decision) -> frozenset[Need]:
    """Return which needs of the transition table are met by the facts."""
    finding = decision.finding
    needs = set()
    traceless = all(
        proof_of(attempt, record.evidence) in (Cause.NOT_SENT, Cause.NOT_PROCESSED)
        for attempt in record.attempts
    )
    if traceless:
        needs.add(Need.NO_TRACE)
    if record.attempts and record.open_attempt is None:
        covered = finding.verdict is Verdict.NOT_APPLIED
        if covered or not unproven(record, contract) or record.operation.state is State.PREPARED:
            needs |= {Need.TRACE, Need.ALL_PROVEN}
    if finding.verdict is Verdict.CONTRADICTION or record.operation.state.ends:
        needs.add(Need.CONTRADICTION)
    if isinstance(decision.step, Send):
        needs.add(Need.PERMITTED)
    return frozenset(needs)


def _confirmation(to: State, record: Record, decision: Decision, now: Now) -> dict[str, Json]:
    """Note the last thing that was proven, and by whom."""
    proven = {
        State.SUCCEEDED: "succeeded",
        State.FAILED: "not_applied",
        State.ACCEPTED: "in_progress",
    }
    if to not in proven:
        return {}
    numbers = decision.finding.numbers
    decided = [item for item in record.evidence if item.number in numbers]
    return {
        "confirmed_state": proven[to],
        "confirmed_ms": decided[-1].at_ms if decided else now.ms,
        "confirmed_source": (decided[-1].source if decided else Source.TRANSPORT).value,
    }
