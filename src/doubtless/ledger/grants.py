"""Session-wide approvals. They are added and revoked; nothing of them is ever deleted."""

from typing import Final

from doubtless.core.model import Grant
from doubtless.ledger.codec import Shape, statement
from doubtless.ledger.store import Transaction

GRANT: Final = Shape(Grant)

ADD: Final = statement(
    "insert into session_approval (tenant, {columns}) values (:tenant, {places})", GRANT
)


def add(tx: Transaction, tenant: str, grant: Grant) -> None:
    """Store a session-wide approval.

    Raises:
        LedgerError: its id is taken.
    """
    tx.run(ADD, tenant=tenant, **GRANT.params(grant))


GET: Final = statement(
    "select {columns} from session_approval"
    " where tenant = :tenant and session_id = :session_id and id = :id",
    GRANT,
)


def get(tx: Transaction, tenant: str, session_id: str, grant_id: str) -> Grant | None:
    """Return a session-wide approval, or None."""
    rows = tx.tuples(GET, tenant=tenant, session_id=session_id, id=grant_id)
    return GRANT.from_row(rows[0]) if rows else None


REVOKE: Final = """
    update session_approval
       set revoked_ms = :revoked_ms, revoked_by = :revoked_by
     where tenant = :tenant and session_id = :session_id and id = :id and revoked_ms is null
"""


def revoke(tx: Transaction, tenant: str, session_id: str, grant_id: str, *, by: str) -> bool:
    """Take a session-wide approval back from now on. False if it was taken back before."""
    where = {"tenant": tenant, "session_id": session_id, "id": grant_id}
    return tx.run(REVOKE, **where, revoked_ms=tx.now_ms, revoked_by=by) == 1


OF_SESSION: Final = statement(
    """
    select {columns}
      from session_approval
     where tenant = :tenant and session_id = :session_id
  order by at_ms, id
    """,
    GRANT,
)


def of_session(tx: Transaction, tenant: str, session_id: str) -> list[Grant]:
    """Return all approvals of a session, revoked and expired ones too, oldest first."""
    rows = tx.tuples(OF_SESSION, tenant=tenant, session_id=session_id)
    return [GRANT.from_row(row) for row in rows]


BINDING: Final = statement(
    """
    select {columns}
      from session_approval
     where tenant = :tenant and session_id = :session_id and principal = :principal
       and tool = :tool
       and revoked_ms is null and expires_ms > :now_ms
  order by at_ms, id
    """,
    GRANT,
)


def binding(
    tx: Transaction, tenant: str, *, session_id: str, principal: str, tool: str
) -> tuple[Grant, ...]:
    """Return what stands now for a principal's calls of a tool in a session."""
    rows = tx.tuples(
        BINDING,
        tenant=tenant,
        session_id=session_id,
        principal=principal,
        tool=tool,
        now_ms=tx.now_ms,
    )
    return tuple(GRANT.from_row(row) for row in rows)


WAITING: Final = """
    select id
      from operation
     where tenant = :tenant and session_id = :session_id and principal = :principal
       and tool = :tool and state = 'awaiting_approval'
  order by position
"""


def waiting(
    tx: Transaction, tenant: str, *, session_id: str, principal: str, tool: str
) -> list[str]:
    """Return the operations that wait for what a new session-wide approval gives."""
    rows = tx.tuples(WAITING, tenant=tenant, session_id=session_id, principal=principal, tool=tool)
    return [str(row[0]) for row in rows]
