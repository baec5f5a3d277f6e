"""Starting tasks from wherever the event loop runs: also where no task does.

The ledger tells what became of a unit by a callback of the loop, so that an attempt which is
durable is carried out even if its caller was cancelled. Where sniffio is installed, as it is beside
many libraries, anyio starts no task from there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

import anyio.abc

_log = logging.getLogger("doubtless.engine")


class Launcher:
    """Starts tasks of one group.

    Args:
        tasks: The group that they belong to.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._starting: set[asyncio.Task[None]] = set()

    def launch(
        self, function: Callable[..., Coroutine[object, object, object]], *arguments: object
    ) -> None:
        """Start a task soon. May be called from a task, or from a callback of the loop."""

        async def start() -> None:
            try:
                self._tasks.start_soon(function, *arguments)
            except RuntimeError:  # the group has ended: whoever looks later finds it not begun
                _log.warning("the application was closed before %s began", function.__qualname__)

        starting = asyncio.get_running_loop().create_task(start())
        self._starting.add(starting)  # the loop itself keeps no task alive
        starting.add_done_callback(self._starting.discard)

    async def started(self) -> None:
        """Wait until all that was launched so far is a task of the group."""
        await asyncio.gather(*self._starting)
