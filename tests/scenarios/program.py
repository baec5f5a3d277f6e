"""An application in a process of its own, forked for each line of `[port, role, options, …]`.

It connects to that port of loopback, reads its orders there and says what happens in lines of JSON.
It is killed when whoever forked it ends, and at the latest after a minute.
"""

import asyncio
import ctypes
import itertools
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.scenarios.stories import REFUND

from doubtless import Doubtless, DoubtlessError, Outcome
from doubtless.core.model import Record
from doubtless.engine import acting, steps
from doubtless.ledger.outbox import UserTransaction

LIFE_S = 60


PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>


class Line:
    """The connection to the test."""

    def __init__(self, port: int) -> None:
        self._file = socket.create_connection(("127.0.0.1", port)).makefile("rw", encoding="utf-8")

    def say(self, event: str, **parts: object) -> None:
        self._file.write(f"{json.dumps({'event': event, **parts})}\n")
        self._file.flush()

    def say_outcome(self, outcome: Outcome) -> None:
        self.say("outcome", outcome=outcome.to_json())

    async def order(self) -> None:
        """Wait for a line."""
        if not await asyncio.to_thread(self._file.readline):
            os._exit(1)


# --- bending this process, never the one that is judged ------------------------------------------


BENT = pytest.MonkeyPatch()  # it complains of what is no longer there to be bent


def shorten_leases() -> None:
    """Let leases end soon after the time-out. Real ones outlast a test.

    `permission` has the stall margin by its own name, and it must stay within the lease.
    """
    BENT.setattr("doubtless.core.contract.LEASE_EXTRA_MS", 600)
    BENT.setattr("doubtless.core.permission.STALL_MARGIN_MS", 200)


def look_at_reviews_often() -> None:
    """Look at what waits for a person several times a second. In earnest it takes minutes."""
    BENT.setattr("doubtless.core.schedule.REVIEW_PACE_MS", 200)


def stop_at(place: str) -> None:
    """Let this process stop itself once, as a debugger or a hypervisor would.

    Args:
        place: "before the gate"; "behind the gate": open, and no byte written yet; or "before the
            record": the answer is here, and nothing is stored of it.
    """
    passes, finish, stops = acting.Gate.__call__, steps.finish, iter([place])

    def here(reached: str) -> None:
        if reached == place and next(stops, None):
            # Sent to this very thread: it must not run on while another one takes the signal.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    async def passing(gate: acting.Gate) -> float:
        here("before the gate")
        write_by_s = await passes(gate)
        here("behind the gate")
        return write_by_s

    def finishing(*arguments: Any) -> Record:
        here("before the record")
        return finish(*arguments)

    BENT.setattr(acting.Gate, "__call__", passing)
    BENT.setattr(steps, "finish", finishing)


OUTBOX = {
    "before begin": ("begin", True),
    "after begin": ("begin", False),
    "after the row": ("run", False),
    "after prepare": ("unit", False),
    "before commit": ("commit", True),
    "after commit": ("commit", False),
}
"""Places in a transaction of the user's: a step of it, and whether they are before or behind it."""


def stop_in_the_outbox(place: str, turn: int) -> None:
    """Let this process stop itself at that place of its transaction number `turn`."""
    step, before = OUTBOX[place]
    real, turns = getattr(UserTransaction, step), itertools.count(1)

    def bent(*arguments: Any) -> Any:
        here = next(turns) == turn
        if here and before:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        value = real(*arguments)
        if here and not before:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return value

    BENT.setattr(UserTransaction, step, bent)


# --- roles ---------------------------------------------------------------------------------------


def application(options: dict[str, Any]) -> Doubtless:
    return Doubtless(
        options["ledger"], contracts=options["contracts"], worker=options.get("worker", True)
    )


async def callers(line: Line, options: dict[str, Any], count: str) -> None:
    """Call the same operation so many times at once, on a word from outside."""
    operation_id = options.get("operation_id", "r1")
    async with application(options) as app:
        line.say("ready")
        await line.order()

        async def call() -> None:
            wait_s = 20.0
            told = await app.call("refund", REFUND, operation_id=operation_id, wait_s=wait_s)
            line.say_outcome(told)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(count)):
                tasks.create_task(call())
        await asyncio.Event().wait()  # its worker goes on until somebody kills it


async def full_disk(line: Line, options: dict[str, Any]) -> None:
    """Call with a ledger that can't grow, and once more when it can."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write that is too long is an error instead
    async with application(options) as app:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            line.say_outcome(await app.call("refund", REFUND, operation_id="r1"))
        except DoubtlessError as error:
            line.say("error", name=type(error).__name__, text=str(error))
        await line.order()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        line.say_outcome(await app.call("refund", REFUND, operation_id="r1"))


async def batch(line: Line, options: dict[str, Any], count: str) -> None:
    """Carry out the parts of a longer action, each an operation that comes after the one before."""
    async with application(options) as app:
        line.say("ready")
        await line.order()
        before: list[str] = []
        for number in range(int(count)):
            told = await app.call(
                "refund",
                {"charge": f"ch_{number}", "amount": 500},
                operation_id=f"part-{number}",
                after=before,
            )
            line.say_outcome(told)
            before = [told.operation_id]
        await asyncio.Event().wait()


async def outbox(line: Line, options: dict[str, Any], first: str, count: str) -> None:
    """Take orders: a row of our own and a refund for each, in one transaction."""
    async with application(options) as app:
        async with app.transaction() as tx:
            await tx.run("create table if not exists orders (id integer primary key)")
        line.say("ready")
        await line.order()
        if options.get("stops_in_the_outbox"):
            stop_in_the_outbox(options["stops_in_the_outbox"], options.get("turn", 1))
        for number in range(int(first), int(first) + int(count)):
            async with app.transaction() as tx:
                await tx.run("insert into orders (id) values (:id)", id=number)
                await tx.prepare(
                    "refund",
                    {"charge": f"ch_{number}", "amount": 500},
                    operation_id=f"order-{number}",
                )
            line.say("committed", order=number)
        await asyncio.Event().wait()


async def shared(line: Line, options: dict[str, Any], driver: str, place: str) -> None:
    """Take an order on a connection of our own, and stop at `place`: before the commit or after."""
    from tests.engine.connections import opens  # noqa: PLC0415 - few children need the drivers

    async with application(options) as app, opens(driver, options["ledger"]) as hand:
        line.say("ready")
        await line.order()
        await hand.run("insert into orders (id) values (1)")
        await app.prepare(
            "refund",
            {"charge": "ch_1", "amount": 500},
            operation_id="order-1",
            connection=hand.connection,
        )
        if place == "after commit":
            await hand.commit()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "callers": callers,
    "full_disk": full_disk,
    "batch": batch,
    "outbox": outbox,
    "shared": shared,
}


def act(port: int, role: str, options: dict[str, Any], *arguments: str) -> None:
    """Be that child."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # even while it is stopped
    signal.alarm(LIFE_S)
    line = Line(port)
    line.say("born", pid=os.getpid())
    if options.get("short_leases"):
        shorten_leases()
    if options.get("quick_reviews"):
        look_at_reviews_often()
    if "stops" in options:
        stop_at(options["stops"])
    asyncio.run(ROLES[role](line, options, *arguments))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end are gone at once
    for told in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            act(*json.loads(told))
            os._exit(0)


if __name__ == "__main__":
    main()
