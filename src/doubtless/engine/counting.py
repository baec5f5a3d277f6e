"""What is counted of an operation, where it happens: in the same transaction.

The plain way, prepared, executing, succeeded, writes nothing here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from doubtless import telemetry
from doubtless.core.contract import Contract, OnAbsent
from doubtless.core.model import (
    HARMLESS_CAUSES,
    Cause,
    Evidence,
    Now,
    Observation,
    Operation,
    Record,
    Seen,
    Shows,
    Stage,
    State,
)
from doubtless.core.permission import key_lives
from doubtless.ledger import metrics
from doubtless.ledger.store import Transaction
from doubtless.telemetry import KeyExpired, Metric, Prevented

PLAIN_VERSION_MAX: Final = 2  # prepared, and executing: what ends from there was never in doubt
BUCKETS_S: Final = telemetry.RECONCILIATION_BUCKETS_S
DOUBTFUL: Final = frozenset({State.UNKNOWN, State.MANUAL_REVIEW})


def moved(
    tx: Transaction,
    before: Operation,
    after: Operation,
    record: Record,
    contract: Contract,
    now: Now,
) -> None:
    """Count a step of an operation.

    Args:
        tx: The transaction that stores the step.
        before: As the operation stood.
        after: As it is stored.
        record: What the step was decided from.
        contract: The operation's.
        now: The ledger's clock.
    """
    if after.state in DOUBTFUL:
        _in_doubt(tx, before, after, record, contract, now)
    elif after.state.ends and not before.state.ends:
        if before.version > PLAIN_VERSION_MAX:
            _settled(tx, after)
        ordered = contract.on_absent is OnAbsent.RESEND
        if after.cause is Cause.CONFIRMED_ABSENT and ordered and expired(record, contract, now):
            _count(tx, telemetry.KEY_EXPIRED, after, action=KeyExpired.REFUSED)


def _in_doubt(
    tx: Transaction,
    before: Operation,
    after: Operation,
    record: Record,
    contract: Contract,
    now: Now,
) -> None:
    if after.state is before.state and after.cause is before.cause:
        return
    metrics.doubted(tx, after.tenant, after.id)
    cause = after.cause.value if after.cause is not None else "unknown"
    if after.state is State.UNKNOWN:
        # A look that ended without an answer leads back to what it was.
        if before.state is not State.RECONCILING or after.cause is not before.cause:
            _count(tx, telemetry.UNKNOWN, after, cause=cause)
        return
    _count(tx, telemetry.REVIEWS, after, reason=cause)
    if after.cause is Cause.CONTRADICTION:
        source = record.evidence[-1].source.value if record.evidence else "transport"
        _count(tx, telemetry.MISMATCH, after, state=before.state.value, source=source)
    if expired(record, contract, now):
        _count(tx, telemetry.KEY_EXPIRED, after, action=KeyExpired.OPERATOR)


def _settled(tx: Transaction, operation: Operation) -> None:
    """Count the end of a doubt, if there was one."""
    since_ms = metrics.undoubted(tx, operation.tenant, operation.id)
    if since_ms is None:
        return
    took_ms = max(tx.now_ms - since_ms, 0)
    bound = next((bound for bound in BUCKETS_S if took_ms <= bound * 1000), None)
    labels = {"tool": operation.tool, "effect": operation.effect.value}
    le = "+Inf" if bound is None else str(float(bound))
    name = telemetry.RECONCILIATION.name
    metrics.count(tx, operation.tenant, f"{name}_bucket", {**labels, "le": le})
    metrics.count(tx, operation.tenant, f"{name}_sum_ms", labels, by=took_ms)
    if operation.state is State.SUCCEEDED:
        _count(tx, telemetry.CONFIRMED, operation)


def expired(record: Record, contract: Contract, now: Now) -> bool:
    """Whether the operation has a key that the provider may have forgotten by now."""
    known = contract.key is not None and contract.key.ttl_ms is not None
    return known and not key_lives(record, contract, now)


def prevented(tx: Transaction, tenant: str, contract: Contract, reason: str) -> None:
    """Count a call that was refused instead of being carried out."""
    labels = {"reason": reason, "tool": contract.tool, "effect": contract.effect.value}
    metrics.count(tx, tenant, telemetry.PREVENTED.name, labels)


def joined(tx: Transaction, record: Record, contract: Contract, now: Now) -> None:
    """Count a call that was told of an operation which there is, instead of being carried out."""
    operation = record.operation
    reason = Prevented.NOT_REPEATED
    if not operation.state.ends:
        reason = Prevented.JOINED
    elif operation.state is State.SUCCEEDED:
        reason = Prevented.ALREADY_DONE
    elif operation.cause in HARMLESS_CAUSES and expired(record, contract, now):
        _count(tx, telemetry.KEY_EXPIRED, operation, action=KeyExpired.REFUSED)
    _count(tx, telemetry.PREVENTED, operation, reason=reason)


def stopped(
    tx: Transaction, record: Record, contract: Contract, now: Now, seen: Observation
) -> None:
    """Count an attempt that the gate stopped because of its key."""
    if seen.seen is not Seen.NOT_SENT or seen.stage is not Stage.GATE:
        return
    if expired(replace(record, attempts=record.attempts[:-1]), contract, now):
        _count(tx, telemetry.KEY_EXPIRED, record.operation, action=KeyExpired.REFUSED)


def contradicted(tx: Transaction, operation: Operation, items: Sequence[Evidence]) -> None:
    """Count evidence of an effect that an operation can't have had: it was never carried out."""
    if operation.state not in (State.REJECTED, State.CANCELLED):
        return
    for item in items:
        if item.shows in (Shows.APPLIED, Shows.IN_PROGRESS):
            state, source = operation.state.value, item.source.value
            _count(tx, telemetry.MISMATCH, operation, state=state, source=source)


def unmatched(tx: Transaction, tenant: str, source: str, reason: telemetry.Unmatched) -> None:
    """Count an event of a provider that could not be tied to one operation."""
    labels = {"reason": reason.value, "source": source}
    metrics.count(tx, tenant, telemetry.MATCH_FAILURES.name, labels)


def _count(tx: Transaction, metric: Metric, operation: Operation, **labels: str) -> None:
    said = {**labels, "tool": operation.tool, "effect": operation.effect.value}
    metrics.count(tx, operation.tenant, metric.name, said)
