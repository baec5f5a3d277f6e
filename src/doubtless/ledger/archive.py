"""The archive: what was recorded of settled operations, by the month of their last change.

An operation itself, its place in the stream of settlements, and who depends on it stay where they
are, so that its id is known for ever. Its attempts, evidence, journal and bodies move, all at once,
and come back the same way when it is opened again. The database lets a row go only where the very
same stands in the archive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from doubtless.core.model import Attempt, Evidence, Operation
from doubtless.errors import LedgerError
from doubtless.ledger.codec import Row, Value, integer_of, statement, text_of
from doubtless.ledger.journal import ATTEMPT, EVIDENCE, JOURNAL_OF
from doubtless.ledger.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """Where in the archive an operation is."""

    at_ms: int  # when it was moved
    month: int  # 202612 is December 2026, UTC
    evidence: int  # how many items
    digest: str  # SHA-256 of its journal


def month_of(at_ms: int) -> int:
    """Return the month of an instant, as a number: 202612."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.year * 100 + at.month


FIND: Final = """
    select at_ms, month, evidence, digest
      from archived
     where tenant = :tenant and operation_id = :operation_id
"""


def find(tx: Transaction, tenant: str, operation_id: str) -> Archived | None:
    """Return where an operation stands in the archive; None if it doesn't."""
    rows = tx.tuples(FIND, tenant=tenant, operation_id=operation_id)
    if not rows:
        return None
    at_ms, month, evidence, digest = rows[0]
    return Archived(
        at_ms=integer_of(at_ms),
        month=integer_of(month),
        evidence=integer_of(evidence),
        digest=text_of(digest),
    )


# --- reading -------------------------------------------------------------------------------------

ATTEMPTS: Final = statement(
    "select {columns} from archived_attempt where month = :month and tenant = :tenant"
    " and operation_id = :operation_id order by number",
    ATTEMPT,
)
EVIDENCE_OF: Final = statement(
    "select {columns} from archived_evidence where month = :month and tenant = :tenant"
    " and operation_id = :operation_id order by number",
    EVIDENCE,
)
JOURNAL: Final = """
    select seq, operation_id, at_ms, entries
      from archived_journal
     where month = :month and tenant = :tenant and operation_id = :operation_id
  order by seq
"""
CONTENT: Final = """
    select content
      from archived_body
     where month = :month and tenant = :tenant and operation_id = :operation_id
       and kind = :kind and number = :number
"""


def attempts(
    tx: Transaction, tenant: str, operation_id: str, found: Archived
) -> tuple[Attempt, ...]:
    """Return the attempts that stand in the archive; none where their month was taken away."""
    rows = tx.tuples(ATTEMPTS, month=found.month, tenant=tenant, operation_id=operation_id)
    return tuple(ATTEMPT.from_row(row) for row in rows)


def evidence(
    tx: Transaction, tenant: str, operation_id: str, found: Archived
) -> tuple[Evidence, ...]:
    """Return the evidence that stands in the archive; none where its month was taken away."""
    rows = tx.tuples(EVIDENCE_OF, month=found.month, tenant=tenant, operation_id=operation_id)
    return tuple(EVIDENCE.from_row(row) for row in rows)


def with_archived(
    tx: Transaction, operation: Operation, facts: tuple[Evidence, ...]
) -> tuple[tuple[Attempt, ...], tuple[Evidence, ...]]:
    """Return the attempts and evidence of an operation of which no attempt stands outside.

    `facts` are what stands outside: what was learnt since it was moved.
    """
    tenant, operation_id = operation.tenant, operation.id
    found = find(tx, tenant, operation_id)
    if found is None:
        return (), facts
    earlier = evidence(tx, tenant, operation_id, found)
    return attempts(tx, tenant, operation_id, found), (*earlier, *facts)


def body(tx: Transaction, tenant: str, operation_id: str, kind: str, number: int) -> bytes | None:
    """Return a body that stands in the archive; None if there is none, or it was emptied."""
    found = find(tx, tenant, operation_id)
    if found is None:
        return None
    rows = tx.tuples(
        CONTENT,
        month=found.month,
        tenant=tenant,
        operation_id=operation_id,
        kind=kind,
        number=number,
    )
    content = rows[0][0] if rows else None
    return content if isinstance(content, bytes) else None


# --- moving --------------------------------------------------------------------------------------

STANDS: Final = """
    select updated_ms
      from operation
     where tenant = :tenant and id = :operation_id and open = 0 and version = :version
"""
COUNT: Final = """
    select count(*) from evidence where tenant = :tenant and operation_id = :operation_id
"""
ADD: Final = """
    insert into archived (tenant, operation_id, month, at_ms, evidence, digest)
    values (:tenant, :operation_id, :month, :at_ms, :evidence, :digest)
"""
ADD_MONTH: Final = """
    insert into archive_month (tenant, month, made_ms)
    values (:tenant, :month, :made_ms)
        on conflict (tenant, month) do nothing
"""
_COLUMNS: Final = {
    "attempt": f"tenant, operation_id, {ATTEMPT.columns}",
    "evidence": f"tenant, operation_id, {EVIDENCE.columns}",
    "journal": "tenant, operation_id, seq, at_ms, entries",
    "body": "tenant, operation_id, kind, number, at_ms, digest, size, content",
}
COPY_IN: Final = """
    insert into archived_{table} (month, {columns})
    select cast(:month as bigint), {columns}
      from {table}
     where tenant = :tenant and operation_id = :operation_id
"""
LET_GO: Final = "delete from {table} where tenant = :tenant and operation_id = :operation_id"
IN: Final = tuple(
    COPY_IN.replace("{table}", table).replace("{columns}", columns)
    for table, columns in _COLUMNS.items()
)
OUT: Final = tuple(LET_GO.replace("{table}", table) for table in _COLUMNS)


def move(tx: Transaction, tenant: str, operation_id: str, *, version: int) -> bool:
    """Move what was recorded of a settled operation into the archive.

    False, and nothing moved, if it isn't at `version` any more, is open, or is there already.

    Raises:
        LedgerError: the month was taken away from the archive. Nothing of the unit is recorded.
    """
    at: dict[str, Value] = {"tenant": tenant, "operation_id": operation_id}
    rows = tx.tuples(STANDS, version=version, **at)
    if not rows or find(tx, tenant, operation_id) is not None:
        return False
    month = month_of(integer_of(rows[0][0]))
    tx.run(ADD_MONTH, tenant=tenant, month=month, made_ms=tx.now_ms)
    tx.run(
        ADD,
        month=month,
        at_ms=tx.now_ms,
        evidence=integer_of(tx.tuples(COUNT, **at)[0][0]),
        digest=digest_of(tx.tuples(JOURNAL_OF, **at)),
        **at,
    )
    for sql in IN:
        tx.run(sql, month=month, **at)
    for sql in OUT:
        tx.run(sql, **at)
    return True


def digest_of(rows: Sequence[Row]) -> str:
    """Return the SHA-256 of a journal: of each row its number, its time and its text, in lines."""
    lines = (
        f"{integer_of(seq)} {integer_of(at_ms)} {text_of(entries)}\n"
        for seq, _, at_ms, entries in rows
    )
    return sha256("".join(lines).encode()).hexdigest()


# A body may have been told anew meanwhile; of the rest, the database sees to it that all came.
COPY_BACK: Final = """
    insert into {table} ({columns})
    select {columns}
      from archived_{table}
     where month = :month and tenant = :tenant and operation_id = :operation_id
        on conflict do nothing
"""
LET_GO_BACK: Final = """
    delete from archived_{table}
     where month = :month and tenant = :tenant and operation_id = :operation_id
"""
BACK: Final = tuple(
    COPY_BACK.replace("{table}", table).replace("{columns}", columns)
    for table, columns in _COLUMNS.items()
)
GONE: Final = tuple(LET_GO_BACK.replace("{table}", table) for table in _COLUMNS)
REMOVE: Final = "delete from archived where tenant = :tenant and operation_id = :operation_id"


def recall(tx: Transaction, operation: Operation) -> bool:
    """Bring back what the archive has of an operation, before it changes; False if it has nothing.

    Raises:
        LedgerError: its month was taken away, so that it can't be changed before that is back.
    """
    found = find(tx, operation.tenant, operation.id)
    if found is None:
        return False
    at: dict[str, Value] = {"tenant": operation.tenant, "operation_id": operation.id}
    rows = tx.tuples(JOURNAL, month=found.month, **at)
    if digest_of(rows) != found.digest:
        raise LedgerError(
            f"{operation.id}: its journal is in the archive of {found.month}, which was taken away"
            " or changed: put that month back (docs/scaling.md), then repeat this"
        )
    for back, gone in zip(BACK, GONE, strict=True):
        tx.run(back, month=found.month, **at)
        tx.run(gone, month=found.month, **at)
    tx.run(REMOVE, **at)
    return True


# --- what there is -------------------------------------------------------------------------------

MONTHS: Final = "select month from archive_month where tenant = :tenant order by month"


def months(tx: Transaction, tenant: str) -> list[int]:
    """Return the months that were ever begun, the oldest first."""
    return [integer_of(row[0]) for row in tx.tuples(MONTHS, tenant=tenant)]
