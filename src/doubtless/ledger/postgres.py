"""PostgreSQL by psycopg: the only module that knows the driver.

Who writes has its turn: the row of `meta` is locked from the beginning of a group of units to its
commit, so that groups of all processes are carried out one after the other, as they are on SQLite.
What is read in a turn can't be changed by others before the turn is over, and what is numbered in
it (settlements, events, operations) is numbered in the order of commits.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8Dumper

from doubtless.errors import LedgerError, LedgerUnavailable, LedgerUnsafe
from doubtless.ledger.address import masked, without_passwords
from doubtless.ledger.codec import Row, Value, integer_of
from doubtless.ledger.postgres_text import (
    ASKED,
    BEGIN,
    BEGIN_READING,
    COMMITTED,
    CONTENT,
    FORGET,
    LOCK,
    SETTINGS,
    translated,
)
from doubtless.ledger.transaction import (
    CommitUnknown,
    ConnectionLost,
    LedgerBusy,
    LedgerConflict,
    Params,
    Times,
)

SCHEMA: Final = "doubtless"
WRITERS_KEPT_MS: Final = 7 * 86_400_000
VERSION_MIN: Final = 140_000
STATEMENTS_MAX: Final = 512

DEFAULTS: Final[Mapping[str, str | int]] = {
    "target_session_attrs": "read-write",  # of several hosts the primary, whichever it is now
    "connect_timeout": 10,
    "fallback_application_name": "doubtless",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a ledger stands: a database, and the schema in it."""

    conninfo: str  # as libpq takes it, password and all: never shown
    schema: str
    shown: str

    @property
    def in_memory(self) -> bool:
        """Whether nothing of it is ever on disk."""
        return False

    def open(self) -> "Connection":
        """Open a connection that is not known to be safe yet. Raises: what `Connection` raises."""
        return Connection(self)

    def connect(self, *, reads_only: bool = False) -> "Connection":
        """Open another connection. Raises: what `Connection` and `assert_durable` raise."""
        connection = Connection(self)
        try:
            connection.assert_durable()
        except BaseException:
            connection.close()
            raise
        return connection


def parse(url: str) -> Place:
    """Read a URI of libpq: `postgresql://user@host/database?host=/folder&schema=doubtless`.

    `schema` alone is ours: where the ledger's tables stand.

    Raises:
        LedgerError: the address is none.
    """
    base, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    schema = dict(options).get("schema", SCHEMA)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise LedgerError(f"schema={schema!r} is no name for a ledger's: use a-z, 0-9 and _")
    rest = urlencode([option for option in options if option[0] != "schema"])
    conninfo = f"{base}?{rest}" if rest else base
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise LedgerError(
            f"{masked(url)!r} is no address of a ledger: write postgresql://user@host/database,"
            " with options of libpq"
        ) from None  # the driver's text may hold the password
    return Place(conninfo=conninfo, schema=schema, shown=masked(url))


_KINDS: Final = {
    errors.UniqueViolation: "UNIQUE",
    errors.CheckViolation: "CHECK",
    errors.ForeignKeyViolation: "FOREIGN KEY",
    errors.NotNullViolation: "NOT NULL",
}
# Classes of SQLSTATE after which the transaction, the server or the disk is in doubt.
_BROKEN: Final = ("08", "25", "53", "54", "57", "58", "XX")


class Connection:
    """One connection, for one thread at a time. Durable, or it does not open.

    After an error that puts the transaction or the server in doubt, `broken` holds it, even if
    whoever ran the statement swallowed it.
    """

    def __init__(self, place: Place) -> None:
        self.place: Final = place
        self.broken: LedgerUnavailable | None = None
        self._names: Final[dict[str, tuple[str, ...]]] = {}
        self._writer: Final = os.urandom(8).hex()
        self._number = 0
        self._fresh = False  # the savepoint stands where a unit begins
        self._warnings: Final[list[str]] = []
        given = conninfo_to_dict(place.conninfo)
        more = {name: value for name, value in DEFAULTS.items() if name not in given}
        try:
            self._raw: Final = psycopg.connect(
                place.conninfo,
                autocommit=True,
                prepare_threshold=1,
                cursor_factory=psycopg.RawCursor,
                client_encoding="utf8",
                **more,  # type: ignore[arg-type]
            )
        except psycopg.Error as error:
            told = without_passwords(str(error), given)
            raise ConnectionLost(f"the ledger {place.shown} could not be opened: {told}") from None
        self._raw.prepared_max = STATEMENTS_MAX
        self._raw.adapters.register_dumper(int, Int8Dumper)
        self._raw.add_notice_handler(self._noticed)
        self._cursor: Final = self._raw.cursor()
        self._pgconn: Final = self._raw.pgconn
        settings = SETTINGS.replace("{schema}", place.schema)
        if self._raw.info.server_version >= 170_000:
            settings += "; set transaction_timeout = 0"
        try:
            self.script(settings)
        except BaseException:
            self.close()
            raise

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    # --- is it a ledger, and a safe one ----------------------------------------------------------

    def assert_durable(self) -> None:
        """Check that the server keeps what it acknowledges, and see to it for this session.

        Raises:
            LedgerUnsafe: it doesn't.
            LedgerError: it is too old, or its database isn't in UTF-8.
            LedgerUnavailable: it is a standby, or can't be asked.
        """
        told = (str(value) for value in self.execute(ASKED, {})[0])
        encoding, standby, fsync, pages, commits = told
        if self._raw.info.server_version < VERSION_MIN:
            raise LedgerError(f"{self.place.shown}: PostgreSQL 14 or later is needed")
        if encoding != "UTF8":
            raise LedgerError(f"{self.place.shown}: the database is in {encoding}, not in UTF8")
        if standby != "false":
            raise LedgerUnavailable(f"{self.place.shown} is a standby: name the primary")
        for name, value in (
            ("fsync", fsync),
            ("full_page_writes", pages),
            ("synchronous_commit", commits),
        ):
            if value == "off":
                raise LedgerUnsafe(
                    f"{self.place.shown}: {name} is off, so acknowledged commits could be lost:"
                    " turn it on"
                )
        if commits != "remote_apply":
            self.script("set synchronous_commit = on")

    def content(self) -> tuple[bool, int]:
        """Return whether a ledger stands in the schema, and how many things do.

        Raises:
            LedgerUnavailable: it can't be read.
        """
        is_ledger, count = self.execute(CONTENT, {"schema": self.place.schema})[0]
        return bool(is_ledger), integer_of(count)

    def begin_migration(self) -> None:
        """Open a transaction that changes the schema; wait for others who do.

        Raises:
            LedgerUnavailable: another process kept its lock for too long.
        """
        schema = self.place.schema
        self._control(f"begin; select pg_advisory_xact_lock({LOCK}, hashtext('{schema}'))")
        try:
            if self.execute("select to_regnamespace(:name)::text", {"name": schema}) == [(None,)]:
                self.script(f'create schema "{schema}"')
        except BaseException:
            self.rollback()
            raise

    def mark(self) -> None:
        """Mark an empty schema as a ledger's: its tables do."""

    def forget_writers(self) -> None:
        """Forget the connections of long ago, about which nobody can ask any more."""
        self.execute(FORGET, {"kept_ms": WRITERS_KEPT_MS})

    # --- statements ------------------------------------------------------------------------------

    def execute(self, sql: str, params: Params) -> list[Row]:
        """Run one statement to its end and return its rows.

        Raises:
            LedgerUnavailable: the server, its disk or the transaction is in doubt.
            LedgerError: a constraint or a trigger of the ledger said no.
            ValueError: a value that the database can't hold exactly.
        """
        text, names = translated(sql)
        values = params if isinstance(params, tuple) else [params[name] for name in names]
        cursor = self._cursor
        try:
            cursor.execute(text, values)
            return cast("list[Row]", cursor.fetchall()) if cursor.description else []
        except psycopg.Error as error:
            raise self._translated(error, sql) from error

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed, triggers aside.

        Raises: what `execute` raises.
        """
        self.execute(sql, params)
        return self._cursor.rowcount

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        rows = self.execute(sql, params)
        if not rows:
            return []
        if (names := self._names.get(sql)) is None:
            described = self._cursor.description or ()
            names = self._names[sql] = tuple(column.name for column in described)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def script(self, sql: str) -> None:
        """Run many statements that take no values."""
        self._control(sql)

    def _translated(self, error: psycopg.Error, sql: str) -> LedgerError | ValueError | TypeError:
        told = error.diag.message_primary or _first_line(error)
        state = error.sqlstate or ""
        match error:
            case _ if self._is_lost():
                self.broken = ConnectionLost(f"the connection to the ledger was lost: {told}")
                return self.broken
            case errors.SerializationFailure() | errors.DeadlockDetected():
                self.broken = LedgerConflict(f"somebody else was at the same rows: {told}")
                return self.broken
            case errors.LockNotAvailable():
                self.broken = LedgerBusy(f"the ledger is locked by another process: {told}")
                return self.broken
            case psycopg.IntegrityError():
                kind = _KINDS.get(type(error), "a")
                return LedgerError(f"the ledger refused: {kind} constraint failed: {told}")
            case errors.RaiseException():
                return LedgerError(f"the ledger refused: {told}")
            case errors.InFailedSqlTransaction():
                return LedgerError("a statement of this unit failed before: nothing can follow it")
            case psycopg.DataError():
                return ValueError(f"a value that the ledger can't hold: {told}")
            case psycopg.ProgrammingError() if not state and "adapt" in told:
                return TypeError(told)
            case _ if state[:2] in _BROKEN:
                self.broken = LedgerUnavailable(f"the ledger failed: {told}")
                return self.broken
            case _:
                return LedgerError(f"statement failed: {told}: {' '.join(sql.split())[:300]}")

    def _is_lost(self) -> bool:
        return self._pgconn.status != pq.ConnStatus.OK

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, *, write: bool) -> Times:
        """Open a transaction, and read the server's clock; for writing, wait for the turn first.

        Raises:
            LedgerUnavailable: another process kept its turn for too long, or the server failed.
        """
        text = BEGIN_READING
        if write:
            self._number += 1
            text = BEGIN.replace("{writer}", self._writer).replace("{number}", str(self._number))
        self._control(text)
        self._fresh = write
        row: Row | None = None
        while row is None:
            if self._cursor.description and len(found := self._cursor.fetchall()[0]) == 3:
                row = cast("Row", found)
            elif not self._cursor.nextset():
                raise LedgerError(f"the ledger {self.place.shown} has lost its row of facts")
        now_ms, wall_ms, break_ms = row
        return integer_of(now_ms), integer_of(wall_ms), integer_of(break_ms)

    def commit(self) -> None:
        """Make the transaction durable. Once this returns, it is on disk, here and on standbys.

        Raises:
            CommitUnknown: the connection was lost, or the wait for a standby was broken off.
            LedgerError: a constraint that is judged only now said no; nothing is recorded.
            LedgerUnavailable: the server failed; nothing is recorded.
        """
        self._warnings.clear()
        # libpq itself: an interrupt would make the driver cancel the statement, which breaks off
        # the wait for a standby and leaves a commit that may be lost with this server.
        result = self._pgconn.exec_(b"commit")
        if result.status == pq.ExecStatus.COMMAND_OK and result.command_status == b"COMMIT":
            if self._warnings:
                raise self._unknown(self._warnings[-1])
            return
        error = errors.error_from_result(result, encoding="utf-8")
        if self._is_lost() or error.diag.severity_nonlocalized in {"FATAL", "PANIC"}:
            raise self._unknown(error.diag.message_primary or "the connection was lost")
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise self._translated(error, "commit") from error
        self.broken = LedgerUnavailable("the server rolled back in place of committing")
        raise self.broken

    def _unknown(self, why: str) -> CommitUnknown:
        asked: dict[str, Value] = {"writer": self._writer, "number": self._number}
        self.broken = found = CommitUnknown(f"the commit's end: {why}", proof=(COMMITTED, asked))
        return found

    def rollback(self) -> None:
        """Take the transaction back, if one is open."""
        if self._is_lost():
            self.broken = ConnectionLost("the connection to the ledger was lost")
            return
        if self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self._control("rollback")
        self.broken = None

    def savepoint(self) -> None:
        """Begin a unit within the transaction."""
        if not self._fresh:
            self._control("release savepoint unit; savepoint unit")
        self._fresh = False

    def keep(self) -> None:
        """End a unit, and keep what it did.

        Raises:
            LedgerError: a statement of it failed, whoever swallowed that.
        """
        if self._pgconn.transaction_status == pq.TransactionStatus.INERROR:
            raise LedgerError("a statement of this unit failed: nothing of it can be kept")

    def undo(self) -> None:
        """End a unit, and take back what it did."""
        self._control("rollback to savepoint unit")
        self._fresh = True

    def _control(self, sql: str) -> None:
        try:
            self._cursor.execute(sql, prepare=False)
        except psycopg.Error as error:
            raise self._translated(error, sql) from error

    def close(self) -> None:
        """Close at once."""
        with suppress(psycopg.Error):
            self._raw.close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
