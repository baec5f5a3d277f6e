"""Units of ours within a transaction on a PostgreSQL connection that doubtless did not open.

Nothing here commits, and nothing takes the turn: the user's COMMIT may come in an hour. So such a
unit changes no row that anybody else may want, and adds only its own. What two may want to add at
once, an id or an object, is settled by the unique indexes. See ADR 6.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from doubtless.errors import ForeignConnection, LedgerError, LedgerUnavailable
from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import Row, Value, integer_of, text_of
from doubtless.ledger.foreign_drivers import Answer, DriverFailed
from doubtless.ledger.postgres_errors import IN_FAILED_TRANSACTION, SERIALIZATION, meaning
from doubtless.ledger.postgres_text import translated
from doubtless.ledger.transaction import (
    AlreadyThere,
    LedgerConflict,
    Params,
    Times,
    Transaction,
)

T = TypeVar("T")

TRIES: Final = 3  # of a unit, where somebody else has just taken an id or an object
WAIT: Final = "10s"  # at most, for the end of a transaction that has the same id or object

# The server itself tells whether a transaction is open: what is set for one alone is gone after it.
OPEN: Final = "select set_config('doubtless.probe', :probe, true)"
IS_OPEN: Final = "select current_setting('doubtless.probe', true)"
# Which server: a copy of it has the same identifier, but was not started at the same instant.
WHERE: Final = """
    select (select system_identifier::text from pg_control_system()),
           extract(epoch from pg_postmaster_start_time())::text,
           (select oid::text from pg_database where datname = current_database())
"""
STATE: Final = """
    select current_database()::text, current_user::text, pg_is_in_recovery()::text,
           current_setting('transaction_read_only'), current_setting('session_replication_role')
"""
LEDGER: Final = """select ledger_id from "{schema}".meta where tenant = 'main'"""
SETTINGS: Final = """
    select current_setting('search_path'), current_setting('lock_timeout'),
           current_setting('synchronous_commit')
"""
# The user's commit of our rows is as durable as ours would be.
ENTER: Final = """
    select set_config('search_path', :path, true), set_config('lock_timeout', :wait, true),
           set_config('synchronous_commit', :commits, true)
"""
LEAVE: Final = """
    select set_config('search_path', :path, true), set_config('lock_timeout', :wait, true)
"""

FAILED: Final = (
    "a statement of your transaction has failed, and nothing can follow it: roll it back, or back"
    " to a savepoint, first"
)
AGAIN: Final = "roll your transaction back and repeat it: nothing of this was prepared"


class Driver(Protocol):
    """The user's connection, for one statement at a time, in a thread that may wait for it."""

    def ask(self, sql: str, values: tuple[Value, ...]) -> Answer:
        """Run a statement with `$1`, `$2`, … Raises: DriverFailed."""
        ...

    def cut(self) -> None:
        """Close the connection at once, so that nothing on it is ever committed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where the ledger stands, as its own connection tells it."""

    schema: str
    shown: str
    ledger_id: str
    where: Row


class ForeignSession:
    """The user's connection as units see one. It begins and ends no transaction."""

    def __init__(self, driver: Driver, schema: str) -> None:
        self.broken: LedgerUnavailable | None = None
        self.channel: str = text.channel(schema)
        self._driver: Final = driver

    def _ask(self, sql: str, params: Params) -> Answer:
        numbered, names = translated(sql)
        values = params if isinstance(params, tuple) else tuple(params[name] for name in names)
        try:
            return self._driver.ask(numbered, values)
        except DriverFailed as error:
            raise _meaning(error, sql) from error

    def execute(self, sql: str, params: Params) -> list[Row]:
        """Run one statement to its end and return its rows. Raises: as a ledger's own."""
        return self._ask(sql, params)[0]

    def named(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Do as `execute` does, and name the columns."""
        rows, names, _ = self._ask(sql, params)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def change(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run one insert, update or delete and return how many rows it changed."""
        return self._ask(sql, params)[2]

    def begin(self, *, write: bool) -> Times | None:
        """Begin nothing: the user has."""
        raise LedgerError("a transaction of the user's is begun by the user")

    def commit(self) -> None:
        """Commit nothing: the user will."""
        raise LedgerError("a transaction of the user's is committed by the user")

    def rollback(self) -> None:
        """Leave the user's transaction to the user."""

    def savepoint(self) -> None:
        """Begin a unit within the transaction."""
        self.execute("savepoint doubtless_unit", {})

    def keep(self) -> None:
        """End the unit, and keep what it did."""
        self.execute("release savepoint doubtless_unit", {})

    def undo(self) -> None:
        """End the unit, and take back what it did: or end the connection, but never leave half."""
        try:
            self.execute("rollback to savepoint doubtless_unit", {})
            self.execute("release savepoint doubtless_unit", {})
        except BaseException:
            self._driver.cut()
            raise

    def close(self) -> None:
        """Leave the user's connection to the user."""


class TurnlessTransaction(Transaction):
    """A unit's view of the user's transaction: what others write meanwhile isn't kept out."""

    __slots__ = ()
    has_turn = False


def within(driver: Driver, home: Home, unit: Callable[[Transaction], T]) -> T:
    """Run a unit in the user's transaction, all of it or nothing. Their changes stand in any case.

    Raises:
        ForeignConnection: The connection, or its transaction, is none that can be shared.
        LedgerUnavailable: It failed, somebody else was at the same operation or object, or the
            user's isolation level demands that the transaction be repeated.
    """
    session = ForeignSession(driver, home.schema)
    _check_open(session)
    _check_state(session, home)
    for left in reversed(range(TRIES)):
        try:
            return _once(session, home, unit)
        except (AlreadyThere, LedgerConflict) as error:
            if not left or _state_of(error) in SERIALIZATION:
                raise LedgerConflict(f"{error}: {AGAIN}") from error
        except LedgerError as error:
            if _state_of(error) == DENIED:
                told = GRANT.format(schema=home.schema, told=error.__cause__)
                raise ForeignConnection(told) from error
            raise
    raise AssertionError("unreachable")


def _once(session: ForeignSession, home: Home, unit: Callable[[Transaction], T]) -> T:
    session.savepoint()
    try:
        _check_ledger(session, home)
        path, wait, commits = map(text_of, session.execute(SETTINGS, {})[0])
        entered: dict[str, Value] = {
            "path": f'"{home.schema}", pg_temp',
            "wait": WAIT if wait == "0" else wait,
            "commits": commits if commits == "remote_apply" else "on",
        }
        session.execute(ENTER, entered)
        now_ms, wall_ms, break_ms = map(integer_of, session.execute(text.LOOK, {})[0])
        tx = TurnlessTransaction(session, now_ms=now_ms, wall_ms=wall_ms, break_ms=break_ms)
        value = unit(tx)
        tx.flush()
        tx.announce()
        session.execute(LEAVE, {"path": path, "wait": wait})
        session.keep()
    except BaseException:
        session.undo()
        raise
    return value


# --- what can be shared --------------------------------------------------------------------------


def _check_open(session: ForeignSession) -> None:
    probe = os.urandom(8).hex()
    try:
        session.execute(OPEN, {"probe": probe})
        found = session.execute(IS_OPEN, {})
    except LedgerError as error:
        if _state_of(error) == IN_FAILED_TRANSACTION:
            raise ForeignConnection(FAILED) from error
        raise
    if found != [(probe,)]:
        raise ForeignConnection(
            "no transaction is open on your connection, so each statement would be committed"
            " alone: begin one (a connection in autocommit does not), and prepare within it"
        )


def _check_state(session: ForeignSession, home: Home) -> None:
    database, user, standby, read_only, role = map(text_of, session.execute(STATE, {})[0])
    if standby == "true":
        raise ForeignConnection(
            f"your connection is to a standby, which takes no writes: connect to the primary of"
            f" {home.shown}"
        )
    if read_only == "on":
        raise ForeignConnection(
            "your transaction is read only: begin one that may write (`begin read write`)"
        )
    if role == "replica":
        raise ForeignConnection(
            "session_replication_role is replica, which turns off what guards the ledger: set it to"
            " origin"
        )
    if session.execute(WHERE, {}) != [home.where]:
        raise ForeignConnection(
            f"your connection is to the database {database!r} (as {user!r}) on another server, or"
            f" another database, than the ledger's, so both can't commit together: connect to the"
            f" database of {home.shown}"
        )


def _check_ledger(session: ForeignSession, home: Home) -> None:
    found = session.execute(LEDGER.replace("{schema}", home.schema), {})
    if found != [(home.ledger_id,)]:
        raise ForeignConnection(
            f"the schema {home.schema!r} holds another ledger by now than the one that is open:"
            " close the application, and open it again"
        )


DENIED: Final = "42501"
GRANT: Final = (
    "{told}: your connection's role may not write the ledger. As its owner: grant usage on schema"
    ' "{schema}" to …; grant select, insert, update on all tables in schema "{schema}" to …'
)


def _meaning(error: DriverFailed, sql: str) -> LedgerError | ValueError:
    return meaning(error.state, str(error), sql)


def _state_of(error: LedgerError) -> str:
    """Return the SQLSTATE behind an error: a deadlock's, say, or an old snapshot's."""
    cause = error.__cause__
    return cause.state if isinstance(cause, DriverFailed) else ""
