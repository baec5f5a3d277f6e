"""A transaction of the user's: their tables and our operations, committed together or not at all.

It has a connection of its own and holds the ledger's write lock while it is open, so that nobody
else can write: it is rolled back when its time is over, from a thread that nothing in the program
holds up.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol, TypeVar

from doubtless.errors import (
    LedgerError,
    LedgerUnavailable,
    TransactionError,
    TransactionOver,
    TransactionTimedOut,
)
from doubtless.ledger import sqlite
from doubtless.ledger.codec import Value
from doubtless.ledger.group import RERUNS_MAX, TOUCH
from doubtless.ledger.migrate import Connection
from doubtless.ledger.outbox_sqlite import SqliteDesk
from doubtless.ledger.transaction import (
    AlreadyThere,
    LedgerConflict,
    Session,
    Times,
    Transaction,
)

T = TypeVar("T")

INTERRUPT_S: Final = 0.01  # between two tries to stop a statement that runs on


class Desk(Protocol):
    """A connection on which the user's statements and our units take turns."""

    @property
    def session(self) -> "DeskSession":
        """The connection."""
        ...

    def begin(self) -> Times:
        """Open a transaction that keeps others from writing, and tell the time."""
        ...

    def run(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run a statement of theirs and return how many rows it changed."""
        ...

    def rows(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Run a statement of theirs and return its rows."""
        ...

    def ours(self) -> AbstractContextManager[None]:
        """Run a unit of ours."""
        ...

    def conclude(self) -> None:
        """Judge what they left to be judged at the end."""
        ...

    def rollback(self) -> None:
        """Take everything back."""
        ...


class DeskSession(Session, Protocol):
    """A session that another thread can interrupt."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def interrupt(self) -> None:
        """Stop the statement that is running, if one is. From any thread."""
        ...


def desk(connection: Connection, *, clock: Callable[[], int], limit_s: float) -> Desk:
    """Return the desk for a connection of either kind."""
    if isinstance(connection, sqlite.Connection):
        return SqliteDesk(connection, clock=clock)
    from doubtless.ledger.outbox_postgres import PostgresDesk  # noqa: PLC0415 - an extra's

    return PostgresDesk(connection, limit_s=limit_s)


class UserTransaction:
    """One transaction. Its methods block; any thread may call them, one at a time.

    Args:
        connection: Of its own. Closed by `close`.
        clock: The wall clock in milliseconds.
        limit_s: How long it may be open, in seconds.
    """

    def __init__(self, connection: Connection, *, clock: Callable[[], int], limit_s: float) -> None:
        self._desk: Final = desk(connection, clock=clock, limit_s=limit_s)
        self._session: Final = self._desk.session
        self._limit_s: Final = limit_s
        self._end_s = 0.0  # when its time is over
        self._using = threading.Lock()  # held while the connection is in use
        self._turning = threading.Lock()  # held while it is decided how it ends
        self._timer: threading.Timer | None = None
        self._transaction: Transaction | None = None
        self._end: TransactionError | LedgerError | None = None  # why it can't be used any more
        self._committing = False

    @property
    def is_open(self) -> bool:
        """Whether it holds the write lock."""
        return self._transaction is not None

    # --- its course ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the write lock; wait for others who have it.

        Raises:
            LedgerUnavailable: Another process kept it for too long, or the disk failed.
        """
        with self._using:
            if self._end is not None:
                raise self._end
            try:
                now_ms, wall_ms, break_ms = self._desk.begin()
            except BaseException:
                with suppress(LedgerUnavailable):
                    self._desk.rollback()
                raise
            self._transaction = Transaction(
                self._session, now_ms=now_ms, wall_ms=wall_ms, break_ms=break_ms
            )
            self._end_s = time.monotonic() + self._limit_s
            self._timer = threading.Timer(self._limit_s, self.expire)
            self._timer.daemon = True
            self._timer.start()

    def expire(self) -> None:
        """Roll it back because its time is over; a statement that is running is stopped."""
        with self._turning:
            if self._committing or self._end is not None or not self.is_open:
                return
            self._end = TransactionTimedOut(self._limit_s)
        while not self._using.acquire(timeout=INTERRUPT_S):
            self._session.interrupt()  # again and again: it stops only what has begun by then
        try:
            self._take_back()
        finally:
            self._using.release()

    def commit(self) -> None:
        """Make everything durable, the user's changes and the operations.

        Raises:
            TransactionError: It was rolled back before.
            LedgerError: A constraint that is judged only at the end said no. Nothing is recorded.
            CommitUnknown: A connection was lost: what became of it is to be found out.
            LedgerUnavailable: The disk failed. `mend` says whether nothing of it is recorded.
        """
        with self._use() as tx:
            self._desk.conclude()
            tx.announce()
        with self._use():
            with self._turning:
                if self._end is not None:
                    raise self._end
                self._committing = True
            try:
                self._session.commit()
            finally:
                self._over(TransactionOver("this transaction has ended"))
                with suppress(LedgerUnavailable):
                    self._session.rollback()

    def rollback(self) -> None:
        """Take everything back. More than once is allowed, and it never raises."""
        with self._using:
            self._take_back()

    def _take_back(self) -> None:
        self._over(TransactionOver("this transaction was rolled back"))
        with suppress(LedgerUnavailable):
            self._desk.rollback()

    def _over(self, why: TransactionError | LedgerError) -> None:
        self._transaction = None
        if self._end is None:
            self._end = why
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close its connection."""
        self.rollback()
        with self._using:
            self._session.close()

    # --- what is done in it ----------------------------------------------------------------------

    def run(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run a statement of the user's and return how many rows it changed."""
        with self._use():
            return self._desk.run(sql, params)

    def rows(self, sql: str, params: Mapping[str, Value]) -> list[Mapping[str, Value]]:
        """Run a statement of the user's and return its rows."""
        with self._use():
            return list(self._desk.rows(sql, params))

    def unit(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of ours. If it raises, it is taken back alone.

        Where a transaction that takes no turns came between two statements, it is run again.
        """
        with self._use() as tx, self._desk.ours():
            for _ in range(RERUNS_MAX):
                try:
                    return self._one(tx, work)
                except (AlreadyThere, LedgerConflict):
                    if self._session.broken is not None:
                        raise  # a deadlock: the whole transaction is lost
            return self._one(tx, work)

    def _one(self, tx: Transaction, work: Callable[[Transaction], T]) -> T:
        self._session.savepoint()
        told = len(tx.told)
        try:
            value = work(tx)
            tx.flush()
            self._session.keep()
        except BaseException:
            tx.forget()
            del tx.told[told:]
            if self._session.broken is None:
                self._session.undo()
            raise
        return value

    @contextmanager
    def _use(self) -> Iterator[Transaction]:
        """Hold the connection, and know afterwards whether the transaction still stands."""
        with self._using:
            tx = self._transaction
            if self._end is not None or tx is None:
                raise self._end or TransactionOver("this transaction has not begun")
            try:
                yield tx
            except BaseException as error:
                ended = self._ended()
                if ended is not None:
                    raise ended from error
                raise
            ended = self._ended()
            if ended is not None:
                raise ended

    def _ended(self) -> TransactionError | LedgerError | None:
        """Return what has ended the transaction: time, a failing disk, a statement of theirs."""
        if self._committing:
            return None  # `commit` says itself how it ended
        if self._end is not None:
            return self._end
        if self._session.broken is not None:
            # A server ends the session of a process that stood still for too long.
            late = time.monotonic() >= self._end_s
            self._over(TransactionTimedOut(self._limit_s) if late else self._session.broken)
        elif not self._session.in_transaction:
            why = "a statement rolled the whole transaction back: nothing of it was recorded"
            self._over(TransactionOver(why))
        else:
            return None
        with suppress(LedgerUnavailable):
            self._session.rollback()
        return self._end


def touch(tx: Transaction) -> None:
    """Change something in the ledger: what a failed commit left in its log is written over."""
    tx.run(TOUCH)
