"""What workers share on a server: who takes which of the operations that are due.

It permits nothing. The lease and the fence, in the same turn, are what lets somebody act.
"""

import json
from collections.abc import Collection, Sequence
from functools import lru_cache

from doubtless.core.model import State
from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.store import Transaction


def next_due_ms(
    tx: Transaction, tenant: str, states: Sequence[State], *, without: Collection[str]
) -> int | None:
    """Return when the next operation in one of `states` is due, those `without` left out."""
    sql = _in_states(text.NEXT_DUE, tuple(states))
    rows = tx.tuples(sql, tenant=tenant, without=json.dumps(sorted(without)))
    return integer_of(rows[0][0]) if rows else None


def take_due(
    tx: Transaction,
    tenant: str,
    states: Sequence[State],
    *,
    limit: int,
    without: Collection[str],
) -> list[str]:
    """Return ids of operations that are due, the longest overdue first, and lock them.

    Writers take turns, so no worker sees what another one is about to take. What somebody else
    has locked, who takes no turns, is left for the next time rather than waited for in ours.
    """
    rows = tx.tuples(
        _in_states(text.TAKE_DUE, tuple(states)),
        tenant=tenant,
        now_ms=tx.now_ms,
        limit=limit,
        without=json.dumps(sorted(without)),
    )
    return [text_of(row[0]) for row in rows]


@lru_cache(maxsize=16)
def _in_states(template: str, states: tuple[State, ...]) -> str:
    return template.replace("{states}", ", ".join(f"'{state.value}'" for state in states))
