"""One process of the measurement of throughput, with us: it prepares operations, or works.

`python -m doubtless.testing.throughput_ours prepare|work ADDRESS COUNT`. It says "ready", begins
when a line comes, and ends with its standard input.
"""

import sys
from typing import Final

import anyio
import anyio.to_thread

from doubtless.core.model import Effect
from doubtless.engine.app import Doubtless
from doubtless.engine.tools import Call

AT_ONCE: Final = 64


def _application(address: str, *, worker: bool) -> Doubtless:
    app = Doubtless(address, worker=worker)

    @app.tool(effect=Effect.WRITE)
    async def nothing(_call: Call, number: int) -> dict[str, int]:
        return {"number": number}

    return app


async def prepare(address: str, count: int) -> None:
    """Make so many intents durable, many at once."""
    async with _application(address, worker=False) as app:
        await _wait()
        numbers = iter(range(count))

        async def some() -> None:
            for number in numbers:
                await app.prepare("nothing", {"number": number}, operation_id=f"op-{number}")

        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(some)
        print("done", flush=True)


async def work(address: str, _: int) -> None:
    """Carry out what is prepared, until standard input ends."""
    app = _application(address, worker=True)
    await _wait()
    async with app:
        await anyio.to_thread.run_sync(sys.stdin.read)


async def _wait() -> None:
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)


if __name__ == "__main__":
    anyio.run({"prepare": prepare, "work": work}[sys.argv[1]], sys.argv[2], int(sys.argv[3]))
