"""Attempts, evidence and approvals: what is recorded beside the operation itself.

None of these changes the operation or its version; whoever decides from them does so in the same
transaction, on what it loads there.
"""

from collections.abc import Mapping
from typing import Final

from doubtless.core.model import Approval, Attempt, Evidence, Grant, Json, Observation, Principal
from doubtless.ledger.codec import Shape, encode, integer_of, statement
from doubtless.ledger.journal import APPROVAL, ATTEMPT, EVIDENCE, Kind, append
from doubtless.ledger.store import Transaction

OBSERVATION: Final = Shape(Observation)

OPEN: Final = statement(
    "insert into attempt (tenant, operation_id, {columns})"
    " values (:tenant, :operation_id, {places})",
    ATTEMPT,
)


def open_attempt(
    tx: Transaction, tenant: str, operation_id: str, attempt: Attempt, *, principal: Principal
) -> None:
    """Record an attempt before anything of it is sent.

    Raises:
        LedgerError: the operation has an attempt of that number, or doesn't exist.
    """
    tx.run(OPEN, tenant=tenant, operation_id=operation_id, **ATTEMPT.params(attempt))
    data: Mapping[str, Json] = {"attempt": ATTEMPT.to_json(attempt)}
    append(tx, tenant, operation_id, Kind.ATTEMPT, principal, data)


MARK_SENDING: Final = """
    update attempt
       set sent_by_ms = :sent_by_ms
     where tenant = :tenant and operation_id = :operation_id and number = :number
       and ended_ms is null
       and exists (select 1
                     from operation
                    where tenant = :tenant and id = :operation_id
                      and fence = :fence and state = 'executing')
"""


def mark_sending(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    number: int,
    *,
    fence: int,
    sent_by_ms: int,
    principal: Principal,
) -> bool:
    """Record that the gate opens. False, and no permission, if the fence is no longer `fence`.

    False too where the operation isn't executing, or the attempt has ended.
    """
    changed = tx.run(
        MARK_SENDING,
        tenant=tenant,
        operation_id=operation_id,
        number=number,
        fence=fence,
        sent_by_ms=sent_by_ms,
    )
    if changed:
        data: Mapping[str, Json] = {"attempt": {"number": number, "sent_by_ms": sent_by_ms}}
        append(tx, tenant, operation_id, Kind.ATTEMPT, principal, data)
    return changed == 1


END: Final = """
    update attempt
       set observation = :observation, ended_ms = :ended_ms, closed_ms = :closed_ms,
           sent_by_ms = coalesce(:sent_by_ms, sent_by_ms)
     where tenant = :tenant and operation_id = :operation_id and number = :number
       and ended_ms is null
"""


def end_attempt(  # noqa: PLR0913 - what is known of an end, each by its name
    tx: Transaction,
    tenant: str,
    operation_id: str,
    number: int,
    *,
    observation: Observation,
    sent_by_ms: int | None,
    ended_ms: int,
    closed_ms: int | None,
    principal: Principal,
) -> bool:
    """Record what an attempt saw. Once only: False, and nothing changed, if it has ended already.

    A `sent_by_ms` of None keeps what `mark_sending` recorded. A `closed_ms` of None says that the
    attempt may still be alive somewhere.
    """
    changed = tx.run(
        END,
        tenant=tenant,
        operation_id=operation_id,
        number=number,
        observation=encode(OBSERVATION.to_json(observation)),
        sent_by_ms=sent_by_ms,
        ended_ms=ended_ms,
        closed_ms=closed_ms,
    )
    if not changed:
        return False
    told: dict[str, Json] = {
        "number": number,
        "observation": OBSERVATION.to_json(observation),
        "ended_ms": ended_ms,
        "closed_ms": closed_ms,
    }
    if sent_by_ms is not None:
        told["sent_by_ms"] = sent_by_ms
    append(tx, tenant, operation_id, Kind.OBSERVATION, principal, {"attempt": told})
    return True


CLOSE: Final = """
    update attempt
       set closed_ms = :closed_ms
     where tenant = :tenant and operation_id = :operation_id and number = :number
       and closed_ms is null
"""


def close_attempt(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    number: int,
    *,
    closed_ms: int,
    principal: Principal,
) -> bool:
    """Record that from `closed_ms` on an attempt can't start anything. False if it was closed."""
    changed = tx.run(
        CLOSE, tenant=tenant, operation_id=operation_id, number=number, closed_ms=closed_ms
    )
    if changed:
        data: Mapping[str, Json] = {"attempt": {"number": number, "closed_ms": closed_ms}}
        append(tx, tenant, operation_id, Kind.ATTEMPT, principal, data)
    return changed == 1


ATTEMPTS_OF: Final = statement(
    "select {columns} from attempt"
    " where tenant = :tenant and operation_id = :operation_id order by number",
    ATTEMPT,
)


def attempts_of(tx: Transaction, tenant: str, operation_id: str) -> tuple[Attempt, ...]:
    """Return all attempts of an operation, in order."""
    rows = tx.tuples(ATTEMPTS_OF, tenant=tenant, operation_id=operation_id)
    return tuple(ATTEMPT.from_row(row) for row in rows)


ADD_EVIDENCE: Final = statement(
    """
    insert into evidence (tenant, operation_id, {columns})
    values (:tenant, :operation_id, {places})
 returning number
    """,
    EVIDENCE,
).replace(
    ":number",
    """(select count(*) + 1
               from evidence
              where tenant = :tenant and operation_id = :operation_id)
            + coalesce((select evidence
                          from archived
                         where tenant = :tenant and operation_id = :operation_id), 0)""",
)
"""Counted, since nothing is ever deleted: the highest number takes SQLite five times as long."""


def add_evidence(
    tx: Transaction, tenant: str, operation_id: str, evidence: Evidence, *, principal: Principal
) -> Evidence:
    """Append one fact and return it with the number it got; the number given is not looked at.

    Raises:
        LedgerError: there is no such operation.
    """
    params = EVIDENCE.params(evidence)
    found = tx.tuples(ADD_EVIDENCE, tenant=tenant, operation_id=operation_id, **params)
    numbered = EVIDENCE.replace(evidence, number=integer_of(found[0][0]))
    data: Mapping[str, Json] = {"evidence": EVIDENCE.to_json(numbered)}
    append(tx, tenant, operation_id, Kind.EVIDENCE, principal, data)
    return numbered


EVIDENCE_OF: Final = statement(
    "select {columns} from evidence"
    " where tenant = :tenant and operation_id = :operation_id order by number",
    EVIDENCE,
)


def evidence_of(tx: Transaction, tenant: str, operation_id: str) -> tuple[Evidence, ...]:
    """Return all evidence about an operation, in the order of recording."""
    rows = tx.tuples(EVIDENCE_OF, tenant=tenant, operation_id=operation_id)
    return tuple(EVIDENCE.from_row(row) for row in rows)


ADD_APPROVAL: Final = statement(
    """
    insert into approval (tenant, operation_id, number, {columns})
    values (:tenant, :operation_id,
            (select count(*) + 1
               from approval
              where tenant = :tenant and operation_id = :operation_id),
            {places})
    """,
    APPROVAL,
)


def add_approval(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    approval: Approval,
    *,
    principal: Principal,
    note: str = "",
) -> None:
    """Store a person's authorisation beside the operation. It is no evidence.

    Raises:
        LedgerError: there is no such operation.
    """
    tx.run(ADD_APPROVAL, tenant=tenant, operation_id=operation_id, **APPROVAL.params(approval))
    data: Mapping[str, Json] = {"approval": APPROVAL.to_json(approval), "note": note}
    append(tx, tenant, operation_id, Kind.APPROVAL, principal, data)


def covered_by(
    tx: Transaction, tenant: str, operation_id: str, grant: Grant, *, principal: Principal
) -> None:
    """Record that an operation goes on under an approval of its whole session."""
    bound: dict[str, Json] = {
        "id": grant.id,
        "by": grant.by,
        "session_id": grant.session_id,
        "expires_ms": grant.expires_ms,
    }
    data: Mapping[str, Json] = {"grant": bound, "note": grant.note}
    append(tx, tenant, operation_id, Kind.APPROVAL, principal, data)


APPROVALS_OF: Final = statement(
    "select {columns} from approval"
    " where tenant = :tenant and operation_id = :operation_id order by number",
    APPROVAL,
)


def approvals_of(tx: Transaction, tenant: str, operation_id: str) -> tuple[Approval, ...]:
    """Return all approvals of an operation, in order."""
    rows = tx.tuples(APPROVALS_OF, tenant=tenant, operation_id=operation_id)
    return tuple(APPROVAL.from_row(row) for row in rows)
