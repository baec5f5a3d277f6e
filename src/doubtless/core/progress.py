"""What each happening does to an operation: pure, and the same for engine, simulator and explorer.

    begin → (the transport acts) → end → settle
    recover (an attempt whose worker is gone) → settle
    look → (the look-ups are asked) → looked → settle

`settling.settle` applies what `policy.decide` chooses until nothing is left to do now.
"""

from dataclasses import replace
from enum import StrEnum

from doubtless.core import answers
from doubtless.core.contract import FOREIGN_OWNER_MS, LEASE_EXTRA_MS, Contract
from doubtless.core.evidence import FOREVER_MS, unproven
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Attempt,
    Cause,
    Evidence,
    Json,
    Now,
    Observation,
    Operation,
    Record,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
)
from doubtless.core.permission import arrives_unless_absent_ms
from doubtless.core.settling import enter

UNSETTLED = frozenset({Seen.UNKNOWN, Seen.REJECTED})
"""Ends after which the last thing that is proven may be that it was being carried out."""


class Liveness(StrEnum):
    """What is known of the process that opened an attempt."""

    DEAD = "dead"  # proven: same host, and no such process
    ALIVE = "alive"  # same host, and it is there, though silent
    FOREIGN = "foreign"  # another host: only time can tell


def absorb(operation: Operation, item: Evidence, observation: Observation | None) -> Operation:
    """Keep the provider's own names for the work, once it told them."""
    found = item.provider_operation_id
    if item.strength is Strength.ADVISORY:
        found = None  # hearsay confirms nothing, and names nothing
    if found is not None and item.shows in (Shows.APPLIED, Shows.IN_PROGRESS, Shows.NOT_APPLIED):
        operation = replace(operation, provider_operation_id=found)
    if observation is not None and observation.status_url is not None:
        operation = replace(operation, status_url=observation.status_url)
    if item.shows is Shows.IN_PROGRESS and item.strength is Strength.AUTHORITATIVE:
        operation = replace(
            operation,
            confirmed_state="in_progress",
            confirmed_ms=item.at_ms,
            confirmed_source=item.source.value,
        )
    return operation


# --- an attempt ----------------------------------------------------------------------------------


def begin(
    record: Record,
    contract: Contract,
    now: Now,
    *,
    owner: str,
    correlation_id: str,
    resend: bool,
    by: Need = Need.PERMITTED,
) -> tuple[Operation, Attempt]:
    """Open the next attempt under a new lease and fence. Nothing is sent yet.

    Raises:
        IllegalTransition: `executing` may not follow this state on that permission.
    """
    operation = record.operation
    holds = frozenset({by})
    lease_end_ms = now.ms + contract.lease_ms
    fence = operation.fence + 1
    also: dict[str, Json] = {
        "fence": fence,
        "owner": owner,
        "lease_end_ms": lease_end_ms,
        "due_ms": lease_end_ms,
        "not_before_ms": None,
    }
    if operation.state in (State.FAILED, State.MANUAL_REVIEW):  # by intent: all budgets are new
        also |= {
            "budget_from": len(record.attempts),
            "deadline_ms": None,
            "accepted_ms": None,
            "completes_by_ms": None,
        }
    after = enter(
        operation, State.EXECUTING, now, cause=None, contract=contract, holds=holds, **also
    )
    attempt = Attempt(
        number=len(record.attempts) + 1,
        correlation_id=correlation_id,
        fence=fence,
        owner=owner,
        opened_ms=now.ms,
        lease_end_ms=lease_end_ms,
        resend=resend,
    )
    return after, attempt


def end(
    record: Record,
    contract: Contract,
    now: Now,
    observation: Observation,
    *,
    sent_by_ms: int | None,
    closed_ms: int | None,
    digest: str | None = None,
) -> tuple[Record, Attempt, Evidence]:
    """Close the open attempt with what it saw. Returns the record that `settle` goes on from."""
    last = record.attempts[-1]
    attempt = replace(
        last,
        observation=observation,
        sent_by_ms=last.sent_by_ms if sent_by_ms is None else sent_by_ms,
        ended_ms=now.ms,
        closed_ms=closed_ms,
    )
    item = witnessed(record, contract, now, observation, attempt=attempt.number, digest=digest)
    operation = absorb(record.operation, item, observation)
    if observation.seen in UNSETTLED and operation.confirmed_state is None:
        operation = replace(
            operation,
            confirmed_state=State.EXECUTING.value,
            confirmed_ms=attempt.sent_by_ms or attempt.opened_ms,
            confirmed_source=Source.TRANSPORT.value,
        )
    after = replace(
        record,
        operation=operation,
        attempts=(*record.attempts[:-1], attempt),
        evidence=(*record.evidence, item),
    )
    return after, attempt, item


def witnessed(
    record: Record,
    contract: Contract,
    now: Now,
    observation: Observation,
    *,
    attempt: int,
    digest: str | None = None,
) -> Evidence:
    """Return what an attempt saw, as evidence. A late answer is the same evidence, later."""
    return Evidence(
        number=len(record.evidence) + 1,
        source=answers.source_of(observation, contract),
        shows=answers.shows(observation),
        strength=Strength.AUTHORITATIVE,
        at_ms=now.ms,
        begun_ms=now.ms,
        by=f"attempt {attempt}",
        attempt=attempt,
        provider_operation_id=observation.provider_operation_id,
        detail=observation.detail,
        digest=digest,
    )


def recover(
    record: Record, contract: Contract, now: Now, liveness: Liveness
) -> tuple[Record, Attempt, Evidence]:
    """Close the attempt of a worker that is gone or silent. Recovery itself never sends.

    Where the sending itself is recorded, its missing record proves that nothing was sent: the
    fence, raised with this, keeps the gate closed for whoever wakes up later.
    """
    last = record.attempts[-1]
    closed = {
        Liveness.DEAD: now.ms,
        Liveness.FOREIGN: last.lease_end_ms + FOREIGN_OWNER_MS,
        Liveness.ALIVE: None,
    }
    unsent = contract.record_sending and last.sent_by_ms is None
    seen = Seen.NOT_SENT if unsent else Seen.UNKNOWN
    words = "before the sending was recorded" if unsent else "before an answer was recorded"
    observation = Observation(
        seen=seen,
        stage=Stage.SENT if last.sent_by_ms is not None else Stage.OPENED,
        cause=None if unsent else Cause.CRASH,
        detail=f"the worker that carried it out is {liveness.value}: it ended {words}",
    )
    return end(record, contract, now, observation, sent_by_ms=None, closed_ms=closed[liveness])


def reclosed(attempt: Attempt, now: Now, liveness: Liveness) -> Attempt:
    """Close an attempt whose owner was silent, once that owner is known to be dead."""
    if attempt.closed_ms is None and attempt.ended_ms is not None and liveness is Liveness.DEAD:
        return replace(attempt, closed_ms=now.ms)
    return attempt


# --- a look --------------------------------------------------------------------------------------


def look(record: Record, contract: Contract, now: Now, *, owner: str) -> Operation:
    """Take the lease for asking the look-ups. A review stays a review while it is looked at."""
    operation = record.operation
    lease_end_ms = now.ms + LEASE_EXTRA_MS + sum(ask.timeout_ms for ask in contract.lookups)
    if operation.state is State.MANUAL_REVIEW:
        return replace(operation, due_ms=lease_end_ms)
    origin = operation.state
    if origin is State.RECONCILING:  # its worker was lost
        cause = operation.cause
        operation = enter(operation, State.UNKNOWN, now, cause=cause, contract=contract)
    cause = operation.cause
    taken = enter(operation, State.RECONCILING, now, cause=cause, contract=contract)
    return replace(
        taken,
        fence=taken.fence + 1,
        owner=owner,
        lease_end_ms=lease_end_ms,
        due_ms=lease_end_ms,
        origin=origin if origin is State.ACCEPTED else None,
    )


def looked(record: Record, items: tuple[Evidence, ...]) -> Record:
    """Add what the look-ups said, and give the lease back."""
    operation = replace(
        record.operation,
        looks=record.operation.looks + 1,
        owner=None,
        lease_end_ms=None,
    )
    for item in items:
        operation = absorb(operation, item, None)
    return replace(record, operation=operation, evidence=(*record.evidence, *items))


# --- the object's claim --------------------------------------------------------------------------


def claim_until_ms(record: Record, contract: Contract, now: Now) -> int | None:
    """Return until when the object stays claimed; None while the operation is open.

    An operation that has ended keeps it as long as something of it can still arrive.
    """
    operation = record.operation
    if not operation.state.ends:
        return None
    may_act = len(unproven(record, contract))
    arrived = operation.state is State.SUCCEEDED or operation.cause is Cause.DEFINITE_FAILURE
    if operation.cause is Cause.CONFIRMED_ABSENT or (arrived and may_act <= 1):
        return now.ms
    until_ms = arrives_unless_absent_ms(record, contract, now)
    if until_ms < FOREVER_MS:
        return max(until_ms, now.ms)
    last = record.attempts[-1]
    waits_ms = FOREIGN_OWNER_MS + contract.timeout_ms + contract.horizon_ms
    return max(now.ms, last.lease_end_ms + waits_ms)
