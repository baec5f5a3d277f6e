"""Processes on one PostgreSQL, killed and stopped at random: is anything doubled or lost?

    python -m doubtless.testing.campaign [--minutes 10] [--seed 1] [--evidence docs/evidence.md]

Starts a PostgreSQL, a provider that loses answers, acts late and fails after the effect, 4 workers
and 2 services as processes. Callers call through both services under ids of their own, repeat the
same call through the other one, and go on where an answer fails to come. Meanwhile processes are
killed and started again, stopped (past their leases too) and woken, and their sessions on the
database are ended. Afterwards everything has to be settled, and the provider's own count, the
ledger and all that callers were told have to agree.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from doubtless.testing import evidence
from doubtless.testing.campaign_callers import Callers
from doubtless.testing.campaign_faults import CUT, KILLED, NAPPED, OVERSLEPT, Faults
from doubtless.testing.campaign_fight import Sides, Verdict, fight, ground, table, told
from doubtless.testing.postgres_server import Server, scratch

SPARE_S: Final = 900.0  # for beginning and settling
KINDS: Final = {KILLED: 0.4, NAPPED: 0.2, OVERSLEPT: 0.06, CUT: 0.34}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a campaign is fought."""

    sides: Sides
    seconds: float
    every_s: float = 1.5  # the mean pause between two faults
    kinds: tuple[tuple[str, float], ...] = tuple(KINDS.items())  # the share of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a campaign gave."""

    plan: Plan
    verdict: Verdict
    faults: Counter[str]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong, and every kind of fault did happen."""
        kinds = [kind for kind, share in self.plan.kinds if share]
        happened = all(any(name.endswith(kind) for name in self.faults) for kind in kinds)
        return happened and self.verdict.holds

    def lines(self) -> list[str]:
        """Write it as a table."""
        plan, sides = self.plan, self.plan.sides
        rows = [
            ("processes", f"{sides.workers} workers and {sides.services} services"),
            ("faults for", f"{plan.seconds:,.0f} s, one every {plan.every_s:g} s"),
            ("done to processes", told(self.faults)),
        ]
        return table([*rows, *self.verdict.rows()])


def run(plan: Plan, folder: Path, database: str, schema: str) -> Result:
    """Fight a campaign on a database, in a schema that no ledger stands in yet.

    Args:
        plan: How.
        folder: For contracts and logs.
        database: The address of the database, with an option at least.
        schema: Of the ledger.
    """
    lifetime_s = plan.seconds + SPARE_S
    with ground(plan.sides, folder, f"{database}&schema={schema}", lifetime_s=lifetime_s) as found:
        faults = Faults(
            found.fleet,
            database,
            plan.sides.pace,
            seed=plan.sides.seed,
            every_s=plan.every_s,
            kinds=dict(plan.kinds),
        )

        def attack(_: Callers) -> None:
            faults.run(plan.seconds)

        verdict = fight(found, attack)
    if faults.died:
        worse = verdict.wrong + Counter({"processes that died by themselves": len(faults.died)})
        verdict = replace(verdict, wrong=worse, shown=(*verdict.shown, *faults.died))
    return Result(plan=plan, verdict=verdict, faults=faults.done)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fight one; 1 where something was doubled, lost, left open or told wrongly."""
    parser = argparse.ArgumentParser(
        prog="python -m doubtless.testing.campaign", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder that logs are kept in")
    parser.add_argument("--evidence", type=Path, help="the page to write the figures into")
    said = parser.parse_args(arguments)
    plan = Plan(sides=Sides(seed=said.seed), seconds=said.minutes * 60)
    with scratch() as base, tempfile.TemporaryDirectory() as place:
        folder = said.keep or Path(place)
        folder.mkdir(exist_ok=True)
        with Server(base / "postgres") as server:
            server.create()
            result = run(plan, folder, server.address(), "campaign")
    lines = ["Provider, callers, database and processes share the machine.", "", *result.lines()]
    print("\n".join([*lines, *result.verdict.shown]))
    if said.evidence is not None:
        command = (
            f"python -m doubtless.testing.campaign --minutes {said.minutes:g} --seed {said.seed}"
        )
        title = "Processes killed and stopped on one PostgreSQL"
        evidence.record(said.evidence, "campaign", title, command, lines)
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
