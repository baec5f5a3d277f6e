"""The inbox from the command line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from doubtless import Doubtless, Outcome
from doubtless.cli_act import opened, operator_of, within
from doubtless.cli_read import be_there
from doubtless.cli_settings import Settings
from doubtless.cli_text import Line, clean, columns, wrapped, write
from doubtless.core.model import Json, Principal, Role
from doubtless.engine import ingest
from doubtless.engine.book import Book
from doubtless.engine.contracts import load_contracts
from doubtless.engine.events import InboxEvent, Ingested, arrived_event, ingested, shown
from doubtless.engine.registry import Registry, Tool
from doubtless.engine.surroundings import Surroundings
from doubtless.ledger import inbox
from doubtless.ledger.inbox import Unmatched
from doubtless.ledger.store import open_ledger

WHY: Final[Mapping[Unmatched, str]] = {
    Unmatched.NO_TYPE: "it does not say of which type it is",
    Unmatched.NO_TOOL: "no tool of its source speaks of events of that type",
    Unmatched.NO_VALUE: "it carries nothing that could name an operation",
    Unmatched.NO_OPERATION: "the operation that it names is not there, or not yet",
    Unmatched.AMBIGUOUS: "it names more than one operation",
    Unmatched.UNREADABLE: "the contract's expressions can't be evaluated over it",
    Unmatched.EMPTIED: "its content was emptied before it was matched",
}
"""Why an event belongs to no operation, for whoever has to match it."""


def found(
    settings: Settings, *, unmatched: bool, source: str | None, limit: int
) -> list[InboxEvent]:
    """Return events, newest first. Nothing is changed or created."""
    be_there(settings.ledger)
    tenant, matched = settings.tenant, False if unmatched else None
    with open_ledger(settings.ledger, inline=True) as ledger:
        some = ledger.read(
            lambda tx: inbox.listed(tx, tenant, matched=matched, source=source, limit=limit)
        )
    return [shown(event) for event in some]


def write_events(some: Sequence[InboxEvent], *, limit: int) -> None:
    """Print events, two lines each, and what there is to say about the list."""
    if not some:
        write([Line("No events.")])
        return
    for event in some:
        write(_lines(event))
    notes = f"{len(some)} event{'' if len(some) == 1 else 's'}"
    if len(some) == limit:
        notes = f"the newest {limit} events; --limit shows more"
    if any(not event.matched for event in some):
        notes += "; match one by: doubtless events match ID OPERATION --note …"
    write([Line(f"{notes}.", "quiet")])


def _lines(event: InboxEvent) -> Iterator[Line]:
    at = (event.received_at or "")[:19].replace("T", " ")
    head = f"{event.id:>5}  {at}Z  {event.source}  {event.type or '(no type)'}  {event.event_id}"
    yield from wrapped(head, width=columns(), rest=" " * 7, style="strong")
    told = {"first": " " * 7, "rest": " " * 9, "width": columns()}
    if event.reason is not None:
        why = WHY[Unmatched(event.reason)]
        yield from wrapped(f"unmatched: {why}", style="waits", **told)  # type: ignore[arg-type]
    elif event.copy_of is not None:
        yield from wrapped(f"tells the news of event {event.copy_of}", style="quiet", **told)  # type: ignore[arg-type]
    else:
        by = "" if event.matched_by == event.source else f", by {clean(event.matched_by or '')}"
        yield from wrapped(f"speaks of {event.operation_id}{by}", **told)  # type: ignore[arg-type]


def match(settings: Settings, event: str, operation_id: str, *, note: str) -> Outcome:
    """Match an event by the rules that its operation was prepared with."""
    operator = operator_of(settings)
    be_there(settings.ledger)

    async def act(app: Doubtless) -> Outcome:
        return await app.match(event, operation_id, operator=operator, note=note)

    return within(opened(settings, worker=False, tools=False), act)


def add(
    settings: Settings,
    source: str,
    event: Mapping[str, Json],
    *,
    event_id: str | None,
    occurred_at: str | None,
) -> Ingested:
    """Take an event in, without opening an application: nothing is sent, so no secret is needed."""
    if settings.app is not None:

        async def act(app: Doubtless) -> Ingested:
            return await app.ingest(
                source, event, event_id=event_id, occurred_at=_instant(occurred_at)
            )

        return within(opened(settings, worker=False, tools=True), act)
    contracts, registry = load_contracts(settings.contracts), Registry()
    for contract in contracts.tools.values():
        registry.add(Tool(contract=contract))
    registry.webhooks.update(contracts.webhooks)
    arrived = arrived_event(
        registry, source, event, event_id=event_id, occurred_at=_instant(occurred_at)
    )
    by = Principal(name=settings.principal, role=Role.WORKER)
    with open_ledger(settings.ledger) as ledger:
        book = Book(registry, Surroundings(), ledger.id, tenant=settings.tenant)
        return ingested(ledger.write(lambda tx: ingest.take_in(book, tx, arrived, delivered_by=by)))


def _instant(text: str | None) -> str | float | None:
    """Read seconds as a number; whatever else is judged as RFC 3339."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text
