"""Connections of the user's, by driver: known by the modules of their types, never imported.

Each is given one statement at a time, with `$1`, `$2`, …, and says what came of it in one way.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from doubtless.errors import ForeignConnection
from doubtless.ledger.codec import Row, Value

Answer: TypeAlias = tuple[list[Row], list[str], int]  # rows, names of columns, rows changed
Raw: TypeAlias = Any  # an object of a driver's, which is not imported here


class DriverFailed(Exception):
    """What the user's connection raised; `state` is its SQLSTATE, "08000" where it has none."""

    def __init__(self, error: Exception) -> None:
        told = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
        super().__init__(" ".join(str(told).split()))
        self.state: str = getattr(error, "sqlstate", None) or "08000"


@dataclass(frozen=True, slots=True)
class SyncDriver:
    """A connection that blocks: `ask` runs a statement on it."""

    ask: Callable[[str, tuple[Value, ...]], Answer]
    cut: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AsyncDriver:
    """A connection of an event loop: `ask` runs a statement on it there."""

    ask: Callable[[str, tuple[Value, ...]], Awaitable[Answer]]
    cut: Callable[[], None]


# --- psycopg -------------------------------------------------------------------------------------


def _psycopg(connection: Raw) -> SyncDriver:
    cursors = sys.modules["psycopg"]

    def ask(sql: str, values: tuple[Value, ...]) -> Answer:
        try:
            with cursors.RawCursor(connection, row_factory=_as_tuples) as cursor:
                cursor.execute(sql, values, prepare=False)
                return _answer(cursor, cursor.fetchall() if cursor.description else [])
        except Exception as error:
            raise DriverFailed(error) from error

    return SyncDriver(ask, connection.pgconn.finish)


def _async_psycopg(connection: Raw) -> AsyncDriver:
    cursors = sys.modules["psycopg"]

    async def ask(sql: str, values: tuple[Value, ...]) -> Answer:
        try:
            async with cursors.AsyncRawCursor(connection, row_factory=_as_tuples) as cursor:
                await cursor.execute(sql, values, prepare=False)
                return _answer(cursor, await cursor.fetchall() if cursor.description else [])
        except Exception as error:
            raise DriverFailed(error) from error

    return AsyncDriver(ask, connection.pgconn.finish)


def _as_tuples(_: object) -> Callable[[Sequence[Value]], Row]:
    return tuple


def _answer(cursor: Raw, rows: list[Row]) -> Answer:
    names = [str(column.name) for column in cursor.description or ()]
    return rows, names, int(cursor.rowcount)


# --- asyncpg -------------------------------------------------------------------------------------


def _asyncpg(connection: Raw) -> AsyncDriver:
    async def ask(sql: str, values: tuple[Value, ...]) -> Answer:
        try:
            # Its cache of statements is by their text, and would take one of the user's for ours.
            statement = await connection.prepare(sql)
            found = await statement.fetch(*values)
            told = str(statement.get_statusmsg() or "")
        except Exception as error:
            raise DriverFailed(error) from error
        changed = told.rpartition(" ")[2]
        names = [str(column.name) for column in statement.get_attributes()]
        return [tuple(row) for row in found], names, int(changed) if changed.isdigit() else 0

    return AsyncDriver(ask, connection.terminate)


# --- whose is it ---------------------------------------------------------------------------------

SQLITE: Final = frozenset({"sqlite3", "_sqlite3", "apsw", "aiosqlite", "pysqlite2"})


def home_of(connection: object) -> str:
    """Return the package that the type of a connection comes from; a subclass's is its parent's."""
    homes = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    known = [home for home in homes if home in KNOWN or home in SQLITE]
    return known[0] if known else homes[0]


KNOWN: Final = frozenset({"psycopg", "psycopg_pool", "psycopg2", "asyncpg", "pg8000", "sqlalchemy"})


def dialect_of(connection: object) -> str:
    """Return the name of the database behind a connection or a session of SQLAlchemy."""
    for attribute in ("sync_connection", "sync_session"):
        connection = getattr(connection, attribute, None) or connection
    bind = getattr(connection, "get_bind", None)
    bound = bind() if callable(bind) else connection
    return str(getattr(getattr(bound, "dialect", None), "name", ""))


def driver_of(connection: Raw) -> SyncDriver | AsyncDriver:
    """Return how a connection of psycopg's or asyncpg's is spoken to.

    Raises:
        ForeignConnection: It is another kind of thing, with what to give in its place.
    """
    home = home_of(connection)
    names = {kind.__name__ for kind in type(connection).__mro__}
    if home == "psycopg" and "AsyncConnection" in names:
        return _async_psycopg(connection)
    if home == "psycopg" and "Connection" in names:
        return _psycopg(connection)
    if home == "asyncpg" and names & {"Connection", "PoolConnectionProxy"}:
        return _asyncpg(connection)
    called = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise ForeignConnection(
        f"{called} is no connection that a PostgreSQL ledger can share a transaction with: give"
        " one of psycopg 3, asyncpg, or SQLAlchemy over one of these"
    )


# --- SQLAlchemy ----------------------------------------------------------------------------------


def is_async(connection: object) -> bool:
    """Whether a connection or a session of SQLAlchemy's is one of an event loop."""
    return hasattr(connection, "sync_connection") or hasattr(connection, "sync_session")


def unwrap(connection: Raw) -> Raw:
    """Return the driver's connection behind one of SQLAlchemy's, once its transaction has begun.

    Raises:
        DriverFailed: It could not begin one.
    """
    try:
        found = connection if hasattr(connection, "exec_driver_sql") else connection.connection()
        found.exec_driver_sql("select 1")
        return found.connection.driver_connection
    except Exception as error:
        raise DriverFailed(_driver_s(error)) from error


async def unwrap_async(connection: Raw) -> Raw:
    """Do as `unwrap` does, for what belongs to an event loop."""
    try:
        found = connection
        if not hasattr(connection, "exec_driver_sql"):
            found = await connection.connection()
        await found.exec_driver_sql("select 1")
        return (await found.get_raw_connection()).driver_connection
    except Exception as error:
        raise DriverFailed(_driver_s(error)) from error


def _driver_s(error: Exception) -> Exception:
    """Return the driver's own error, where SQLAlchemy has wrapped it."""
    inner = getattr(error, "orig", None)
    return inner if isinstance(inner, Exception) else error
