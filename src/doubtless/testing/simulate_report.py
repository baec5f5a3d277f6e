"""What simulated runs brought: of one seed, and of many together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from doubtless.testing.simulate_faults import ALL_FAULTS

FAULTS_A_LINE: Final = 4
REPLAY: Final = "python -m doubtless.testing.simulate --seed {seed} --trace"


@dataclass(slots=True, kw_only=True)
class Report:
    """What one seed brought."""

    seed: int
    operations: int = 0
    effects: int = 0
    states: Counter[str] = field(default_factory=Counter)  # of its operations at the end
    faults: Counter[str] = field(default_factory=Counter)
    broken: str | None = None  # the invariant that does not hold, and where
    trace: list[str] = field(default_factory=list)

    @property
    def invariant(self) -> str | None:
        """The name of the invariant that is broken."""
        return None if self.broken is None else self.broken.partition(":")[0]


@dataclass(slots=True, kw_only=True)
class Totals:
    """What many seeds brought."""

    seeds: int = 0
    operations: int = 0
    effects: int = 0
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: dict[int, str] = field(default_factory=dict)  # by seed

    def add(self, report: Report) -> None:
        """Count one seed."""
        self.merge(
            Totals(
                seeds=1,
                operations=report.operations,
                effects=report.effects,
                states=report.states,
                faults=report.faults,
                broken={} if report.broken is None else {report.seed: report.broken},
            )
        )

    def merge(self, other: "Totals") -> None:
        """Count other seeds."""
        self.seeds += other.seeds
        self.operations += other.operations
        self.effects += other.effects
        self.states.update(other.states)
        self.faults.update(other.faults)
        self.broken |= other.broken

    def count(self, invariant: str) -> int:
        """Return in how many seeds an invariant was broken."""
        return sum(text.startswith(f"{invariant}:") for text in self.broken.values())

    @property
    def never_happened(self) -> list[str]:
        """Fault classes of which there was no instance: of them nothing is proven."""
        return [name for name in ALL_FAULTS if not self.faults[name]]

    def lines(self, seconds: float) -> Iterable[str]:
        """Write the report.

        Args:
            seconds: How long it took.
        """
        settled = ", ".join(f"{name} {count:,}" for name, count in sorted(self.states.items()))
        yield f"seeds       {self.seeds:,}"
        yield f"operations  {self.operations:,}: {settled}"
        yield f"effects     {self.effects:,}, doubled {self.count('doubled')}"
        yield f"lost        {self.count('lost')}"
        yield f"violations  {len(self.broken)}"
        yield f"faults      {self.faults.total():,} of {len(ALL_FAULTS)} classes:"
        counts = [f"{name} {self.faults[name]:,}" for name in ALL_FAULTS]
        for first in range(0, len(counts), FAULTS_A_LINE):
            row = counts[first : first + FAULTS_A_LINE]
            yield "  " + "".join(f"{count:<29}" for count in row).rstrip()
        if self.never_happened:
            yield f"  never: {', '.join(self.never_happened)}"
        yield f"seconds     {seconds:.1f}"
        if self.broken:
            seed = min(self.broken)
            yield f"FAILED      seed {seed}: {self.broken[seed]}"
            yield f"replay      {REPLAY.format(seed=seed)}"
