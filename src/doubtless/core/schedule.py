"""When: pauses between sends and between look-ups. They grow, and every operation has its own."""

import hashlib

from doubtless.core.contract import Contract
from doubtless.core.evidence import ASKED, FOREVER_MS, Finding
from doubtless.core.model import Now, Record, Shows, Source, State, Strength

REVIEW_PACE_MS = 300_000  # what a person has to decide is still looked at, this often at first
REVIEW_PACE_MAX_MS = 3_600_000
POLL_MS = 1_000  # how soon an operation that waits for an object is looked at; later less often
POLL_MAX_MS = 30_000


def jitter(ref: str, number: int) -> float:
    """Return a factor from 0.8 to 1.2, always the same for one operation and number."""
    digest = hashlib.sha256(f"{ref}/{number}".encode()).digest()
    return 0.8 + 0.4 * int.from_bytes(digest[:4], "big") / 2**32


def next_send_ms(record: Record, contract: Contract) -> int:
    """Return the earliest next send: the doubled pause, or what the provider asked for."""
    last = record.attempts[-1]
    number = max(1, last.number - record.operation.budget_from)
    retry = contract.retry
    pause = min(retry.backoff_ms << min(number - 1, 20), retry.backoff_max_ms)
    pause_ms = int(pause * jitter(record.operation.ref, last.number))
    asked = last.observation.retry_after_ms if last.observation else None
    return (last.ended_ms or last.opened_ms) + max(pause_ms, asked or 0)


def last_look_ms(record: Record) -> int:
    """Return when it was last looked at, or when its last attempt ended."""
    looks = [item.begun_ms for item in record.evidence if item.source in ASKED]
    ended = [attempt.ended_ms or attempt.opened_ms for attempt in record.attempts]
    return max([*looks, *ended], default=record.operation.created_ms)


def expected_ms(record: Record, contract: Contract) -> int | None:
    """Return by when the provider should have told something by itself; None: it never does.

    Counted from the end of the last attempt, and again from whatever it told.
    """
    if contract.events is None or contract.events.expect_ms is None or not record.attempts:
        return None
    told = [item.at_ms for item in record.evidence if item.source is Source.WEBHOOK]
    last = record.attempts[-1]
    return max([last.ended_ms or last.opened_ms, *told]) + contract.events.expect_ms


def _news_ms(record: Record, since_ms: int) -> int | None:
    """Return when news came that is only a reason to look, and was not looked into yet."""
    told = [
        item.at_ms
        for item in record.evidence
        if item.source is Source.WEBHOOK and item.strength is Strength.ADVISORY
    ]
    return max(told) if told and max(told) > since_ms else None


def next_look_ms(record: Record, contract: Contract, finding: Finding) -> int:
    """Return when to look next: the grown pause, or the next instant at which absence counts.

    News that proves nothing by itself is looked into at once, and so is missing news.
    """
    last_ms = last_look_ms(record)
    looks = record.operation.looks
    expected = expected_ms(record, contract)
    best = FOREVER_MS if expected is None or expected <= last_ms else expected
    news_ms = _news_ms(record, last_ms)
    if news_ms is not None:
        return news_ms
    for look in contract.lookups:
        grown = min(look.interval_ms << min(looks, 20), look.interval_max_ms)
        best = min(best, last_ms + int(grown * jitter(record.operation.ref, looks)))
    answered = [i for i in record.evidence if i.source in ASKED][-1:]
    if answered and answered[0].shows is Shows.COULD_NOT_ASK:
        return best  # asking more often would not help
    if not finding.absence.provable or record.operation.state is State.ACCEPTED:
        return best
    seen = [item for item in record.evidence if item.shows is Shows.ABSENT]
    for look in contract.proving_lookups:
        base = finding.absence.settled_from_ms + look.lag_ms
        first = base - (look.confirmations - 1) * look.interval_ms
        behind = max(0, -(-(last_ms + 1 - first) // look.interval_ms))
        useful_ms = first + behind * look.interval_ms
        absences = [item.begun_ms for item in seen if item.by == look.name]
        if absences:  # one that began late must not make the next one too early to count
            useful_ms = max(useful_ms, absences[-1] + look.interval_ms)
        best = min(best, useful_ms)
    return best


def next_review_look_ms(record: Record) -> int:
    """Return when to look again at what waits for a person."""
    last_ms = last_look_ms(record)
    news_ms = _news_ms(record, last_ms)
    if news_ms is not None:
        return news_ms
    pace_ms = min(REVIEW_PACE_MS << min(record.operation.looks, 4), REVIEW_PACE_MAX_MS)
    return last_ms + pace_ms


def next_turn_ms(record: Record, now: Now) -> int:
    """Return when a prepared operation that waits for another one is looked at by itself.

    Whoever moves the other one on makes this one due, in the same transaction. Only an object that
    stays claimed for what may still arrive comes free without a step of anybody's.
    """
    if record.waits_for is None and record.object_taken_by is None:
        return record.operation.valid_until_ms
    waited_ms = now.ms - record.operation.created_ms
    return now.ms + min(max(POLL_MS, waited_ms // 8), POLL_MAX_MS)
