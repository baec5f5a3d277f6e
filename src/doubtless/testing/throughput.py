"""How many operations a second settle 1, 2 and 4 workers on one PostgreSQL, with us and with DBOS?

    python -m doubtless.testing.throughput [--rounds 3] [--operations 1500] [--workers 1 2 4]
                                           [--evidence docs/evidence.md]

Both do the same: intents (workflows) are made durable first, by one process; then so many worker
processes carry them out with a function (a step) that does nothing. Both keep to the server's
`synchronous_commit = on`. The two alternate, on the same server, each time in an empty place. The
rate is read from the instants that each has stored, between the tenth and the ninetieth hundredth,
so that beginning and running out don't count.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol

import psycopg

from doubtless.ledger.store import open_ledger
from doubtless.testing import evidence
from doubtless.testing.postgres_server import Server, scratch

WAIT_S: Final = 600.0  # no part takes longer
POLL_S: Final = 0.2
EDGE: Final = 0.1  # of the operations, at both ends, don't count


class System(Protocol):
    """One of those that are measured."""

    name: str
    module: str

    def place(self, server: Server, number: int) -> str:
        """Make an empty place, and return its address."""

    def ended_ms(self, connection: psycopg.Connection) -> list[int]:
        """Return when each operation ended well, in milliseconds since the epoch."""

    def connect(self, address: str) -> psycopg.Connection:
        """Open a connection to a place."""


class Ours:
    """Operations that were prepared, and are carried out by workers."""

    name = "doubtless"
    module = "doubtless.testing.throughput_ours"

    def place(self, server: Server, number: int) -> str:
        """Make a ledger in a schema of its own."""
        address = server.address(schema=f"ledger_{number}")
        open_ledger(address).close()
        return address

    def connect(self, address: str) -> psycopg.Connection:
        """Open a connection past the ledger."""
        base, _, schema = address.rpartition("&schema=")
        return psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}")

    def ended_ms(self, connection: psycopg.Connection) -> list[int]:
        """Return when each operation was settled."""
        asked = "select updated_ms from operation where state = 'succeeded'"
        return sorted(int(row[0]) for row in connection.execute(asked))


class Dbos:
    """Workflows of one step, from a queue."""

    name = "DBOS"
    module = "doubtless.testing.throughput_dbos"

    def place(self, server: Server, number: int) -> str:
        """Make a database of its own."""
        with server.connect() as connection:
            connection.execute(f"create database dbos_{number}".encode())
        return f"postgresql://postgres@/dbos_{number}?host={server.folder}"

    def connect(self, address: str) -> psycopg.Connection:
        """Open a connection to the database."""
        return psycopg.connect(address, autocommit=True)

    def ended_ms(self, connection: psycopg.Connection) -> list[int]:
        """Return when each workflow was stored as done."""
        asked = "select updated_at from dbos.workflow_status where status = 'SUCCESS'"
        return sorted(int(row[0]) for row in connection.execute(asked))


@dataclass(slots=True)
class Child:
    """A process that says "ready", and begins when it is told to."""

    process: "subprocess.Popen[str]"

    def line(self) -> str:
        """Return the next line that it says.

        Raises:
            RuntimeError: It ended.
        """
        told = _pipe(self.process.stdout).readline()
        if not told:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        return told.strip()

    def begin(self) -> None:
        """Let it begin."""
        pipe = _pipe(self.process.stdin)
        pipe.write("go\n")
        pipe.flush()


def _pipe(found: "IO[str] | None") -> "IO[str]":
    assert found is not None
    return found


@contextmanager
def children(module: str, words: Sequence[str], count: int) -> Iterator[list[Child]]:
    """Start so many processes, wait until all are ready, and end them afterwards."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        found = [Child(process) for process in processes]
        for child in found:
            assert child.line() == "ready"
        yield found
    finally:
        for process in processes:
            process.kill()  # all that counts is in the database
            process.communicate()


@dataclass(frozen=True, slots=True)
class Rate:
    """What one measurement gave, in operations a second."""

    prepared: float
    settled: float


def measure(system: System, server: Server, *, number: int, workers: int, count: int) -> Rate:
    """Let a process prepare so many operations, and so many workers carry them out."""
    address = system.place(server, number)
    with children(system.module, ["prepare", address, str(count)], 1) as (child,):
        begun_s = time.perf_counter()
        child.begin()
        assert child.line() == "done"
        prepared = count / (time.perf_counter() - begun_s)
    with (
        children(system.module, ["work", address, str(count)], workers) as found,
        system.connect(address) as connection,
    ):
        for child in found:
            child.begin()
        deadline_s = time.monotonic() + WAIT_S
        while len(ended_ms := system.ended_ms(connection)) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{system.name}: {len(ended_ms)} of {count} are done")
            time.sleep(POLL_S)
    return Rate(prepared=prepared, settled=middle_rate(ended_ms))


def middle_rate(ended_ms: Sequence[int]) -> float:
    """Return how many ended in a second, without the first and the last of them."""
    edge = max(1, int(len(ended_ms) * EDGE))
    first, last = ended_ms[edge], ended_ms[-edge - 1]
    return (len(ended_ms) - 2 * edge - 1) / max(0.001, (last - first) / 1000)


@dataclass(slots=True)
class Report:
    """All measurements, by system and number of workers."""

    rates: dict[tuple[str, int], list[Rate]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Write it as a table."""
        sizes = sorted({workers for _, workers in self.rates})
        lines = [
            "| workers | doubtless | DBOS | ratio |",
            "| --- | --- | --- | --- |",
        ]
        for workers in sizes:
            shown = " | ".join(self._shown(name, workers) for name in (Ours.name, Dbos.name))
            lines.append(f"| {workers} | {shown} | {self.ratio(workers):.1f} |")
        ours, theirs = self._prepared(Ours.name), self._prepared(Dbos.name)
        prepared = f"| made durable first, by one process | {ours:,.0f} | {theirs:,.0f} |"
        return [*lines, f"{prepared} {ours / theirs:.1f} |"]

    def _prepared(self, name: str) -> float:
        found = [rates for (each, _), rates in self.rates.items() if each == name]
        return statistics.median(rate.prepared for rates in found for rate in rates)

    def ratio(self, workers: int) -> float:
        """Return ours to theirs: the median of the rounds, in each of which both took turns."""
        pairs = zip(self.rates[Ours.name, workers], self.rates[Dbos.name, workers], strict=True)
        return statistics.median(ours.settled / theirs.settled for ours, theirs in pairs)

    def _shown(self, name: str, workers: int) -> str:
        found = [rate.settled for rate in self.rates[name, workers]]
        return f"{statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})"


def compare(
    server: Server, *, rounds: int, sizes: Sequence[int], operations: dict[str, int]
) -> Report:
    """Measure both in turn, so many times.

    Args:
        server: Where.
        rounds: How often.
        sizes: Numbers of workers.
        operations: How many, by the name of the system.
    """
    report, number = Report(), 0
    systems: tuple[System, ...] = (Ours(), Dbos())
    for _ in range(rounds):
        for workers in sizes:
            for system in systems:
                number += 1
                rate = measure(
                    system, server, number=number, workers=workers, count=operations[system.name]
                )
                report.rates.setdefault((system.name, workers), []).append(rate)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 where DBOS was quicker."""
    parser = argparse.ArgumentParser(
        prog="python -m doubtless.testing.throughput", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--operations", type=int, default=1_500, help="DBOS gets a third of them")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: this one")
    parser.add_argument("--evidence", type=Path, help="the page to write the figures into")
    said = parser.parse_args(arguments)
    counts = {Ours.name: said.operations, Dbos.name: max(50, said.operations // 3)}
    with scratch(said.folder or Path.cwd()) as base, Server(base / "postgres") as server:
        server.create()
        report = compare(server, rounds=said.rounds, sizes=said.workers, operations=counts)
    lines = [
        f"Operations a second, median (least to most) of {said.rounds} rounds in which both",
        "alternate: `synchronous_commit = on`, fsync on a disk, all on one machine.",
        "",
        *report.lines(),
    ]
    print("\n".join(lines))
    if said.evidence is not None:
        command = (
            f"python -m doubtless.testing.throughput --rounds {said.rounds}"
            f" --operations {said.operations}"
        )
        title = "Throughput beside DBOS on one PostgreSQL"
        evidence.record(said.evidence, "throughput", title, command, lines)
    return 0 if all(report.ratio(workers) > 1 for workers in said.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
