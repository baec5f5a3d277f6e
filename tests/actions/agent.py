"""An application in a process of its own that makes one call, and may stop itself at a place.

A place is `before NAME` or `behind NAME` of a function, as `behind os.link`. There the whole
process stops, as by a debugger, until it is woken or killed.
"""

import asyncio
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from tests.scenarios.program import BENT, PR_SET_PDEATHSIG, shorten_leases

from doubtless import Doubtless

WITHIN_S = 40
POLL_S = 0.01
LIFE_S = 60


def until(condition, within_s: float = WITHIN_S) -> None:
    """Wait until something has come about."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(POLL_S)


async def eventually(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until the answer is yes."""
    with anyio.fail_after(WITHIN_S):
        while not await ask():  # noqa: ASYNC110 - other processes bring it about
            await anyio.sleep(POLL_S)


def state_of(pid: int) -> str:
    """Return the letter of a process's state, or "" where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]


class Agent:
    """That process, as the test holds it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def stopped(self) -> None:
        """Wait until it stopped itself."""
        until(lambda: state_of(self.pid) == "T")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.ended()

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ended(self) -> None:
        until(lambda: state_of(self.pid) == "")


class Agency:
    """Forks agents from a process that has imported everything already."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "tests.actions.agent"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True)

    def agent(
        self,
        folder: Path,
        tool: str,
        arguments: dict[str, Any],
        *,
        stops: str | None = None,
        code: str | None = None,
    ) -> AbstractContextManager[Agent]:
        """Call as operation `one`, on the ledger and the contracts of a folder.

        Args:
            code: `module:function` that registers tools in code, in place of contracts.
        """
        told = {"folder": str(folder), "tool": tool, "arguments": arguments, "stops": stops}
        told["code"] = code
        return self.told(told)

    def planner(
        self, folder: Path, steps: list[dict[str, Any]], *, stops: str | None = None
    ) -> AbstractContextManager[Agent]:
        """Prepare several operations at once, with the words of `prepare`, and carry them out."""
        return self.told({"folder": str(folder), "steps": steps, "stops": stops})

    @contextmanager
    def told(self, told: dict[str, Any]) -> Iterator[Agent]:
        """Fork one that does as it is told."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(told)}\n")
        self._process.stdin.flush()
        born = Agent(int(self._process.stdout.readline()))
        try:
            yield born
        finally:
            born.kill()

    def close(self) -> None:
        self._process.communicate()


def stop(place: str) -> None:
    """Let this process stop itself once, at that place."""
    when, _, name = place.partition(" ")
    module, _, function = name.rpartition(".")
    owner: Any
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        above, _, kind = module.rpartition(".")
        owner = getattr(importlib.import_module(above), kind)
    real, turns = getattr(owner, function), iter([1])

    def bent(*arguments: Any, **options: Any) -> Any:
        first = next(turns, None) is not None
        if first and when == "before":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        value = real(*arguments, **options)
        if first and when == "behind":
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return value

    BENT.setattr(owner, function, bent)


async def act(told: dict[str, Any]) -> None:
    steps = told.get("steps")
    app = Doubtless(
        f"sqlite:///{told['folder']}/d.db",
        contracts=None if told.get("code") else f"{told['folder']}/contracts.toml",
        secrets=f"{told['folder']}/secrets",
        worker=steps is not None,
    )
    if told.get("code"):
        module, _, register = told["code"].partition(":")
        getattr(importlib.import_module(module), register)(app, Path(told["folder"]))
    async with app:
        if told["stops"]:
            stop(told["stops"])
        if steps is None:
            await app.call(told["tool"], told["arguments"], operation_id="one")
            return
        async with app.transaction() as tx:
            for step in steps:
                await tx.prepare(**step)
        for step in steps:
            await app.wait(step["operation_id"], timeout=LIFE_S)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end are gone at once
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even while it is stopped
            signal.alarm(LIFE_S)
            shorten_leases()
            asyncio.run(act(json.loads(line)))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
