"""PostgreSQL by psycopg: the only module that knows the driver.

Who writes has its turn: the row of `meta` is locked from the beginning of a group of units to its
commit, so that groups of all processes are carried out one after the other, as they are on SQLite.
What is read in a turn can't be changed by others before the turn is over, and what is numbered in
it (settlements, events, operations) is numbered in the order of commits.
"""

import os
import re
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.conninfo import conninfo_to_dict

from doubtless.errors import LedgerError, LedgerUnavailable, StatementRefused
from doubtless.ledger import postgres_text as text
from doubtless.ledger.address import masked, schema_of, without_passwords
from doubtless.ledger.codec import Row, Value, integer_of
from doubtless.ledger.postgres_checks import Checks
from doubtless.ledger.postgres_errors import Meaning, meaning, meaning_of_theirs
from doubtless.ledger.postgres_text import translated, written
from doubtless.ledger.transaction import (
    CommitUnknown,
    ConnectionLost,
    LedgerBusy,
    Params,
    Times,
    outgrown,
)

STATEMENTS_MAX: Final = 512
KNOWS_ALL: Final = 2**31  # of a connection that nobody said it of


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
    conninfo, schema = schema_of(url)
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise LedgerError(f"schema={schema!r} is no name for a ledger's: use a-z, 0-9 and _")
    try:
        conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise LedgerError(
            f"{masked(url)!r} is no address of a ledger: write postgresql://user@host/database,"
            " with options of libpq"
        ) from None  # the driver's text may hold the password
    return Place(conninfo=conninfo, schema=schema, shown=masked(url))


Answer: TypeAlias = tuple[list[Row], list[str], int]  # rows, names of columns, rows changed
_Values: TypeAlias = list[bytes]
_Results: TypeAlias = "list[pq.abc.PGresult]"


class Connection(Checks):
    """One connection, for one thread at a time. Durable, or it does not open.

    After an error that puts the transaction or the server in doubt, `broken` holds it, even if
    whoever ran the statement swallowed it.
    """

    def __init__(self, place: Place) -> None:
        self.place: Place = place
        self.broken: LedgerUnavailable | None = None
        self.channel = text.channel(place.schema)
        self.known: int | None = None  # the last migration that its process knows
        self._statements: Final[dict[str, tuple[bytes, tuple[str, ...]]]] = {}
        self._writer: Final = os.urandom(8).hex()
        self._number = 0
        self._fresh = False  # the savepoint stands where a unit begins
        self._warnings: Final[list[str]] = []
        given = conninfo_to_dict(place.conninfo)
        more = {name: value for name, value in text.DEFAULTS.items() if name not in given}
        try:
            self._raw: Final = psycopg.connect(
                place.conninfo,
                autocommit=True,
                client_encoding="utf8",
                **more,  # type: ignore[arg-type]
            )
        except psycopg.Error as error:
            told = without_passwords(str(error), given)
            raise ConnectionLost(f"the ledger {place.shown} could not be opened: {told}") from None
        self._raw.add_notice_handler(self._noticed)
        self._pgconn: Final = self._raw.pgconn
        self._loading: Final = Transformer(self._raw)
        self.version = self._raw.info.server_version
        settings = text.SETTINGS.replace("{schema}", place.schema)
        if self.version >= 170_000:
            settings += "; set transaction_timeout = 0"
        try:
            self.script(settings)
        except BaseException:
            self.close()
            raise

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    # --- statements ------------------------------------------------------------------------------

    def execute(self, sql: str, params: Params) -> list[Row]:
        """Run one statement to its end and return its rows.

        Raises:
            LedgerUnavailable: the server, its disk or the transaction is in doubt.
            LedgerError: a constraint or a trigger of the ledger said no.
            ValueError: a value that the database can't hold exactly.
        """
        return self._rows(self._run(sql, params))

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed, triggers aside.

        Raises: what `execute` raises.
        """
        return self._run(sql, params).command_tuples or 0

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        result = self._run(sql, params)
        rows = self._rows(result)
        if not rows:
            return []
        names = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def together(self, asked: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """Run statements with one wait for all of them. Raises: what `execute` raises."""
        return [self._rows(result) for result in self._at_once(asked)]

    # The driver's own cursors take three times as long: a unit has many small statements.

    def _run(self, sql: str, params: Params) -> "pq.abc.PGresult":
        name, values, formats = self._bound(sql, params)
        try:
            result = self._pgconn.exec_prepared(name, values, formats)
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        return self._checked(result, sql)

    def _bound(self, sql: str, params: Params) -> tuple[bytes, "_Values", list[int] | None]:
        """Prepare a statement, if it is new, and write its values as the server reads them."""
        if (found := self._statements.get(sql)) is None:
            found = self._prepare(sql)
        name, names = found
        given = params if isinstance(params, tuple) else [params[each] for each in names]
        # The server takes None for null, whatever the driver's signature says.
        values = cast("_Values", [written(value) for value in given])
        if bytes in map(type, given):
            return name, values, [int(type(value) is bytes) for value in given]
        return name, values, None

    def _prepare(self, sql: str) -> tuple[bytes, tuple[str, ...]]:
        if len(self._statements) >= STATEMENTS_MAX:
            self._forget_statements()
        numbered, names = translated(sql)
        name = b"s%d" % len(self._statements)
        try:
            result = self._pgconn.prepare(name, numbered.encode())
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        self._checked(result, sql)
        self._statements[sql] = name, names
        return name, names

    def _forget_statements(self) -> None:
        self.script("deallocate all")
        self._statements.clear()

    def _rows(self, result: "pq.abc.PGresult") -> list[Row]:
        if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
            return []
        self._loading.set_pgresult(result)
        return cast("list[Row]", self._loading.load_rows(0, result.ntuples, tuple))

    def once(self, sql: str, values: Sequence[object]) -> Answer:
        """Run a statement of the user's, numbered `$1`, `$2`, …: one, whatever it holds.

        Values and rows are what the driver makes of them. Raises: what `meaning_of_theirs` tells.
        """
        binding = Transformer(self._raw)
        try:
            bound = binding.dump_sequence(values, [PyFormat.AUTO] * len(values))
        except psycopg.Error as error:
            raise StatementRefused(f"a value can't be bound: {error}") from error
        try:
            result = self._pgconn.exec_params(sql.encode(), bound, binding.types, binding.formats)
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        rows = self._rows(self._checked(result, sql, meaning_of_theirs))
        names = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
        return rows, names, result.command_tuples or 0

    def _checked(
        self, result: "pq.abc.PGresult", sql: str, meaning: Meaning = meaning
    ) -> "pq.abc.PGresult":
        if result.status in _GOOD:
            return result
        told = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY)
        if self._is_lost():
            raise self._lost(told)
        found = meaning(_field(result, pq.DiagnosticField.SQLSTATE), told, sql)
        if isinstance(found, LedgerUnavailable) and not isinstance(found, LedgerBusy):
            self.broken = found
        raise found

    def _lost(self, told: str) -> ConnectionLost:
        self.broken = found = ConnectionLost(f"the connection to the ledger was lost: {told}")
        return found

    def _is_lost(self) -> bool:
        return self._pgconn.status != pq.ConnStatus.OK

    def _at_once(self, steps: Sequence[tuple[str, Params]]) -> _Results:
        """Run statements one after the other, with one wait for all of them."""
        if len(self._statements) + len(steps) > STATEMENTS_MAX:
            self._forget_statements()  # none of these may go while they are bound
        bound = [self._bound(*step) for step in steps]
        try:
            self._pgconn.enter_pipeline_mode()
            for name, values, formats in bound:
                self._pgconn.send_query_prepared(name, values, formats)
            self._pgconn.pipeline_sync()
            results = self._answers()
            self._pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        for step, result in zip(steps, results, strict=True):
            self._checked(result, step[0])
        return results

    def _answers(self) -> _Results:
        found: _Results = []
        waiting = select.poll()
        waiting.register(self._pgconn.socket, select.POLLIN)
        while True:
            while self._pgconn.is_busy():
                waiting.poll()
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None:
                continue  # between two statements
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return found
            found.append(result)

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, *, write: bool) -> Times:
        """Open a transaction, and read the server's clock; for writing, wait for the turn first.

        Raises:
            LedgerUnavailable: another process kept its turn for too long, or the server failed.
            LedgerOutgrown: the schema is not for this process any more.
        """
        steps = text.WRITING if write else text.READING
        self._number += write
        known = KNOWS_ALL if self.known is None else self.known
        signed: Params = {"writer": self._writer, "number": self._number, "known": known}
        results = self._at_once([(sql, signed) for sql in steps])
        if found := self._rows(results[-1]):
            self.rollback()
            raise outgrown(self.place.shown, found)
        self._fresh = write
        rows = self._rows(next(each for each in results if each.nfields == 3))
        if not rows:
            raise LedgerError(f"the ledger {self.place.shown} has lost its row of facts")
        now_ms, wall_ms, break_ms = rows[0]
        return integer_of(now_ms), integer_of(wall_ms), integer_of(break_ms)

    def commit(self) -> None:
        """Make the transaction durable. Once this returns, it is on disk, here and on standbys.

        Raises:
            CommitUnknown: the connection was lost, or the wait for a standby was broken off.
            LedgerError: a constraint that is judged only now said no; nothing is recorded.
            LedgerUnavailable: the server failed; nothing is recorded.
        """
        self._warnings.clear()
        # libpq itself: an interrupt would make the driver's cursor cancel the statement, which
        # breaks off the wait for a standby and leaves a commit that may be lost with this server.
        try:
            result = self._pgconn.exec_(b"commit")
        except psycopg.Error as error:
            raise self._unknown(str(error)) from error
        if result.status == pq.ExecStatus.COMMAND_OK and result.command_status == b"COMMIT":
            if self._warnings:
                raise self._unknown(self._warnings[-1])
            return
        severity = _field(result, pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        if self._is_lost() or severity in {"FATAL", "PANIC"}:
            told = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY)
            raise self._unknown(told or "the connection was lost")
        self._checked(result, "commit")
        self.broken = LedgerUnavailable("the server rolled back in place of committing")
        raise self.broken

    def _unknown(self, why: str) -> CommitUnknown:
        asked: dict[str, Value] = {"writer": self._writer, "number": self._number}
        self.broken = found = CommitUnknown(why, proof=(text.COMMITTED, asked))
        return found

    def rollback(self) -> None:
        """Take the transaction back, if one is open."""
        if self._is_lost():
            self.broken = ConnectionLost("the connection to the ledger was lost")
            return
        if self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self.script("rollback")
        self.broken = None

    def savepoint(self) -> None:
        """Begin a unit within the transaction."""
        if not self._fresh:
            self.script("release savepoint unit; savepoint unit")
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
        self.script("rollback to savepoint unit")
        self._fresh = True

    def script(self, sql: str) -> None:
        """Run statements that take no values. Raises: what `execute` raises."""
        try:
            result = self._pgconn.exec_(sql.encode())
        except psycopg.Error as error:
            raise self._lost(str(error)) from error
        self._checked(result, sql)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, sound or not."""
        return self._pgconn.transaction_status != pq.TransactionStatus.IDLE

    def interrupt(self) -> None:
        """Stop the statement that is running, if one is. From any thread; never in a COMMIT."""
        with suppress(psycopg.Error):
            self._raw.cancel_safe(timeout=1)

    def close(self) -> None:
        """Close at once."""
        with suppress(psycopg.Error):
            self._raw.close()


_GOOD: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK})


def _field(result: "pq.abc.PGresult", field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")
