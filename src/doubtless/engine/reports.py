"""What people and programs read: outcomes, a session's record, an operation's timeline."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from doubtless.core.contract import Contract
from doubtless.core.model import Cause, Json, Now, Record, State
from doubtless.core.outcome import Extras, Outcome, instant, outcome_of
from doubtless.engine.book import WORKER, Book
from doubtless.engine.contracts.answers import target_of
from doubtless.engine.contracts.blocks import BLOCKS
from doubtless.engine.reconciler import lookup_request
from doubtless.engine.templates import TemplateError, TemplateValues
from doubtless.errors import OperationNotFound
from doubtless.ledger import archive, bodies, journal, listing, operations, retention
from doubtless.ledger.archive import Archived
from doubtless.ledger.store import Transaction
from doubtless.transports.base import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """What a restarted agent reads first: what it meant to do, and what became of it."""

    session_id: str
    principal: str
    unresolved: tuple[Outcome, ...]  # newest first, as all lists here
    recent: tuple[Outcome, ...]  # finished ones

    def to_json(self) -> dict[str, Json]:
        """Return it as it goes over every wire."""
        return {
            "session_id": self.session_id,
            "principal": self.principal,
            "unresolved": [outcome.to_json() for outcome in self.unresolved],
            "recent": [outcome.to_json() for outcome in self.recent],
            "message": self.message,
        }

    @property
    def message(self) -> str:
        """Say in plain words what is open."""
        if not self.unresolved:
            return f"Nothing is open. {len(self.recent)} finished operations are listed."
        return (
            f"{len(self.unresolved)} operations are not settled. Do not repeat them and do not "
            "try variants; ask for them by their operation_id."
        )


def outcome(
    book: Book,
    tx: Transaction,
    record: Record,
    contract: Contract,
    now: Now,
    *,
    already_done: bool = False,
) -> Outcome:
    """Return the outcome of a loaded operation. Reads the ledger only."""
    operation = record.operation
    result = _body(book, tx, operation.id, "result") if operation.state is State.SUCCEEDED else None
    open_state = not operation.state.ends
    key = operation.business_key
    read = _body(book, tx, operation.id, "read") if contract.read is not None else None
    extras = Extras(
        result=result,
        already_done=already_done,
        lookup_request=_request_line(book, tx, record, contract) if open_state else None,
        read=_read(read, now),
        business_key=json.loads(key) if key is not None else None,
        note=_gone(book, tx, record, result),
        overtaken_by=_overtaken_by(book, tx, record),
    )
    return outcome_of(record, contract, now, extras)


def _gone(book: Book, tx: Transaction, record: Record, result: Json) -> str:
    """Say what is not kept any more of an operation that has ended; an empty text if all is."""
    operation = record.operation
    if not operation.state.ends:
        return ""
    told = ""
    misses = operation.state is State.SUCCEEDED and result is None
    if misses and retention.is_emptied(tx, book.tenant, operation.id, "result"):
        told = " Its result is not kept any more: only its digest is."
    if not record.attempts and (found := archive.find(tx, book.tenant, operation.id)):
        told += f" What was recorded of it is in the archive of {found.month}, which isn't here."
    return told


def _overtaken_by(book: Book, tx: Transaction, record: Record) -> str | None:
    """Return what replaced an operation, where that is its own principal's."""
    operation, newer = record.operation, record.overtaken_by
    if operation.cause is not Cause.OVERTAKEN or newer is None:
        return None
    found = operations.get(tx, book.tenant, newer)
    return newer if found is not None and found.principal == operation.principal else None


def succeeded(
    record: Record, contract: Contract, now: Now, result: bytes, *, already_done: bool
) -> Outcome:
    """Return the outcome of a success whose result is at hand. Reads nothing."""
    key = record.operation.business_key
    extras = Extras(
        result=json.loads(result),
        already_done=already_done,
        business_key=json.loads(key) if key is not None else None,
    )
    return outcome_of(record, contract, now, extras)


def _body(book: Book, tx: Transaction, operation_id: str, kind: str) -> Json:
    content = bodies.body(tx, book.tenant, operation_id, kind)
    found: Json = json.loads(content) if content else None
    return found


def _read(found: Json, now: Now) -> Mapping[str, Json] | None:
    """Say how far a read may be relied on now: an answer settles as time goes by."""
    if not isinstance(found, Mapping):
        return None
    settles_ms, as_of_ms = found["settles_at"], found["as_of"]
    settled = settles_ms is None or (isinstance(settles_ms, int) and now.ms >= settles_ms)
    told = {name: value for name, value in found.items() if name != "sound"}
    return {
        **told,
        "as_of": instant(as_of_ms if isinstance(as_of_ms, int) else None),
        "settles_at": instant(settles_ms if isinstance(settles_ms, int) else None),
        "usable_for_decision": settled and bool(found["sound"]),
    }


def _request_line(book: Book, tx: Transaction, record: Record, contract: Contract) -> str | None:
    """Return the provider's look-up as a person would type it, without the host."""
    if contract.action is not None:
        return _question(book, tx, record, contract)
    for rules in contract.lookups:
        if rules.request is None:
            continue
        arguments = book.arguments(tx, record.operation.id)
        if arguments is None:
            return None
        try:
            values = TemplateValues.of(record.operation, arguments)
            request = lookup_request(rules, contract, values)
        except TemplateError:
            return None
        return f"{request.method} {request.url.removeprefix(contract.source.base_url.rstrip('/'))}"
    return None


def _question(book: Book, tx: Transaction, record: Record, contract: Contract) -> str | None:
    """Return what its own transport is asked, as a person would do it by hand."""
    action = book.request(tx, record.operation.id)
    if not isinstance(action, Action) or not contract.lookups:
        return None
    return BLOCKS[contract.kind].question(action.members)


def done_to(book: Book, tx: Transaction, record: Record, contract: Contract) -> str | None:
    """Say in a line what is done to what, with the call's own values; None: nobody knows any more.

    It is what every attempt carries out, as it was rendered when the operation was prepared.
    """
    action = book.request(tx, record.operation.id)
    if isinstance(action, Action):
        return BLOCKS[contract.kind].target(action.members)
    if action is not None:
        return f"{action.method} {action.url}"
    return None if contract.request or contract.action else target_of(contract)


def session(book: Book, tx: Transaction, session_id: str, principal: str) -> SessionRecord:
    """Return the record of one principal's session."""
    now = book.now(tx)
    outcomes: list[Outcome] = []
    for operation in listing.session(tx, book.tenant, principal, session_id):
        record, contract = book.load(tx, operation.id)
        outcomes.append(outcome(book, tx, record, contract, now))
    ended = {state.value for state in State if state.ends}
    return SessionRecord(
        session_id=session_id,
        principal=principal,
        unresolved=tuple(found for found in outcomes if found.state not in ended),
        recent=tuple(found for found in outcomes if found.state in ended),
    )


def _taken_away(found: Archived) -> dict[str, Json]:
    """Stand for a timeline that isn't here any more."""
    return {
        "at": instant(found.at_ms),
        "kind": "archived",
        "principal": WORKER.name,
        "role": WORKER.role.value,
        "reason": f"its journal is in the archive of {found.month}, which isn't here",
        "inputs": {"digest": found.digest},
    }


def timeline(book: Book, tx: Transaction, operation_id: str) -> list[dict[str, Json]]:
    """Return everything that happened to an operation, in order, with what each step was made from.

    Raises:
        OperationNotFound: The ledger never heard of it.
    """
    entries = journal.journal_of(tx, book.tenant, operation_id)
    if not entries and (found := archive.find(tx, book.tenant, operation_id)):
        return [_taken_away(found)]
    if not entries:
        raise OperationNotFound(operation_id)
    return [
        {
            "at": instant(entry.at_ms),
            "kind": entry.kind.value,
            "principal": entry.principal.name,
            "role": entry.principal.role.value,
            **{name: value for name, value in entry.data.items() if name not in ("at", "kind")},
        }
        for entry in entries
    ]
