"""Primaries that die under load: three of them, and what the run calls wrong."""

from collections import Counter
from dataclasses import replace

import pytest

from doubtless.testing import failover
from doubtless.testing.campaign_callers import History
from doubtless.testing.campaign_fight import Sides, Verdict
from doubtless.testing.campaign_stage import SHORT
from doubtless.testing.failover import Plan, Result
from doubtless.testing.postgres_server import scratch

SLICE = Plan(
    sides=Sides(seed=2, pace=SHORT, workers=0, callers=4, think_s=0.2, asked_max=10),
    times=3,
    pause_max_s=0.5,
    ahead=5,
)


@pytest.mark.timeout(180)
@pytest.mark.proves("PG-13", "PG-16")
def test_three_primaries_die_under_load_and_nothing_acknowledged_is_lost_or_doubled(tmp_path):
    with scratch() as base, failover.pair(base) as servers:
        result = failover.run(SLICE, tmp_path, servers)
    verdict = result.verdict
    assert result.holds, [*verdict.shown, verdict.history.failures]
    assert len(result.deaths_s) == 3
    assert len(verdict.history.acknowledged()) >= 4 * SLICE.ahead
    assert sum(verdict.provider_faults.values()) > 0


def test_too_few_deaths_or_anything_wrong_is_enough_to_fail():
    verdict = Verdict(
        sides=SLICE.sides,
        history=History(),
        ended=Counter({"succeeded": 1}),
        effects=Counter({1: 1}),
        wrong=Counter({"acknowledged and lost": 0}),
        shown=(),
        provider_faults=Counter(),
        seen=Counter(),
        settled_s=1.0,
    )
    good = Result(plan=SLICE, verdict=verdict, deaths_s=(1.0, 2.0, 3.0), outages_s=(0.5, 0.5, 2.5))
    assert good.holds
    assert not replace(good, deaths_s=(1.0, 2.0)).holds
    lost = replace(verdict, wrong=Counter({"acknowledged and lost": 1}))
    assert not replace(good, verdict=lost).holds
    assert "| acknowledged and lost | 0 |" in good.lines()
