"""What the tests of PostgreSQL share: a server of their own, and watching it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from tests.ledger import samples

from doubtless.core.model import Operation
from doubtless.ledger import operations
from doubtless.ledger.store import Ledger, open_ledger

POLL_S = 0.005
WAITING = """
    select count(*)
      from pg_stat_activity
     where pid <> pg_backend_pid() and datname = current_database() and {}
"""


def wait_until(connection: psycopg.Connection, condition: str, count: int = 1) -> None:
    """Wait until that many connections to the database are as `condition` says."""
    deadline = time.monotonic() + 10
    while sessions(connection, condition) < count:
        assert time.monotonic() < deadline, condition
        time.sleep(POLL_S)


def wait_until_gone(connection: psycopg.Connection) -> None:
    """Wait until no ledger is connected."""
    deadline = time.monotonic() + 10
    while sessions(connection, "application_name = 'doubtless'"):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def sessions(connection: psycopg.Connection, condition: str) -> int:
    found = connection.execute(WAITING.format(condition).encode()).fetchone()
    assert found is not None
    return int(found[0])


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[list[object]]:
    """Run `work` in a thread, and yield a list that gets its value or what it raised."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - it is looked at by the test
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join(30)


def begin(ledger: Ledger, name: str) -> Operation:
    return ledger.write(lambda tx: samples.begin(tx, samples.operation(name)))


def holds(url: str, name: str) -> bool:
    with open_ledger(url, inline=True) as ledger:
        return ledger.read(lambda tx: operations.get(tx, "main", name)) is not None
