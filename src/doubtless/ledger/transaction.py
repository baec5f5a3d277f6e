"""What a unit of work sees of the database."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, runtime_checkable

from doubtless.core.model import Json
from doubtless.errors import LedgerError, LedgerUnavailable
from doubtless.ledger import news
from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import Row, Value, text_of
from doubtless.ledger.news import Told

Params: TypeAlias = Mapping[str, Value] | tuple[Value, ...]
Key: TypeAlias = tuple[str, str]
Times: TypeAlias = tuple[int, int, int]  # `now_ms`, `wall_ms` and `break_ms` of a transaction
Write: TypeAlias = "Callable[[Transaction, Key, list[Json]], None]"


class LedgerBusy(LedgerUnavailable):
    """Another process kept its lock for too long. Nothing is wrong with disk or connection."""


class ConnectionLost(LedgerUnavailable):
    """A server is out of reach; what was not committed is not recorded."""


class LedgerConflict(LedgerUnavailable):
    """A deadlock or the like: the server took the transaction back, and it can be run again."""


class AlreadyThere(LedgerError):
    """A row that may be there once is there: whoever reads again, sees it."""


class CommitUnknown(LedgerUnavailable):
    """Whether a transaction was committed is to be found out: `proof` finds a row if it was."""

    def __init__(self, why: str, *, proof: tuple[str, Mapping[str, Value]]) -> None:
        super().__init__(why)
        self.proof = proof


class LedgerOutgrown(LedgerUnavailable):
    """A migration was applied that this process can't live with: it may write no more."""


def outgrown(place: str, found: Sequence[Row]) -> LedgerOutgrown:
    """Return what to raise where the statement OUTGROWN has found something."""
    newer = text_of(found[0][0])
    return LedgerOutgrown(
        f"the ledger {place} has {newer}, which is newer than this release: upgrade doubtless"
    )


class Session(Protocol):
    """One connection of a driver, for one thread at a time."""

    broken: LedgerUnavailable | None  # set by an error that puts transaction or disk in doubt
    channel: str  # on which other processes are told of commits; "" where there is none

    def execute(self, sql: str, params: Params) -> list[Row]:
        """Run one statement to its end and return its rows."""
        ...

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        ...

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed."""
        ...

    def begin(self, *, write: bool) -> Times | None:
        """Open a transaction. A server tells its clock at once; a file has none."""
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


@runtime_checkable
class Distant(Protocol):
    """A connection to a server, where each statement is a journey there and back."""

    def together(self, asked: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """Run statements that don't depend on one another, in one journey."""
        ...


class Transaction:
    """Statements of one unit of work. Valid only while the unit runs, and only in its thread.

    Values are text, integers, bytes or None, bound by name: `tx.run("… = :id", id=…)`. Every
    method raises LedgerUnavailable when the disk fails, LedgerError when a constraint or a trigger
    says no, and ValueError for a value that the database can't hold.
    """

    __slots__ = ("_execute", "_gathered", "_session", "break_ms", "now_ms", "told", "wall_ms")

    has_turn = True
    """Whether nobody else writes before this is committed. A unit without it changes no row that
    others may want, and only adds its own."""

    def __init__(self, session: Session, *, now_ms: int, wall_ms: int, break_ms: int = 0) -> None:
        self._session: Final = session
        self._execute: Final = session.execute
        self._gathered: dict[tuple[Write, Key], list[Json]] = {}
        self.told: list[Told] = []
        """What other processes will be told of, once it is committed."""
        self.now_ms = now_ms
        """The ledger's clock: the wall clock, never before the highest instant ever committed."""
        self.wall_ms = wall_ms
        """The wall clock alone; it trails `now_ms` where it was set back."""
        self.break_ms = break_ms
        """The last instant at which the clock could not be trusted; 0 if there was none."""

    def gather(self, write: "Write", key: Key, item: Json) -> None:
        """Keep an item until the unit ends; then `write` gets all of that key, in order.

        Each thread switch between two statements can cost more than the statement.
        """
        self._gathered.setdefault((write, key), []).append(item)

    def flush(self) -> None:
        """Write what was gathered. Called at the end of a unit, and before reading it."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for (write, key), items in gathered.items():
                write(self, key, items)

    def forget(self) -> None:
        """Drop what was gathered: its unit is taken back."""
        self._gathered.clear()

    def tell(self, operation_id: str, *, due: bool, ended: bool) -> None:
        """Have other processes told of an operation, where they can be."""
        if self._session.channel:
            self.told.append((operation_id, due, ended))

    def announce(self, voice: str = "") -> None:
        """Tell what was told: once, before the commit. `voice` is the process's own, if it hears.

        Of what nobody's voice says, its own process is told too.
        """
        if self.told:
            payload = news.written(voice, self.told)
            self._execute(text.NOTIFY, {"channel": self._session.channel, "payload": payload})
            self.told.clear()

    def put(self, sql: str, values: tuple[Value, ...]) -> None:
        """Run an insert with values by position: a third of the cost where there are many."""
        self._execute(sql, values)

    def tuples(self, sql: str, /, **params: Value) -> list[Row]:
        """Run a statement and return all its rows as tuples. The quickest way."""
        return self._execute(sql, params)

    def together(self, *asked: tuple[str, Params]) -> list[list[Row]]:
        """Run selects that don't depend on one another; on a server in one journey."""
        if isinstance(self._session, Distant):
            return self._session.together(asked)
        return [self._execute(sql, params) for sql, params in asked]

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
