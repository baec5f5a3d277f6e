"""Group commit: many units of work in one transaction, each of which may fail alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from doubtless.errors import LedgerError, LedgerUnavailable
from doubtless.ledger.codec import integer_of
from doubtless.ledger.transaction import (
    AlreadyThere,
    CommitUnknown,
    ConnectionLost,
    LedgerBusy,
    LedgerConflict,
    LedgerOutgrown,
    Session,
    Times,
    Transaction,
)

Sink = TypeVar("Sink")
Work: TypeAlias = Callable[[Transaction], object]
Unit: TypeAlias = tuple[Work, Sink]
Answer: TypeAlias = tuple[Sink, object, BaseException | None]

IN_DOUBT: Final = (
    "whether this was recorded is not known until the ledger can be written again;"
    " a repeat under the same operation_id is safe"
)
NOTHING: Final = "nothing of this was recorded"

FLOOR: Final = """
    update meta
       set clock_floor_ms = case when clock_floor_ms < :wall_ms then :wall_ms
                                 else clock_floor_ms end
     where tenant = 'main'
 returning clock_floor_ms, clock_break_ms
"""
SETTLE_S: Final = 30.0  # how long it is tried to find out what became of a commit
SETTLE_PAUSE_S: Final = 0.1
RERUNS_MAX: Final = 5  # of a unit alone, after others were at the same rows
TOUCH: Final = "update meta set mended = mended + 1 where tenant = 'main'"


@dataclass(slots=True)
class Stats:
    """What was committed since the ledger was opened."""

    batches: int = 0
    units: int = 0
    sizes: dict[int, int] = field(default_factory=dict)  # units in a batch → how many batches


class Group(Generic[Sink]):
    """The one writing connection of a ledger. Used by one thread at a time.

    Args:
        session: An open connection.
        renew: Opens another one like it; None where there can be none, in memory.
        clock: The wall clock in milliseconds.
        announce: Tells other processes what was told in a transaction, before its commit.
    """

    def __init__(
        self,
        session: Session,
        *,
        renew: Callable[[], Session] | None,
        clock: Callable[[], int],
        announce: Callable[[Transaction], None] = Transaction.announce,
    ) -> None:
        self._session = session
        self._announce: Final = announce
        self._renew: Final = renew
        self._clock: Final = clock
        self._transaction = Transaction(session, now_ms=0, wall_ms=0)
        self._sound = True  # the last transaction ended as it should
        self.stats: Final = Stats()

    def run(self, units: Iterator[Unit[Sink]]) -> list[Answer[Sink]]:
        """Run units in one transaction and answer for each. What is answered well is durable.

        A unit that raises is taken back alone, and answered with what it raised. If the transaction
        itself fails, every unit is answered with LedgerUnavailable, and nothing of any is recorded;
        where even that can't be made sure, the text says so. If others were at the same rows, each
        unit is run again in a transaction of its own.
        """
        taken: list[Unit[Sink]] = []
        try:
            return self._batch(units, taken)
        except LedgerConflict:
            return [answer for unit in taken for answer in self._again(unit)]

    def _again(self, unit: Unit[Sink]) -> list[Answer[Sink]]:
        told = ""
        for _ in range(RERUNS_MAX):
            try:
                return self._batch(iter((unit,)), [])
            except LedgerConflict as error:
                told = f"{error}: {NOTHING}"
        return [(unit[1], None, LedgerUnavailable(told))]

    def _batch(self, units: Iterator[Unit[Sink]], taken: list[Unit[Sink]]) -> list[Answer[Sink]]:
        answers: list[Answer[Sink]] = []
        began = committing = False
        try:
            self._begin()
            began = True
            for unit in units:
                taken.append(unit)
                value, error = self._one(unit[0])
                answers.append((unit[1], value, error))
            if all(error is not None for _, _, error in answers):
                self._session.rollback()  # nothing is left of it: nobody waits for a disk
                return answers
            self._announce(self._transaction)
            committing = True
            self._session.commit()
        except BaseException as error:  # callers wait for an answer, whatever it is
            if not taken:
                taken.append(next(units))
            if isinstance(error, LedgerConflict):
                with suppress(LedgerUnavailable):
                    self._session.rollback()
                self._sound = self._session.broken is None
                raise
            if isinstance(error, CommitUnknown):
                mended = self._found_out(error)
            else:
                mended = self._mend() if began else self._give_up(error)
            if mended is None:  # it was committed, as it turns out
                self._count(len(answers))
                return answers
            told = f"{error}: {NOTHING if mended or not committing else IN_DOUBT}"
            if not isinstance(error, Exception):
                raise  # only inline, where it interrupts the caller itself
            return [(sink, None, LedgerUnavailable(told)) for _, sink in taken]
        self._count(len(answers))
        return answers

    def _begin(self) -> None:
        if not self._sound and not self._mend():
            raise LedgerUnavailable("the ledger failed, and still can't be written")
        try:
            times = self._session.begin(write=True)
        except ConnectionLost:  # while it was idle, most likely: nothing is in doubt
            if not self._mend():
                raise
            times = self._session.begin(write=True)
        if times is None:
            wall_ms = self._clock()
            now_ms, break_ms = self._session.execute(FLOOR, {"wall_ms": wall_ms})[0]
            times = integer_of(now_ms), wall_ms, integer_of(break_ms)
        transaction = self._transaction
        transaction.now_ms, transaction.wall_ms, transaction.break_ms = times
        transaction.told.clear()

    def _one(self, work: Work) -> tuple[object, BaseException | None]:
        """Run a unit; again, if a transaction that takes no turns came between two statements."""
        value, error = self._try(work)
        for _ in range(RERUNS_MAX):
            if not isinstance(error, AlreadyThere | LedgerConflict):
                break
            value, error = self._try(work)
        return value, error

    def _try(self, work: Work) -> tuple[object, BaseException | None]:
        session = self._session
        session.savepoint()
        told = len(self._transaction.told)
        try:
            value = work(self._transaction)
            self._transaction.flush()
            self._raise_broken()  # the unit may have swallowed it
            session.keep()
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
            self._transaction.forget()
            del self._transaction.told[told:]
            self._raise_broken()
            session.undo()
            return None, error
        return value, None

    def _raise_broken(self) -> None:
        if self._session.broken is not None:
            raise self._session.broken

    def _give_up(self, error: BaseException) -> bool:
        """Leave a transaction that never began; unless it only waited, distrust the connection."""
        with suppress(LedgerUnavailable):
            self._session.rollback()
        if not isinstance(error, LedgerBusy | LedgerOutgrown):
            self._sound = False
        return False

    def _mend(self) -> bool:
        """Take a failed transaction back, and show that the ledger can commit again.

        A commit that failed may have left all its pages in the log, and only the index in shared
        memory says that they don't count. A commit after it writes over them, so that no recovery
        after a crash can bring them back. It has to change something: SQLite writes no page for an
        update that leaves it as it was. For the same reason the new connection is opened before
        the old one is closed: the last one to close would lose that index.
        """
        self._sound = False
        for again in (False, True):
            try:
                if again and not self._reopen():
                    break
                self._session.rollback()
                self._session.begin(write=True)
                self._session.execute(TOUCH, {})
                self._session.commit()
            except LedgerUnavailable:
                continue
            self._sound = True
            return True
        return False

    def _found_out(self, unknown: CommitUnknown) -> bool | None:
        """Find out what became of a commit: None if it stands, True if it doesn't, False if open.

        The commit of `_mend` comes after it in any case: it waits until the connection that was
        lost has ended its turn, and until standbys have all that was committed before.
        """
        end_s = time.monotonic() + SETTLE_S
        while True:
            with suppress(LedgerError):
                if self._mend():
                    return None if self._session.execute(*unknown.proof) else True
            if time.monotonic() > end_s:
                return False
            time.sleep(SETTLE_PAUSE_S)

    def _reopen(self) -> bool:
        if self._renew is None:
            return False
        try:
            session = self._renew()
        except LedgerError:
            return False
        self._session.close()
        self._session = session
        self._transaction = Transaction(session, now_ms=0, wall_ms=0)
        return True

    def read(self, work: Work) -> object:
        """Run `work` on the writing connection without committing: where there is no other."""
        return read_with(self._session, self._clock, work)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _count(self, units: int) -> None:
        stats = self.stats
        stats.batches += 1
        stats.units += units
        stats.sizes[units] = stats.sizes.get(units, 0) + 1


READ_FLOOR: Final = "select clock_floor_ms, clock_break_ms from meta where tenant = 'main'"


def read_with(session: Session, clock: Callable[[], int], work: Work) -> object:
    """Run `work` on one snapshot of the ledger and end it without a commit."""
    times: Times | None = session.begin(write=False)
    try:
        if times is None:
            floor_ms, break_ms = session.execute(READ_FLOOR, {})[0]
            wall_ms = clock()
            times = max(wall_ms, integer_of(floor_ms)), wall_ms, integer_of(break_ms)
        now_ms, wall_ms, break_ms = times
        transaction = Transaction(session, now_ms=now_ms, wall_ms=wall_ms, break_ms=break_ms)
        value = work(transaction)
        transaction.flush()  # refused here, where nothing may be written, rather than lost
        return value
    finally:
        session.rollback()
