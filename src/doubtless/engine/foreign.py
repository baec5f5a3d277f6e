"""Operations that are prepared in a transaction on the user's own PostgreSQL connection.

A unit of ours blocks, and most of their connections belong to an event loop. So the unit runs in a
thread, and hands each of its statements to the task that asked for it: nobody else ever uses the
connection, and when that task is cancelled, the unit is taken back before it goes on.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

from doubtless.core.outcome import Outcome
from doubtless.engine.drafting import Ask
from doubtless.engine.inside import BLOCKING
from doubtless.engine.opened import OpenApp
from doubtless.errors import ForeignConnection
from doubtless.ledger import bodies, foreign_drivers
from doubtless.ledger.codec import Value, text_of
from doubtless.ledger.foreign import FAILED, WHERE, Driver, Home, within
from doubtless.ledger.foreign_drivers import Answer, AsyncDriver, DriverFailed, SyncDriver
from doubtless.ledger.postgres_errors import IN_FAILED_TRANSACTION
from doubtless.ledger.store import IDENTITY, Transaction

T = TypeVar("T")

SQLITE: Final = (
    "a connection that doubtless did not open can't share a transaction with a SQLite ledger: as "
    "soon as anything else in this process closes the ledger's file, SQLite's locks on it are "
    "dropped, and commits of other processes are lost. Use `async with app.transaction() as tx`, "
    "and do your own changes with tx.run"
)
ON_FILE: Final = (
    "the ledger is a SQLite file, and a transaction on PostgreSQL can't commit together with it. "
    "Put the ledger into the database of your tables (postgresql://…), or prepare after your own "
    "commit, under an operation_id that stands in it"
)
UNKNOWN: Final = (
    "{name} is no connection that a ledger could share. Use `async with app.transaction() as tx`"
)
OTHER_LOOP: Final = (
    "a blocking application can't wait for a connection that belongs to an event loop: give it a "
    "connection that blocks, or use `async with Doubtless(…)` on that loop"
)


async def prepare(
    opened: OpenApp, connection: object, ask: Ask, unit: Callable[[Transaction], Outcome]
) -> Outcome:
    """Run `unit`, which prepares `ask`, in the open transaction of the user's connection.

    Raises:
        ForeignConnection: It can't be shared, with the reason and what to do.
        LedgerUnavailable: The connection failed, or others were at the same operation or object.
    """
    place = opened.ledger.on_server
    refuse_by_kind(connection, on_server=place is not None)
    assert place is not None  # noqa: S101 - it would have been refused
    driver = await _driver(connection)
    await _keep_contract(opened, ask)

    def look(tx: Transaction) -> Home:
        schema, shown = place
        ledger_id = text_of(tx.tuples(IDENTITY)[0][0])
        return Home(schema=schema, shown=shown, ledger_id=ledger_id, where=tx.tuples(WHERE)[0])

    home = opened.ledger.read(look)
    return await on_loop(driver, lambda over_there: within(over_there, home, unit))


async def _driver(connection: object) -> AsyncDriver:
    try:
        if foreign_drivers.home_of(connection) == "sqlalchemy":
            if foreign_drivers.is_async(connection):
                _refuse_other_loop()
                connection = await foreign_drivers.unwrap_async(connection)
            else:
                unwrap = foreign_drivers.unwrap
                connection = await anyio.to_thread.run_sync(unwrap, connection)
    except DriverFailed as error:
        if error.state == IN_FAILED_TRANSACTION:
            raise ForeignConnection(FAILED) from error
        raise ForeignConnection(f"your connection takes no statement: {error}") from error
    driver = foreign_drivers.driver_of(connection)
    if isinstance(driver, AsyncDriver):
        _refuse_other_loop()
        return driver
    return _in_threads(driver)


def _refuse_other_loop() -> None:
    if BLOCKING.get():
        raise ForeignConnection(OTHER_LOOP)


def _in_threads(driver: SyncDriver) -> AsyncDriver:
    async def ask(sql: str, values: tuple[Value, ...]) -> Answer:
        return await anyio.to_thread.run_sync(driver.ask, sql, values)

    return AsyncDriver(ask, driver.cut)


async def _keep_contract(opened: OpenApp, ask: Ask) -> None:
    """Commit the contract's snapshot first: two who add the same one would wait for each other."""
    book, tool = opened.book, ask.tool
    if tool.digest not in book.kept:
        await opened.ledger.commit(
            lambda tx: bodies.put_contract(tx, book.tenant, tool.digest, tool.snapshot)
        )
        book.kept.add(tool.digest)


def refuse_by_kind(connection: object, *, on_server: bool) -> None:
    """Refuse what is no connection to the kind of database that the ledger stands in.

    Raises:
        ForeignConnection: With the reason for its kind.
    """
    home = foreign_drivers.home_of(connection)
    if home == "sqlalchemy":
        home = foreign_drivers.dialect_of(connection) or home
    if home == "sqlite" or home in foreign_drivers.SQLITE:
        raise ForeignConnection(SQLITE)
    if home not in foreign_drivers.KNOWN and home != "postgresql":
        name = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise ForeignConnection(UNKNOWN.format(name=name))
    if not on_server:
        raise ForeignConnection(ON_FILE)


# --- a unit in a thread, its statements in the task ----------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    sql: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class _Ended:
    value: object
    error: BaseException | None


_Told: TypeAlias = "Answer | BaseException"


class _Bridge:
    """The user's connection, as the thread of a unit sees it."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._loop = asyncio.get_running_loop()
        self._cut = driver.cut
        self.told: SimpleQueue[_Told] = SimpleQueue()
        self.asked: asyncio.Queue[_Asked | _Ended] = asyncio.Queue()

    def say(self, what: _Asked | _Ended) -> None:
        self._loop.call_soon_threadsafe(self.asked.put_nowait, what)

    def ask(self, sql: str, values: tuple[Value, ...]) -> Answer:
        self.say(_Asked(sql, values))
        told = self.told.get()
        if isinstance(told, BaseException):
            raise told
        return told

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._cut)

    def run(self, work: Callable[[Driver], object]) -> None:
        try:
            self.say(_Ended(work(self), None))
        except BaseException as error:  # noqa: BLE001 - it belongs to the task, whatever it is
            self.say(_Ended(None, error))


class _Waits:
    """A task that waits for others, and remembers that it was cancelled meanwhile."""

    def __init__(self) -> None:
        self.cancelled: asyncio.CancelledError | None = None

    async def wait(self, step: asyncio.Future[Any], *, stops: bool = True) -> None:
        """Wait until `step` has ended. At the first cancellation it is stopped, if it can be."""
        while not step.done():
            try:
                with anyio.CancelScope(shield=self.cancelled is not None):
                    await asyncio.wait({step})
            except asyncio.CancelledError as error:
                if stops and self.cancelled is None:
                    step.cancel()  # once: a driver needs its time to stop a statement
                self.cancelled = error


async def on_loop(driver: AsyncDriver, work: Callable[[Driver], T]) -> T:
    """Run `work` in a thread, and its statements here. If it is cancelled, `work` ends first."""
    bridge, waits = _Bridge(driver), _Waits()
    threading.Thread(target=bridge.run, args=(work,), name="doubtless-unit", daemon=True).start()
    is_told = False  # the unit knows that it is cancelled
    while True:
        getting = asyncio.ensure_future(bridge.asked.get())
        await waits.wait(getting, stops=False)
        asked = getting.result()
        if isinstance(asked, _Ended):
            break
        if waits.cancelled is not None and not is_told:
            is_told = True
            bridge.told.put(waits.cancelled)
            continue
        step = asyncio.ensure_future(driver.ask(asked.sql, asked.values))
        await waits.wait(step)
        if step.cancelled():
            is_told = True
            bridge.told.put(asyncio.CancelledError())
        else:
            bridge.told.put(step.exception() or step.result())
    if waits.cancelled is not None:
        raise waits.cancelled
    if asked.error is not None:
        raise asked.error
    return cast("T", asked.value)
