"""Reading a ledger for people. Nothing is asked of a provider, changed or created."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from doubtless.core.contract import Contract
from doubtless.core.decisions import LEGAL, Word, rule
from doubtless.core.model import Json, Now, Operation, Record, State
from doubtless.core.outcome import Outcome
from doubtless.engine import exhibits, reports
from doubtless.engine.book import Book
from doubtless.engine.exhibits import Exhibit
from doubtless.engine.registry import Registry
from doubtless.engine.reports import SessionRecord
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import BadOperationId, DecisionRefused, SettingsError
from doubtless.ledger import listing, migrate, sqlite
from doubtless.ledger.address import masked
from doubtless.ledger.store import Ledger, Transaction, open_ledger

PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One operation in a list."""

    operation: Operation
    outcome: Outcome
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One decision that an operator knows of: whether it would be taken now, and if not, why."""

    word: Word
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """All that is known of one operation."""

    record: Record
    contract: Contract
    now: Now
    outcome: Outcome
    does: str | None  # what to what; None once retention has emptied it
    arguments: dict[str, Json] | None  # the same
    timeline: list[dict[str, Json]]
    exhibits: list[Exhibit]
    choices: tuple[Choice, ...]


def be_there(address: str) -> None:
    """Be sure that the ledger exists, so that reading never makes one.

    Raises:
        SettingsError: It doesn't.
        LedgerError: The address is none.
    """
    place = migrate.parse(address)
    if isinstance(place, sqlite.Place):
        is_there = bool(place.path) and Path(place.path).exists()
    else:
        is_there = migrate.is_there(place)
    if not is_there:
        raise SettingsError(
            f"there is no ledger at {masked(address)}: it is made by the first call. Name another "
            "with --ledger or DOUBTLESS_LEDGER"
        )


@contextmanager
def open_reader(address: str, *, tenant: str) -> Iterator["Reader"]:
    """Open a tenant's part of an existing ledger for reading.

    Raises:
        SettingsError: There is none.
        LedgerError: It can't be opened.
    """
    be_there(address)
    with open_ledger(address, inline=True) as ledger:
        yield Reader(ledger, tenant)


class Reader:
    """Reads operations of all principals of a tenant."""

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._book = Book(Registry(), Surroundings(), ledger.id, tenant=tenant)

    def operations(
        self,
        *,
        states: Sequence[State] = (),
        tool: str | None = None,
        session_id: str | None = None,
        older_than_ms: int | None = None,
        limit: int = 50,
    ) -> list[Listed]:
        """Return operations, newest first. Their age counts from when they were asked for."""
        filters = {"tool": tool, "session_id": session_id}
        said = {name: value for name, value in filters.items() if value is not None}

        def unit(tx: Transaction) -> list[Listed]:
            found: list[Listed] = []
            cursor: int | None = None
            while len(found) < limit:
                page = listing.find(
                    tx, self._book.tenant, states=states, filters=said, limit=PAGE, cursor=cursor
                )
                for operation in page.operations:
                    if tx.now_ms - operation.created_ms >= (older_than_ms or 0):
                        found.append(self._listed(tx, operation))
                    if len(found) == limit:
                        break
                cursor = page.cursor
                if cursor is None:
                    break
            return found

        return self._ledger.read(unit)

    def _listed(self, tx: Transaction, operation: Operation) -> Listed:
        record, contract = self._book.load(tx, operation.id)
        outcome = reports.outcome(self._book, tx, record, contract, self._book.now(tx))
        return Listed(
            operation=operation, outcome=outcome, age_ms=max(0, tx.now_ms - operation.created_ms)
        )

    def operation(self, operation_id: str) -> Shown:
        """Return all that is known of one operation.

        Raises:
            OperationNotFound: There is no such operation.
            BadOperationId: The id can't be one.
        """
        if not operation_id.isascii():
            raise BadOperationId(operation_id)

        def unit(tx: Transaction) -> Shown:
            record, contract = self._book.load(tx, operation_id)
            now = self._book.now(tx)
            return Shown(
                record=record,
                contract=contract,
                now=now,
                outcome=reports.outcome(self._book, tx, record, contract, now),
                does=reports.done_to(self._book, tx, record, contract),
                arguments=self._book.arguments(tx, operation_id),
                timeline=reports.timeline(self._book, tx, operation_id),
                exhibits=exhibits.listed(self._book, tx, operation_id),
                choices=tuple(_choices(record, contract, now)),
            )

        return self._ledger.read(unit)

    def session(self, session_id: str, principal: str) -> SessionRecord:
        """Return what a principal did in a session."""
        return self._ledger.read(lambda tx: reports.session(self._book, tx, session_id, principal))

    def exhibit(self, operation_id: str, name: str, attempt: int | None) -> bytes:
        """Return what an attempt left to look at.

        Raises:
            OperationNotFound: There is no such operation.
            ExhibitNotFound: It has no such exhibit.
        """

        def unit(tx: Transaction) -> bytes:
            self._book.load(tx, operation_id)
            return exhibits.content(self._book, tx, operation_id, name, attempt)

        return self._ledger.read(unit)

    def arguments(self, operation_id: str) -> dict[str, Json] | None:
        """Return what was asked for; None once retention has emptied it."""
        return self._ledger.read(lambda tx: self._book.arguments(tx, operation_id))


def _choices(record: Record, contract: Contract, now: Now) -> Iterator[Choice]:
    """Try each decision that the state allows, on paper: the rules are pure."""
    for word in Word:
        if record.operation.state not in LEGAL[word]:
            continue
        try:
            rule(record, contract, now, word, operator="operator", note="")
        except DecisionRefused as refused:
            yield Choice(word=word, why_not=refused.why)
        else:
            yield Choice(word=word, why_not=None)
