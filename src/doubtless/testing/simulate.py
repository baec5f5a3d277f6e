"""Run the real engine on a virtual clock against a simulated world, from seeds.

    python -m doubtless.testing.simulate --seeds 2000 [--from N] [--jobs 2]
    python -m doubtless.testing.simulate --seed 7 --trace      # one of them again, told in full

The same seed always gives the same run. Exits with 1 if an invariant was broken, and names the
command that plays that very run again.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from doubtless.testing.simulate_report import Totals
from doubtless.testing.simulate_run import simulate

CHUNK = 25  # seeds that one process takes at a time


def run(first: int, count: int) -> Totals:
    """Run `count` seeds from `first` on, and add up what they brought."""
    totals = Totals()
    for seed in range(first, first + count):
        totals.add(simulate(seed))
    return totals


def run_all(first: int, count: int, *, jobs: int) -> Totals:
    """Run seeds in several processes at once."""
    chunks = [
        (start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)
    ]
    if jobs == 1:
        return _sum(run(*chunk) for chunk in chunks)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return _sum(pool.map(run, *zip(*chunks, strict=True)))


def _sum(parts: Iterable[Totals]) -> Totals:
    totals = Totals()
    for part in parts:
        totals.merge(part)
    return totals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m doubtless.testing.simulate", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=2_000, help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--trace", action="store_true", help="tell everything that happened")
    said = parser.parse_args(arguments)
    begun_s = time.perf_counter()
    if said.seed is None:
        totals = run_all(said.first, said.seeds, jobs=said.jobs)
    else:
        report = simulate(said.seed, traced=said.trace)
        print("\n".join(report.trace), end="\n" if report.trace else "")
        totals = Totals()
        totals.add(report)
    print("\n".join(totals.lines(time.perf_counter() - begun_s)))
    return 1 if totals.broken else 0


if __name__ == "__main__":
    sys.exit(main())
