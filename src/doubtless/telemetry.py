"""The names of metrics and of log events: the only place that names them.

Every metric is told by the ledger, so that one endpoint speaks for all processes on it, and a
restart forgets nothing.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How Prometheus reads a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its name as it is scraped, its labels, and what it tells."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    means: str


_TOOL: Final = ("tool", "effect")

OPERATIONS: Final = Metric(
    name="doubtless_operations_total",
    kind=Kind.COUNTER,
    labels=("state", *_TOOL),
    means="Operations that came to an end, by the state that they ended in.",
)
UNKNOWN: Final = Metric(
    name="doubtless_unknown_total",
    kind=Kind.COUNTER,
    labels=("cause", *_TOOL),
    means="Times that an operation became unknown, by what made it so.",
)
RECONCILIATION: Final = Metric(
    name="doubtless_reconciliation_seconds",
    kind=Kind.HISTOGRAM,
    labels=_TOOL,
    means="How long it took from the first doubt about an operation to its end.",
)
CONFIRMED: Final = Metric(
    name="doubtless_confirmed_after_unknown_total",
    kind=Kind.COUNTER,
    labels=_TOOL,
    means="Operations that were in doubt and proved to have taken effect.",
)
PREVENTED: Final = Metric(
    name="doubtless_retries_prevented_total",
    kind=Kind.COUNTER,
    labels=("reason", *_TOOL),
    means="Calls and sends that could have acted twice, and were joined or refused.",
)
REVIEWS: Final = Metric(
    name="doubtless_manual_review_total",
    kind=Kind.COUNTER,
    labels=("reason", *_TOOL),
    means="Times that an operation went to a person, by the reason.",
)
MATCH_FAILURES: Final = Metric(
    name="doubtless_event_match_failures_total",
    kind=Kind.COUNTER,
    labels=("reason", "source"),
    means="Events that belonged to no operation when they came, or to more than one.",
)
UNMATCHED_AGE: Final = Metric(
    name="doubtless_oldest_unmatched_event_age_seconds",
    kind=Kind.GAUGE,
    labels=("source",),
    means="Age of the oldest event that still belongs to no operation.",
)
KEY_EXPIRED: Final = Metric(
    name="doubtless_key_expired_total",
    kind=Kind.COUNTER,
    labels=("action", *_TOOL),
    means="Sends that an expired key forbade: refused, or left to an operator.",
)
MISMATCH: Final = Metric(
    name="doubtless_state_mismatch_total",
    kind=Kind.COUNTER,
    labels=("state", "source", *_TOOL),
    means="Evidence against what was known, by the state that it met and where it came from.",
)
OLDEST: Final = Metric(
    name="doubtless_oldest_unresolved_age_seconds",
    kind=Kind.GAUGE,
    labels=("state", *_TOOL),
    means="Age of the oldest operation that is not settled; one in doubt counts from its doubt.",
)
PAST_DEADLINE: Final = Metric(
    name="doubtless_past_deadline",
    kind=Kind.GAUGE,
    labels=_TOOL,
    means="Open operations past their recovery deadline, reviews included.",
)
OVERDUE: Final = Metric(
    name="doubtless_overdue_seconds",
    kind=Kind.GAUGE,
    labels=("state",),
    means="How long the longest overdue operation has been waiting for a worker.",
)

METRICS: Final = (
    OPERATIONS,
    UNKNOWN,
    RECONCILIATION,
    CONFIRMED,
    PREVENTED,
    REVIEWS,
    OLDEST,
    PAST_DEADLINE,
    OVERDUE,
    MATCH_FAILURES,
    UNMATCHED_AGE,
    KEY_EXPIRED,
    MISMATCH,
)
"""All of them, in the order in which they are told."""

RECONCILIATION_BUCKETS_S: Final = (1, 5, 15, 60, 300, 900, 3_600, 14_400, 86_400)
"""Upper bounds; a last one without end is understood."""


class Prevented(StrEnum):
    """Reasons of `PREVENTED`; a refusal by policy adds its own code."""

    JOINED = "joined"  # the same call came while the first was not settled
    ALREADY_DONE = "already_done"
    NOT_REPEATED = "not_repeated"  # it had ended otherwise, and may not act again


class KeyExpired(StrEnum):
    """Actions of `KEY_EXPIRED`."""

    REFUSED = "refused"  # a repeat or a send, and nobody is asked
    OPERATOR = "operator"  # a person has to decide instead


class Unmatched(StrEnum):
    """Reasons of `MATCH_FAILURES`."""

    NONE = "none"  # no operation answers to it
    SEVERAL = "several"  # more than one does
    UNREADABLE = "unreadable"  # it says nothing to match by


class Event(StrEnum):
    """Names of log events, as they begin their line."""

    DELIVERY_FAILED = "settlement.delivery_failed"
    DELIVERY_LOST = "settlement.delivery_lost"
