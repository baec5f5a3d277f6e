"""Operations to test with, and the two units that most of them consist of."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256

import pytest

from doubtless.core.model import (
    Approval,
    Attempt,
    Cause,
    Effect,
    Evidence,
    Json,
    Observation,
    Operation,
    Principal,
    Role,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
)
from doubtless.ledger import attempts, bodies, claims, operations
from doubtless.ledger.journal import OPERATION
from doubtless.ledger.store import BATCH_WORK_MAX_S, Ledger, Transaction

ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)
AGENT = Principal(name="agent-1", role=Role.AGENT)
WORKER = Principal(name="worker-1", role=Role.WORKER)
OPERATOR = Principal(name="operator-1", role=Role.OPERATOR)


def operation(operation_id: str, *, now_ms: int = 1_000, **changes) -> Operation:
    """Make an operation that was prepared at `now_ms` and is due at once."""
    digest = sha256(operation_id.encode()).hexdigest()
    made = Operation(
        id=operation_id,
        tenant="main",
        tool="create_refund",
        effect=Effect.MONEY,
        source="payments",
        principal="agent-1",
        session_id="session-1",
        correlation_id=None,
        contract_digest="c" * 64,
        payload_hash=digest,
        request_digest=digest[::-1],
        ref=digest[:26],
        key=digest[:36],
        state=State.PREPARED,
        version=1,
        fence=0,
        created_ms=now_ms,
        updated_ms=now_ms,
        due_ms=now_ms,
        valid_until_ms=now_ms + 3_600_000,
        business_key=f'["{operation_id}"]',
        claim=f'["{operation_id}"]',
    )
    return OPERATION.replace(made, **changes) if changes else made


def insert(tx: Transaction, made: Operation, *, after: tuple[str, ...] = ()) -> Operation:
    operations.insert(
        tx,
        made,
        bodies={"payload": b"{}", "request": b"POST /refunds HTTP/1.1"},
        contract_json="{}",
        principal=AGENT,
        inputs={"rule": "money"},
        after=after,
    )
    return made


@contextmanager
def held(ledger: Ledger) -> Iterator[None]:
    """Keep the ledger's thread busy, so that what is submitted meanwhile becomes one batch."""
    entered, leave = threading.Event(), threading.Event()

    def work(tx: Transaction) -> None:
        entered.set()
        assert leave.wait(10)

    ledger.submit(work, lambda value, error: None)
    assert entered.wait(10)
    time.sleep(BATCH_WORK_MAX_S)  # so that this batch takes in nothing more
    try:
        yield
    finally:
        leave.set()


def save(tx: Transaction, before: Operation, **changes) -> Operation:
    return operations.save(
        tx,
        before,
        replace(before, **changes),
        reason="because",
        principal=WORKER,
        inputs={"stage": "sent"},
    )


def attempt(number: int = 1, *, now_ms: int = 1_000, **changes) -> Attempt:
    made = Attempt(
        number=number,
        correlation_id=f"correlation-{number}",
        fence=number,
        owner="worker-1",
        opened_ms=now_ms,
        lease_end_ms=now_ms + 40_000,
        resend=number > 1,
    )
    return replace(made, **changes) if changes else made


def evidence(now_ms: int = 1_000, **changes) -> Evidence:
    made = Evidence(
        number=1,
        source=Source.RESPONSE,
        shows=Shows.APPLIED,
        strength=Strength.AUTHORITATIVE,
        at_ms=now_ms,
        begun_ms=now_ms,
        by="response",
        attempt=1,
        provider_operation_id="re_123",
        digest="d" * 64,
    )
    return replace(made, **changes) if changes else made


def approval(now_ms: int = 1_000, **changes) -> Approval:
    made = Approval(by="operator-1", at_ms=now_ms, expires_ms=now_ms + 60_000, digest="a" * 64)
    return replace(made, **changes) if changes else made


SEEN_SUCCEEDED = Observation(
    seen=Seen.SUCCEEDED, stage=Stage.READ, status=201, provider_operation_id="re_123"
)


def lease(
    tx: Transaction,
    before: Operation,
    *,
    state: State,
    owner: str,
    lease_end_ms: int,
    reason: str,
    principal: Principal,
    inputs: Mapping[str, Json],
) -> Operation:
    """Move an operation to `state` under a new lease: a fence one higher, due at the lease's end.

    Raises:
        StaleVersion: it was changed since `before` was read.
    """
    leased = OPERATION.replace(
        before,
        state=state,
        owner=owner,
        lease_end_ms=lease_end_ms,
        due_ms=lease_end_ms,
        fence=before.fence + 1,
    )
    return operations.save(tx, before, leased, reason=reason, principal=principal, inputs=inputs)


def begin(tx: Transaction, made: Operation, principal: Principal = AGENT) -> Operation:
    """Prepare an operation and open its first attempt: what is durable before anything is sent."""
    insert(tx, made)
    if made.claim is not None:
        holder = claims.take_claim(tx, "main", made.source, made.claim, made.id, tx.now_ms)
        assert holder is None
    leased = lease(
        tx,
        made,
        state=State.EXECUTING,
        owner="worker-1",
        lease_end_ms=tx.now_ms + 40_000,
        reason="first send",
        principal=principal,
        inputs={"effect": "money"},
    )
    first = attempt(1, now_ms=tx.now_ms)
    attempts.open_attempt(tx, "main", made.id, first, principal=principal)
    return leased


def end(tx: Transaction, operation_id: str, principal: Principal = WORKER) -> Operation:
    """Record what the attempt saw, as evidence too, and settle the operation."""
    before = operations.get(tx, "main", operation_id)
    assert before is not None
    assert attempts.end_attempt(
        tx,
        "main",
        operation_id,
        1,
        observation=SEEN_SUCCEEDED,
        sent_by_ms=tx.now_ms,
        ended_ms=tx.now_ms,
        closed_ms=tx.now_ms,
        principal=principal,
    )
    bodies.put_body(tx, "main", operation_id, "reply", 1, b'{"id": "re_123"}')
    attempts.add_evidence(tx, "main", operation_id, evidence(tx.now_ms), principal=principal)
    if before.claim is not None:
        claims.release_claim(tx, "main", before.source, before.claim, operation_id)
    return operations.save(
        tx,
        before,
        OPERATION.replace(
            before,
            state=State.SUCCEEDED,
            cause=Cause.PROVEN,
            due_ms=None,
            owner=None,
            lease_end_ms=None,
            fence=before.fence + 1,
            provider_operation_id="re_123",
            confirmed_state="succeeded",
            confirmed_ms=tx.now_ms,
            confirmed_source="response",
        ),
        reason="the response proves it",
        principal=principal,
        inputs={"shows": "applied"},
    )
