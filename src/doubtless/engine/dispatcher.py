"""The worker: takes up whatever is due, wherever it was left. It never needs to be asked.

An operation that is prepared and that nobody carries out, one that is unknown and whose look-up is
due, one whose worker is gone: they all have a due time, and they all come through here. Several
workers on one ledger are safe: who takes a step is decided by the ledger. On a server each takes a
batch in one turn, so that none tries what another one has.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.abc

from doubtless.core.model import Operation, Record, State
from doubtless.core.progress import Liveness
from doubtless.engine import steps
from doubtless.engine.book import Begun, Book
from doubtless.engine.launching import Launcher
from doubtless.engine.reconciler import Reconciler
from doubtless.engine.runner import Runner
from doubtless.engine.steps import Looking
from doubtless.errors import DoubtlessError, LedgerError, LedgerUnavailable
from doubtless.ledger import listing, meta, operations, sharing
from doubtless.ledger.store import Ledger, Transaction

POLL_S = 1.0  # how often the ledger is asked what others made due
OWNERS_S = 5.0  # how often the owners of open attempts are looked at
SOMEWHERE_ELSE_S = 5.0  # how long an operation is left alone that this process can't move on
BATCH = 64
CONCURRENT_MAX = 64
TAKEN_MAX = 16  # in one turn: the others wait for it, and want some too
HINT_MS = 20  # after news of others a worker looks at any instant within that time
VAIN_MIN_S = 0.005  # the first pause after a turn that found nothing; it doubles
CLOCK_SLIP_MS = 2_000

OPEN_STATES = tuple(state for state in State if not state.ends)
UNDER_LEASE = (State.EXECUTING, State.RECONCILING)

Job: TypeAlias = Begun | Looking | None

_log = logging.getLogger("doubtless.worker")


class NothingDue(Exception):
    """Somebody else was first: there is nothing to commit."""


@dataclass(frozen=True, slots=True)
class Taken:
    """An operation whose next step this process has taken, and what is to be carried out now."""

    operation_id: str
    job: Job


class ClockWatch:
    """Compares the wall clock with the boot-time clock; says when they parted."""

    def __init__(self, wall_ms: Callable[[], int], boot_s: Callable[[], float]) -> None:
        self._wall_ms, self._boot_s = wall_ms, boot_s
        self._wall, self._boot = wall_ms(), boot_s()

    def slipped(self, ledger_ms: int) -> bool:
        """Whether the clocks parted since the last call, or the ledger is ahead of the wall."""
        wall, boot = self._wall_ms(), self._boot_s()
        apart_ms = abs((wall - self._wall) - (boot - self._boot) * 1000)
        self._wall, self._boot = wall, boot
        return apart_ms > CLOCK_SLIP_MS or ledger_ms - wall > CLOCK_SLIP_MS


class Worker:
    """Runs until it is cancelled. One for each open application that has a worker."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        book: Book,
        runner: Runner,
        reconciler: Reconciler,
        tasks: anyio.abc.TaskGroup,
        changed: Callable[[Record], None],
    ) -> None:
        self._ledger, self._book, self._runner = ledger, book, runner
        self._reconciler, self._tasks, self._changed = reconciler, tasks, changed
        self._busy: set[str] = set()
        self._elsewhere: dict[str, float] = {}  # until when, on the boot-time clock
        self._owners_at_s = 0.0
        self._launcher = Launcher(tasks)
        self._poked = anyio.Event()
        self._hinted = False
        self._vain_s = 0.0  # the last pause after a turn that found nothing
        self._slots = anyio.CapacityLimiter(CONCURRENT_MAX)
        self._clock: ClockWatch | None = None
        self._wall_ms = 0  # the ledger's own: on a server it is another one than this machine's

    def poke(self) -> None:
        """Look at the ledger now: something may be due."""
        self._poked.set()

    def hint(self) -> None:
        """Look at the ledger soon: another process made something due.

        All of them hear it. If they looked at once, all would ask for the turn, and one use it.
        """
        if not self._poked.is_set():
            self._hinted = True
            self._poked.set()

    async def run(self) -> None:
        """Take up what is due, for ever. A ledger that fails for a while is asked again."""
        while True:
            self._poked = anyio.Event()
            try:
                pause_s = await self._round()
            except DoubtlessError as error:
                _log.warning("the worker could not read the ledger: %s", error)
                pause_s = POLL_S
            with anyio.move_on_after(pause_s):
                await self._poked.wait()
            if self._hinted:
                self._hinted = False
                await anyio.sleep(secrets.randbelow(HINT_MS) / 1000)

    async def _round(self) -> float:
        """Take up what is due, and return how long nothing else is; at most until the next poll."""
        if self._ledger.is_shared:
            return await self._shared_round()
        await self._watch_clock(*self._ledger.read(lambda tx: (tx.now_ms, tx.wall_ms)))
        await self._watch_owners()
        self._take_each()
        return self._pause_s()

    async def _watch_owners(self) -> None:
        now_s = self._book.surroundings.boot_s()
        if now_s >= self._owners_at_s:
            self._owners_at_s = now_s + OWNERS_S
            await self._recover_the_dead()
        self._elsewhere = {key: until for key, until in self._elsewhere.items() if until > now_s}

    # --- on a file: each operation in a unit of its own ------------------------------------------

    def _take_each(self) -> None:
        limit = BATCH + len(self._busy) + len(self._elsewhere)
        for operation in self._ledger.read(lambda tx: self._due(tx, tx.now_ms, limit)):
            if operation.id not in self._busy and operation.id not in self._elsewhere:
                self._busy.add(operation.id)
                self._tasks.start_soon(self._move_on, operation.id)

    def _due(self, tx: Transaction, now_ms: int, limit: int) -> list[Operation]:
        return operations.due(tx, self._book.tenant, now_ms, limit, OPEN_STATES)

    def _pause_s(self) -> float:
        """Return how long nothing is due, by the ledger; at most until the next poll."""

        def unit(tx: Transaction) -> float:
            limit = 1 + len(self._busy) + len(self._elsewhere)
            waiting = [
                operation
                for operation in self._due(tx, 2**62, limit)
                if operation.id not in self._busy and operation.id not in self._elsewhere
            ]
            if not waiting or waiting[0].due_ms is None:
                return POLL_S
            return (waiting[0].due_ms - tx.now_ms) / 1000

        return min(POLL_S, max(0.001, self._ledger.read(unit)))

    # --- on a server: a batch in one turn --------------------------------------------------------

    async def _shared_round(self) -> float:
        await self._watch_owners()
        without = frozenset(self._busy | self._elsewhere.keys())

        def look(tx: Transaction) -> tuple[int, int, int | None]:
            due_ms = sharing.next_due_ms(tx, self._book.tenant, OPEN_STATES, without=without)
            return tx.now_ms, tx.wall_ms, due_ms

        now_ms, wall_ms, due_ms = self._ledger.read(look)
        await self._watch_clock(now_ms, wall_ms)
        room = min(TAKEN_MAX, CONCURRENT_MAX - len(self._busy))
        if due_ms is None or room <= 0:  # whoever makes room pokes
            return POLL_S
        if due_ms > now_ms:
            return min(POLL_S, (due_ms - now_ms) / 1000)
        try:
            await self._ledger.commit(lambda tx: self._take(tx, room, without), then=self._start)
        except NothingDue:
            self._vain_s = min(max(VAIN_MIN_S, 2 * self._vain_s), POLL_S)
            return self._vain_s
        except LedgerUnavailable:
            raise
        except Exception:  # noqa: BLE001 - one that can't be moved on must not stop the others
            _log.exception("a batch could not be taken: each operation is tried alone")
            self._take_each()
            return POLL_S
        self._vain_s = 0.0
        return 0.0

    def _take(self, tx: Transaction, room: int, without: frozenset[str]) -> list[Taken]:
        """Take the next steps of what is due. Others find it taken when their turn comes."""
        tenant = self._book.tenant
        due = sharing.take_due(tx, tenant, OPEN_STATES, limit=room, without=without)
        if not due:
            raise NothingDue
        return [Taken(each, steps.advance(self._book, tx, each)) for each in due]

    def _start(self, taken: list[Taken]) -> None:
        for each in taken:
            self._busy.add(each.operation_id)
            self._launcher.launch(self._go_on, each)  # the ledger calls from outside of any task

    async def _go_on(self, taken: Taken) -> None:
        with self._minding(taken.operation_id):
            await self._carry_out(taken)

    # --- clocks and owners -----------------------------------------------------------------------

    async def _watch_clock(self, now_ms: int, wall_ms: int) -> None:
        self._wall_ms = wall_ms
        if self._clock is None:
            self._clock = ClockWatch(lambda: self._wall_ms, self._book.surroundings.boot_s)
        if self._clock.slipped(now_ms):
            _log.warning("wall and boot-time clock parted: horizons and key lives start again")
            await self._ledger.commit(lambda tx: meta.set_clock_break(tx, tx.now_ms))

    async def _recover_the_dead(self) -> None:
        """Free what a process of this host held that is provably gone; don't wait for its lease."""

        def held(tx: Transaction) -> list[Operation]:
            page = listing.find(tx, self._book.tenant, states=UNDER_LEASE, limit=500)
            return list(page.operations)

        surroundings = self._book.surroundings
        for operation in self._ledger.read(held):
            owner = operation.owner
            if owner is None or owner == surroundings.owner or operation.id in self._busy:
                continue
            if surroundings.liveness(owner) is Liveness.DEAD:
                await self._recover(operation.id)

    async def _recover(self, operation_id: str) -> None:
        record = await self._ledger.commit(lambda tx: steps.recover(self._book, tx, operation_id))
        if record is not None:
            self._changed(record)

    # --- one operation ---------------------------------------------------------------------------

    async def _move_on(self, operation_id: str) -> None:
        """Take the next step of one operation, and carry it out."""
        with self._minding(operation_id):
            async with self._slots:
                job = await self._ledger.commit(
                    lambda tx: steps.advance(self._book, tx, operation_id)
                )
                await self._carry_out(Taken(operation_id, job))

    @contextmanager
    def _minding(self, operation_id: str) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            _log.warning("operation %s: the ledger failed: %s", operation_id, error)
            self._elsewhere[operation_id] = self._book.surroundings.boot_s() + POLL_S
        except Exception:  # noqa: BLE001 - see below
            # One operation that can't be moved on must not stop the others.
            _log.exception("operation %s could not be moved on", operation_id)
            self._elsewhere[operation_id] = self._book.surroundings.boot_s() + SOMEWHERE_ELSE_S
        finally:
            self._busy.discard(operation_id)
            self.poke()

    async def _carry_out(self, taken: Taken) -> None:
        match taken.job:
            case Begun():
                await self._runner.carry_out(taken.job)
            case Looking():
                await self._reconciler.look(taken.job)
            case None:
                self._leave(taken.operation_id)

    def _leave(self, operation_id: str) -> None:
        """Tell who waits what became of it; leave it alone for a while if it is still due."""

        def unit(tx: Transaction) -> tuple[Record, int]:
            return self._book.load(tx, operation_id)[0], tx.now_ms

        record, now_ms = self._ledger.read(unit)
        self._changed(record)
        due_ms = record.operation.due_ms
        if due_ms is not None and due_ms <= now_ms:
            until_s = self._book.surroundings.boot_s() + SOMEWHERE_ELSE_S
            self._elsewhere[operation_id] = until_s
