"""The ledger as one simulated process has it: the real one, in memory, with faults around it.

Units run and commit in the order of their submission, as on the ledger's own thread; what a killed
process had not committed vanishes, and what it had stays. The disk may fail before, during and
after a commit.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

import anyio

from doubtless.errors import LedgerUnavailable
from doubtless.ledger.store import Ledger, Transaction
from doubtless.testing.simulate_gaps import Gaps, Gone

T = TypeVar("T")

UNITS: Final = {
    "_carried_out": "prepare",
    "Runner._act": "gate",
    "Runner._record": "record",
    "Worker._move_on": "step",
    "Reconciler.look": "look_record",
}
"""Which unit of the engine a commit is, by the function that submits it."""


@dataclass(frozen=True, slots=True)
class _Unit:
    work: Callable[[Transaction], object]
    waiter: "asyncio.Future[object]"
    name: str


class _Failing:
    """A transaction whose disk fails at a certain statement."""

    def __init__(self, tx: Transaction, fails_at: int) -> None:
        self._tx, self._left = tx, fails_at

    def __getattr__(self, name: str) -> object:
        if name in {"run", "tuples", "flush"}:
            self._left -= 1
            if not self._left:
                raise LedgerUnavailable("the disk is full: nothing of this was recorded")
        return getattr(self._tx, name)


class SimulatedLedger:
    """What stands in for `Ledger` in one process.

    Args:
        real: Shared by all processes.
        gaps: Of this process.
        committed: Called after every commit.
    """

    def __init__(self, real: Ledger, gaps: Gaps, committed: Callable[[], None]) -> None:
        self.id, self.is_shared = real.id, False
        self._real, self._gaps, self._committed = real, gaps, committed
        self._faults, self._loop = gaps.faults, gaps.loop
        self._queue: deque[_Unit] = deque()

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Do as `Ledger.read` does."""
        self._be_alive()
        if self._faults.draw("ledger.unreadable"):
            raise LedgerUnavailable("the ledger failed: input/output error")
        return self._real.read(work)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Do as `Ledger.write` does."""
        self._be_alive()
        if self._gaps.dies("applied"):
            if self._faults.chance.random() < 0.5:
                self._run(work, fails_at=0)
            raise Gone
        return self._faulty(work)

    async def commit(
        self, work: Callable[[Transaction], T], *, then: Callable[[T], None] | None = None
    ) -> T:
        """Do as `Ledger.commit` does: shielded, in turn, and whole even if its caller is gone."""
        self._be_alive()
        waiter: asyncio.Future[object] = self._loop.create_future()
        if then is not None:
            waiter.add_done_callback(partial(_go_on, cast("Callable[[object], None]", then)))
        self._queue.append(_Unit(work, waiter, _name(work)))
        chance = self._faults.chance
        delay_s = chance.uniform(0.0005, 0.004)
        if self._faults.draw("ledger.slow"):
            delay_s = chance.uniform(0.01, 3.0)
        self._loop.call_later(delay_s, self._next)
        value: object = None
        with anyio.CancelScope(shield=True):
            value = await asyncio.shield(waiter)
        return cast("T", value)

    def _be_alive(self) -> None:
        if not self._gaps.process.is_alive:
            raise Gone

    def _next(self) -> None:
        unit, gaps = self._queue.popleft(), self._gaps
        if gaps.dies(f"before_{unit.name}"):
            return
        gaps.stalls(f"before_{unit.name}")
        if gaps.process.is_stopped:
            self._loop.call_soon(self._finish, unit)
        else:
            self._finish(unit)

    def _finish(self, unit: _Unit) -> None:
        answer: Callable[[], None]
        try:
            value = self._faulty(unit.work)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
            answer = partial(unit.waiter.set_exception, error)
        else:
            answer = partial(unit.waiter.set_result, value)
        after = "in_gate" if unit.name == "gate" else f"after_{unit.name}"
        if self._gaps.dies(after):
            return
        self._gaps.stalls(after)
        if not unit.waiter.done():
            answer()

    def _faulty(self, work: Callable[[Transaction], T]) -> T:
        if self._faults.draw("ledger.fails"):
            self._gaps.tell("the ledger fails")
            raise LedgerUnavailable("the ledger failed: nothing of this was recorded")
        fails_at = 0
        if self._faults.draw("ledger.fails_midway"):
            fails_at = self._faults.chance.randint(1, 4)
        value = self._run(work, fails_at=fails_at)
        if self._faults.draw("ledger.in_doubt"):
            self._gaps.tell("the ledger committed, and can't say so")
            raise LedgerUnavailable("whether this was recorded is not known")
        return value

    def _run(self, work: Callable[[Transaction], T], *, fails_at: int) -> T:
        def failing(tx: Transaction) -> T:
            found = work(cast("Transaction", _Failing(tx, fails_at)))
            raise LedgerUnavailable(f"the disk is full: {found} was not recorded")

        value = self._real.write(failing if fails_at else work)
        self._committed()
        return value


def _go_on(then: Callable[[object], None], waiter: "asyncio.Future[object]") -> None:
    if waiter.exception() is None:
        then(waiter.result())


def _name(work: Callable[[Transaction], object]) -> str:
    return UNITS.get(work.__qualname__.partition(".<locals>")[0], "other")
