"""What a unit of work sees of the database."""

from collections.abc import Mapping
from typing import Final, Protocol

from doubtless.errors import LedgerUnavailable
from doubtless.ledger.codec import Row, Value


class LedgerBusy(LedgerUnavailable):
    """Another process kept its lock for too long. Nothing is wrong with disk or connection."""


class Session(Protocol):
    """One connection of a driver, for one thread at a time."""

    broken: LedgerUnavailable | None  # set by an error that puts transaction or disk in doubt

    def execute(self, sql: str, params: Mapping[str, Value]) -> list[Row]:
        """Run one statement to its end and return its rows."""
        ...

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        ...

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed."""
        ...

    def begin(self, *, write: bool) -> None:
        """Open a transaction."""
        ...

    def commit(self) -> None:
        """Make the transaction durable."""
        ...

    def rollback(self) -> None:
        """Take the transaction back, if one is open."""
        ...

    def savepoint(self) -> None:
        """Begin a unit within the transaction."""
        ...

    def keep(self) -> None:
        """End the unit, and keep what it did."""
        ...

    def undo(self) -> None:
        """End the unit, and take back what it did."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Transaction:
    """Statements of one unit of work. Valid only while the unit runs, and only in its thread.

    Values are text, integers, bytes or None, bound by name: `tx.run("… = :id", id=…)`. Every
    method raises LedgerUnavailable when the disk fails, LedgerError when a constraint or a trigger
    says no, and ValueError for a value that the database can't hold.
    """

    __slots__ = ("_execute", "_session", "now_ms", "wall_ms")

    def __init__(self, session: Session, *, now_ms: int, wall_ms: int) -> None:
        self._session: Final = session
        self._execute: Final = session.execute
        self.now_ms = now_ms
        """The ledger's clock: the wall clock, never before the highest instant ever committed."""
        self.wall_ms = wall_ms
        """The wall clock alone; it trails `now_ms` where it was set back."""

    def tuples(self, sql: str, /, **params: Value) -> list[Row]:
        """Run a statement and return all its rows as tuples. The quickest way."""
        return self._execute(sql, params)

    def row(self, sql: str, /, **params: Value) -> Mapping[str, Value] | None:
        """Run a statement and return its first row by column names, or None."""
        rows = self._session.named(sql, params)
        return rows[0] if rows else None

    def rows(self, sql: str, /, **params: Value) -> list[Mapping[str, Value]]:
        """Run a statement and return all its rows by column names."""
        return list(self._session.named(sql, params))

    def run(self, sql: str, /, **params: Value) -> int:
        """Run an insert, update or delete and return how many rows it changed."""
        return self._session.change(sql, params)
