"""Events of providers: taking them in, listing them, and matching what matched nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from doubtless.core.model import Json, Record
from doubtless.core.outcome import Outcome, instant
from doubtless.engine import ingest
from doubtless.engine.event_reading import Arrival, arrival, body_of, instant_ms
from doubtless.engine.ingest import Taken
from doubtless.engine.opened import OpenApp
from doubtless.engine.registry import Registry
from doubtless.engine.surface import Surface
from doubtless.engine.waiting import Known
from doubtless.errors import BadCursor, BadEvent, SettingsError, UnknownSource
from doubtless.ledger import inbox
from doubtless.ledger.inbox import Event
from doubtless.ledger.store import Transaction

LIMIT_MAX = 1_000  # of one page
REREAD_BATCH = 200  # events that are placed anew in one unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What became of an event. It is durable."""

    id: str  # its number in the inbox
    event_id: str  # the provider's
    source: str
    new: bool  # False: that event was there already, and nothing changed
    copy_of: str | None  # the event that told the same news before, under another id
    operation_id: str | None  # which operation it was matched to
    reason: str | None  # why to none

    def to_json(self) -> dict[str, Json]:
        """Return it as it goes over every wire."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxEvent:
    """One event in the inbox, without what it said."""

    id: str
    event_id: str
    source: str
    type: str | None
    matched: bool
    operation_id: str | None
    matched_by: str | None  # the source itself, or an operator
    matched_at: str | None
    reason: str | None
    copy_of: str | None
    delivered_by: str
    received_at: str | None
    occurred_at: str | None  # by the provider's clock
    digest: str  # SHA-256 of what it said
    size: int  # in bytes

    def to_json(self) -> dict[str, Json]:
        """Return it as it goes over every wire."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Some events, newest first. `cursor` continues the list; None at its end."""

    events: tuple[InboxEvent, ...]
    cursor: str | None


class Events(Surface):
    """What providers told by themselves."""

    async def ingest(
        self,
        source: str,
        event: Mapping[str, Json] | bytes,
        *,
        event_id: str | None = None,
        occurred_at: datetime | str | float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Ingested:
        """Take in an event that came by a queue or the application's own handler.

        It is durable when this returns, unique by source and event id for ever, and weighed as
        evidence if its operation is there; otherwise it waits for it. Whoever calls this vouches
        for the event: no signature is checked here.

        Args:
            source: Which source it came from.
            event: What it said: a JSON object, or the bytes of one.
            event_id: Its id, where it isn't in the event at the place that the contract says.
            occurred_at: When it happened, by the provider's clock: RFC 3339 or Unix seconds.
            headers: Those that it came with, where the contract looks into them.

        Raises:
            UnknownSource: No events are declared of that source.
            BadEvent: It is no JSON object, or `occurred_at` is no instant.
            LedgerUnavailable: It could not be stored.
        """
        arrived = arrived_event(
            self.registry,
            source,
            event,
            event_id=event_id,
            occurred_at=occurred_at,
            headers=headers,
        )
        opened, principal = self._opened, self._principal

        def told(taken: Taken) -> None:
            if taken.record is not None:
                opened.changed(taken.record)

        taken = await opened.ledger.commit(
            lambda tx: ingest.take_in(opened.book, tx, arrived, delivered_by=principal), then=told
        )
        return ingested(taken)

    async def events(
        self,
        *,
        matched: bool | None = None,
        source: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> EventPage:
        """Return events, newest first, without what they said.

        Args:
            matched: Only those that belong to an operation, or only those that don't. A copy of
                what is known counts as matched.
            source: Only this source's.
            limit: How many at most, up to 1,000.
            cursor: That of the page before.

        Raises:
            BadCursor: There is no such page.
        """
        opened, before = self._opened, _position(cursor)
        size = max(1, min(limit, LIMIT_MAX))

        def unit(tx: Transaction) -> EventPage:
            # One more than asked for shows whether there is another page.
            found = inbox.listed(
                tx,
                opened.book.tenant,
                matched=matched,
                source=source,
                before=before,
                limit=size + 1,
            )
            some = tuple(shown(event) for event in found[:size])
            return EventPage(events=some, cursor=some[-1].id if len(found) > size else None)

        return opened.ledger.read(unit)

    async def match(self, event: str, operation_id: str, *, operator: str, note: str) -> Outcome:
        """Match an event to an operation because a person says so, and weigh it.

        The match is the operator's, and journalled so; the evidence stays the provider's.

        Args:
            event: Its number in the inbox, or the provider's id.
            operation_id: Which operation it speaks of.
            operator: Who says so.
            note: Why.

        Raises:
            EventNotFound: There is no such event.
            OperationNotFound: There is no such operation.
            DecisionRefused: It was matched before, or doesn't speak of that operation's tool.
        """
        if not operator.strip() or not note.strip():
            raise SettingsError("a match needs the operator's name, and a note that says why")
        opened = self._opened
        record: Record = opened.load(operation_id)

        def told(taken: Taken) -> None:
            if taken.record is not None:
                opened.changed(taken.record)

        taken = await opened.ledger.commit(
            lambda tx: ingest.match(
                opened.book, tx, event, operation_id, operator=operator, note=note
            ),
            then=told,
        )
        return opened.outcome(Known(taken.record or record))


async def reread(opened: OpenApp) -> None:
    """Place events of which no tool spoke when they came, and one does by now."""
    if not any(tool.contract.events is not None for tool in opened.book.registry):
        return
    while True:
        taken = await opened.ledger.commit(
            lambda tx: ingest.reread(opened.book, tx, limit=REREAD_BATCH)
        )
        for each in taken:
            if each.record is not None:
                opened.changed(each.record)
        if len(taken) < REREAD_BATCH:
            return


def sources_with_events(registry: Registry) -> list[str]:
    """Return the names of the sources whose events can be taken in."""
    tools = {tool.contract.source.name for tool in registry if tool.contract.events is not None}
    return sorted(tools | registry.webhooks.keys())


def arrived_event(
    registry: Registry,
    source: str,
    event: Mapping[str, Json] | bytes,
    *,
    event_id: str | None = None,
    occurred_at: datetime | str | float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Arrival:
    """Work out all that an event says. The arguments are those of `Events.ingest`.

    Raises:
        UnknownSource: No events are declared of that source.
        BadEvent: It is no JSON object, or `occurred_at` is no instant.
    """
    known = sources_with_events(registry)
    if source not in known:
        raise UnknownSource(source, known)
    content = event if isinstance(event, bytes) else _written(event)
    body = body_of(content)
    if not isinstance(body, Mapping):
        raise BadEvent("an event must be a JSON object")
    when = occurred_at.timestamp() if isinstance(occurred_at, datetime) else occurred_at
    occurred_ms = instant_ms(when)
    if when is not None and occurred_ms is None:
        raise BadEvent(f"occurred_at {str(when)[:80]!r} is neither RFC 3339 nor Unix seconds")
    lower = None if headers is None else {name.lower(): text for name, text in headers.items()}
    return arrival(
        registry,
        source,
        content,
        body,
        headers=lower,
        event_id=event_id,
        occurred_ms=occurred_ms,
    )


def _written(event: Mapping[str, Json]) -> bytes:
    try:
        return json.dumps(event, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadEvent(f"an event must be a JSON object: {error}") from error


def _position(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise BadCursor(cursor)
    return int(cursor)


def ingested(taken: Taken) -> Ingested:
    """Tell what became of an event."""
    event = taken.event
    return Ingested(
        id=str(event.position),
        event_id=event.event_id,
        source=event.source,
        new=taken.new,
        copy_of=None if event.copy_of is None else str(event.copy_of),
        operation_id=event.operation_id,
        reason=None if event.reason is None else event.reason.value,
    )


def shown(event: Event) -> InboxEvent:
    """Show an event, without what it said."""
    return InboxEvent(
        id=str(event.position),
        event_id=event.event_id,
        source=event.source,
        type=event.type,
        matched=event.reason is None,
        operation_id=event.operation_id,
        matched_by=event.matched_by,
        matched_at=instant(event.matched_ms),
        reason=None if event.reason is None else event.reason.value,
        copy_of=None if event.copy_of is None else str(event.copy_of),
        delivered_by=event.delivered_by,
        received_at=instant(event.received_ms),
        occurred_at=instant(event.occurred_ms),
        digest=event.digest,
        size=event.size,
    )
