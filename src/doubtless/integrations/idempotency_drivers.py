"""Running a statement on whatever connection the owner of a database has.

No driver is imported here: connections are taken as they are. They may be those of sqlite3,
aiosqlite, psycopg (both kinds), SQLAlchemy (both kinds) and Django.
"""

import inspect
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Final, Protocol, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

T = TypeVar("T")
Values: TypeAlias = Mapping[str, str | int | None]
Row: TypeAlias = Sequence[object]
# Statements in their order, each answered with its first row, or None; their end is the result.
Steps: TypeAlias = Generator[tuple[str, Values], Row | None, T]

# Any of the drivers' connections. What is needed of it is found out where it is used.
Connection: TypeAlias = object
Transaction: TypeAlias = Callable[
    [],
    AbstractContextManager[Connection] | AbstractAsyncContextManager[Connection],
]

THREADS: Final = 16
_NAME: Final = re.compile(r":([a-z_]+)")


class _Cursor(Protocol):
    description: object

    def fetchall(self) -> object: ...


def _style(connection: Connection) -> str:
    """Return how a driver wants its parameters."""
    if hasattr(connection, "exec_driver_sql"):  # SQLAlchemy
        dialect = cast("_Alchemy", connection).dialect
        return dialect.paramstyle
    homes = {each.__module__.partition(".")[0] for each in type(connection).__mro__}
    return "pyformat" if homes & {"psycopg", "django"} else "named"


class _Dialect(Protocol):
    paramstyle: str


class _Alchemy(Protocol):
    dialect: _Dialect

    def exec_driver_sql(self, statement: str, parameters: object) -> object: ...


class _Executes(Protocol):
    def execute(self, statement: str, parameters: object) -> object: ...


class _HasCursor(Protocol):
    def cursor(self) -> _Executes: ...


def written(statement: str, style: str, values: Values) -> tuple[str, object]:
    """Return a statement and its parameters as a driver wants them."""
    names = _NAME.findall(statement)
    match style:
        case "named":
            return statement, dict(values)
        case "pyformat" | "format":
            return _NAME.sub(r"%(\1)s", statement), dict(values)
        case "qmark":
            return _NAME.sub("?", statement), tuple(values[name] for name in names)
        case "numeric_dollar":
            order = list(dict.fromkeys(names))
            text = _NAME.sub(lambda found: f"${order.index(found[1]) + 1}", statement)
            return text, tuple(values[name] for name in order)
        case _:
            raise TypeError(f"a driver whose parameters are written as {style!r} is not known here")


def _begun(connection: Connection, statement: str, values: Values) -> object:
    """Execute one statement; what comes back is a cursor, or awaitable."""
    text, parameters = written(statement, _style(connection), values)
    if hasattr(connection, "exec_driver_sql"):
        return cast("_Alchemy", connection).exec_driver_sql(text, parameters)
    if hasattr(connection, "execute"):
        return cast("_Executes", connection).execute(text, parameters)
    cursor = cast("_HasCursor", connection).cursor()
    cursor.execute(text, parameters)
    return cursor


def _first(rows: object) -> Row | None:
    found = next(iter(cast("Sequence[Row | Mapping[str, object]]", rows)), None)
    # A row factory of the owner may make dictionaries of them, in the order of the columns.
    return tuple(found.values()) if isinstance(found, Mapping) else found


def _fetched(cursor: _Cursor) -> object:
    has_rows = getattr(cursor, "returns_rows", None)  # SQLAlchemy says so itself
    if has_rows is None:
        has_rows = cursor.description is not None
    # All of them: sqlite3 goes on with a statement only as its rows are read.
    return cursor.fetchall() if has_rows else ()


def run(connection: Connection, steps: Steps[T]) -> T:
    """Carry steps out on a connection that blocks. Commits nothing.

    Raises:
        TypeError: The connection is an asynchronous one.
    """
    row: Row | None = None
    try:
        while True:
            statement, values = steps.send(row)
            cursor = _begun(connection, statement, values)
            if inspect.isawaitable(cursor):
                if (close := getattr(cursor, "close", None)) is not None:
                    close()  # it is not begun, and never will be
                raise TypeError("this connection is asynchronous: await the …_async method")
            row = _first(_fetched(cast("_Cursor", cursor)))
    except StopIteration as end:
        return cast("T", end.value)


async def run_async(connection: Connection, steps: Steps[T]) -> T:
    """Carry steps out on a connection of either kind. Commits nothing."""
    row: Row | None = None
    try:
        while True:
            statement, values = steps.send(row)
            cursor = _begun(connection, statement, values)
            if inspect.isawaitable(cursor):
                cursor = await cursor
            found = _fetched(cast("_Cursor", cursor))
            if inspect.isawaitable(found):
                found = await found
            row = _first(found)
    except StopIteration as end:
        return cast("T", end.value)


class Transactions:
    """Runs steps in transactions of the owner's database, each in one of its own.

    Args:
        transaction: Returns a context manager of either kind that begins a transaction, gives the
            connection, and commits at its end: `engine.begin`, `pool.connection`, a
            `@contextmanager`, or `lambda: sqlite3.connect("shop.db")`.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._is_async = False
        # Threads of its own: those of the application may all be waiting for a lock.
        self._threads: anyio.CapacityLimiter | None = None

    def run(self, steps: Callable[[], Steps[T]]) -> T:
        """Run in a transaction, and block until it is committed.

        Raises:
            TypeError: The transactions are asynchronous ones.
        """
        found = self._run(steps)
        if isinstance(found, _Asynchronous):
            raise TypeError("these transactions are asynchronous; here they must block")
        return found

    async def run_async(self, steps: Callable[[], Steps[T]]) -> T:
        """Run in a transaction, on a thread if it blocks, and return once it is committed."""
        if not self._is_async:
            if self._threads is None:
                self._threads = anyio.CapacityLimiter(THREADS)
            found = await anyio.to_thread.run_sync(self._run, steps, limiter=self._threads)
            if not isinstance(found, _Asynchronous):
                return found
            self._is_async = True
        manager = self._transaction()
        if not isinstance(manager, AbstractAsyncContextManager):
            raise TypeError("transaction() gave an asynchronous transaction before, and now none")
        async with manager as connection:
            return await run_async(connection, steps())

    def _run(self, steps: Callable[[], Steps[T]]) -> "T | _Asynchronous":
        manager = self._transaction()
        if isinstance(manager, AbstractAsyncContextManager):
            return _Asynchronous()
        with manager as connection:
            result = run(connection, steps())
        if connection is manager and hasattr(connection, "close"):
            connection.close()  # sqlite3 leaves it open at the end of the block
        return result


class _Asynchronous:
    """Says that transactions have to be run on the event loop."""
