"""From an event to evidence: it is stored, matched to an operation, and weighed, in one unit.

Whatever comes is kept. What belongs to no operation yet waits, and is tried again whenever one
appears or learns what the provider calls it (`early`); a person may match it too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from doubtless import telemetry
from doubtless.core.model import Operation, Principal, Record, Role
from doubtless.engine import counting, early, steps
from doubtless.engine.book import Book
from doubtless.engine.event_reading import (
    MATCHES,
    Arrival,
    Reading,
    body_of,
    kinds_of,
    readings_of,
    rules_of,
)
from doubtless.engine.expressions import ExpressionError
from doubtless.errors import DecisionRefused, EventNotFound
from doubtless.ledger import inbox, listing, operations
from doubtless.ledger.inbox import Event, Unmatched
from doubtless.ledger.store import Transaction

SOURCE_ITSELF: Final = ""  # in place of a tool's name: news that is known by its bytes
COUNTED: Final[Mapping[Unmatched, telemetry.Unmatched]] = {
    Unmatched.NO_OPERATION: telemetry.Unmatched.NONE,
    Unmatched.AMBIGUOUS: telemetry.Unmatched.SEVERAL,
    Unmatched.NO_VALUE: telemetry.Unmatched.UNREADABLE,
    Unmatched.NO_TYPE: telemetry.Unmatched.UNREADABLE,
    Unmatched.UNREADABLE: telemetry.Unmatched.UNREADABLE,
}
"""What is counted as a failure to match. A type that no tool speaks of is none: many come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of an event."""

    event: Event
    new: bool  # False: the source has told an event of that id before
    record: Record | None = None  # the operation it was weighed with just now


def take_in(book: Book, tx: Transaction, arrival: Arrival, *, delivered_by: Principal) -> Taken:
    """Store an event once and for ever, and weigh it if its operation is there."""
    tenant, source = book.tenant, arrival.source
    known = inbox.by_event_id(tx, tenant, source, arrival.event_id)
    if known is not None:
        return Taken(event=known, new=False)
    fresh, copy_of = _news(book, tx, arrival)
    event = inbox.insert(
        tx,
        tenant,
        source=source,
        event_id=arrival.event_id,
        type=arrival.type,
        delivered_by=delivered_by.name,
        occurred_ms=arrival.occurred_ms,
        digest=arrival.digest,
        content=arrival.content,
        copy_of=copy_of,
    )
    if copy_of is not None:
        return Taken(event=event, new=True)
    if arrival.unsigned_id:
        inbox.tell(tx, tenant, event, SOURCE_ITSELF, arrival.digest)
    return _placed(book, tx, event, fresh, arrival.content, why=_why(arrival))


def _placed(
    book: Book,
    tx: Transaction,
    event: Event,
    fresh: Sequence[Reading],
    content: bytes,
    *,
    why: Unmatched,
) -> Taken:
    """Weigh an event if the operation that it names is there; else leave it to be found."""
    for reading in fresh:
        if reading.news is not None:
            inbox.tell(tx, book.tenant, event, reading.tool, reading.news)
    found = find(book, tx, event.source, fresh)
    if len(found) == 1:
        return _weighed(book, tx, event, found[0], content)
    reason = Unmatched.AMBIGUOUS if found else why
    # What names several operations already is left to a person.
    values = {} if found else {reading.tool: decides(reading) for reading in fresh}
    if reason in COUNTED:
        counting.unmatched(tx, book.tenant, event.source, COUNTED[reason])
    return Taken(event=inbox.wait(tx, book.tenant, event, reason, values), new=True)


def decides(reading: Reading) -> dict[str, str]:
    """Return the one name by which an event is tied to an operation: the first that it carries."""
    name = next((each for each in MATCHES if each in reading.values), None)
    return {} if name is None else {name: reading.values[name]}


def reread(book: Book, tx: Transaction, *, limit: int) -> list[Taken]:
    """Place events of which no tool spoke when they came, and one does now.

    Args:
        book: The ledger as the engine sees it.
        tx: One that may write.
        limit: How many at most.
    """
    taken: list[Taken] = []
    told = {(t.contract.source.name, k) for t in book.registry for k in kinds_of(t.contract)}
    for source, kind in sorted(told):
        for event in inbox.untold(tx, book.tenant, source, kind, limit - len(taken)):
            content = inbox.content(tx, book.tenant, event.position) or b"null"
            fresh, unreadable = readings_of(book.registry, source, kind, body_of(content))
            named = any(reading.values for reading in fresh)
            why = Unmatched.NO_OPERATION if named else Unmatched.NO_VALUE
            why = Unmatched.UNREADABLE if unreadable else why
            taken.append(_placed(book, tx, event, fresh, content, why=why))
    return taken


def _news(book: Book, tx: Transaction, arrival: Arrival) -> tuple[tuple[Reading, ...], int | None]:
    """Return the readings that are news, and if none is, the event that told it all before."""
    if arrival.unsigned_id:
        first = inbox.told_by(tx, book.tenant, arrival.source, SOURCE_ITSELF, arrival.digest)
        if first is not None:
            return (), first
    fresh, told = [], set[int]()
    for reading in arrival.readings:
        first = None
        if reading.news is not None:
            first = inbox.told_by(tx, book.tenant, arrival.source, reading.tool, reading.news)
        if first is None:
            fresh.append(reading)
        else:
            told.add(first)
    return tuple(fresh), min(told) if told and not fresh else None


def _why(arrival: Arrival) -> Unmatched:
    """Say why an event names no operation."""
    if arrival.type is None:
        return Unmatched.NO_TYPE
    if arrival.unreadable:
        return Unmatched.UNREADABLE
    if not arrival.readings:
        return Unmatched.NO_TOOL
    named = any(reading.values for reading in arrival.readings)
    return Unmatched.NO_OPERATION if named else Unmatched.NO_VALUE


def find(book: Book, tx: Transaction, source: str, readings: Iterable[Reading]) -> list[Operation]:
    """Return the operations that an event names: of each tool by the first name that it carries."""
    found: dict[str, Operation] = {}
    for reading in readings:
        for name, value in decides(reading).items():
            for operation in _named(book, tx, source, name, value):
                if operation.tool == reading.tool and operation.source == source:
                    found[operation.id] = operation
    return list(found.values())


def _named(book: Book, tx: Transaction, source: str, name: str, value: str) -> Sequence[Operation]:
    match name:
        case "ref":
            operation = listing.by_ref(tx, book.tenant, value)
        case "operation_id":
            operation = operations.get(tx, book.tenant, value)
        case "idempotency_key":
            return listing.by_key(tx, book.tenant, value)
        case _:
            return listing.by_provider_operation_id(tx, book.tenant, source, value)
    return [operation] if operation is not None else []


def _weighed(
    book: Book,
    tx: Transaction,
    event: Event,
    operation: Operation,
    content: bytes,
    *,
    by: Principal | None = None,
    note: str | None = None,
) -> Taken:
    """Match an event, and weigh it. The evidence is the provider's, whoever matched it.

    Raises:
        ExpressionError: The contract's expressions can't be evaluated over it.
        DecisionRefused: It doesn't speak of that tool.
    """
    record, contract = book.load(tx, operation.id)
    rules, now = rules_of(book.registry, contract, event.type), book.now(tx)
    if rules is None:
        why = f"{contract.tool} has no rules for events of the type {event.type or '(none)'}"
        raise DecisionRefused(operation.id, f"{why}: if it says enough, decide by `resolve`")
    item = early.evidence(
        event,
        rules,
        body_of(content),
        number=len(record.evidence) + 1,
        at_ms=early.recorded_ms(record, event, now),
    )
    provider = early.provider(event.source)
    matched = inbox.match(tx, book.tenant, event, operation.id, principal=by or provider, note=note)
    if matched is None:
        raise DecisionRefused(operation.id, f"event {event.position} was matched meanwhile")
    record = steps.weigh(book, tx, record, contract, now, [item], principal=provider)
    return Taken(event=matched, new=True, record=record)


def match(
    book: Book, tx: Transaction, event: str, operation_id: str, *, operator: str, note: str
) -> Taken:
    """Match an event to an operation because a person says so.

    Args:
        book: The ledger as the engine sees it.
        tx: The transaction.
        event: Its number in the inbox, or the provider's id where only one event has it.
        operation_id: Which operation it speaks of.
        operator: Who says so.
        note: Why.

    Raises:
        EventNotFound: There is no such event, or two sources use that id.
        OperationNotFound: There is no such operation.
        DecisionRefused: It was matched before, is a copy, comes from another source, or can't be
            read by the contract's rules.
    """
    found = _event(book, tx, event)
    record, _ = book.load(tx, operation_id)
    content = inbox.content(tx, book.tenant, found.position)
    refusals: Mapping[str, bool] = {
        f"event {event} is matched to {found.operation_id}": found.operation_id is not None,
        f"event {event} tells the news of event {found.copy_of}": found.copy_of is not None,
        f"event {event} comes from {found.source}, and not from {record.operation.source}": (
            found.source != record.operation.source
        ),
        f"the content of event {event} was emptied": content is None,
    }
    for why, holds in refusals.items():
        if holds:
            raise DecisionRefused(operation_id, why)
    by = Principal(name=operator, role=Role.OPERATOR)
    try:
        taken = _weighed(book, tx, found, record.operation, content or b"", by=by, note=note)
    except ExpressionError as error:
        raise DecisionRefused(operation_id, f"event {event} can't be read: {error}") from error
    return replace(taken, new=False)


def _event(book: Book, tx: Transaction, named: str) -> Event:
    number = int(named) if named.isascii() and named.isdecimal() and len(named) < 19 else None
    found = inbox.at(tx, book.tenant, number) if number is not None else None
    if found is not None:
        return found
    events = inbox.named(tx, book.tenant, named) if named.isprintable() else []
    if len(events) == 2:
        numbers = " and ".join(str(each.position) for each in events)
        raise EventNotFound(named, f"two sources use that id: name it by its number, {numbers}")
    if not events:
        raise EventNotFound(named)
    return events[0]
