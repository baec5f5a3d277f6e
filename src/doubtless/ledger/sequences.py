"""Who waits for whom: operations that come after others, and those that wait for an object."""

from collections.abc import Iterable
from typing import Final

from doubtless.core.model import Operation
from doubtless.ledger.codec import statement, text_of
from doubtless.ledger.journal import OPERATION
from doubtless.ledger.store import Transaction

RESTING: Final = "('prepared', 'awaiting_approval')"

AWAITED: Final = f"""
    select exists (select 1 from dependency where tenant = :tenant and after_id = :id)
        or exists (select 1
                     from operation
                    where tenant = :tenant and source = :source and claim = :claim
                      and state in {RESTING} and claim is not null
                      and id <> :id)
"""  # noqa: S608 - nothing in it comes from outside


def is_awaited(tx: Transaction, operation: Operation) -> bool:
    """Whether anybody may wait for this operation or its object: quick, for nearly nobody does."""
    where = {"tenant": operation.tenant, "id": operation.id, "source": operation.source}
    return bool(tx.tuples(AWAITED, **where, claim=operation.claim)[0][0])


DEPENDENTS: Final = statement(
    f"""
    select {{columns}}
      from operation
     where tenant = :tenant
       and id in (select operation_id
                    from dependency
                   where tenant = :tenant and after_id = :after_id)
       and state in {RESTING}
  order by position
    """,  # noqa: S608 - nothing in it comes from outside
    OPERATION,
)


def dependents(tx: Transaction, tenant: str, operation_id: str) -> list[Operation]:
    """Return the operations that named this one in `after` and were not sent yet, oldest first."""
    rows = tx.tuples(DEPENDENTS, tenant=tenant, after_id=operation_id)
    return [OPERATION.from_row(row) for row in rows]


WAITING: Final = statement(
    f"""
    select {{columns}}
      from operation
     where tenant = :tenant and source = :source and claim = :claim
       and state in {RESTING} and claim is not null
       and id <> :id
  order by position
    """,  # noqa: S608 - nothing in it comes from outside
    OPERATION,
)


def waiting_for(tx: Transaction, operation: Operation) -> list[Operation]:
    """Return the other operations on the same object that were not sent yet, oldest first."""
    if operation.claim is None:
        return []
    rows = tx.tuples(
        WAITING,
        tenant=operation.tenant,
        source=operation.source,
        claim=operation.claim,
        id=operation.id,
    )
    return [OPERATION.from_row(row) for row in rows]


AFTER: Final = """
    select after_id from dependency where tenant = :tenant and operation_id = :operation_id
"""


def comes_after(tx: Transaction, tenant: str, after: Iterable[str], operation_id: str) -> bool:
    """Whether `operation_id` is among `after`, or among what those come after in their turn."""
    seen: set[str] = set()
    ahead = list(after)
    while ahead:
        name = ahead.pop()
        if name == operation_id:
            return True
        if name not in seen:
            seen.add(name)
            rows = tx.tuples(AFTER, tenant=tenant, operation_id=name)
            ahead += [text_of(row[0]) for row in rows]
    return False
