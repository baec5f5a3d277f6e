"""Events that came before what they speak of: found when an operation appears, or learns its name.

Within the transaction that creates or changes the operation, so that none is ever passed over.
"""

from collections.abc import Mapping
from dataclasses import replace

from doubtless.core import progress, settling
from doubtless.core.contract import Contract, EventRules
from doubtless.core.model import (
    Evidence,
    Json,
    Now,
    Operation,
    Principal,
    Record,
    Role,
    Source,
    Strength,
)
from doubtless.engine import turns
from doubtless.engine.book import Book
from doubtless.engine.event_reading import body_of, rules_of, shown, values_in
from doubtless.engine.expressions import ExpressionError
from doubtless.ledger import attempts, inbox
from doubtless.ledger.inbox import Event, Unmatched
from doubtless.ledger.store import Transaction


def provider(source: str) -> Principal:
    """Return in whose name an event speaks."""
    return Principal(name=source, role=Role.PROVIDER)


def evidence(event: Event, rules: EventRules, body: Json, *, number: int, at_ms: int) -> Evidence:
    """Return an event as evidence about the operation that it was matched to.

    Raises:
        ExpressionError: The contract's expressions can't be evaluated over it.
    """
    return Evidence(
        number=number,
        source=Source.WEBHOOK,
        shows=shown(rules, body),
        strength=Strength.AUTHORITATIVE if rules.authoritative else Strength.ADVISORY,
        at_ms=at_ms,
        begun_ms=at_ms,
        by=event.source,
        occurred_ms=event.occurred_ms,
        provider_operation_id=values_in(rules, body).get("provider_operation_id"),
        detail=f"event {event.event_id} ({event.type or 'of no type'})",
        digest=event.digest,
    )


def recorded_ms(record: Record, event: Event, now: Now) -> int:
    """Return when the evidence of an event counts as recorded.

    One that came before the first attempt is held since it came: the gate, which stops for what is
    learnt after the attempt was opened, lets it pass even in the same millisecond.
    """
    held = not record.attempts or record.attempts[0].opened_ms == now.ms
    return min(event.received_ms, now.ms - 1) if held else now.ms


def names_of(operation: Operation) -> dict[str, str]:
    """Return by what events can speak of an operation."""
    names = {
        "ref": operation.ref,
        "operation_id": operation.id,
        "idempotency_key": operation.key,
    }
    if operation.provider_operation_id is not None:
        names["provider_operation_id"] = operation.provider_operation_id
    return names


def claim(
    book: Book,
    tx: Transaction,
    record: Record,
    contract: Contract,
    now: Now,
    names: Mapping[str, str],
) -> tuple[Evidence, ...]:
    """Match the events that wait for an operation, and return them as evidence, to be recorded.

    Args:
        book: The ledger as the engine sees it.
        tx: One that may write.
        record: The operation, with what is known of it.
        contract: The one that it was prepared with.
        now: The ledger's clock.
        names: By what it can be found now.
    """
    operation, items = record.operation, list[Evidence]()
    tool = book.registry.find(contract.tool)
    if contract.events is None and (tool is None or tool.contract.events is None):
        return ()
    for event in inbox.waiting_for(tx, book.tenant, operation.source, operation.tool, names):
        content = inbox.content(tx, book.tenant, event.position)
        rules = rules_of(book.registry, contract, event.type)
        if content is None or rules is None:
            lost = Unmatched.EMPTIED if content is None else Unmatched.NO_TOOL
            inbox.wait(tx, book.tenant, event, lost, {})
            continue
        number, at_ms = len(record.evidence) + len(items) + 1, recorded_ms(record, event, now)
        try:
            item = evidence(event, rules, body_of(content), number=number, at_ms=at_ms)
        except ExpressionError:
            inbox.wait(tx, book.tenant, event, Unmatched.UNREADABLE, {})
            continue
        by = provider(event.source)
        inbox.match(tx, book.tenant, event, operation.id, principal=by)
        attempts.add_evidence(tx, book.tenant, operation.id, item, principal=by)
        items.append(item)
    return tuple(items)


def heed(book: Book, tx: Transaction, record: Record, contract: Contract, now: Now) -> Record:
    """Let a new operation meet what came before it: events, and siblings that it overtakes."""
    if contract.events is not None:
        record = appeared(book, tx, record, contract, now)
    if contract.latest_wins:
        turns.overtake(tx, record.operation, now)
    return record


def appeared(book: Book, tx: Transaction, record: Record, contract: Contract, now: Now) -> Record:
    """Weigh the events that came before an operation was prepared. They don't stop its send."""
    items = claim(book, tx, record, contract, now, names_of(record.operation))
    if not items:
        return record
    stored = operation = record.operation
    for item in items:
        operation = progress.absorb(operation, item, None)
    record = replace(record, operation=operation, evidence=(*record.evidence, *items))
    record = learnt(book, tx, record, contract, stored, now)
    changes = settling.settle(record, contract, now)
    return book.store(tx, record, contract, changes, now, stored=stored)


def learnt(
    book: Book, tx: Transaction, record: Record, contract: Contract, stored: Operation, now: Now
) -> Record:
    """Add the events that wait for the provider's id, if the operation has learnt it just now."""
    known = stored.provider_operation_id
    while (name := record.operation.provider_operation_id) not in (None, known):
        known = name
        names = {"provider_operation_id": str(name)}
        items = claim(book, tx, record, contract, now, names)
        operation = record.operation
        for item in items:
            operation = progress.absorb(operation, item, None)
        record = replace(record, operation=operation, evidence=(*record.evidence, *items))
    return record
