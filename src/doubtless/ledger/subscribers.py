"""Who is told of settlements, and up to which. One holder at a time delivers to a subscriber."""

from collections.abc import Callable
from typing import Final

from doubtless.errors import BadRequest
from doubtless.ledger.codec import Row, integer_of, text_of
from doubtless.ledger.store import Transaction

LAST: Final = """
    select max(seq)
      from (select seq
              from settlement
             where tenant = :tenant and seq > :after
          order by seq
             limit :limit) as next
"""


def last_of(tx: Transaction, tenant: str, *, after: int, limit: int) -> int:
    """Return the last of the next `limit` settlements of anybody; `after` if there is none."""
    (found,) = tx.tuples(LAST, tenant=tenant, after=after, limit=limit)[0]
    return after if found is None else integer_of(found)


READ: Final = """
    select seq, holder, holder_until_ms
      from subscriber
     where tenant = :tenant and whose = :whose and name = :name
"""


def position(tx: Transaction, tenant: str, whose: str, name: str) -> int | None:
    """Return up to which settlement a subscriber was told; None if it is new."""
    rows = tx.tuples(READ, tenant=tenant, whose=whose, name=name)
    return integer_of(rows[0][0]) if rows else None


def is_held(
    tx: Transaction,
    tenant: str,
    whose: str,
    name: str,
    *,
    holder: str,
    is_gone: Callable[[str], bool],
) -> bool:
    """Whether somebody else delivers to a subscriber now, so that `take` would be in vain."""
    rows = tx.tuples(READ, tenant=tenant, whose=whose, name=name)
    return bool(rows) and _is_held(tx, rows[0], holder, is_gone)


def _is_held(tx: Transaction, row: Row, holder: str, is_gone: Callable[[str], bool]) -> bool:
    held, held_until_ms = row[1:]
    free = held is None or held == holder or integer_of(held_until_ms) <= tx.now_ms
    return not free and not is_gone(text_of(held))


MAX: Final = 100  # subscribers of one principal
HOW_MANY: Final = "select count(*) from subscriber where tenant = :tenant and whose = :whose"
TAKE: Final = """
    insert into subscriber (tenant, whose, name, seq, holder, holder_until_ms)
    values (:tenant, :whose, :name, :seq, :holder, :until_ms)
        on conflict (tenant, whose, name)
        do update set holder = excluded.holder, holder_until_ms = excluded.holder_until_ms
"""


def take(
    tx: Transaction,
    tenant: str,
    whose: str,
    name: str,
    *,
    holder: str,
    until_ms: int,
    begins: int,
    is_gone: Callable[[str], bool],
) -> int | None:
    """Become the one who delivers to a subscriber.

    Args:
        tx: The transaction.
        tenant: Whose ledger.
        whose: The principal.
        name: The subscriber.
        holder: Who takes it.
        until_ms: Until when, unless it is prolonged.
        begins: After which settlement a new subscriber begins.
        is_gone: Whether a holder is known to be dead.

    Raises:
        BadRequest: The principal has too many subscribers to have a new one.

    Returns:
        Up to which settlement it was told; None where somebody else delivers.
    """
    rows = tx.tuples(READ, tenant=tenant, whose=whose, name=name)
    seq = begins
    if not rows and integer_of(tx.tuples(HOW_MANY, tenant=tenant, whose=whose)[0][0]) >= MAX:
        raise BadRequest(f"there are {MAX} subscribers already: use one of their names")
    if rows:
        seq = integer_of(rows[0][0])
        if _is_held(tx, rows[0], holder, is_gone):
            return None
    tx.run(TAKE, tenant=tenant, whose=whose, name=name, seq=seq, holder=holder, until_ms=until_ms)
    return seq


ADVANCE: Final = """
    update subscriber
       set seq = case when seq < :seq then :seq else seq end, holder_until_ms = :until_ms
     where tenant = :tenant and whose = :whose and name = :name and holder = :holder
"""


def advance(
    tx: Transaction, tenant: str, whose: str, name: str, *, holder: str, seq: int, until_ms: int
) -> bool:
    """Note up to which settlement a subscriber was told; False where somebody else has it now."""
    changed = tx.run(
        ADVANCE, tenant=tenant, whose=whose, name=name, holder=holder, seq=seq, until_ms=until_ms
    )
    return changed > 0


RELEASE: Final = """
    update subscriber
       set holder = null, holder_until_ms = null
     where tenant = :tenant and whose = :whose and name = :name and holder = :holder
"""


def release(tx: Transaction, tenant: str, whose: str, name: str, *, holder: str) -> None:
    """Let others deliver."""
    tx.run(RELEASE, tenant=tenant, whose=whose, name=name, holder=holder)
