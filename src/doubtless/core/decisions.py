"""What an operator may decide, where, and what it does. A person's word is named evidence."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from doubtless.core.approvals import approved, is_same_person
from doubtless.core.contract import ATTEMPTS_MAX, Contract
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Cause,
    Evidence,
    Now,
    Operation,
    Record,
    Shows,
    Source,
    State,
    Strength,
)
from doubtless.core.permission import UNAPPROVED, key_lives, may_repeat
from doubtless.core.settling import Change, enter
from doubtless.errors import DecisionRefused


class Word(StrEnum):
    """An operator's decision."""

    DONE = "done"  # the effect exists
    NOT_DONE = "not_done"  # it does not
    UNSURE = "unsure"  # looked at, and not decided
    RETRY = "retry"  # send again: same operation, same key
    LOOK_AGAIN = "look_again"  # ask the look-ups once more, with a new deadline
    AGAIN = "again"  # close this one and prepare a new operation, with a new id and key


_OPEN = frozenset({State.ACCEPTED, State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW})

LEGAL: Mapping[Word, frozenset[State]] = MappingProxyType(
    {
        Word.DONE: _OPEN,
        Word.NOT_DONE: _OPEN | {State.FAILED},
        Word.UNSURE: frozenset({State.MANUAL_REVIEW}),
        Word.RETRY: frozenset({State.MANUAL_REVIEW, State.FAILED}),
        Word.LOOK_AGAIN: frozenset({State.MANUAL_REVIEW}),
        Word.AGAIN: _OPEN,
    }
)
"""In which states each decision may be taken.

"Not done" may be said again of what was closed by it: the first word may have come too early.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a decision leads to. The evidence is weighed like any other."""

    evidence: Evidence | None = None
    change: Change | None = None  # a step that the decision itself is
    sends: bool = False  # open an attempt on the operator's permission
    prepares: bool = False  # prepare a new operation that supersedes this one


def rule(
    record: Record,
    contract: Contract,
    now: Now,
    word: Word,
    *,
    operator: str,
    note: str,
    provider_operation_id: str | None = None,
    mark_duplicate: bool = False,
) -> Ruling:
    """Say what an operator's decision does.

    Raises:
        DecisionRefused: It isn't legal in this state, or a send is not permitted any more.
    """
    operation = record.operation
    if operation.state not in LEGAL[word]:
        legal = ", ".join(sorted(LEGAL[word]))
        why = f"{word} is not possible while it is {operation.state}; only in {legal}"
        raise DecisionRefused(operation.id, why)

    def says(shows: Shows) -> Evidence:
        return Evidence(
            number=len(record.evidence) + 1,
            source=Source.OPERATOR,
            shows=shows,
            strength=Strength.AUTHORITATIVE,
            at_ms=now.ms,
            begun_ms=now.ms,
            by=operator,
            provider_operation_id=provider_operation_id,
            detail=note,
        )

    match word:
        case Word.DONE:
            return Ruling(evidence=says(Shows.APPLIED))
        case Word.NOT_DONE if (
            operation.state is State.FAILED and operation.cause is not Cause.OPERATOR_NOT_DONE
        ):
            raise DecisionRefused(operation.id, f"it has ended already: {operation.cause}")
        case Word.NOT_DONE:
            return Ruling(evidence=says(Shows.NOT_APPLIED))
        case Word.UNSURE:
            return Ruling(change=_step(record, contract, now, State.MANUAL_REVIEW, word))
        case Word.LOOK_AGAIN:
            return Ruling(change=_look_again(record, contract, now))
        case Word.RETRY:
            _check_retry(record, contract, now, operator)
            return Ruling(sends=True)
        case Word.AGAIN if mark_duplicate:
            return Ruling(change=_close_unsure(record, contract, now), prepares=True)
        case Word.AGAIN:
            return Ruling(evidence=says(Shows.NOT_APPLIED), prepares=True)


def _step(record: Record, contract: Contract, now: Now, target: State, word: Word) -> Change:
    before = record.operation
    after = enter(before, target, now, cause=before.cause, contract=contract)
    return Change(before=before, after=replace(after, due_ms=before.due_ms), reason=word, inputs={})


def _look_again(record: Record, contract: Contract, now: Now) -> Change:
    if not contract.lookups:
        why = "its contract declares no look-up, so that there is nothing to ask"
        raise DecisionRefused(record.operation.id, why)
    change = _step(record, contract, now, State.RECONCILING, Word.LOOK_AGAIN)
    deadline_ms = now.ms + contract.recovery_deadline_ms
    after = replace(change.after, deadline_ms=deadline_ms, looks=0, due_ms=now.ms)
    return replace(change, after=after)


def authorises(record: Record, operator: str) -> bool:
    """Whether an operator's retry is its own authorisation: not that of who asked for it."""
    return not is_same_person(operator, record.operation.principal)


def _check_retry(record: Record, contract: Contract, now: Now, operator: str) -> None:
    """An operator outweighs doubt, but neither a void intent nor a forgotten key."""
    operation, authorised = record.operation, authorises(record, operator)
    if operation.state is State.FAILED:
        repeat = may_repeat(record, contract, now, authorised=authorised)
        if not repeat.allowed:
            raise DecisionRefused(operation.id, f"it can't be sent again: {repeat.why}")
    again = "decide `again` for a new operation"
    forgotten = not key_lives(record, contract, now)
    reasons = {
        f"its intent is void; {again}": now.ms >= operation.valid_until_ms,
        f"the provider may have forgotten its key; {again}": forgotten,
        f"all {ATTEMPTS_MAX} attempts are used up": len(record.attempts) >= ATTEMPTS_MAX,
        f"{record.overtaken_by} replaces it": record.overtaken_by is not None,
        UNAPPROVED: not authorised and not approved(record, contract, now),
    }
    for why, holds in reasons.items():
        if holds:
            raise DecisionRefused(operation.id, f"it can't be sent again: {why}")


def _close_unsure(record: Record, contract: Contract, now: Now) -> Change:
    before = record.operation
    holds = frozenset({Need.ALL_PROVEN})  # by the operator's word, who marks what follows
    for state in (State.MANUAL_REVIEW, State.FAILED):
        if record.operation.state is state:
            continue
        cause = Cause.OPERATOR_UNSURE
        after = enter(record.operation, state, now, cause=cause, contract=contract, holds=holds)
        record = replace(record, operation=after)
    return Change(before=before, after=record.operation, reason=Word.AGAIN, inputs={})


def superseded(operation: Operation, by: str) -> Operation:
    """Link a closed operation to the one that was prepared in its place."""
    return replace(operation, superseded_by=by)
