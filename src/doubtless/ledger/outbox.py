"""A transaction of the user's: their tables and our operations, committed together or not at all.

It has a connection of its own and holds SQLite's write lock while it is open, so that nobody else
can write: it is rolled back when its time is over, from a thread that nothing in the program holds
up. What the user's statements may not do is refused before it is done.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isnan
from typing import Final, TypeVar

from doubtless.errors import (
    LedgerError,
    LedgerUnavailable,
    StatementRefused,
    TransactionError,
    TransactionOver,
    TransactionTimedOut,
)
from doubtless.ledger import migrate
from doubtless.ledger.codec import Value, integer_of
from doubtless.ledger.group import FLOOR, TOUCH
from doubtless.ledger.sqlite import Connection
from doubtless.ledger.transaction import Transaction

T = TypeVar("T")

INTERRUPT_S: Final = 0.01  # between two tries to stop a statement that runs on

HARMLESS: Final = frozenset({"SELECT", "READ", "RECURSIVE", "REINDEX"})
ASKING: Final = frozenset(
    {
        "application_id",
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "foreign_key_check",
        "foreign_key_list",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
"""Pragmas that only tell something, whatever they are given."""
TELLING: Final = frozenset({"encoding", "foreign_keys", "journal_mode", "synchronous"})
"""Pragmas that only tell something as long as they are given nothing."""


def judge(action: str, names: Sequence[str]) -> str | None:
    """Say why a statement of the user's may not do something, or None.

    Args:
        action: SQLite's name of it (see its `sqlite3_set_authorizer`).
        names: What it concerns: two names that depend on the action, the database, the trigger.
    """
    first, second = names[0].lower(), names[1].lower()
    match action:
        case _ if action in HARMLESS:
            return None
        case "TRANSACTION" | "SAVEPOINT":
            return "the block itself begins and ends its transaction: leave it, or raise"
        case "ATTACH" | "DETACH":
            return "another database can't be part of the transaction (nor can it be vacuumed)"
        case "PRAGMA":
            asks = first in ASKING or (first in TELLING and not second)
            return None if asks else f"pragma {names[0]} may not be set in a transaction"
        case "FUNCTION":
            return "extensions are not loaded here" if second == "load_extension" else None
    ours = migrate.own_names()
    for name, shown in ((first, names[0]), (second, names[1])):
        if name in ours:
            return f"{shown} is a table or an index of the ledger's own: only doubtless changes it"
    return None


class UserTransaction:
    """One transaction. Its methods block; any thread may call them, one at a time.

    Args:
        connection: Of its own. Closed by `close`.
        clock: The wall clock in milliseconds.
        limit_s: How long it may be open, in seconds.
    """

    def __init__(self, connection: Connection, *, clock: Callable[[], int], limit_s: float) -> None:
        self._session: Final = connection
        self._clock: Final = clock
        self._limit_s: Final = limit_s
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
            self._session.begin(write=True)
            try:
                wall_ms = self._clock()
                now_ms, break_ms = self._session.execute(FLOOR, {"wall_ms": wall_ms})[0]
                self._session.guard(judge)
            except BaseException:
                self._session.rollback()
                raise
            self._transaction = Transaction(
                self._session,
                now_ms=integer_of(now_ms),
                wall_ms=wall_ms,
                break_ms=integer_of(break_ms),
            )
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
            LedgerUnavailable: The disk failed. `mend` says whether nothing of it is recorded.
        """
        with self._use():
            with self._turning:
                if self._end is not None:
                    raise self._end
                self._committing = True
            self._session.guard(None)
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
            self._session.guard(None)
            self._session.rollback()

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
        with self._statement(params) as tx:
            return tx.run(sql, **params)

    def rows(self, sql: str, params: Mapping[str, Value]) -> list[Mapping[str, Value]]:
        """Run a statement of the user's and return its rows."""
        with self._statement(params) as tx:
            return tx.rows(sql, **params)

    def unit(self, work: Callable[[Transaction], T]) -> T:
        """Run a unit of ours. If it raises, it is taken back alone."""
        with self._use() as tx:
            self._session.guard(None)
            try:
                return self._one(tx, work)
            finally:
                self._session.guard(judge)

    def _one(self, tx: Transaction, work: Callable[[Transaction], T]) -> T:
        self._session.savepoint()
        try:
            value = work(tx)
            tx.flush()
        except BaseException:
            tx.forget()
            if self._session.broken is None:
                self._session.undo()
            raise
        self._session.keep()
        return value

    @contextmanager
    def _statement(self, params: Mapping[str, Value]) -> Iterator[Transaction]:
        for name, value in params.items():
            if isinstance(value, float) and isnan(value):
                raise ValueError(f":{name} is NaN, which SQLite would store as null")
        with self._use() as tx:
            self._session.refused = None
            try:
                yield tx
            except KeyError as error:
                raise StatementRefused(f"no value was given for :{error.args[0]}") from None

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
            self._over(self._session.broken)
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
