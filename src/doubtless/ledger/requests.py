"""Requests of remote callers that joined an operation of another id.

The answer may be lost on its way; the repeat is then told the same, whatever happened meanwhile.
"""

from typing import Final

from doubtless.ledger.codec import text_of
from doubtless.ledger.store import Transaction

REMEMBER: Final = """
    insert into request (tenant, id, operation_id)
    values (:tenant, :id, :operation_id)
        on conflict (tenant, id) do nothing
"""
FIND: Final = "select operation_id from request where tenant = :tenant and id = :id"


def remember(tx: Transaction, tenant: str, request_id: str, operation_id: str) -> None:
    """Note which operation a request joined."""
    tx.run(REMEMBER, tenant=tenant, id=request_id, operation_id=operation_id)


def joined(tx: Transaction, tenant: str, request_id: str) -> str | None:
    """Return the operation that a request joined, if it came before."""
    rows = tx.tuples(FIND, tenant=tenant, id=request_id)
    return text_of(rows[0][0]) if rows else None
