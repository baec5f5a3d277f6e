"""Open a ledger, and run units of work in it.

One thread writes, and commits the units of concurrent callers together; a caller is answered only
after its unit is durable. Open a ledger after forking, not before: the thread would not be there.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar, cast

import anyio

from doubtless.errors import LedgerError, LedgerUnavailable
from doubtless.ledger import migrate, sqlite
from doubtless.ledger.codec import text_of
from doubtless.ledger.group import Answer, Group, Stats, Unit, read_with
from doubtless.ledger.news import News
from doubtless.ledger.transaction import ConnectionLost, Session, Transaction

if TYPE_CHECKING:
    from doubtless.ledger.postgres_listener import Listener

__all__ = ["Ledger", "Stats", "Transaction", "open_ledger"]

T = TypeVar("T")
Done: TypeAlias = Callable[[object, BaseException | None], None]

BATCH_UNITS_MAX: Final = 64
BATCH_WORK_MAX_S: Final = 0.05  # how long the first of a batch waits for the others
READERS_MAX: Final = 8  # idle read connections that are kept

_log: Final = logging.getLogger("doubtless.ledger")


def wall_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A coroutine that waits for its unit."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[object]


Sink: TypeAlias = Done | _Waiter


def open_ledger(
    url: str,
    *,
    clock: Callable[[], int] = wall_ms,
    inline: bool = False,
    entropy: Callable[[int], bytes] = os.urandom,
) -> "Ledger":
    """Open a ledger; create it if the file is absent or empty.

    Args:
        url: `sqlite:///relative.db` or `sqlite:////absolute.db`. `sqlite://` is in memory, gone
            when it is closed: for tests and simulation only. Or `postgresql://user@host/database`,
            any URI of libpq; `schema=` in it names another one than "doubtless".
        clock: The wall clock in milliseconds. A PostgreSQL ledger goes by the server's alone.
        inline: No thread: units run and commit at once, in the calling thread, which must be the
            only one. For the deterministic simulator.
        entropy: Gives that many random bytes, for the id of a new ledger.

    Raises:
        LedgerOutdated: the schema is older (the text names the command) or newer than this release.
        LedgerUnsafe: the database would not keep what it acknowledges.
        LedgerUnavailable: it can't be opened or read.
        LedgerError: the address, or the file behind it, is no ledger.
    """
    place = migrate.parse(url)
    connection = migrate.open_connection(place)
    try:
        migrate.prepare(connection, now_ms=clock(), entropy=entropy)
        return Ledger(place, connection, clock=clock, inline=inline)
    except BaseException:
        connection.close()
        raise


IDENTITY: Final = "select ledger_id from meta where tenant = 'main'"


class Ledger:
    """An open ledger. Made by `open_ledger`; any thread may use it, unless it is inline."""

    def __init__(
        self,
        place: migrate.Place,
        connection: migrate.Connection,
        *,
        clock: Callable[[], int],
        inline: bool,
    ) -> None:
        self.id: Final = bytes.fromhex(text_of(connection.execute(IDENTITY, {})[0][0]))
        """16 random bytes, made when the ledger was created."""
        self._place: Final = place
        self._clock: Final = clock
        self._inline: Final = inline
        self._voice: Final = os.urandom(4).hex()  # it tells its own news from those of others
        self._listener: Listener | None = None
        self._group: Final = Group[Sink](
            connection,
            renew=None if place.in_memory else self._connect,
            clock=clock,
            announce=self._announce,
        )
        self._queue: Final = SimpleQueue[Unit[Sink] | None]()
        self._readers: Final[list[Session]] = []
        self._gate: Final = threading.Lock()  # nothing is queued behind the end
        self._closed = False
        self._thread: threading.Thread | None = None
        if not inline:
            self._thread = threading.Thread(
                target=self._write_on, name="doubtless-ledger", daemon=True
            )
            self._thread.start()

    @property
    def is_shared(self) -> bool:
        """Whether workers anywhere may be on it, and hear of one another."""
        return not isinstance(self._place, sqlite.Place) and not self._inline

    async def listen(self, heard: Callable[[News], None]) -> None:
        """Call `heard` with what other processes tell of their commits, until it is cancelled.

        Only for a ledger that is shared. Whatever is missed is told at the next connection with
        `ANYTHING`, so `heard` must do no more than look sooner than it would have.
        """
        from doubtless.ledger.postgres_listener import Listener  # noqa: PLC0415 - an extra's

        if isinstance(self._place, sqlite.Place):
            raise LedgerError("a file tells nobody of its commits")
        self._listener = Listener(self._place, self._voice)
        try:
            await self._listener.run(heard)
        finally:
            self._listener = None

    @property
    def is_alone(self) -> bool:
        """Whether nobody else listens, as far as is known: then nobody is told of commits."""
        return self._listener is not None and self._listener.alone

    def _announce(self, tx: Transaction) -> None:
        if not self.is_alone:
            tx.announce(self._voice)

    @property
    def on_server(self) -> tuple[str, str] | None:
        """The schema that it stands in, and how its address is shown; None if it is a file."""
        place = self._place
        return None if isinstance(place, sqlite.Place) else (place.schema, place.shown)

    @property
    def stats(self) -> Stats:
        """Batches and units committed so far."""
        return self._group.stats

    def submit(
        self,
        work: Callable[[Transaction], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run `work` in a transaction and call `done` once it is durable, or has failed.

        `done(value, None)` or `done(None, error)` is called on the ledger's thread: it must be
        quick and must not raise. `work` must touch nothing but the transaction and its own values,
        since it may be taken back. Units run in the order of their submission.

        Raises:
            LedgerUnavailable: the ledger is closed.
        """
        self._put((work, cast("Done", done)))

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction, and return its value once it is durable. Blocks.

        Raises:
            LedgerUnavailable: the commit failed, or the ledger is closed.
            LedgerError: it was called from within a unit, which would wait for itself.
            BaseException: what `work` raised; then nothing of it was recorded.
        """
        if threading.current_thread() is self._thread:
            raise LedgerError("a unit of work can't wait for another one")
        found: list[tuple[object, BaseException | None]] = []
        ready = threading.Lock()
        ready.acquire()

        def done(value: object, error: BaseException | None) -> None:
            found.append((value, error))
            ready.release()

        self._put((work, done))
        ready.acquire()
        value, error = found[0]
        if error is not None:
            raise error
        return cast("T", value)

    async def commit(
        self, work: Callable[[Transaction], T], *, then: Callable[[T], None] | None = None
    ) -> T:
        """Run `work` in a transaction, and return its value once it is durable. For asyncio.

        Args:
            work: The unit.
            then: Called with its value on the event loop once it is durable, before the caller goes
                on, and even if the caller was cancelled meanwhile. It must not raise.

        Shielded from the cancellation of anyio's scopes, which takes effect after the answer. A
        task that is cancelled by asyncio itself leaves at once; the unit is committed as a whole
        all the same, or not at all.

        Raises: what `write` raises.
        """
        if self._inline:
            value = self.write(work)
            if then is not None:
                then(value)
            return value
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        future.add_done_callback(_heard)
        if then is not None:
            future.add_done_callback(partial(_go_on, cast("Callable[[object], None]", then)))
        self._put((work, _Waiter(loop, future)))
        answer: object = None
        with anyio.CancelScope(shield=True):
            # A cancelled task would cancel the future itself, and with it what comes then.
            answer = await asyncio.shield(future)
        return cast("T", answer)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` on a snapshot that holds all that was acknowledged. Blocks, changes nothing.

        Raises:
            LedgerUnavailable: the ledger can't be read, is closed, or `work` tried to write.
        """
        if self._closed:
            raise LedgerUnavailable("the ledger is closed")
        if self._inline:
            return cast("T", self._group.read(work))
        if self._place.in_memory:  # there is one connection, and the thread has it
            return self.write(work)
        try:
            session = self._readers.pop()
        except IndexError:
            session = self._connect(reads_only=True)
        try:
            return cast("T", read_with(session, self._clock, work))
        except ConnectionLost:  # it may have been idle for long
            session.close()
            while self._readers:
                self._readers.pop().close()
            session = self._connect(reads_only=True)
            return cast("T", read_with(session, self._clock, work))
        finally:
            self._put_back(session)

    def connect(self) -> migrate.Connection:
        """Open a connection of its own, as durable as the others; whoever asks closes it.

        Raises:
            LedgerUnavailable: the ledger is closed, or can't be opened.
            LedgerError: it is in memory, where there is no other connection.
        """
        if self._closed:
            raise LedgerUnavailable("the ledger is closed")
        if self._place.in_memory or self._inline:
            raise LedgerError("a ledger in memory has one connection alone: use sqlite:///path.db")
        connection = self._place.connect()
        migrate.watch(connection)
        return connection

    def _connect(self, *, reads_only: bool = False) -> migrate.Connection:
        connection = self._place.connect(reads_only=reads_only)
        try:
            if reads_only:
                migrate.watch(connection)
            else:
                migrate.admit(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _put_back(self, session: Session) -> None:
        if session.broken is None and not self._closed and len(self._readers) < READERS_MAX:
            self._readers.append(session)
        else:
            session.close()

    def close(self) -> None:
        """Finish what was submitted, and close. More than once is allowed."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        while self._readers:
            self._readers.pop().close()
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _put(self, unit: Unit[Sink]) -> None:
        with self._gate:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed")
            if not self._inline:
                self._queue.put(unit)
        if self._inline:
            _deliver(self._group.run(iter((unit,))))

    def _write_on(self) -> None:
        while (first := self._queue.get()) is not None:
            _deliver(self._group.run(self._gather(first)))

    def _gather(self, first: Unit[Sink]) -> Iterator[Unit[Sink]]:
        """Yield `first` and what else is waiting, within the bounds of one batch."""
        yield first
        take = self._queue.get_nowait
        end_s = time.monotonic() + BATCH_WORK_MAX_S
        for _ in range(BATCH_UNITS_MAX - 1):
            if time.monotonic() > end_s:
                return
            try:
                unit = take()
            except Empty:
                return
            if unit is None:
                self._queue.put(None)  # nothing comes after it: the gate is closed
                return
            yield unit


def _deliver(answers: list[Answer[Sink]]) -> None:
    """Answer every caller; those of one event loop with one wake-up of it."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer[_Waiter]]] = {}
    for sink, value, error in answers:
        if isinstance(sink, _Waiter):
            by_loop.setdefault(sink.loop, []).append((sink, value, error))
    for loop, waiting in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, waiting)
    for sink, value, error in answers:
        if not isinstance(sink, _Waiter):
            try:
                sink(value, error)
            except Exception:  # noqa: BLE001 - the others are still to be answered
                _log.exception("a caller of the ledger could not take its answer")


def _heard(future: "asyncio.Future[object]") -> None:
    """Take note of what a unit raised: a caller that was cancelled won't, and asyncio complains."""
    if not future.cancelled():
        future.exception()


def _go_on(then: Callable[[object], None], future: "asyncio.Future[object]") -> None:
    if not future.cancelled() and future.exception() is None:
        then(future.result())


def _resolve(waiting: list[Answer[_Waiter]]) -> None:
    for waiter, value, error in waiting:
        if waiter.future.done():
            continue
        if error is None:
            waiter.future.set_result(value)
        else:
            waiter.future.set_exception(error)
