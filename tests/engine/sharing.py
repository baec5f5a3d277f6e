"""A worker in a process of its own: `python -m tests.engine.sharing ADDRESS FILE PROCESSES`.

Each effect is a line in FILE with the process and the operation. None ends before all processes
have had one: so none can carry out all of them.
"""

import asyncio
import os
import sys
from pathlib import Path

import anyio

from doubtless import Call, Doubtless

PAUSE_S = 0.05


def declare(app: Doubtless, effects: Path, processes: int) -> asyncio.Event:
    """Declare the tool; what is returned is to be set when all processes have had an effect."""
    all_have_one = asyncio.Event()

    @app.tool(effect="write", timeout="50s")
    async def act(call: Call, what: str) -> str:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {what}\n")
        await all_have_one.wait()
        return what

    return all_have_one


def lines(effects: Path) -> list[str]:
    return effects.read_text(encoding="utf-8").splitlines() if effects.exists() else []


async def wait_for_all(effects: Path, processes: int, all_have_one: asyncio.Event) -> None:
    """Wait until every process has had an effect, which is what their lines tell."""
    found: set[str] = set()
    while len(found) < processes:
        await anyio.sleep(PAUSE_S)
        found = {line.split()[0] for line in lines(effects)}
    all_have_one.set()


async def main(url: str, effects: str, processes: str) -> None:
    app = Doubtless(url)
    all_have_one = declare(app, Path(effects), int(processes))
    async with app, anyio.create_task_group() as tasks:
        print("ready", flush=True)
        tasks.start_soon(wait_for_all, Path(effects), int(processes), all_have_one)
        await anyio.to_thread.run_sync(sys.stdin.readline)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
