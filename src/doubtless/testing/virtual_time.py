"""An event loop on a virtual clock, and processes on it that can be stopped, woken and killed.

Nothing here waits: when no callback is ready, time jumps to the next timer. A process is whatever
runs in its context: its callbacks are kept back while it is stopped, and dropped once it is dead,
without any of its `finally` blocks having run. There are no threads and no sockets.
"""

import asyncio
import contextlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Final, TypeVar, TypeVarTuple, cast
from unittest.mock import patch

from anyio._backends import _asyncio

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

SPIN_S: Final = 1e-6  # a turn of the loop takes time too: what only spins does not stop the clock
TURNS_MAX: Final = 3_000_000


class Process:
    """A simulated process. It runs only while it is alive and not stopped."""

    def __init__(self, name: str, host: str) -> None:
        self.name, self.host = name, host
        self.is_alive, self.is_stopped = True, False
        self.ended: Callable[[], None] | None = None  # called when it dies
        self._kept: list[asyncio.Handle] = []

    def context(self) -> Context:
        """Return a fresh context in which things run as part of this process."""
        context = copy_context()
        context.run(CURRENT.set, self)
        return context

    def kill(self) -> None:
        """End it at once: nothing of it runs any more, not even what cleans up."""
        was_alive, self.is_alive = self.is_alive, False
        self._kept.clear()
        if was_alive and self.ended is not None:
            self.ended()

    def stop(self) -> None:
        """Stop it, as SIGSTOP does: time goes on without it."""
        self.is_stopped = True

    def wake(self, loop: "VirtualLoop") -> None:
        """Let it go on where it stood."""
        self.is_stopped = False
        kept, self._kept = self._kept, []
        loop.requeue(kept)

    def admits(self, handle: asyncio.Handle) -> bool:
        """Whether a callback of this process may run now; one that may not yet is kept."""
        if self.is_alive and self.is_stopped:
            self._kept.append(handle)
        return self.is_alive and not self.is_stopped


CURRENT: Final[ContextVar[Process | None]] = ContextVar("process", default=None)

WORLD: Final = Context()
"""The context of what belongs to no process: the provider, its network, whoever stops processes."""


class _Handle(asyncio.Handle):
    """A callback of one process, or of the world outside of all processes."""

    __slots__ = ("process",)
    process: Process | None

    def _run(self) -> None:
        if self.process is None or self.process.admits(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    """The same, at a given instant."""

    __slots__ = ("process",)
    process: Process | None

    def _run(self) -> None:
        if self.process is None or self.process.admits(self):
            super()._run()


class _Task(asyncio.Task[_T]):
    """A task that is hashed by its number: sets of tasks are walked in the same order every run."""

    def __init__(
        self,
        coro: Coroutine[object, object, _T],
        *,
        loop: "VirtualLoop",
        context: Context | None = None,
    ) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, context=context)
        self._log_destroy_pending = False  # those of killed processes never end
        loop.tasks.append(cast("_Task[object]", self))

    def __hash__(self) -> int:
        return self.number

    def drop(self) -> None:
        """Take the task apart. What its `finally` blocks do by then must not matter any more."""
        coroutine = cast("Coroutine[object, object, _T]", self.get_coro())
        with contextlib.suppress(BaseException):
            coroutine.close()


class _Clock:
    """Stands for the selector: waiting for input is letting time pass."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise RuntimeError("every task waits, and there is no timer: this would hang")
        self._loop.pass_time(timeout or SPIN_S)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The event loop. `time()` is the boot-time clock of all simulated hosts."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, start_s: float = 1_000.0) -> None:
        super().__init__()
        self._now_s = start_s
        self._clock_resolution = 1e-9
        self._selector = _Clock(self)
        self._turns = 0
        self._numbers = count(1)
        self.tasks: list[_Task[object]] = []
        self.set_task_factory(_new_task)  # type: ignore[arg-type]  # it takes any coroutine

    def next_number(self) -> int:
        """Return a number that no other task of this loop has."""
        return next(self._numbers)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Move the clock on. Raises where the loop turns without end."""
        self._now_s += seconds
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise RuntimeError("the simulated processes spin without end")

    def requeue(self, handles: list[asyncio.Handle]) -> None:
        """Let callbacks run that were kept back, in their order."""
        self._ready.extendleft(reversed(handles))

    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Do as every loop does, for the process that the context names."""
        within = copy_context() if context is None else context
        handle = _Handle(callback, args, self, within)
        handle.process = within.get(CURRENT)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Do as every loop does, for the process that the context names."""
        within = copy_context() if context is None else context
        timer = _Timer(when, callback, args, self, within)
        timer.process = within.get(CURRENT)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001 - as the base class does
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Do as every loop does, for the process that the context names."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _process_events(self, event_list: list[object]) -> None:
        """There is no input."""

    def _write_to_self(self) -> None:
        """There is no other thread that could wake it."""


def _new_task(
    loop: VirtualLoop, coro: Coroutine[object, object, _T], *, context: Context | None = None
) -> _Task[_T]:
    return _Task(coro, loop=loop, context=context)


class _Scope(_asyncio.CancelScope):
    """A scope that is hashed by its number: who is cancelled first is the same in every run."""

    __slots__ = ("number",)
    numbers = count(1)

    def __init__(self, deadline: float = math.inf, shield: bool = False) -> None:
        super().__init__(deadline, shield)
        self.number = next(self.numbers)

    def __hash__(self) -> int:
        return self.number


@contextlib.contextmanager
def virtual_loop() -> Iterator[VirtualLoop]:
    """Give a loop, and take apart at the end what never ended on it."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    _Scope.numbers = count(1)
    try:
        with patch.object(_asyncio, "CancelScope", _Scope):
            yield loop
    finally:
        _take_apart(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _take_apart(loop: VirtualLoop) -> None:
    """Drop the tasks that never ended. What cleans up in them still finds its loop."""
    asyncio._set_running_loop(loop)  # noqa: SLF001 - nothing runs any more
    try:
        for task in loop.tasks:
            if not task.done():
                task.drop()
    finally:
        asyncio._set_running_loop(None)  # noqa: SLF001 - as above
