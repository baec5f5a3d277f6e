"""What a unit of work sees of the database."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, Protocol, TypeAlias

from doubtless.errors import LedgerUnavailable
from doubtless.ledger.codec import Row, Value

Params: TypeAlias = Mapping[str, Value] | tuple[Value, ...]


class LedgerBusy(LedgerUnavailable):
    """Another process kept its lock for too long. Nothing is wrong with disk or connection."""


class Session(Protocol):
    """One connection of a driver, for one thread at a time."""

    broken: LedgerUnavailable | None  # set by an error that puts transaction or disk in doubt

    def execute(self, sql: str, params: Params) -> list[Row]:
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

    __slots__ = ("_deferred", "_execute", "_session", "break_ms", "now_ms", "wall_ms")

    def __init__(self, session: Session, *, now_ms: int, wall_ms: int, break_ms: int = 0) -> None:
        self._session: Final = session
        self._execute: Final = session.execute
        self._deferred: list[tuple[str, tuple[Value, ...]]] = []
        self.now_ms = now_ms
        """The ledger's clock: the wall clock, never before the highest instant ever committed."""
        self.wall_ms = wall_ms
        """The wall clock alone; it trails `now_ms` where it was set back."""
        self.break_ms = break_ms
        """The last instant at which the clock could not be trusted; 0 if there was none."""

    def defer(self, insert: str, values: tuple[Value, ...]) -> None:
        """Add one row at the end of the unit; rows of one table go in together.

        Args:
            insert: `insert into … (…) values`, without the values.
            values: Of one row, by position.
        """
        self._deferred.append((insert, values))

    def flush(self) -> None:
        """Write the rows that were deferred. Called at the end of a unit, and before reading them.

        Each thread switch between two statements can cost more than the statement.
        """
        rows, self._deferred = self._deferred, []
        for insert, group in groupby(rows, key=itemgetter(0)):
            values = [row for _, row in group]
            self._execute(_many(insert, len(values), len(values[0])), tuple(chain(*values)))

    def forget(self) -> None:
        """Drop the rows that were deferred: their unit is taken back."""
        self._deferred.clear()

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


@lru_cache(maxsize=64)
def _many(insert: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{insert} {', '.join([row] * rows)}"
