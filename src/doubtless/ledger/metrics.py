"""Counters that are part of what they count: changed in the same transaction, lost with it.

What ends as usual costs nothing here: it is counted from the settlements when somebody asks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.store import Transaction

FOLD_ROWS: Final = 5_000  # settlements that are put into the counters at once, at most
FOLD_FROM: Final = 1_000  # fewer are counted anew at each reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One counter, or one part of a histogram."""

    name: str
    labels: Mapping[str, str]
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How many operations of one tool ended in a state, of those that were looked at."""

    state: str
    tool: str
    effect: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """What the open operations of one tool in one state have come to."""

    state: str
    tool: str
    effect: str
    since_ms: int  # when the oldest was made, or came to be in doubt
    due_ms: int  # the longest due
    past_deadline: int  # how many


COUNT: Final = """
    insert into metric (tenant, name, labels, value)
    values (:tenant, :name, :labels, :by)
        on conflict (tenant, name, labels) do update set value = metric.value + excluded.value
"""


def count(
    tx: Transaction, tenant: str, name: str, labels: Mapping[str, str], *, by: int = 1
) -> None:
    """Add to a counter, which begins at nothing."""
    text = json.dumps(dict(sorted(labels.items())), separators=(",", ":"))
    tx.run(COUNT, tenant=tenant, name=name, labels=text, by=by)


COUNTERS: Final = "select name, labels, value from metric where tenant = :tenant order by 1, 2"


def counters(tx: Transaction, tenant: str) -> list[Counted]:
    """Return all counters as they stand."""
    return [
        Counted(name=text_of(name), labels=json.loads(text_of(labels)), value=integer_of(value))
        for name, labels, value in tx.tuples(COUNTERS, tenant=tenant)
    ]


# --- settlements ---------------------------------------------------------------------------------

# Limits stand in the text: a server that doesn't know them while it plans reads whole tables.
FOLDED: Final = "select seq from metric_fold where tenant = :tenant"
ENDED: Final = """
    select ended.state, operation.tool, operation.effect, count(*), max(ended.seq)
      from (select seq, state, operation_id
              from settlement
             where tenant = :tenant and seq > :after
          order by seq
             limit {limit}) as ended
      join operation on operation.tenant = :tenant and operation.id = ended.operation_id
  group by 1, 2, 3
"""
FOLD: Final = """
    insert into metric_fold (tenant, seq)
    values (:tenant, :seq)
        on conflict (tenant) do update set seq = excluded.seq
"""


def folded(tx: Transaction, tenant: str) -> int:
    """Return up to which settlement all are in the counters."""
    rows = tx.tuples(FOLDED, tenant=tenant)
    return integer_of(rows[0][0]) if rows else 0


WAITING: Final = """
    select count(*)
      from (select 1
              from settlement
             where tenant = :tenant and seq > :after
          order by seq
             limit {limit}) as next
"""


def must_fold(tx: Transaction, tenant: str) -> bool:
    """Whether `FOLD_FROM` settlements or more are not in the counters yet."""
    after = folded(tx, tenant)
    rows = tx.tuples(WAITING.format(limit=FOLD_FROM), tenant=tenant, after=after)
    return integer_of(rows[0][0]) >= FOLD_FROM


def ended(tx: Transaction, tenant: str) -> list[Ended]:
    """Count the settlements that are not in the counters yet: the first `FOLD_ROWS` of them."""
    return _ended(tx, tenant, folded(tx, tenant))[0]


def _ended(tx: Transaction, tenant: str, after: int) -> tuple[list[Ended], int]:
    rows = tx.tuples(ENDED.format(limit=FOLD_ROWS), tenant=tenant, after=after)
    found = [
        Ended(
            state=text_of(state),
            tool=text_of(tool),
            effect=text_of(effect),
            count=integer_of(number),
        )
        for state, tool, effect, number, _ in rows
    ]
    return found, max((integer_of(row[-1]) for row in rows), default=after)


def fold(tx: Transaction, tenant: str, name: str) -> bool:
    """Put the next settlements into the counters `name`, if there are `FOLD_FROM` or more.

    Returns whether there were, so that more may follow.
    """
    found, last = _ended(tx, tenant, folded(tx, tenant))
    if sum(each.count for each in found) < FOLD_FROM:
        return False
    for each in found:
        labels = {"state": each.state, "tool": each.tool, "effect": each.effect}
        count(tx, tenant, name, labels, by=each.count)
    tx.run(FOLD, tenant=tenant, seq=last)
    return True


# --- what is open --------------------------------------------------------------------------------

# The due time says nothing more, but leads SQLite to the index over open operations alone.
OPEN: Final = """
    select state, tool, effect,
           min(coalesce((select since_ms
                           from doubt
                          where doubt.tenant = operation.tenant
                            and doubt.operation_id = operation.id), created_ms)),
           min(due_ms),
           sum(case when (case when state = 'accepted' or origin = 'accepted' then completes_by_ms
                               else coalesce(deadline_ms, completes_by_ms) end) <= :now_ms
                    then 1 else 0 end)
      from operation
     where tenant = :tenant and open = 1 and due_ms >= 0
  group by 1, 2, 3
"""


def open_ones(tx: Transaction, tenant: str) -> list[Open]:
    """Sum up the open operations. Costs as much as there are of them, settled ones nothing."""
    return [
        Open(
            state=text_of(state),
            tool=text_of(tool),
            effect=text_of(effect),
            since_ms=integer_of(since_ms),
            due_ms=integer_of(due_ms),
            past_deadline=integer_of(past),
        )
        for state, tool, effect, since_ms, due_ms, past in tx.tuples(
            OPEN, tenant=tenant, now_ms=tx.now_ms
        )
    ]


UNMATCHED: Final = """
    select source, min(received_ms)
      from event
     where tenant = :tenant and reason <> 'no_tool'
  group by source
"""


def unmatched(tx: Transaction, tenant: str) -> dict[str, int]:
    """Return by source when the oldest event came that still belongs to no operation.

    Events of types that no tool speaks of are left out: many providers send all they have.
    """
    rows = tx.tuples(UNMATCHED, tenant=tenant)
    return {text_of(source): integer_of(received_ms) for source, received_ms in rows}


# --- doubt ---------------------------------------------------------------------------------------

DOUBT: Final = """
    insert into doubt (tenant, operation_id, since_ms)
    values (:tenant, :operation_id, :now_ms)
        on conflict (tenant, operation_id) do nothing
"""
SINCE: Final = """
    delete from doubt where tenant = :tenant and operation_id = :operation_id returning since_ms
"""


def doubted(tx: Transaction, tenant: str, operation_id: str) -> None:
    """Note that an operation is in doubt from now on, unless it was before."""
    tx.run(DOUBT, tenant=tenant, operation_id=operation_id, now_ms=tx.now_ms)


def undoubted(tx: Transaction, tenant: str, operation_id: str) -> int | None:
    """End the doubt about an operation; return since when there was one, or None."""
    rows = tx.tuples(SINCE, tenant=tenant, operation_id=operation_id)
    return integer_of(rows[0][0]) if rows else None
