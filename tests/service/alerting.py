"""A small evaluator of alerting rules: just the forms of expression that ours have.

    max by (l, …) (metric{…}) > n        increase(metric{…}[15m]) > 0
    sum by (l, …) (metric{…}) > n        (metric{…} unless metric{…} offset 15m) > 0

joined by `or`. `promtool`, where it is found, is asked about the same cases.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

LOOKBACK_MIN: Final = 5  # as Prometheus: an older sample is stale
UNITS_MIN: Final = {"m": 1, "h": 60}

Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = Sequence[float | None]  # one a minute; None: not scraped

SELECTOR: Final = r"(\w+)(?:\{([^}]*)\})?"
AGGREGATE: Final = re.compile(rf"(max|sum) by \(([\w, ]+)\) \({SELECTOR}\) > ([\d.]+)")
INCREASE: Final = re.compile(rf"increase\({SELECTOR}\[(\d+[mh])\]\) > ([\d.]+)")
FRESH: Final = re.compile(rf"\({SELECTOR} unless {SELECTOR} offset (\d+[mh])\) > ([\d.]+)")


@dataclass(kw_only=True)
class World:
    """What was scraped, minute by minute."""

    series: dict[tuple[str, Labels], Samples] = field(default_factory=dict)

    def add(self, name: str, samples: Samples, **labels: str) -> None:
        self.series[name, tuple(sorted(labels.items()))] = samples

    def found(self, name: str, matchers: str | None) -> Iterable[tuple[Labels, Samples]]:
        for (own, labels), samples in self.series.items():
            if own == name and matches(dict(labels), matchers or ""):
                yield labels, samples

    def now(self, name: str, matchers: str | None, at: int) -> dict[Labels, float]:
        """Return the instant vector."""
        vector = {}
        for labels, samples in self.found(name, matchers):
            for minute in range(at, max(at - LOOKBACK_MIN, -1), -1):
                value = samples[minute] if 0 <= minute < len(samples) else None
                if value is not None:
                    vector[labels] = value
                    break
        return vector


def matches(labels: Mapping[str, str], matchers: str) -> bool:
    for matcher in filter(None, matchers.split(",")):
        name, operator, wanted = re.fullmatch(r'(\w+)(=~|!=|=)"([^"]*)"', matcher).groups()  # type: ignore[union-attr]
        value = labels.get(name, "")
        holds = {
            "=": value == wanted,
            "!=": value != wanted,
            "=~": re.fullmatch(wanted, value) is not None,
        }
        if not holds[operator]:
            return False
    return True


def evaluate(expression: str, world: World, at: int) -> set[Labels]:
    """Return the labels of what an expression yields at a minute.

    Raises:
        ValueError: It has a form that is not known here.
    """
    found: set[Labels] = set()
    for clause in re.split(r"\s+or\s+", " ".join(expression.split())):
        found |= _clause(clause, world, at)
    return found


def _clause(clause: str, world: World, at: int) -> set[Labels]:
    if parts := AGGREGATE.fullmatch(clause):
        how, by, name, matchers, least = parts.groups()
        groups: dict[Labels, list[float]] = {}
        for labels, value in world.now(name, matchers, at).items():
            kept = tuple(pair for pair in labels if pair[0] in re.split(r", *", by))
            groups.setdefault(kept, []).append(value)
        fold = {"max": max, "sum": sum}[how]
        return {labels for labels, values in groups.items() if fold(values) > float(least)}  # type: ignore[operator]
    if parts := INCREASE.fullmatch(clause):
        name, matchers, window, least = parts.groups()
        return {
            labels
            for labels, samples in world.found(name, matchers)
            if _grown(samples, at - _minutes(window), at) > float(least)
        }
    if parts := FRESH.fullmatch(clause):
        name, matchers, again, others, window, least = parts.groups()
        assert (name, matchers) == (again, others), "a series is held against its own past"
        before = world.now(name, matchers, at - _minutes(window))
        now = world.now(name, matchers, at)
        return {labels for labels, v in now.items() if labels not in before and v > float(least)}
    raise ValueError(f"this form is not known: {clause}")


def _minutes(window: str) -> int:
    return int(window[:-1]) * UNITS_MIN[window[-1]]


def _grown(samples: Samples, after: int, upto: int) -> float:
    """Return by how much a counter grew within a window; a restart begins at nothing."""
    inside = samples[max(after, 0) : upto + 1]
    values = [value for value in inside if value is not None]
    grown = 0.0
    for earlier, later in pairwise(values):
        grown += later - earlier if later >= earlier else later
    return grown


def firing(rule: Mapping[str, Any], world: World, at: int) -> bool:
    """Say whether an alert fires at a minute: its expression held for as long as it says."""
    held = _minutes(rule["for"]) if "for" in rule else 0
    minutes = range(at - held, at + 1)
    if minutes.start < 0:
        return False
    each = [evaluate(rule["expr"], world, minute) for minute in minutes]
    return bool(set.intersection(*each))
