"""Retention: what settled operations carried is emptied, and how far the upkeep has come.

The upkeep goes along the stream of settlements, so that it never looks for its work. What is not
ripe when it is looked at is noted with the time at which it will be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.transaction import Transaction


class Task(StrEnum):
    """What the upkeep does with settled operations."""

    RETENTION = "retention"  # empties bodies and events
    ARCHIVE = "archive"  # moves what was recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A settlement that is to be looked at."""

    seq: int
    operation_id: str
    at_ms: int


REACHED: Final = "select seq from upkeep where tenant = :tenant and task = :task"
REACH: Final = """
    insert into upkeep (tenant, task, seq)
    values (:tenant, :task, :seq)
        on conflict (tenant, task)
        do update set seq = case when upkeep.seq < excluded.seq then excluded.seq
                                 else upkeep.seq end
"""


def reached(tx: Transaction, tenant: str, task: Task) -> int:
    """Return up to which settlement all were looked at."""
    rows = tx.tuples(REACHED, tenant=tenant, task=task)
    return integer_of(rows[0][0]) if rows else 0


def reach(tx: Transaction, tenant: str, task: Task, seq: int) -> None:
    """Note up to which settlement all were looked at. It only grows."""
    tx.run(REACH, tenant=tenant, task=task, seq=seq)


TOLD: Final = """
    select name, seq from subscriber where tenant = :tenant order by seq, name limit 1
"""


def slowest(tx: Transaction, tenant: str) -> tuple[str, int] | None:
    """Return the subscriber that was told least, and up to which settlement; None without any."""
    rows = tx.tuples(TOLD, tenant=tenant)
    return (text_of(rows[0][0]), integer_of(rows[0][1])) if rows else None


LAST: Final = "select max(seq) from settlement where tenant = :tenant"


def last(tx: Transaction, tenant: str) -> int:
    """Return the number of the last settlement; 0 if there was none."""
    (found,) = tx.tuples(LAST, tenant=tenant)[0]
    return 0 if found is None else integer_of(found)


# The times of settlements never fall, so the first that is too young ends the look.
NEXT: Final = """
    select seq, operation_id, at_ms
      from settlement
     where tenant = :tenant and seq > :after and seq <= :upto
  order by seq
     limit :limit
"""


def next_steps(
    tx: Transaction, tenant: str, *, after: int, upto: int, before_ms: int, limit: int
) -> list[Step]:
    """Return the next settlements after `after` and up to `upto` that came before `before_ms`."""
    rows = tx.tuples(NEXT, tenant=tenant, after=after, upto=upto, limit=limit)
    found: list[Step] = []
    for seq, operation_id, at_ms in rows:
        if integer_of(at_ms) > before_ms:
            break
        found.append(
            Step(seq=integer_of(seq), operation_id=text_of(operation_id), at_ms=integer_of(at_ms))
        )
    return found


LATER: Final = """
    insert into upkeep_later (tenant, task, operation_id, at_ms)
    values (:tenant, :task, :operation_id, :at_ms)
        on conflict (tenant, task, operation_id) do update set at_ms = excluded.at_ms
"""
DUE: Final = """
    select operation_id
      from upkeep_later
     where tenant = :tenant and task = :task and at_ms <= :now_ms
  order by at_ms
     limit :limit
"""
DONE: Final = """
    delete from upkeep_later
     where tenant = :tenant and task = :task and operation_id = :operation_id
"""
HOW_MANY_LATER: Final = "select count(*) from upkeep_later where tenant = :tenant and task = :task"


def later(tx: Transaction, tenant: str, task: Task, operation_id: str, at_ms: int) -> None:
    """Note that an operation is to be looked at again, and when."""
    tx.run(LATER, tenant=tenant, task=task, operation_id=operation_id, at_ms=at_ms)


def due(tx: Transaction, tenant: str, task: Task, limit: int) -> list[str]:
    """Return operations that are to be looked at again now."""
    rows = tx.tuples(DUE, tenant=tenant, task=task, now_ms=tx.now_ms, limit=limit)
    return [text_of(row[0]) for row in rows]


def done(tx: Transaction, tenant: str, task: Task, operation_id: str) -> None:
    """Forget that an operation was to be looked at again."""
    tx.run(DONE, tenant=tenant, task=task, operation_id=operation_id)


def how_many_later(tx: Transaction, tenant: str, task: Task) -> int:
    """Count the operations that are to be looked at again."""
    return integer_of(tx.tuples(HOW_MANY_LATER, tenant=tenant, task=task)[0][0])


# --- emptying ------------------------------------------------------------------------------------

STILL: Final = """
    select 1
      from operation
     where tenant = :tenant and id = :operation_id and open = 0 and version = :version
"""
EMPTY: Final = """
    update body
       set content = null
     where tenant = :tenant and operation_id = :operation_id and content is not null
"""
EMPTY_ARCHIVED: Final = """
    update archived_body
       set content = null
     where tenant = :tenant and operation_id = :operation_id and content is not null
       and month = (select month
                      from archived
                     where tenant = :tenant and operation_id = :operation_id)
"""
EMPTY_COPIES: Final = """
    update event
       set content = null
     where tenant = :tenant and content is not null
       and copy_of in (select position
                         from event
                        where tenant = :tenant and operation_id = :operation_id)
"""
EMPTY_EVENTS: Final = """
    update event
       set content = null
     where tenant = :tenant and operation_id = :operation_id and content is not null
"""
EMPTIES: Final[Sequence[str]] = (EMPTY, EMPTY_ARCHIVED, EMPTY_COPIES, EMPTY_EVENTS)


def empty(tx: Transaction, tenant: str, operation_id: str, *, version: int) -> int:
    """Empty payload, request, replies, result and events of an operation that has ended.

    Digests and sizes stay. Nothing is changed if it isn't at `version` any more.

    Returns:
        How many were emptied.
    """
    if not tx.tuples(STILL, tenant=tenant, operation_id=operation_id, version=version):
        return 0
    return sum(tx.run(sql, tenant=tenant, operation_id=operation_id) for sql in EMPTIES)


IS_EMPTIED: Final = """
    select 1
      from body
     where tenant = :tenant and operation_id = :operation_id and kind = :kind and content is null
 union all
    select 1
      from archived
      join archived_body as kept on kept.month = archived.month
                                and kept.tenant = archived.tenant
                                and kept.operation_id = archived.operation_id
     where archived.tenant = :tenant and archived.operation_id = :operation_id
       and kept.kind = :kind and kept.content is null
     limit 1
"""


def is_emptied(tx: Transaction, tenant: str, operation_id: str, kind: str) -> bool:
    """Whether retention has emptied a body of an operation."""
    return bool(tx.tuples(IS_EMPTIED, tenant=tenant, operation_id=operation_id, kind=kind))


# --- what keeps an operation as it is ------------------------------------------------------------

HELD: Final = """
    select release_ms
      from claim
     where tenant = :tenant and source = :source and key = :key and operation_id = :operation_id
"""


def held_until_ms(
    tx: Transaction, tenant: str, source: str, claim: str | None, operation_id: str
) -> int | None:
    """Return until when an operation that has ended holds its object; None if it doesn't."""
    if claim is None:
        return None
    rows = tx.tuples(HELD, tenant=tenant, source=source, key=claim, operation_id=operation_id)
    if not rows or rows[0][0] is None:
        return None
    return integer_of(rows[0][0])
