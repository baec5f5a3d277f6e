"""SQLite by apsw, which carries its own: the only module that knows the driver.

Nothing but apsw may open a ledger's files in this process. Closing any other descriptor of them,
even one of the standard library, drops the locks that apsw holds, and commits of other processes
vanish.
"""

import contextlib
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import apsw
import apsw.ext

from doubtless.errors import LedgerError, LedgerUnavailable, LedgerUnsafe, StatementRefused
from doubtless.ledger.codec import Row, Value
from doubtless.ledger.mounts import NETWORK
from doubtless.ledger.mounts import file_system as _file_system
from doubtless.ledger.steps import OUTGROWN
from doubtless.ledger.transaction import LedgerBusy, Params, outgrown

APPLICATION_ID: Final = 0x44_42_54_31  # "DBT1", in the file's header
BUSY_TIMEOUT_S: Final = 10.0
BUSY_PAUSE_MAX_S: Final = 0.005
STATEMENTS_MAX: Final = 512
CACHE_KIB: Final = 65_536  # of the connection that writes
READER_CACHE_KIB: Final = 8_192
CHECKPOINT_PAGES: Final = 4_000
_SETTINGS: Final = (
    "foreign_keys = on",
    "recursive_triggers = on",  # or `insert or replace` would delete without a trigger
    "trusted_schema = off",
    "temp_store = memory",
    "mmap_size = 0",
    "synchronous = full",
)

# After these the transaction, the file or the disk is in doubt; others concern one statement alone.
_BROKEN: Final = (
    apsw.AbortError,
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.InterruptError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)


Judge: TypeAlias = Callable[[str, Sequence[str]], str | None]
"""Gets SQLite's name of an action and what it concerns; says why it may not be, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a ledger stands. `path` "" means in memory, gone when it is closed."""

    path: str
    vfs: str | None = None  # a registered VFS, for the injection of faults in tests

    @property
    def in_memory(self) -> bool:
        """Whether nothing of it is ever on disk."""
        return not self.path

    @property
    def shown(self) -> str:
        """How it is called in what people read."""
        return self.path or "in memory"

    def connect(self, *, reads_only: bool = False) -> "Connection":
        """Open another connection. Raises: what `Connection` and `assert_durable` raise."""
        connection = Connection(self, reads_only=reads_only)
        try:
            connection.assert_durable()
        except BaseException:
            connection.close()
            raise
        return connection


def parse(url: str) -> Place:
    """Read `sqlite:///relative.db`, `sqlite:////absolute.db` or `sqlite://` (in memory).

    Raises:
        LedgerError: the address is none of these forms.
        LedgerUnsafe: the file is on a network file system, where SQLite's locks don't hold.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    vfs = query.pop("vfs", None)
    if parts.netloc or parts.fragment or query:
        raise LedgerError(
            f"{url!r} is no address of a ledger: write sqlite:///relative.db or"
            " sqlite:////absolute.db, without a host, a fragment or options"
        )
    path = unquote(parts.path.removeprefix("/"))
    if path in {"", ":memory:"}:
        return Place(path="", vfs=vfs)
    if "\0" in path or path.startswith(("file:", "//", "\\\\")):
        raise LedgerError(f"{url!r} names no file of this machine for a ledger")
    absolute = Path(path).absolute()
    if not absolute.parent.is_dir():
        raise LedgerError(f"the folder {absolute.parent} of the ledger does not exist")
    if (kind := _file_system(absolute.parent)) in NETWORK:
        raise LedgerUnsafe(f"{absolute} is on {kind}, where SQLite's locks and syncs do not hold")
    return Place(path=str(absolute), vfs=vfs)


class Connection:
    """One connection, for one thread at a time. Durable, or it does not open.

    After an error that puts the transaction or the disk in doubt, `broken` holds it, even if
    whoever ran the statement swallowed it.
    """

    def __init__(self, place: Place, *, reads_only: bool = False) -> None:
        self.place: Final = place
        self.broken: LedgerUnavailable | None = None
        self.known: int | None = None  # the last migration that its process knows
        self.on_close: Callable[[], None] | None = None
        self.channel = ""
        self.refused: str | None = None  # why a guard stopped the last statement
        self._names: Final[dict[str, tuple[str, ...]]] = {}
        try:
            self._raw: Final = _open(place)
        except apsw.Error as error:
            raise _unavailable("could not be opened", error) from error
        self._cursor: Final = self._raw.cursor()
        try:
            self._configure(reads_only=reads_only)
        except BaseException:
            self._raw.close(True)
            raise

    def _configure(self, *, reads_only: bool) -> None:
        try:
            self._raw.set_busy_handler(_Patience())
            cache_kib = READER_CACHE_KIB if reads_only else CACHE_KIB
            also = (f"cache_size = -{cache_kib}", f"query_only = {int(reads_only)}")
            for setting in (*_SETTINGS, *also):
                self._cursor.execute(f"pragma {setting}").fetchall()
            synchronous = self._pragma("synchronous")
        except apsw.NotADBError as error:
            raise LedgerError(f"{self.place.path} is no SQLite database") from error
        except apsw.Error as error:
            raise _unavailable("could not be opened", error) from error
        if synchronous != 2:
            raise LedgerUnsafe("SQLite did not take synchronous = FULL: commits could be lost")

    def _pragma(self, name: str) -> Value:
        return cast("Value", self._cursor.execute(f"pragma {name}").fetchall()[0][0])

    def content(self) -> tuple[bool, int]:
        """Return whether the file is marked as a ledger, and how many things stand in it.

        Another program's mark counts as one of them.

        Raises:
            LedgerUnavailable: the file can't be read.
        """
        try:
            with self._raw:
                kind = self._pragma("application_id")
                count = self._cursor.execute("select count(*) from sqlite_schema").fetchall()[0][0]
        except apsw.Error as error:
            raise _unavailable("could not be read", error) from error
        other = bool(kind) and kind != APPLICATION_ID
        return kind == APPLICATION_ID, cast("int", count) + other

    def mark(self) -> None:
        """Mark an empty file as a ledger."""
        self.script(f"pragma application_id = {APPLICATION_ID}")

    def assert_durable(self) -> None:
        """Turn on the write-ahead log and check that it is on. In memory there is nothing to keep.

        Raises:
            LedgerUnsafe: SQLite did not take it.
        """
        if self.place.in_memory:
            return
        if (mode := self._turn_on_wal()) != "wal":
            raise LedgerUnsafe(f"SQLite stays in journal mode {mode!r}: commits could be lost")
        self._raw.wal_autocheckpoint(CHECKPOINT_PAGES)

    def _turn_on_wal(self) -> Value:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                return self._pragma("journal_mode = wal")
            except apsw.BusyError as error:
                # Switching the mode takes a lock that no busy handler waits for.
                if time.monotonic() > deadline:
                    raise _unavailable("is locked by another process", error) from error
                time.sleep(BUSY_PAUSE_MAX_S)
            except apsw.Error as error:
                raise _unavailable("could not be opened", error) from error

    def execute(self, sql: str, params: Params) -> list[Row]:
        """Run one statement to its end and return its rows.

        Raises:
            LedgerUnavailable: the disk, the file or the transaction is in doubt.
            LedgerError: a constraint or a trigger of the ledger said no.
            ValueError: a value that the database can't hold exactly.
        """
        try:
            return cast("list[Row]", self._cursor.execute(sql, params).fetchall())
        except (apsw.Error, OverflowError) as error:
            raise self._translated(error, sql) from error

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed, triggers aside.

        Raises: what `execute` raises.
        """
        try:
            self._cursor.execute(sql, params)
            return self._raw.changes()
        except (apsw.Error, OverflowError) as error:
            raise self._translated(error, sql) from error

    def _translated(
        self, error: apsw.Error | OverflowError, sql: str
    ) -> LedgerError | StatementRefused | ValueError:
        match error:
            case _ if self.refused is not None:
                return StatementRefused(self.refused)
            case OverflowError():
                return ValueError(f"an integer is too large for the ledger: {error}")
            case apsw.ConstraintError():
                return LedgerError(f"the ledger refused: {error}")
            case _ if isinstance(error, _BROKEN):
                self.broken = _unavailable("failed", error)
                return self.broken
            case _:
                return LedgerError(f"statement failed: {error}: {sql.strip()}")

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        rows = self.execute(sql, params)
        if not rows:
            return []
        if (names := self._names.get(sql)) is None:
            described = apsw.ext.query_info(self._raw, sql).description
            names = self._names[sql] = tuple(column[0] for column in described)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def script(self, sql: str) -> None:
        """Run many statements that take no values."""
        self.execute(sql, {})

    def guard(self, judge: Judge | None) -> None:
        """Let `judge` see all that later statements do, before they do it; None lifts it."""
        self.refused = None
        if judge is None:
            self._raw.authorizer = None
            return

        def ask(action: int, *names: str | None) -> int:
            called = str(apsw.mapping_authorizer_function[action])
            why = judge(called.removeprefix("SQLITE_"), [name or "" for name in names])
            if why is None:
                return apsw.SQLITE_OK
            self.refused = why
            return apsw.SQLITE_DENY

        self._raw.authorizer = ask

    def interrupt(self) -> None:
        """Stop the statement that is running, if one is. From any thread."""
        self._raw.interrupt()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._raw.in_transaction

    def begin(self, *, write: bool) -> None:
        """Open a transaction; for writing, wait for other processes first.

        Raises:
            LedgerUnavailable: another process kept its lock for too long, or the disk failed.
            LedgerOutgrown: the schema is not for this process any more.
        """
        self._control("begin immediate" if write else "begin")
        if self.known is not None and (found := self.execute(OUTGROWN, {"known": self.known})):
            self.rollback()
            raise outgrown(self.place.shown, found)

    def commit(self) -> None:
        """Make the transaction durable. Once this returns, it is on disk."""
        self._control("commit")

    def rollback(self) -> None:
        """Take the transaction back, if SQLite did not do so by itself."""
        if self._raw.in_transaction:
            self._control("rollback")
        self.broken = None

    def savepoint(self) -> None:
        """Begin a unit within the transaction."""
        self._control("savepoint unit")

    def keep(self) -> None:
        """End a unit, and keep what it did."""
        self._control("release unit")

    def undo(self) -> None:
        """End a unit, and take back what it did."""
        self._control("rollback to unit")
        self._control("release unit")

    def _control(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except apsw.BusyError as error:
            self.broken = LedgerBusy(f"the ledger is locked by another process: {error}")
            raise self.broken from error
        except apsw.ConstraintError as error:  # one that is judged only now
            raise LedgerError(f"the ledger refused: {error}") from error
        except apsw.Error as error:
            self.broken = _unavailable(f"could not {sql}", error)
            raise self.broken from error

    def close(self) -> None:
        """Close at once. The last one to close a ledger folds its log into the file."""
        with contextlib.suppress(apsw.Error):
            self._raw.close(True)
        if self.on_close is not None:
            self.on_close()
            self.on_close = None


class _Patience:
    """A busy handler with short pauses: a busy neighbour would starve one with SQLite's own."""

    def __init__(self) -> None:
        self._deadline = 0.0

    def __call__(self, calls: int) -> bool:
        now = time.monotonic()
        if calls == 0:
            self._deadline = now + BUSY_TIMEOUT_S
        if now > self._deadline:
            return False
        time.sleep(min(BUSY_PAUSE_MAX_S, 0.000_2 * (calls + 1)))
        return True


def _open(place: Place) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    with _private(place) as options:
        name = f"file:{quote(place.path)}{options}" if place.path else ":memory:"
        return apsw.Connection(name, flags=flags, vfs=place.vfs, statementcachesize=STATEMENTS_MAX)


@contextlib.contextmanager
def _private(place: Place) -> Iterator[str]:
    """Give the option that makes SQLite create a new file for its owner alone, from the start."""
    if place.in_memory or _filled(Path(place.path)):
        yield ""
        return
    with tempfile.NamedTemporaryFile() as model:  # SQLite copies the permissions of this one
        Path(model.name).chmod(stat.S_IRUSR | stat.S_IWUSR)
        yield f"?modeof={quote(model.name)}"


def _filled(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _unavailable(what: str, error: apsw.Error) -> LedgerUnavailable:
    return LedgerUnavailable(f"the ledger {what}: {error}")
