"""The gaps between the loop's verbs: where a simulated process dies, or is stopped for a while."""

from collections.abc import Callable

from doubtless.core.contract import STALL_MARGIN_MS
from doubtless.testing.simulate_faults import RATES, Faults
from doubtless.testing.virtual_time import WORLD, Process, VirtualLoop


class Gone(BaseException):
    """This process was killed while it was inside a call that can't be left otherwise."""


class Gaps:
    """The gaps of one process."""

    def __init__(
        self, process: Process, loop: VirtualLoop, faults: Faults, tell: Callable[[str], None]
    ) -> None:
        self.process, self.loop, self.faults, self._tell = process, loop, faults, tell

    def dies(self, gap: str) -> bool:
        """Whether the process is killed in this gap; then nothing of it may run any more."""
        name = f"crash.{gap}"
        if name not in RATES or not self.faults.draw(name):
            return False
        self.tell(f"KILLED {gap.replace('_', ' ')}")
        self.process.kill()
        return True

    def stalls(self, gap: str) -> None:
        """Stop the process in this gap, perhaps. It stands still at its next `await`."""
        name = f"stall.{gap}"
        if name in RATES and self.faults.draw(name):
            self.stop(self.length_s(), gap)

    def length_s(self) -> float:
        """Draw how long a process is stopped."""
        chance = self.faults.chance
        return chance.choice((chance.uniform(0.01, 2.0), chance.uniform(2.0, 20.0), 45.0))

    def stop(self, seconds: float, gap: str) -> None:
        """Stop the process for a time."""
        if self.process.is_stopped or not self.process.is_alive:
            return
        self.tell(f"STOPPED for {seconds:.3f} s {gap.replace('_', ' ')}")
        self.process.stop()
        self.loop.call_later(seconds, self._wake, context=WORLD)

    def _wake(self) -> None:
        if self.process.is_stopped and self.process.is_alive:
            self.tell("woken")
            self.process.wake(self.loop)

    def stops_at_first_byte(self) -> bool:
        """Stop the process between its last look at the clock and the write, perhaps.

        The one gap that no program can close: so never longer than the margin.
        """
        if not self.faults.draw("stall.at_first_byte"):
            return False
        self.stop(self.faults.chance.random() * STALL_MARGIN_MS / 1000, "at_first_byte")
        return True

    async def pass_(self, gap: str) -> None:
        """Go through a gap, or die or be stopped in it."""
        if self.dies(gap):
            await self.never()
        self.stalls(gap)
        await self.turn()

    async def turn(self) -> None:
        """Let others run; a process that is stopped goes on here once it is woken."""
        waiter = self.loop.create_future()
        self.loop.call_soon(self._set, waiter)
        await waiter

    @staticmethod
    def _set(waiter: "object") -> None:
        if not waiter.done():  # type: ignore[attr-defined]
            waiter.set_result(None)  # type: ignore[attr-defined]

    async def never(self) -> None:
        """Wait for what never comes."""
        await self.loop.create_future()

    def tell(self, what: str) -> None:
        """Write a line of the trace about this process."""
        self._tell(f"{self.process.name}: {what}")
