"""The transactional outbox: the user's own tables, the operation and its command in one commit.

What is prepared here is carried out by a worker after the commit, once, whatever happens between:
commit, and it will be done; roll back, and it never existed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
import anyio.to_thread

from doubtless.core.model import Json
from doubtless.core.outcome import OUTCOMES, Outcome, Status
from doubtless.engine import drafting, foreign, intake, reports
from doubtless.engine.drafting import Ask
from doubtless.engine.inside import INSIDE, stay_out
from doubtless.engine.opened import OpenApp
from doubtless.engine.surface import Surface
from doubtless.errors import (
    LedgerError,
    LedgerUnavailable,
    NotPrepared,
    SettingsError,
    TransactionOver,
    TransactionTimedOut,
)
from doubtless.ledger.codec import Value
from doubtless.ledger.group import IN_DOUBT, NOTHING, SETTLE_PAUSE_S, SETTLE_S
from doubtless.ledger.outbox import UserTransaction, touch
from doubtless.ledger.sqlite import BUSY_TIMEOUT_S
from doubtless.ledger.store import Transaction
from doubtless.ledger.transaction import CommitUnknown

T = TypeVar("T")


class UserTx:
    """A transaction of the user's, for the task that opened it. Made by `app.transaction()`.

    Statements take their values by name: `await tx.run("… where id = :id", id=7)`. Values are
    text, numbers, bytes or None. The ledger's own tables can be read and never be written.
    """

    def __init__(self, opened: OpenApp, draft: Callable[..., Ask]) -> None:
        self._opened, self._draft = opened, draft
        self._inner: UserTransaction | None = None
        self._limit_s = opened.transaction_timeout_s
        self._scope = anyio.CancelScope()
        self._used = self._given_up = False
        self._digests: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether it holds the ledger's write lock."""
        return self._inner is not None and self._inner.is_open

    # --- its course ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the ledger's write lock, after whoever has it in this process or another one.

        Raises:
            InsideTransaction: This task has one open already.
            LedgerUnavailable: Another process kept the lock for too long, or the disk failed.
        """
        stay_out("app.transaction")
        if self._used:
            raise TransactionOver("a transaction is used once: call app.transaction() again")
        self._used = True
        opened = self._opened
        contended = opened.transactions.value == 0
        await opened.transactions.acquire()
        try:
            if contended:
                # Between two transactions the calls of other tasks have their turn.
                await opened.ledger.commit(_nothing)
            await self._begin()
        except BaseException:
            self._abandon()
            raise
        INSIDE.set(self)
        self._scope = anyio.CancelScope(deadline=anyio.current_time() + self._limit_s)
        self._scope.__enter__()
        return self

    async def _begin(self) -> None:
        clock, limit_s = self._opened.book.surroundings.wall_ms, self._limit_s

        def begin() -> None:
            connection = self._opened.ledger.connect()
            inner = self._inner = UserTransaction(connection, clock=clock, limit_s=limit_s)
            try:
                inner.begin()
            except BaseException:
                inner.close()
                raise
            if self._given_up:
                inner.close()

        await self._hop(begin)

    def _abandon(self) -> None:
        """Leave a transaction that did not come to be, also if its thread is still at it."""
        self._given_up = True
        if self._inner is not None:
            self._inner.expire()
        self._opened.transactions.release()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; or roll back and raise, if an exception leaves the block or its time is over.

        Raises:
            TransactionTimedOut: It was open for too long. Nothing of it is recorded.
            LedgerUnavailable: The disk failed; the text says whether anything is recorded.
        """
        inner = self._inner
        assert inner is not None  # noqa: S101 - it was entered
        try:
            timed_out = bool(self._scope.__exit__(kind, error, trace))
            if error is None:
                await self._commit(inner)
            elif timed_out:
                raise TransactionTimedOut(self._limit_s) from None
        finally:
            INSIDE.set(None)
            with anyio.CancelScope(shield=True):
                await self._close(inner)

    async def _close(self, inner: UserTransaction) -> None:
        try:
            await self._hop(inner.close)
        finally:
            self._opened.transactions.release()

    async def _commit(self, inner: UserTransaction) -> None:
        try:
            await self._hop(inner.commit)
        except CommitUnknown as error:
            with anyio.CancelScope(shield=True):
                await self._found_out(error)
        except LedgerUnavailable as error:
            raise LedgerUnavailable(f"{error}: {await self._mended()}") from error
        self._opened.book.kept |= self._digests
        self._opened.poke()

    async def _found_out(self, unknown: CommitUnknown) -> None:
        """Find out what became of a commit whose end was not told; raise unless it stands.

        Ours comes after it in any case: it waits until the connection that was lost has ended its
        turn, and until standbys have all that was committed before.
        """
        ledger, (sql, asked) = self._opened.ledger, unknown.proof
        end_s = anyio.current_time() + SETTLE_S
        while anyio.current_time() < end_s:
            try:
                await ledger.commit(touch)
                found = await ledger.commit(lambda tx: tx.tuples(sql, **asked))
            except LedgerError:
                await anyio.sleep(SETTLE_PAUSE_S)
                continue
            if found:
                return
            raise LedgerUnavailable(f"{unknown}: {NOTHING}") from unknown
        raise LedgerUnavailable(f"{unknown}: {IN_DOUBT}") from unknown

    async def _mended(self) -> str:
        """Write over what a failed commit may have left, and say what is recorded of it."""
        try:
            await self._opened.ledger.commit(touch)
        except LedgerError:
            return IN_DOUBT
        return NOTHING

    async def _hop(self, work: Callable[[], T]) -> T:
        """Do blocking work in a thread; once begun, it is waited for also when cancelled."""
        return await anyio.to_thread.run_sync(work, limiter=self._opened.transaction_threads)

    def _standing(self) -> UserTransaction:
        if self._inner is None:
            raise TransactionOver("use it as `async with app.transaction() as tx`")
        return self._inner

    # --- what is done in it ----------------------------------------------------------------------

    async def run(self, sql: str, /, **values: Value) -> int:
        """Run a statement and return how many rows it changed.

        Raises:
            StatementRefused: It would change the ledger's tables, the transaction or a setting, or
                a value is missing. The transaction stands.
            LedgerError: It is no SQL, or a constraint says no. The transaction stands.
            TransactionTimedOut: The transaction was open for too long. Nothing is recorded.
        """
        inner = self._standing()
        return await self._hop(lambda: inner.run(sql, values))

    async def row(self, sql: str, /, **values: Value) -> Mapping[str, Value] | None:
        """Run a statement and return its first row by column names, or None. Raises as `run`."""
        rows = await self.rows(sql, **values)
        return rows[0] if rows else None

    async def rows(self, sql: str, /, **values: Value) -> list[Mapping[str, Value]]:
        """Run a statement and return its rows by column names. Raises as `run`."""
        inner = self._standing()
        return await self._hop(lambda: inner.rows(sql, values))

    async def prepare(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        after: Sequence[str] = (),
        on_unknown: str = "stop",
        supersedes: str | None = None,
    ) -> Outcome:
        """Prepare an operation in this transaction: committed with it, it will be carried out.

        Arguments are those of `app.call`. It is valid for 24 h, unless its contract says how long.

        Returns:
            Its outcome as it stands: `pending`; or what it was joined with, if the same id or an
            open call of the same meaning is there already.

        Raises:
            NotPrepared: Policy refused it, or it is there already and has ended without success.
            BadArguments, BadOperationId, BadSequence, UnknownTool: as `app.call` raises them.
        """
        inner = self._standing()
        ask = self._draft(
            tool,
            arguments,
            operation_id=operation_id,
            session_id=session_id,
            correlation_id=correlation_id,
            after=after,
            on_unknown=on_unknown,
            supersedes=supersedes,
        )
        outcome = await self._hop(lambda: inner.unit(lambda tx: _surely(self._opened, tx, ask)))
        self._digests.add(ask.tool.digest)
        return outcome


def checked_timeout_s(seconds: float) -> float:
    """Return how long a transaction may be open, if others can wait that long for it.

    Raises:
        SettingsError: They can't.
    """
    most_s = BUSY_TIMEOUT_S - 1
    if not 0 < seconds <= most_s:
        raise SettingsError(
            f"transaction_timeout_s: {seconds!r} is not above 0 and at most {most_s:g}: others "
            f"wait {BUSY_TIMEOUT_S:g} s for the ledger's lock"
        )
    return seconds


def _nothing(tx: Transaction) -> None:
    """Take a turn."""


def _prepared(opened: OpenApp, tx: Transaction, ask: Ask) -> Outcome:
    """Make an intent durable, and say how it stands. Nothing is begun."""
    met = intake.prepare(opened.book, tx, ask)
    if met.refusal is not None:
        return intake.refused(ask, met)
    record, contract = opened.book.load(tx, met.operation_id)
    now = opened.book.now(tx)
    return reports.outcome(opened.book, tx, record, contract, now, already_done=met.joined)


def _surely(opened: OpenApp, tx: Transaction, ask: Ask) -> Outcome:
    """Do as `_prepared` does, and raise where the operation will not be carried out."""
    outcome = _prepared(opened, tx, ask)
    if outcome.outcome in (OUTCOMES[Status.REJECTED], OUTCOMES[Status.FAILED]):
        code = outcome.error.get("code") if outcome.error is not None else None
        raise NotPrepared(
            outcome.message,
            operation_id=outcome.operation_id,
            status=outcome.status,
            code=str(code) if code is not None else None,
        )
    return outcome


class Outbox(Surface):
    """Intents that are made durable now and carried out by a worker afterwards."""

    def transaction(self) -> UserTx:
        """Open a transaction: `async with app.transaction() as tx`.

        Your own tables, in the ledger's database, the operations of `tx.prepare` and their commands
        are committed together at the end of the block. An exception that leaves it rolls all of it
        back. While it is open nobody else can write: it is rolled back after
        `transaction_timeout_s`, 5 s by default. Transactions of several tasks wait for one another;
        `app.call` and `app.wait` inside one raise at once.
        """
        return UserTx(self._opened, self._queued)

    def _queued(self, tool: str, arguments: Mapping[str, Json], **said: object) -> Ask:
        return drafting.draft(
            self._opened.book,
            self.registry.tool(tool),
            arguments,
            principal=self._principal,
            queued=True,
            **said,  # type: ignore[arg-type]
        )

    async def prepare(  # noqa: PLR0913 - what a caller may say, each by its name
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        after: Sequence[str] = (),
        on_unknown: str = "stop",
        supersedes: str | None = None,
        connection: object = None,
    ) -> Outcome:
        """Make an intent durable and return; a worker carries it out, in this process or another.

        Arguments are those of `call`. It is valid for 24 h, unless its contract says how long. To
        prepare it together with changes of your own, use `transaction`.

        Args:
            tool: The tool's name.
            arguments: JSON-ready.
            operation_id: The caller's own identity of the intent.
            session_id: Which session of the principal; without one, its implicit one.
            correlation_id: Travels with the request, for the logs of both sides.
            after: Operations of this principal that must have succeeded first.
            on_unknown: What an unknown one of `after` means: "stop" or "continue".
            supersedes: An operation of this principal that it stands in for.
            connection: A connection of your own to the database of a PostgreSQL ledger: psycopg's,
                asyncpg's, or one or a session of SQLAlchemy's over these. It is prepared in the
                transaction that is open there, and commits with it or not at all. Refused on a
                SQLite ledger.

        Raises:
            ForeignConnection: The connection can't be shared, with the reason.
            NotPrepared: With a connection: policy refused it, or it has ended without success.
            InsideTransaction: It is called within `app.transaction()`.
            BadArguments, BadOperationId, BadSequence, UnknownTool: as `call` raises them.
        """
        stay_out("app.prepare")
        opened = self._opened
        ask = self._queued(
            tool,
            arguments,
            operation_id=operation_id,
            session_id=session_id,
            correlation_id=correlation_id,
            after=after,
            on_unknown=on_unknown,
            supersedes=supersedes,
        )
        if connection is not None:
            unit = partial(_surely, opened, ask=ask)
            return await foreign.prepare(opened, connection, ask, unit)
        return await opened.ledger.commit(
            lambda tx: _prepared(opened, tx, ask), then=lambda _: opened.poke()
        )
