"""Every metric as it stands, read from the ledger: the same from whichever process is asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread

from doubtless import telemetry
from doubtless.core.model import State
from doubtless.engine.surface import Surface
from doubtless.ledger import metrics
from doubtless.ledger.metrics import Counted, Open
from doubtless.ledger.store import Ledger, Transaction
from doubtless.telemetry import METRICS, Metric

FOLDING_S_MAX = 2.0  # a reading of a long stream that nobody read before goes on at the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many were at most so long, by the upper bound; and all of it together."""

    buckets: tuple[tuple[str, int], ...]  # cumulative, the last one without end
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One metric: its values by those of its labels, in the order of `metric.labels`."""

    metric: Metric
    values: Mapping[tuple[str, ...], float]
    histograms: Mapping[tuple[str, ...], Histogram]


class Figures(Surface):
    """What operators watch."""

    async def metrics(self) -> tuple[Reading, ...]:
        """Return all metrics of the ledger, whichever processes work on it.

        Raises:
            LedgerUnavailable: It can't be read.
        """
        opened = self._opened
        tenant = opened.book.tenant
        name = telemetry.OPERATIONS.name
        end_s = anyio.current_time() + FOLDING_S_MAX
        while anyio.current_time() < end_s and await _must_fold(opened.ledger, tenant):
            await opened.ledger.commit(lambda tx: metrics.fold(tx, tenant, name))
        # It may take as long as there are open operations: elsewhere than on the event loop.
        return await anyio.to_thread.run_sync(opened.ledger.read, lambda tx: _readings(tx, tenant))


async def _must_fold(ledger: Ledger, tenant: str) -> bool:
    return await anyio.to_thread.run_sync(ledger.read, lambda tx: metrics.must_fold(tx, tenant))


def _readings(tx: Transaction, tenant: str) -> tuple[Reading, ...]:
    counted = metrics.counters(tx, tenant)
    found: dict[str, dict[tuple[str, ...], float]] = {each.name: {} for each in METRICS}
    known = {each.name: each for each in METRICS}
    for one in counted:
        if one.name in known:
            labels = tuple(one.labels.get(name, "") for name in known[one.name].labels)
            found[one.name][labels] = one.value
    _add_ended(found[telemetry.OPERATIONS.name], metrics.ended(tx, tenant))
    _add_open(found, metrics.open_ones(tx, tenant), tx.now_ms)
    waiting = found[telemetry.UNMATCHED_AGE.name]
    for source, since_ms in metrics.unmatched(tx, tenant).items():
        waiting[source,] = max(tx.now_ms - since_ms, 0) / 1000
    histograms = _histograms(counted)
    return tuple(
        Reading(
            metric=metric,
            values=found[metric.name],
            histograms=histograms if metric is telemetry.RECONCILIATION else {},
        )
        for metric in METRICS
    )


def _add_ended(values: dict[tuple[str, ...], float], ended: Iterable[metrics.Ended]) -> None:
    for each in ended:
        labels = (each.state, each.tool, each.effect)
        values[labels] = values.get(labels, 0) + each.count


def _add_open(
    found: Mapping[str, dict[tuple[str, ...], float]], rows: Iterable[Open], now_ms: int
) -> None:
    oldest = found[telemetry.OLDEST.name]
    past = found[telemetry.PAST_DEADLINE.name]
    overdue = found[telemetry.OVERDUE.name]
    # A state of which nothing is open is told as such, so that nobody wonders.
    overdue.update({(state.value,): 0.0 for state in State if not state.ends})
    for row in rows:
        oldest[row.state, row.tool, row.effect] = max(now_ms - row.since_ms, 0) / 1000
        past[row.tool, row.effect] = past.get((row.tool, row.effect), 0) + row.past_deadline
        late_s = max(now_ms - row.due_ms, 0) / 1000
        overdue[row.state,] = max(overdue[row.state,], late_s)


def _histograms(counted: Iterable[Counted]) -> dict[tuple[str, ...], Histogram]:
    name = telemetry.RECONCILIATION.name
    bounds = [*(str(float(bound)) for bound in telemetry.RECONCILIATION_BUCKETS_S), "+Inf"]
    buckets: dict[tuple[str, ...], dict[str, int]] = {}
    sums: dict[tuple[str, ...], float] = {}
    for one in counted:
        labels = tuple(one.labels.get(label, "") for label in telemetry.RECONCILIATION.labels)
        if one.name == f"{name}_bucket":
            buckets.setdefault(labels, {})[one.labels["le"]] = one.value
        elif one.name == f"{name}_sum_ms":
            sums[labels] = one.value / 1000
    return {
        labels: Histogram(buckets=_cumulative(bounds, by_bound), sum_s=sums.get(labels, 0.0))
        for labels, by_bound in buckets.items()
    }


def _cumulative(bounds: Iterable[str], by_bound: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    total, found = 0, []
    for bound in bounds:
        total += by_bound.get(bound, 0)
        found.append((bound, total))
    return tuple(found)
