"""What a large ledger costs: calls and claims beside settled operations, and memory over many."""

import gc
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from doubtless.core.model import Effect, State
from doubtless.engine.app import Doubtless
from doubtless.engine.dispatcher import OPEN_STATES
from doubtless.engine.tools import Call
from doubtless.ledger import operations
from doubtless.ledger.store import Ledger, Transaction, open_ledger
from doubtless.testing.bench_engine import AGENT, operation

RATIO_MAX = 1.3
CALLS = 300  # of each measurement, in alternating groups
GROUPS = 6
OPEN = 200  # operations that are due, in both ledgers
MEMORY_GROWTH_MAX = 0.10  # of the resident size after the first tenth


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, for programs and for people, and whether the target was reached."""

    figures: dict[str, float]
    text: str
    reached: bool


def load(ledger: Ledger, settled: int, *, open_ones: int = OPEN) -> None:
    """Fill a ledger with operations that have ended, and some that are due."""

    def some(first: int, last: int, *, ended: bool) -> Callable[[Transaction], None]:
        def unit(tx: Transaction) -> None:
            for number in range(first, last):
                kind = "ended" if ended else "open"
                made = operation(f"{kind}-{number:09}", tx.now_ms)
                if ended:
                    made = replace(made, state=State.SUCCEEDED, due_ms=None)
                operations.insert(
                    tx, made, bodies={}, contract_json=None, principal=AGENT, inputs={}
                )

        return unit

    for first in range(0, settled, 2_000):
        ledger.write(some(first, min(first + 2_000, settled), ended=True))
    ledger.write(some(0, open_ones, ended=False))


def scale(folder: Path, settled: int) -> Result:
    """Compare the same calls and claims on a small ledger and beside `settled` operations."""
    with (
        open_ledger(f"sqlite:///{folder / 'small.db'}") as small,
        open_ledger(f"sqlite:///{folder / 'large.db'}") as large,
    ):
        load(small, 1_000)
        load(large, settled)
        call_small, call_large = anyio.run(_calls, small, large)
        claim_small, claim_large = _claims(small), _claims(large)
    figures = {
        "settled": float(settled),
        "call_ms": call_small,
        "call_large_ms": call_large,
        "claim_ms": claim_small,
        "claim_large_ms": claim_large,
        "call_ratio": call_large / call_small,
        "claim_ratio": claim_large / claim_small,
    }
    reached = max(figures["call_ratio"], figures["claim_ratio"]) <= RATIO_MAX
    text = "\n".join(
        [
            f"{'':24}{'1,000 settled':>16}{f'{settled:,} settled':>20}{'ratio':>8}",
            _line("a new call, median", call_small, call_large),
            _line("the claim, median", claim_small, claim_large),
            f"at most {RATIO_MAX}: {'reached' if reached else 'MISSED'}",
        ]
    )
    return Result(figures, text, reached)


def _line(words: str, small_ms: float, large_ms: float) -> str:
    return f"{words:24}{small_ms:>13.3f} ms{large_ms:>17.3f} ms{large_ms / small_ms:>8.2f}"


async def _calls(small: Ledger, large: Ledger) -> tuple[float, float]:
    """Return the median time of a call on each, in milliseconds; the groups alternate."""
    apps = [_application(small), _application(large)]
    taken: list[list[float]] = [[], []]
    async with apps[0] as first, apps[1] as second:
        number = 0
        for _ in range(GROUPS):
            for place, app in enumerate((first, second)):
                for _ in range(CALLS // GROUPS):
                    number += 1
                    begun_s = time.perf_counter()
                    await app.call("nothing", {"number": number})
                    taken[place].append(time.perf_counter() - begun_s)
    return statistics.median(taken[0]) * 1000, statistics.median(taken[1]) * 1000


def _application(ledger: Ledger) -> Doubtless:
    app = Doubtless(ledger, worker=False)

    @app.tool(effect=Effect.WRITE)
    async def nothing(_call: Call, number: int) -> dict[str, int]:
        return {"number": number}

    return app


def _claims(ledger: Ledger) -> float:
    """Return the median time in which a worker finds what is due, in milliseconds."""
    taken = []
    for _ in range(CALLS):
        begun_s = time.perf_counter()
        found = ledger.read(lambda tx: operations.due(tx, "main", tx.now_ms, 64, OPEN_STATES))
        taken.append(time.perf_counter() - begun_s)
        assert len(found) == 64
    return statistics.median(taken) * 1000


def memory(folder: Path, calls: int) -> Result:
    """Carry out `calls` operations in one process and see whether its memory stays flat."""
    with open_ledger(f"sqlite:///{folder / 'memory.db'}") as ledger:
        early, late = anyio.run(_grow, ledger, calls)
    growth = late / early - 1
    reached = growth <= MEMORY_GROWTH_MAX
    figures = {"calls": float(calls), "early_mib": early, "late_mib": late, "growth": growth}
    verdict = "reached" if reached else "MISSED"
    text = (
        f"resident after {calls // 10:,} operations {early:.1f} MiB, after {calls:,} "
        f"{late:.1f} MiB: {growth:+.1%} (at most {MEMORY_GROWTH_MAX:.0%}: {verdict})"
    )
    return Result(figures, text, reached)


async def _grow(ledger: Ledger, calls: int) -> tuple[float, float]:
    app = _application(ledger)
    sizes = []
    async with app:
        for first, last in ((0, calls // 10), (calls // 10, calls)):
            limiter = anyio.CapacityLimiter(64)

            async def one(number: int, limiter: anyio.CapacityLimiter = limiter) -> None:
                async with limiter:
                    await app.call("nothing", {"number": number})

            for start in range(first, last, 640):
                async with anyio.create_task_group() as group:
                    for number in range(start, min(start + 640, last)):
                        group.start_soon(one, number)
            gc.collect()
            sizes.append(_resident_mib())
    return sizes[0], sizes[1]


def _resident_mib() -> float:
    """Return what this process holds in memory now, in MiB; its peak where Linux doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 2**20
