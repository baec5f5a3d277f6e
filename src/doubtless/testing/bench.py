"""Operations per second, beside what the same disk and the ledger alone can do in the same run.

    python -m doubtless.testing.bench [--rounds 3] [--seconds 2] [--folder DIR] [--json]
    python -m doubtless.testing.bench --scale 1000000     # what settled operations cost
    python -m doubtless.testing.bench --memory 100000     # whether memory stays flat

One caller waits for the disk and for the interpreter in turn. The quicker the disk, the more of the
time is the interpreter's: so the ratio to the disk is held against its target as it is, and also as
if flushes took half a millisecond longer (docs/adr/0004).

Every round measures everything once, one after the other, so that a disk or a machine that slows
down slows all of it. The median of the rounds is shown, with the least and the greatest.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from doubtless.testing import bench_disk, bench_engine, bench_scale

Figures = dict[str, float]

CALLERS = (1, 32, 256)
FLUSHES_MS = (0.5, 1, 2, 4)  # as if the disk's flush took so much longer
REFERENCE_MS = 0.5  # about the flush of the disk that the target was set on: docs/adr/0004
TARGET_SEQUENTIAL = 0.35  # of two raw commits an operation
TARGET_CONCURRENT = 0.2  # of the ledger alone, at 256 callers


@dataclass(slots=True)
class Report:
    """The figures of all rounds, by name."""

    rounds: list[Figures] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of a figure over the rounds."""
        return statistics.median(figures[name] for figures in self.rounds)

    def ratio(self, name: str, other: str, factor: float = 1.0) -> float:
        """Return the median of the rounds' own ratios."""
        return statistics.median(
            figures[name] / (figures[other] * factor) for figures in self.rounds
        )

    def spread(self, name: str) -> tuple[float, float]:
        """Return the least and the greatest."""
        values = [figures[name] for figures in self.rounds]
        return min(values), max(values)


def one_round(folder: Path, seconds: float) -> Figures:
    """Measure everything once."""
    figures = dict(bench_disk.limits(folder, seconds))
    for callers in CALLERS:
        rate, batch = anyio.run(bench_engine.ledger_alone, folder, callers, seconds)
        figures[f"ledger_{callers}"], figures[f"ledger_batch_{callers}"] = rate, batch
        rate, batch = anyio.run(bench_engine.engine, folder, callers, seconds)
        figures[f"engine_{callers}"], figures[f"engine_batch_{callers}"] = rate, batch
    for flush_ms in FLUSHES_MS:
        figures |= _slower(folder, seconds / 2, flush_ms)
    return figures


def _slower(folder: Path, seconds: float, flush_ms: float) -> Figures:
    """Measure one caller, and the raw commits, as if every flush took so much longer."""
    raw = bench_disk.slowed_commits(folder, seconds, flush_ms / 1000)
    place = folder / f"flush-{flush_ms}"
    place.mkdir()
    with bench_disk.slowed(flush_ms / 1000):
        rate, _ = anyio.run(bench_engine.engine, place, 1, seconds)
    return {f"commits_1_flush_{flush_ms}": raw, f"engine_1_flush_{flush_ms}": rate}


def measure(folder: Path | None, *, rounds: int, seconds: float) -> Report:
    """Measure `rounds` times, each part for `seconds`, on the disk of `folder`."""
    report = Report()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            report.rounds.append(one_round(Path(place), seconds))
    return report


LINES: Sequence[tuple[str, str, str]] = (
    ("fsync_ms", "write 4 KiB and fsync", "ms"),
    ("commits_1", "SQLite alone, one row a commit", "commits/s"),
    ("rows_64", "SQLite alone, 64 rows a commit", "rows/s"),
    *((f"ledger_{n}", f"ledger alone, two units each, {n} callers", "op/s") for n in CALLERS),
    *((f"engine_{n}", f"engine, no-op function tool, {n} callers", "op/s") for n in CALLERS),
)


def text(report: Report) -> str:
    """Write the report as a table for people."""
    lines = [f"{'':46}{'median':>10}{'least':>10}{'most':>10}"]
    for name, words, unit in LINES:
        least, most = report.spread(name)
        figures = f"{report.median(name):>10,.2f}{least:>10,.2f}{most:>10,.2f}"
        batch = name.replace("_", "_batch_") if name.startswith(("ledger", "engine")) else None
        size = f"   batches of {report.median(batch):.1f}" if batch else ""
        lines.append(f"{words:46}{figures}  {unit}{size}")
    lines += ["", *verdicts(report)]
    return "\n".join(lines)


def at_flush(report: Report, flush_ms: float) -> float:
    """Return the engine's ratio to two raw commits, at a longer flush."""
    return report.ratio(f"engine_1_flush_{flush_ms}", f"commits_1_flush_{flush_ms}", 0.5)


def ratios(report: Report) -> dict[str, tuple[float, float]]:
    """Return each ratio and its target."""
    return {
        "engine, one caller, to two raw commits": (
            report.ratio("engine_1", "commits_1", 0.5),
            TARGET_SEQUENTIAL,
        ),
        f"engine, one caller, to two commits, flush +{REFERENCE_MS} ms": (
            at_flush(report, REFERENCE_MS),
            TARGET_SEQUENTIAL,
        ),
        "engine to the ledger alone, 256 callers": (
            report.ratio("engine_256", "ledger_256"),
            TARGET_CONCURRENT,
        ),
    }


def verdicts(report: Report) -> list[str]:
    """Say how the ratio goes with the disk, and of each target whether it is reached."""
    curve = "".join(f"   +{ms} ms {at_flush(report, ms):.2f}" for ms in FLUSHES_MS)
    lines = [f"engine, one caller, to two raw commits, as if flushes took longer:{curve}"]
    return lines + [
        f"{words:52}{ratio:>6.2f}   target {target}: {'reached' if ratio >= target else 'MISSED'}"
        for words, (ratio, target) in ratios(report).items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m doubtless.testing.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each part of a round")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: this one")
    parser.add_argument("--scale", type=int, metavar="N", help="settled operations to load")
    parser.add_argument("--memory", type=int, metavar="N", help="operations to carry out")
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args(arguments)
    folder = said.folder or Path.cwd()
    if said.scale is not None:
        return _other(bench_scale.scale, folder, said.scale, as_json=said.json)
    if said.memory is not None:
        return _other(bench_scale.memory, folder, said.memory, as_json=said.json)
    report = measure(folder, rounds=said.rounds, seconds=said.seconds)
    print(json.dumps({"rounds": report.rounds}) if said.json else text(report))
    return 0 if all(ratio >= target for ratio, target in ratios(report).values()) else 1


def _other(
    run: Callable[[Path, int], bench_scale.Result], folder: Path, number: int, *, as_json: bool
) -> int:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        result = run(Path(place), number)
    print(json.dumps(result.figures) if as_json else result.text)
    return 0 if result.reached else 1


if __name__ == "__main__":
    sys.exit(main())
