"""Callers against a fleet that something is done to, and the verdict on it afterwards."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from doubtless.ledger.store import open_ledger
from doubtless.testing import campaign_checks as checks
from doubtless.testing.campaign_callers import Callers, History
from doubtless.testing.campaign_stage import LONG, Fleet, Pace, contracts, hostile
from doubtless.testing.provider import ProviderProcess, spawn_provider

SETTLE_S: Final = 240.0  # everything has to be settled so long after the last fault
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """How large a fight is."""

    seed: int
    pace: Pace = LONG
    services: int = 2
    workers: int = 4
    callers: int = 16
    think_s: float = 0.4  # the mean pause of a caller between two operations
    asked_max: int = 300  # operations that every service is asked about in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the provider counted, the ledger holds and callers were told, against one another."""

    sides: Sides
    history: History
    ended: Counter[str]  # operations by state
    effects: Counter[int]  # operations by the provider's count
    wrong: Counter[str]  # of each kind of fault that was looked for, how many
    shown: tuple[str, ...]  # examples of what is wrong
    provider_faults: Counter[str]
    seen: Counter[str]  # what the ledger tells of the story
    settled_s: float

    @property
    def holds(self) -> bool:
        """Whether there is anything to judge, and nothing is wrong."""
        return bool(self.ended) and not any(self.wrong.values())

    def rows(self) -> list[tuple[str, str]]:
        """Write it as rows of a table."""
        history, sides = self.history, self.sides
        return [
            ("done by the provider", told(self.provider_faults)),
            ("operations", f"{sum(self.ended.values()):,}, by {sides.callers} callers"),
            ("acknowledged", f"{len(history.acknowledged()):,}"),
            ("requests", f"{history.requests:,}; {history.unwaited:,} calls did not wait"),
            (
                "the same call through the other service",
                f"{history.repeats:,} afterwards, {history.twice:,} at the same moment",
            ),
            ("requests without an outcome, repeated", told(history.failures)),
            ("seen in the ledger", told(self.seen)),
            ("in the end", told(self.ended)),
            ("settled after the last fault within", f"{self.settled_s:.1f} s"),
            (
                "operations by effects, by the provider's count",
                ", ".join(f"{n:,} with {e}" for e, n in sorted(self.effects.items())),
            ),
            *((kind, f"{number:,}") for kind, number in self.wrong.items()),
        ]


def told(counts: Counter[str]) -> str:
    """Write counts in a line."""
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items())) or "0"


def table(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Write rows as a table in Markdown."""
    return ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A fleet that works on a ledger, a hostile provider, and callers that have not begun."""

    sides: Sides
    ledger_url: str
    provider: ProviderProcess
    fleet: Fleet
    callers: Callers


@contextmanager
def ground(sides: Sides, folder: Path, ledger_url: str, *, lifetime_s: float) -> Iterator[Ground]:
    """Start all of it.

    Args:
        sides: How many of each.
        folder: For contracts and logs.
        ledger_url: The address of a ledger on PostgreSQL, which may not be there yet.
        lifetime_s: The provider ends by itself after so long.

    Raises:
        RuntimeError: A process does not begin to work.
    """
    rules = hostile(sides.pace, sides.seed)
    with spawn_provider(rules, lifetime_s=lifetime_s) as provider:
        text = contracts(provider.url, sides.pace)
        (folder / "contracts.toml").write_text(text, encoding="utf-8")
        with Fleet(folder, ledger_url, services=sides.services, workers=sides.workers) as fleet:
            fleet.start()
            services = [member.url for member in fleet.services]
            yield Ground(
                sides=sides,
                ledger_url=ledger_url,
                provider=provider,
                fleet=fleet,
                callers=Callers(services, fleet.token, seed=sides.seed),
            )


def fight(ground: Ground, attack: Callable[[Callers], None]) -> Verdict:
    """Let callers call while `attack` runs in a thread; judge when everything is settled."""
    settled_s = anyio.run(_fight, ground, attack)
    wrong = ground.fleet.stop()
    return _verdict(ground, settled_s, wrong)


async def _fight(ground: Ground, attack: Callable[[Callers], None]) -> float:
    callers, sides = ground.callers, ground.sides

    async def call() -> None:
        await callers.run(sides.callers, think_s=sides.think_s)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        try:
            await anyio.to_thread.run_sync(attack, callers)
            await anyio.to_thread.run_sync(ground.fleet.start)  # or callers could not end
        finally:
            callers.end()
    settled_s = await _settled(ground.ledger_url)
    await _ask(ground)
    return settled_s


async def _settled(ledger_url: str) -> float:
    """Wait until nothing is open, or for as long as that may take; return how long it took."""
    begun_s = time.monotonic()
    with open_ledger(ledger_url) as ledger:
        while True:
            taken_s = time.monotonic() - begun_s
            if not ledger.read(lambda tx: checks.count(tx, checks.OPEN)) or taken_s > SETTLE_S:
                return taken_s
            await anyio.sleep(POLL_S)


async def _ask(ground: Ground) -> None:
    """Ask all services about some operations: what they say has to be how it ended."""
    callers = ground.callers
    names = sorted(callers.history.acknowledged())[: ground.sides.asked_max]
    async with callers.client() as api:
        for name in names:
            for member in ground.fleet.services:
                await callers.ask(api, member.url, name)


def _verdict(ground: Ground, settled_s: float, died: Sequence[str]) -> Verdict:
    history, effects = ground.callers.history, ground.provider.counts()
    with open_ledger(ground.ledger_url) as ledger:
        found = ledger.read(checks.held)
        wrong = checks.of_the_ledger(history, found, effects)
        wrong |= checks.of_the_history(history)
        wrong["journals that replay to something else"] = checks.of_the_journals(ledger, found)
        wrong["processes that died, complained or did not end in order"] = list(died)
        seen = ledger.read(checks.seen)
    return Verdict(
        sides=ground.sides,
        history=history,
        ended=Counter(each.state.value for each in found.values()),
        effects=Counter(effects.get(each.ref, 0) for each in found.values()),
        wrong=checks.summed(wrong),
        shown=tuple(f"{kind}: {names[:5]}" for kind, names in wrong.items() if names),
        provider_faults=Counter(ground.provider.fired()),
        seen=seen,
        settled_s=settled_s,
    )
