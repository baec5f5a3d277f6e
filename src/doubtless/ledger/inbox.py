"""The inbox: events of providers, each stored once and for ever, matched to an operation or not.

An event that is not matched yet can be found by what it says about its operation, so that it counts
as soon as that operation appears, or learns what the provider calls it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from doubtless.core.model import Json, Principal
from doubtless.ledger.codec import Row, Shape, Value, integer_of, statement
from doubtless.ledger.journal import Kind, append
from doubtless.ledger.store import Transaction


class Unmatched(StrEnum):
    """Why an event belongs to no operation. Told to people, and counted."""

    NO_TYPE = "no_type"  # it doesn't say of which type it is
    NO_TOOL = "no_tool"  # no tool of its source speaks of events of that type
    NO_VALUE = "no_value"  # it carries nothing that could name an operation
    NO_OPERATION = "no_operation"  # what it names isn't there, or not yet
    AMBIGUOUS = "ambiguous"  # it names more than one
    UNREADABLE = "unreadable"  # the contract's expressions can't be evaluated over it
    EMPTIED = "emptied"  # retention has emptied its content before it was matched


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, as it was stored."""

    position: int  # in the order of arrival
    source: str
    event_id: str  # the provider's
    type: str | None
    delivered_by: str  # who handed it over
    received_ms: int
    occurred_ms: int | None  # by the provider's clock
    digest: str  # SHA-256 of its content
    size: int
    copy_of: int | None = None  # the event that told the same news first
    operation_id: str | None = None
    matched_ms: int | None = None
    matched_by: str | None = None
    reason: Unmatched | None = None


EVENT: Final = Shape(Event)

INSERT: Final = """
    insert into event (tenant, source, event_id, type, delivered_by, received_ms, occurred_ms,
                       digest, size, content, copy_of, reason)
    values (:tenant, :source, :event_id, :type, :delivered_by, :received_ms, :occurred_ms,
            :digest, :size, :content, :copy_of, :reason)
 returning position
"""


def insert(  # noqa: PLR0913 - what is known of an event, each by its name
    tx: Transaction,
    tenant: str,
    *,
    source: str,
    event_id: str,
    type: str | None,  # noqa: A002 - what providers call it
    delivered_by: str,
    occurred_ms: int | None,
    digest: str,
    content: bytes,
    copy_of: int | None = None,
) -> Event:
    """Store a new event at the ledger's clock: as a copy, or as one that is not matched yet.

    Raises:
        LedgerError: The source has told an event of that id before.
    """
    reason = None if copy_of is not None else Unmatched.NO_OPERATION
    told: dict[str, Value] = {
        "source": source,
        "event_id": event_id,
        "type": type,
        "delivered_by": delivered_by,
        "received_ms": tx.now_ms,
        "occurred_ms": occurred_ms,
        "digest": digest,
        "size": len(content),
        "copy_of": copy_of,
        "reason": reason,
    }
    rows = tx.tuples(INSERT, tenant=tenant, content=content, **told)
    return EVENT.from_json({"position": integer_of(rows[0][0]), **told})


BY_ID: Final = statement(
    "select {columns} from event"
    " where tenant = :tenant and source = :source and event_id = :event_id",
    EVENT,
)
BY_POSITION: Final = statement(
    "select {columns} from event where tenant = :tenant and position = :position", EVENT
)
NAMED: Final = statement(
    "select {columns} from event where tenant = :tenant and event_id = :event_id order by position"
    " limit 2",
    EVENT,
)


def by_event_id(tx: Transaction, tenant: str, source: str, event_id: str) -> Event | None:
    """Return a source's event by the provider's id, if it ever came."""
    return _one(tx.tuples(BY_ID, tenant=tenant, source=source, event_id=event_id))


def at(tx: Transaction, tenant: str, position: int) -> Event | None:
    """Return an event by its place in the order of arrival."""
    return _one(tx.tuples(BY_POSITION, tenant=tenant, position=position))


def content(tx: Transaction, tenant: str, position: int) -> bytes | None:
    """Return what an event said; None once retention has emptied it."""
    sql = "select content from event where tenant = :tenant and position = :position"
    rows = tx.tuples(sql, tenant=tenant, position=position)
    found = rows[0][0] if rows else None
    return found if isinstance(found, bytes) else None


def _one(rows: list[Row]) -> Event | None:
    return EVENT.from_row(rows[0]) if rows else None


# --- the same news under another id --------------------------------------------------------------

NEWS: Final = """
    select event
      from event_news
     where tenant = :tenant and source = :source and tool = :tool and news = :news
"""
ADD_NEWS: Final = """
    insert into event_news (tenant, source, tool, news, event)
    values (:tenant, :source, :tool, :news, :event)
        on conflict (tenant, source, tool, news) do nothing
"""


def told_by(tx: Transaction, tenant: str, source: str, tool: str, news: str) -> int | None:
    """Return which event was the first to tell a tool's news."""
    rows = tx.tuples(NEWS, tenant=tenant, source=source, tool=tool, news=news)
    return integer_of(rows[0][0]) if rows else None


def tell(tx: Transaction, tenant: str, event: Event, tool: str, news: str) -> None:
    """Record that an event was the first to tell a tool's news; a first one stays."""
    tx.run(ADD_NEWS, tenant=tenant, source=event.source, tool=tool, news=news, event=event.position)


# --- waiting for an operation --------------------------------------------------------------------

ADD_VALUE: Final = """
    insert into event_value (tenant, source, tool, name, value, event)
    values (:tenant, :source, :tool, :name, :value, :event)
        on conflict do nothing
"""
WAIT: Final = """
    update event set reason = :reason where tenant = :tenant and position = :position
"""


def wait(
    tx: Transaction,
    tenant: str,
    event: Event,
    reason: Unmatched,
    values: Mapping[str, Mapping[str, str]],
) -> Event:
    """Leave an event unmatched, to be found by its values.

    Args:
        tx: The transaction.
        tenant: Whose ledger.
        event: One that is not matched.
        reason: Why it isn't.
        values: For each tool that speaks of it: by which names it can be found, and the values.
    """
    for tool, found in values.items():
        for name, value in found.items():
            tx.run(
                ADD_VALUE,
                tenant=tenant,
                source=event.source,
                tool=tool,
                name=name,
                value=value,
                event=event.position,
            )
    if reason is not event.reason:
        tx.run(WAIT, tenant=tenant, position=event.position, reason=reason)
    return EVENT.replace(event, reason=reason)


UNTOLD: Final = statement(
    """
    select {columns}
      from event
     where tenant = :tenant and source = :source and type = :type and reason = 'no_tool'
  order by position
     limit :limit
    """,
    EVENT,
)


def untold(tx: Transaction, tenant: str, source: str, kind: str, limit: int) -> list[Event]:
    """Return events of a type of which no tool spoke when they came, in the order of arrival."""
    rows = tx.tuples(UNTOLD, tenant=tenant, source=source, type=kind, limit=limit)
    return [EVENT.from_row(row) for row in rows]


WAITING: Final = """
    select {columns}
      from event
      join (select event
              from event_value
             where tenant = :tenant and source = :source and tool = :tool
               and name = :name and value = :value) as found on found.event = event.position
     where event.tenant = :tenant and operation_id is null
  order by position
"""
WAITING_FOR: Final = statement(WAITING, EVENT)


def waiting_for(
    tx: Transaction, tenant: str, source: str, tool: str, values: Mapping[str, str]
) -> list[Event]:
    """Return the events that wait for an operation of these values, in the order of arrival."""
    found: dict[int, Event] = {}
    for name, value in values.items():
        rows = tx.tuples(
            WAITING_FOR, tenant=tenant, source=source, tool=tool, name=name, value=value
        )
        for row in rows:
            event = EVENT.from_row(row)
            found[event.position] = event
    return [found[position] for position in sorted(found)]


# --- matched -------------------------------------------------------------------------------------

MATCH: Final = """
    update event
       set operation_id = :operation_id, matched_ms = :matched_ms, matched_by = :matched_by,
           reason = null
     where tenant = :tenant and position = :position and operation_id is null and copy_of is null
"""
FORGET_VALUES: Final = "delete from event_value where tenant = :tenant and event = :event"


def match(
    tx: Transaction,
    tenant: str,
    event: Event,
    operation_id: str,
    *,
    principal: Principal,
    note: str | None = None,
) -> Event | None:
    """Record that an event speaks of an operation. Once only: None where it was matched, or a copy.

    A match with a `note` is a person's decision, and is journalled as such.

    Raises:
        LedgerError: There is no such operation.
    """
    changed = tx.run(
        MATCH,
        tenant=tenant,
        position=event.position,
        operation_id=operation_id,
        matched_ms=tx.now_ms,
        matched_by=principal.name,
    )
    if not changed:
        return None
    tx.run(FORGET_VALUES, tenant=tenant, event=event.position)
    if note is not None:
        inputs: dict[str, Json] = {
            "decision": "match",
            "event": event.position,
            "source": event.source,
            "event_id": event.event_id,
            "note": note,
        }
        append(tx, tenant, operation_id, Kind.DECISION, principal, {"inputs": inputs})
    return EVENT.replace(
        event,
        operation_id=operation_id,
        matched_ms=tx.now_ms,
        matched_by=principal.name,
        reason=None,
    )


# --- reading and forgetting ----------------------------------------------------------------------

LIST: Final = statement(
    """
    select {columns}
      from event
     where tenant = :tenant {conditions}
  order by position desc
     limit :limit
    """,
    EVENT,
)
UNMATCHED: Final = "and operation_id is null and copy_of is null"
MATCHED: Final = "and not (operation_id is null and copy_of is null)"


def listed(
    tx: Transaction,
    tenant: str,
    *,
    matched: bool | None = None,
    source: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Event]:
    """List events, newest first.

    Args:
        tx: The transaction.
        tenant: Whose ledger.
        matched: Only those that belong to an operation, or only those that don't. A copy counts as
            matched: what it told is known from the first one.
        source: Only this source's.
        before: Only those at an earlier position.
        limit: How many at most.
    """
    conditions, params = [], dict[str, Value](limit=limit)
    if source is None and matched is not False:
        conditions.append("and lower(tenant) = :tenant")  # finds its index: see 0006_listing
    if matched is not None:
        conditions.append(MATCHED if matched else UNMATCHED)
    if source is not None:
        conditions.append("and source = :source")
        params["source"] = source
    if before is not None:
        conditions.append("and position < :before")
        params["before"] = before
    sql = LIST.replace("{conditions}", " ".join(conditions))
    return [EVENT.from_row(row) for row in tx.tuples(sql, tenant=tenant, **params)]


OF_OPERATION: Final = statement(
    "select {columns} from event"
    " where tenant = :tenant and operation_id = :operation_id order by position",
    EVENT,
)


def of_operation(tx: Transaction, tenant: str, operation_id: str) -> list[Event]:
    """Return the events that were matched to an operation, in the order of arrival."""
    rows = tx.tuples(OF_OPERATION, tenant=tenant, operation_id=operation_id)
    return [EVENT.from_row(row) for row in rows]


def named(tx: Transaction, tenant: str, event_id: str) -> list[Event]:
    """Return up to two events that a provider calls so: two sources may use one id."""
    return [EVENT.from_row(row) for row in tx.tuples(NAMED, tenant=tenant, event_id=event_id)]


UNMATCHED_COUNTS: Final = """
    select reason, count(*)
      from event
     where tenant = :tenant and operation_id is null and copy_of is null
  group by reason
"""


def unmatched_counts(tx: Transaction, tenant: str) -> dict[Unmatched, int]:
    """Count the events that belong to no operation, by the reason."""
    rows = tx.tuples(UNMATCHED_COUNTS, tenant=tenant)
    return {Unmatched(str(reason)): integer_of(count) for reason, count in rows}


EMPTY: Final = """
    update event
       set content = null
     where tenant = :tenant and position = :position and content is not null
       and not (operation_id is null and copy_of is null)
"""


def empty(tx: Transaction, tenant: str, positions: Iterable[int]) -> int:
    """Empty the content of events that are matched or copies, and return of how many.

    The rows, their digests and ids stay for ever. What is not matched yet keeps its content.
    """
    return sum(tx.run(EMPTY, tenant=tenant, position=position) for position in positions)
