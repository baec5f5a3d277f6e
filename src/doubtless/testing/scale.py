"""Calls, claims, lists and the dashboard beside many settled operations, against few.

    python -m doubtless.testing.scale --ledger postgresql://… [--settled 10000000]
        [--evidence docs/evidence.md] [--rounds 30]

Two ledgers are made on the server, `scale_small` with a thousand settled operations and
`scale_large` with as many as are said (one that is there with as many is used again). Each thing is
measured in short turns on the one and on the other, so that what else the machine does slows both.
The server's user must be a superuser, since the load sets triggers aside; nothing else does.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio

from doubtless.core.model import Principal, Role, State
from doubtless.engine.app import Doubtless
from doubtless.engine.dispatcher import OPEN_STATES
from doubtless.ledger import listing, migrate, operations
from doubtless.ledger.codec import integer_of
from doubtless.ledger.store import Transaction, open_ledger
from doubtless.testing import scale_load
from doubtless.testing.evidence import record
from doubtless.testing.scale_load import PRINCIPAL, SESSION, TABLES, TENANT, application

RATIO_MAX: Final = 1.5
SMALL: Final = 1_000
SETTLED: Final = 10_000_000
OPEN: Final = 200
ROUNDS: Final = 30  # turns on each ledger
EACH: Final = 10  # of one thing in one turn

Work = Callable[[int], Awaitable[object]]


@dataclass(slots=True)
class Taken:
    """How long one thing took on both ledgers, in milliseconds."""

    name: str
    small_ms: list[float] = field(default_factory=list)
    large_ms: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return statistics.median(self.large_ms) / statistics.median(self.small_ms)


def make(base: str, name: str, settled: int, told: Callable[[str], None]) -> str:
    """Return the address of a ledger with so many settled operations; make it if it isn't there."""
    url = f"{base}{'&' if '?' in base else '?'}schema={name}"
    open_ledger(url).close()
    if _count(url) == 0:
        anyio.run(scale_load.carry_out_patterns, url)
        scale_load.fill(url, settled, told=lambda what: told(f"{name}: {what}"))
        anyio.run(scale_load.leave_open, url, OPEN)
    if not settled <= _count(url) <= settled * 1.1 + 10_000:
        raise SystemExit(f"{name} holds another number of operations: drop that schema first")
    return url


def _count(url: str) -> int:
    connection = migrate.open_connection(migrate.parse(url))
    try:
        asked = "select coalesce(max(position), 0) from operation where tenant = 'main'"
        return integer_of(connection.execute(asked, {})[0][0])
    finally:
        connection.close()


def things(app: Doubtless) -> dict[str, Work]:
    """Return what is measured, by name: each is one request as a user's would be."""
    people = app.actor(Principal(name="operator", role=Role.OPERATOR))
    agent = app.actor(Principal(name=PRINCIPAL.format(7), role=Role.AGENT))

    async def call(number: int) -> object:
        charge = f"new_{time.time_ns()}_{number}"
        return await app.call("refund", {"charge": charge, "amount": 5}, session_id="bench")

    async def claim(_: int) -> object:
        def due(tx: Transaction) -> object:
            return operations.due(tx, TENANT, tx.now_ms, 64, OPEN_STATES)

        return app.ledger.read(due)

    async def deep(_: int) -> object:
        def unit(tx: Transaction) -> object:
            return listing.find(tx, TENANT, limit=50, cursor=300)

        return app.ledger.read(unit)

    lists: dict[str, Work] = {
        "list: everything": lambda _: people.page(),
        "list: succeeded": lambda _: people.page(states=[State.SUCCEEDED]),
        "list: failed": lambda _: people.page(states=[State.FAILED]),
        "list: cancelled (there is none)": lambda _: people.page(states=[State.CANCELLED]),
        "list: the review queue": lambda _: people.page(states=[State.MANUAL_REVIEW]),
        "list: one tool": lambda _: people.page(filters={"tool": "tariff"}),
        "list: one principal's own, 20": lambda _: agent.page(limit=20),
        "list: a session": lambda _: people.page(filters={"session_id": SESSION.format(11)}),
        "list: no such object": lambda _: people.page(filters={"business_key": '{"a":"b"}'}),
    }
    return {
        "call": call,
        "claim": claim,
        **lists,
        "list: far down, rows only": deep,
        "session of an agent": lambda n: app.session(SESSION.format(n % 40)),
        "dashboard": lambda _: app.metrics(),
    }


async def measure(small: str, large: str, rounds: int) -> list[Taken]:
    """Measure everything on both ledgers in turns."""
    async with application(small) as first, application(large) as second:
        for app in (first, second):  # what nobody read before is counted up first
            while len(await _folding(app)) > 0:
                pass
        sides = [things(first), things(second)]
        taken = [Taken(name) for name in sides[0]]
        for turn in range(-1, rounds):  # the first turn only warms up
            for each in taken:
                order = (0, 1) if turn % 2 else (1, 0)
                for side in order:
                    found = await _times(sides[side][each.name], turn)
                    if turn >= 0:
                        (each.large_ms if side else each.small_ms).extend(found)
        return taken


async def _folding(app: Doubtless) -> Sequence[int]:
    from doubtless.ledger import metrics  # noqa: PLC0415

    await app.metrics()
    return [1] if app.ledger.read(lambda tx: metrics.must_fold(tx, TENANT)) else []


async def _times(work: Work, turn: int) -> list[float]:
    found = []
    for number in range(EACH):
        begun_s = time.perf_counter()
        await work(turn * EACH + number)
        found.append((time.perf_counter() - begun_s) * 1000)
    return found


def table(taken: Sequence[Taken], settled: int) -> list[str]:
    """Write the figures as a table in Markdown."""
    lines = [
        f"| ms, median (95th of 100) | {SMALL:,} settled | {settled:,} settled | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {each.name} | {_ms(each.small_ms)} | {_ms(each.large_ms)} | {each.ratio:.2f} |"
        for each in taken
    ]
    worst = max(taken, key=lambda each: each.ratio)
    verdict = "reached" if worst.ratio <= RATIO_MAX else "MISSED"
    return [*lines, "", f"Ratio at most {RATIO_MAX}: {verdict} (worst: {worst.name})."]


def _ms(values: Sequence[float]) -> str:
    high = statistics.quantiles(values, n=20)[-1]
    return f"{statistics.median(values):.2f} ({high:.2f})"


NOTE: Final = (
    "A page is 50 operations with all that is known of them. Both ledgers are on one server, and"
    " measured in turns; other work was on the machine. The load builds indexes after the rows, so"
    " they are denser than those that grow. The first counting-up of settlements (`metric_fold`) is"
    " no part of it: unaided it takes about 2 million a minute, and for 10 million it was set to"
    " their end by hand."
)
SIZES: Final = """
    select pg_table_size(to_regclass(:name)), pg_indexes_size(to_regclass(:name))
"""


def sizes(url: str, settled: int) -> list[str]:
    """Write what an operation takes on disk, by table and its indexes."""
    connection = migrate.open_connection(migrate.parse(url))
    lines = ["| bytes for each settled operation | table | indexes |", "| --- | ---: | ---: |"]
    total = 0
    try:
        for each in TABLES:
            row = connection.execute(SIZES, {"name": each.name})[0]
            own, indexes = (integer_of(value) for value in row)
            total += own + indexes
            lines.append(f"| {each.name} | {own / settled:.0f} | {indexes / settled:.0f} |")
    finally:
        connection.close()
    return [*lines, "", f"In all {total / settled:,.0f} bytes, {total / 1e9:.1f} GB."]


def main(arguments: Sequence[str] | None = None) -> int:
    """Load and measure; 1 where the target was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m doubtless.testing.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ledger", required=True, help="a PostgreSQL server's address")
    parser.add_argument("--settled", type=int, default=SETTLED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="on the server's disk: is there room?")
    parser.add_argument("--evidence", type=Path, help="a page to write the figures to")
    said = parser.parse_args(arguments)
    if said.folder is not None:
        scale_load.enough_room(said.folder, said.settled)
    small = make(said.ledger, "scale_small", SMALL, print)
    large = make(said.ledger, "scale_large", said.settled, print)
    taken = anyio.run(measure, small, large, said.rounds)
    lines = [
        *table(taken, said.settled),
        "",
        NOTE,
        "",
        *sizes(large, said.settled),
    ]
    print("\n".join(lines))
    if said.evidence is not None:
        command = f"make scale ARGS='--ledger postgresql://… --settled {said.settled}'"
        record(said.evidence, "scale", "Many settled operations", command, lines)
    return 0 if all(each.ratio <= RATIO_MAX for each in taken) else 1


if __name__ == "__main__":
    sys.exit(main())
