"""A primary that dies under load, again and again: is anything acknowledged lost, or doubled?

    python -m doubtless.testing.failover [--times 50] [--seed 1] [--evidence docs/evidence.md]

Starts a PostgreSQL and a standby for which every commit waits, services and workers on whichever
is the primary, and a provider that loses answers. While callers call, all processes of the primary
are killed at one moment; the standby is promoted, and the dead one is made anew as its standby.
Afterwards everything has to be settled, and the provider's own count, the ledger and all that
callers were told have to agree.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doubtless.testing import evidence
from doubtless.testing.campaign_callers import Callers, History
from doubtless.testing.campaign_fight import Sides, Verdict, fight, ground, table
from doubtless.testing.postgres_server import Server, address_of, scratch

SPARE_S: Final = 900.0  # for beginning and settling
EACH_S: Final = 300.0  # no fail-over takes longer, on the busiest machine
POLL_S: Final = 0.01
SYNCHRONOUS: Final = "select count(*) from pg_stat_replication where sync_state = 'sync'"


class Pair:
    """A primary, and a standby for which every commit waits."""

    def __init__(self, first: Server, second: Server) -> None:
        self.primary, self.standby = first, second
        self.address = address_of(first, second)

    def create(self) -> None:
        """Start both."""
        self.primary.create()
        # Before it is copied, so that the copy, once promoted, waits for a standby as well.
        self.primary.set("synchronous_standby_names", "*")
        self.standby.follow(self.primary)
        self._wait()

    def fail_over(self) -> float:
        """Kill the primary, promote the standby, give it a new one; return when that one was dead.

        The instant is by the monotonic clock.
        """
        self.primary.kill()
        dead_s = time.monotonic()
        self.standby.promote()
        self.primary.discard()
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)
        self._wait()
        return dead_s

    def _wait(self) -> None:
        """Wait until commits can be acknowledged."""
        deadline_s = time.monotonic() + EACH_S
        with self.primary.connect() as connection:
            while connection.execute(SYNCHRONOUS).fetchone() != (1,):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the standby did not become synchronous")
                time.sleep(POLL_S)


@contextmanager
def pair(base: Path, programs: Path | None = None) -> Iterator[Pair]:
    """Start a primary and its standby in a folder, and end them afterwards."""
    with Server(base / "a", programs) as first, Server(base / "b", programs) as second:
        found = Pair(first, second)
        found.create()
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often, and under which load."""

    sides: Sides
    times: int
    pause_max_s: float = 2.0  # between two fail-overs, drawn from nothing to this
    ahead: int = 10  # operations that are acknowledged in between, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run gave."""

    plan: Plan
    verdict: Verdict
    deaths_s: tuple[float, ...]  # when each primary died
    outages_s: tuple[float, ...]  # from each death to the next operation that was acknowledged

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong, and primaries died as often as was said."""
        return len(self.deaths_s) == self.plan.times and self.verdict.holds

    def lines(self) -> list[str]:
        """Write it as a table."""
        sides = self.plan.sides
        middle, longest = statistics.median(self.outages_s), max(self.outages_s)
        rows = [
            ("processes", f"{sides.workers} workers and {sides.services} services"),
            ("primaries killed, standbys promoted", f"{len(self.deaths_s):,}"),
            (
                "from a death to the next acknowledgement",
                f"median {middle:.1f} s, longest {longest:.1f} s, with a new standby in between",
            ),
        ]
        return table([*rows, *self.verdict.rows()])


def run(plan: Plan, folder: Path, servers: Pair) -> Result:
    """Let primaries die under load.

    Args:
        plan: How often.
        folder: For contracts and logs.
        servers: They hold no ledger yet.
    """
    deaths_s: list[float] = []
    draw = random.Random(plan.sides.seed)

    def attack(callers: Callers) -> None:
        for _ in range(plan.times):
            _wait_for(callers, plan.ahead)
            time.sleep(draw.uniform(0, plan.pause_max_s))
            deaths_s.append(servers.fail_over())
        _wait_for(callers, plan.ahead)

    lifetime_s = plan.times * 60 + SPARE_S
    address = f"{servers.address}&schema=failover"
    with ground(plan.sides, folder, address, lifetime_s=lifetime_s) as found:
        verdict = fight(found, attack)
    return Result(
        plan=plan,
        verdict=verdict,
        deaths_s=tuple(deaths_s),
        outages_s=tuple(_outage_s(verdict.history, dead_s) for dead_s in deaths_s),
    )


def _wait_for(callers: Callers, more: int) -> None:
    """Wait until so many more operations are acknowledged."""
    goal = len(callers.history.acknowledged()) + more
    deadline_s = time.monotonic() + EACH_S
    while len(callers.history.acknowledged()) < goal:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nothing is acknowledged: {callers.history.failures}")
        time.sleep(POLL_S)


def _outage_s(history: History, dead_s: float) -> float:
    """Return how long no call that began after a death was acknowledged."""
    ends_s = [
        word.ended_s
        for words in history.words.values()
        for word in words
        if word.calls and word.acknowledges and word.begun_s > dead_s
    ]
    return min(ends_s) - dead_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where something was doubled, lost, left open or told wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m doubtless.testing.failover", description=__doc__
    )
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder that logs are kept in")
    parser.add_argument("--evidence", type=Path, help="the page to write the figures into")
    said = parser.parse_args(arguments)
    sides = Sides(seed=said.seed, workers=2, callers=8)
    plan = Plan(sides=sides, times=said.times)
    with scratch() as base, tempfile.TemporaryDirectory() as place, pair(base) as servers:
        folder = said.keep or Path(place)
        folder.mkdir(exist_ok=True)
        result = run(plan, folder, servers)
    lines = ["Provider, callers, databases and processes share the machine.", "", *result.lines()]
    print("\n".join([*lines, *result.verdict.shown]))
    if said.evidence is not None:
        command = f"python -m doubtless.testing.failover --times {said.times} --seed {said.seed}"
        title = "A primary that dies under load"
        evidence.record(said.evidence, "failover", title, command, lines)
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
