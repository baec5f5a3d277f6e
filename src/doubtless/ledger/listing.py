"""Finding operations: lists for people and sessions, twins for joins, matches for webhooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from doubtless.core.model import TERMINAL, Operation, State
from doubtless.ledger.codec import Row, Value, integer_of, statement, text_of
from doubtless.ledger.journal import OPERATION
from doubtless.ledger.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some operations, newest first. `cursor` continues the list; None at its end."""

    operations: tuple[Operation, ...]
    cursor: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One operation's end, in the order of commits."""

    seq: int
    operation_id: str
    state: State
    version: int
    at_ms: int


UNDONE: Final = frozenset({State.FAILED, State.REJECTED, State.CANCELLED})
"""The ends of few operations."""

FIND: Final = statement(
    """
    select position, {columns}
      from operation
     where tenant = :tenant {conditions}
  order by position desc
     limit :limit
    """,
    OPERATION,
)
CONDITIONS: Final = {
    "tool": "and tool = :tool",
    "source": "and source = :source",
    "principal": "and principal = :principal",
    "session_id": "and session_id = :session_id",
    "correlation_id": "and correlation_id = :correlation_id",
    "provider_operation_id": "and provider_operation_id = :provider_operation_id",
    "idempotency_key": "and key = :idempotency_key",
    "business_key": "and business_key = :business_key",
    "cursor": "and position < :cursor",
}


def find(
    tx: Transaction,
    tenant: str,
    *,
    states: Sequence[State] = (),
    filters: Mapping[str, str] | None = None,
    limit: int = 50,
    cursor: int | None = None,
) -> Page:
    """List operations, newest first.

    Args:
        states: Only these; none given means all.
        filters: Equal values, by any name of `CONDITIONS` but "cursor".
        cursor: That of the page before.

    Raises:
        KeyError: a filter of another name.
    """
    params: dict[str, Value] = dict(filters or {})
    if cursor is not None:
        params["cursor"] = cursor
    sql = _find(tuple(sorted(params)), tuple(states))
    rows = tx.tuples(sql, tenant=tenant, limit=limit, **params)
    more = len(rows) == limit and limit > 0
    return Page(
        operations=tuple(OPERATION.from_row(row[1:]) for row in rows),
        cursor=integer_of(rows[-1][0]) if more else None,
    )


POSITION: Final = """
    select position
      from operation
     where tenant = :tenant and id = :id
       and (cast(:principal as text) is null or principal = :principal)
"""


def position(
    tx: Transaction, tenant: str, operation_id: str, *, principal: str | None = None
) -> int | None:
    """Return where an operation stands in the order of creation; None if there is none such.

    `principal` None means an operation of any principal.
    """
    rows = tx.tuples(POSITION, tenant=tenant, id=operation_id, principal=principal)
    return integer_of(rows[0][0]) if rows else None


@lru_cache(maxsize=256)
def _find(names: tuple[str, ...], states: tuple[State, ...]) -> str:
    conditions = [CONDITIONS[name] for name in names]
    if set(names) <= {"cursor"} and (not states or State.SUCCEEDED in states):
        # A tenant's name has no capitals. Only so it finds its index: see 0006_listing.
        conditions.append("and lower(tenant) = :tenant")
    if states:
        named = ", ".join(repr(State(state).value) for state in states)
        conditions.append(f"and state in ({named})")
    # Said twice: it lets the database use an index over few operations alone.
    if states and TERMINAL.isdisjoint(states):
        conditions.append("and open = 1")
    elif states and set(states) <= UNDONE:
        conditions.append("and state in ('failed', 'rejected', 'cancelled')")
    return FIND.replace("{conditions}", " ".join(conditions))


# The due time and the sign in the order say nothing more, but lead SQLite to the index over open
# operations alone; else it would walk the whole session for the order's sake.
SESSION_OPEN: Final = statement(
    """
    select position, {columns}
      from operation
     where tenant = :tenant and session_id = :session_id and principal = :principal
       and open = 1 and due_ms >= 0
  order by +position desc
     limit :limit
    """,
    OPERATION,
)
SESSION_RECENT: Final = statement(
    """
    select position, {columns}
      from operation
     where tenant = :tenant and session_id = :session_id and principal = :principal
  order by position desc
     limit :limit
    """,
    OPERATION,
)


def session(
    tx: Transaction,
    tenant: str,
    principal: str,
    session_id: str,
    *,
    open_max: int = 200,
    recent_max: int = 50,
) -> list[Operation]:
    """Return a session's newest open operations and its newest ones of any state, newest first."""
    params: dict[str, Value] = {
        "tenant": tenant,
        "session_id": session_id,
        "principal": principal,
    }
    rows = [
        *tx.tuples(SESSION_OPEN, limit=open_max, **params),
        *tx.tuples(SESSION_RECENT, limit=recent_max, **params),
    ]
    by_position = {integer_of(row[0]): row[1:] for row in rows}
    return _operations([by_position[position] for position in sorted(by_position, reverse=True)])


FIRST_OF_SESSION: Final = """
    select principal
      from operation
     where tenant = :tenant and session_id = :session_id
  order by principal
     limit 1
"""
LAST_OF_SESSION: Final = """
    select principal
      from operation
     where tenant = :tenant and session_id = :session_id
  order by principal desc
     limit 1
"""


def session_principals(tx: Transaction, tenant: str, session_id: str) -> set[str]:
    """Return the first and the last, by name, of the principals that have a session of that id."""
    return {
        text_of(row[0])
        for sql in (FIRST_OF_SESSION, LAST_OF_SESSION)
        for row in tx.tuples(sql, tenant=tenant, session_id=session_id)
    }


SUCCEEDED_TWIN: Final = statement(
    """
    select {columns}
      from operation
     where tenant = :tenant and source = :source and claim = :claim
       and principal = :principal and session_id = :session_id
       and payload_hash = :payload_hash and tool = :tool
       and state = 'succeeded' and updated_ms >= :since_ms
  order by position desc
     limit 1
    """,
    OPERATION,
)


def latest_succeeded_twin(  # noqa: PLR0913 - what makes two calls the same, each by its name
    tx: Transaction,
    tenant: str,
    *,
    source: str,
    claim: str,
    principal: str,
    session_id: str,
    tool: str,
    payload_hash: str,
    since_ms: int,
) -> Operation | None:
    """Return the last operation of equal content that was settled as succeeded since `since_ms`.

    Equal content has an equal `claim`, by which it is found.
    """
    rows = tx.tuples(
        SUCCEEDED_TWIN,
        tenant=tenant,
        source=source,
        claim=claim,
        principal=principal,
        session_id=session_id,
        tool=tool,
        payload_hash=payload_hash,
        since_ms=since_ms,
    )
    return OPERATION.from_row(rows[0]) if rows else None


BY_KEY: Final = statement(
    "select {columns} from operation where tenant = :tenant and key = :key", OPERATION
)
BY_REF: Final = statement(
    "select {columns} from operation where tenant = :tenant and ref = :ref", OPERATION
)
BY_PROVIDER: Final = statement(
    "select {columns} from operation where tenant = :tenant"
    " and provider_operation_id = :provider_operation_id and source = :source",
    OPERATION,
)


def by_key(tx: Transaction, tenant: str, key: str) -> list[Operation]:
    """Return the operations whose idempotency key is `key`: one, unless a key was shortened."""
    return _operations(tx.tuples(BY_KEY, tenant=tenant, key=key))


def by_ref(tx: Transaction, tenant: str, ref: str) -> Operation | None:
    """Return the operation whose reference is `ref`, if there is one."""
    rows = tx.tuples(BY_REF, tenant=tenant, ref=ref)
    return OPERATION.from_row(rows[0]) if rows else None


def by_provider_operation_id(
    tx: Transaction, tenant: str, source: str, provider_operation_id: str
) -> list[Operation]:
    """Return the operations that a provider knows under that id."""
    return _operations(
        tx.tuples(
            BY_PROVIDER,
            tenant=tenant,
            source=source,
            provider_operation_id=provider_operation_id,
        )
    )


COUNTS: Final = """
    select state, count(*)
      from operation
     where tenant = :tenant and open = 1 and due_ms >= 0
  group by state
"""


def open_counts(tx: Transaction, tenant: str) -> dict[State, int]:
    """Count the open operations by state; a state without any is left out."""
    rows = tx.tuples(COUNTS, tenant=tenant)
    return {State(text_of(state)): integer_of(count) for state, count in rows}


SETTLEMENTS: Final = """
    select settlement.seq, settlement.operation_id, settlement.state, settlement.version,
           settlement.at_ms
      from settlement
      join operation on operation.tenant = settlement.tenant
                    and operation.id = settlement.operation_id
     where settlement.tenant = :tenant and settlement.seq > :after and settlement.seq <= :upto
       and (cast(:principal as text) is null or operation.principal = :principal)
  order by settlement.seq
     limit :limit
"""


def settlements(
    tx: Transaction,
    tenant: str,
    *,
    after: int = 0,
    upto: int = 2**62,
    limit: int = 100,
    principal: str | None = None,
) -> list[Settlement]:
    """Return the ends of operations in the order of their commits, those after `after` only."""
    rows = tx.tuples(
        SETTLEMENTS, tenant=tenant, after=after, upto=upto, limit=limit, principal=principal
    )
    return [
        Settlement(
            seq=integer_of(seq),
            operation_id=text_of(operation_id),
            state=State(text_of(state)),
            version=integer_of(version),
            at_ms=integer_of(at_ms),
        )
        for seq, operation_id, state, version, at_ms in rows
    ]


def _operations(rows: Sequence[Row]) -> list[Operation]:
    return [OPERATION.from_row(row) for row in rows]
