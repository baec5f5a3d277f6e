"""One process of the measurement of throughput, with DBOS: it enqueues workflows, or works.

`python -m doubtless.testing.throughput_dbos prepare|work ADDRESS COUNT`. It says "ready", begins
when a line comes, and ends with its standard input. A workflow has one step, which does nothing:
what an operation of ours does.
"""

import sys
import threading
from collections.abc import Iterator
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

AT_ONCE: Final = 32  # threads that enqueue, and workflows that one process has under way
POLL_S: Final = 0.05  # how often a worker asks for more; its default of 1 s would starve it
VERSION: Final = "1"


@DBOS.step()
def nothing(number: int) -> dict[str, int]:
    """Do nothing, durably."""
    return {"number": number}


@DBOS.workflow(name="act")
def act(number: int) -> dict[str, int]:
    """Do nothing in one step."""
    return nothing(number)


def prepare(address: str, count: int) -> None:
    """Enqueue so many workflows, many at once."""
    _launch(address)  # which makes the tables
    DBOS.destroy()
    client = DBOSClient(system_database_url=address)
    _wait()
    numbers = _Shared(iter(range(count)))

    def some() -> None:
        for number in numbers:
            options: EnqueueOptions = {
                "queue_name": "work",
                "workflow_name": "act",
                "workflow_id": f"op-{number}",
                "app_version": VERSION,
            }
            client.enqueue(options, number)

    threads = [threading.Thread(target=some) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done", flush=True)
    client.destroy()


class _Shared:
    """An iterator that several threads may use."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers, self._lock = numbers, threading.Lock()

    def __iter__(self) -> "_Shared":
        return self

    def __next__(self) -> int:
        with self._lock:
            return next(self._numbers)


def work(address: str, _: int) -> None:
    """Carry out what is enqueued, until standard input ends."""
    _wait()
    _launch(address)
    sys.stdin.read()


def _launch(address: str) -> None:
    config: DBOSConfig = {
        "name": "throughput",
        "system_database_url": address,
        "application_version": VERSION,
        "sys_db_pool_size": AT_ONCE + 8,
        "max_executor_threads": AT_ONCE,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(
        "work",
        worker_concurrency=AT_ONCE,
        polling_interval_sec=POLL_S,
        on_conflict="never_update",
    )


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"prepare": prepare, "work": work}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
