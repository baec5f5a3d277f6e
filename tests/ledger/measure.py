"""Measure the ledger on this disk: `python -m tests.ledger.measure [folder]`.

Units are timed from one caller and from 256 coroutines: six small statements; the creation and
lease of an operation, six large ones; and a whole operation, which takes two units of about ten.
Beside them stands a bare driver that makes two small commits for each of its operations.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import apsw
from tests.ledger import samples

from doubtless.core.model import Cause, Principal, Role, State
from doubtless.ledger import bodies, journal, operations
from doubtless.ledger.store import Ledger, Transaction, open_ledger

SECONDS = 3.0
CALLERS = 256
AGENT = Principal(name="agent-1", role=Role.AGENT)


def light(tx: Transaction, number: int) -> None:
    """Six small statements: three rows of the journal, one other row, two reads."""
    operation_id = f"light-{number}"
    for _ in range(3):
        journal.refuse(
            tx, "main", operation_id, Cause.POLICY, principal=AGENT, data={"number": number}
        )
    bodies.put_contract(tx, "main", operation_id, "{}")
    bodies.contract(tx, "main", operation_id)
    operations.get(tx, "main", operation_id)


def light_again(tx: Transaction, number: int) -> None:
    """Six more for the same operation."""
    light(tx, -number - 1)


def preparation(tx: Transaction, number: int) -> None:
    """Insert an operation, its contract and a body; change it once; journal both."""
    operation = samples.operation(f"creation-{number}", now_ms=tx.now_ms)
    operations.insert(
        tx,
        operation,
        bodies={"request": b"POST /refunds" * 10},
        contract_json="{}",
        principal=AGENT,
        inputs={},
    )
    samples.lease(
        tx,
        operation,
        state=State.EXECUTING,
        owner="worker-1",
        lease_end_ms=tx.now_ms + 40_000,
        reason="send",
        principal=AGENT,
        inputs={},
    )


def begin(tx: Transaction, number: int) -> None:
    """Prepare an operation and open its first attempt: what is durable before anything is sent."""
    samples.begin(tx, samples.operation(f"whole-{number}", now_ms=tx.now_ms), AGENT)


def end(tx: Transaction, number: int) -> None:
    """Record what the attempt saw, as evidence too, and settle the operation."""
    samples.end(tx, f"whole-{number}", AGENT)


def bare(folder: Path) -> float:
    """Return how many operations of two small commits a second the driver alone does."""
    connection = apsw.Connection(str(folder / "bare.db"))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", 2)
    connection.execute("create table t (id text primary key, data text, number integer)")
    insert = "insert into t values (:id, :data, :number)"
    update = "update t set data = :data, number = :number where id = :id"
    began = time.perf_counter()
    done = 0
    while time.perf_counter() - began < SECONDS:
        values = {"id": f"key-{done}", "data": "x" * 200, "number": done}
        for statement in (insert, update):
            connection.execute("begin immediate")
            connection.execute(statement, values)
            connection.execute("commit")
        done += 1
    connection.close()
    return done / SECONDS


def one_after_another(ledger: Ledger, *works) -> float:
    began = time.perf_counter()
    done = 0
    while time.perf_counter() - began < SECONDS:
        for work in works:
            ledger.write(partial(work, number=done))
        done += 1
    return done / SECONDS


async def at_once(ledger: Ledger, *works) -> float:
    end_s = time.perf_counter() + SECONDS
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            number = done = done + 1
            for work in works:
                await ledger.commit(partial(work, number=number))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(caller())
    return done / (time.perf_counter() - began)


def report(name: str, rate: float, ledger: Ledger) -> None:
    stats = ledger.stats
    sizes = sorted(size for size, count in stats.sizes.items() for _ in range(count))
    print(
        f"{name:<48}{rate:>9.0f}/s   batches of {stats.units / max(stats.batches, 1):.1f}"
        f" (median {statistics.median(sizes or [0]):.0f}, largest {max(sizes or [0])})"
    )


def main(folder: Path) -> None:
    rate = bare(folder)
    print(f"{'bare driver, two commits an operation':<48}{rate:>9.0f}/s")
    for name, works in (
        ("six small statements", (light,)),
        ("two units of them", (light, light_again)),
        ("creation and lease", (preparation,)),
        ("whole operation, two units", (begin, end)),
    ):
        slug = name.replace(" ", "-")
        with open_ledger(f"sqlite:///{folder}/{slug}-alone.db") as ledger:
            report(f"{name}, one caller", one_after_another(ledger, *works), ledger)
        with open_ledger(f"sqlite:///{folder}/{slug}-many.db") as ledger:
            report(f"{name}, {CALLERS} callers", asyncio.run(at_once(ledger, *works)), ledger)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
