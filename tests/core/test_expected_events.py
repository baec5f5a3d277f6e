"""An event that is expected and does not come, and one that is only a reason to look."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    EVENTS,
    HOUR,
    LOOKUP,
    T0,
    TIMEOUT,
    accepted_without_news,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    record,
    settled,
    told,
    tried,
)

from doubtless.core.evidence import weigh
from doubtless.core.model import Cause, Shows, State, Strength
from doubtless.core.policy import decide
from doubtless.core.progress import absorb
from doubtless.core.schedule import expected_ms, next_look_ms, next_review_look_ms
from doubtless.core.steps import LookUp, Wait

ENDED = T0 + TIMEOUT
EXPECT = 60_000
EXPECTS = replace(EVENTS, expect_ms=EXPECT)
SLOW = replace(LOOKUP, authoritative=False, interval_ms=HOUR, interval_max_ms=HOUR)
LOOKED_UP = contract(events=EXPECTS, lookups=(SLOW,))
ALONE = contract(events=EXPECTS, lookups=())


def hint(at: int, shows: Shows = Shows.APPLIED):
    """Make an event that proves nothing by itself."""
    return event(shows, at=at, strength=Strength.ADVISORY)


def next_look(before, rules=LOOKED_UP) -> int:
    return next_look_ms(before, rules, weigh(before, rules, now(ENDED)))


# --- expected ------------------------------------------------------------------------------------


def test_an_event_is_expected_from_the_end_of_the_last_attempt_and_from_the_last_news():
    before = tried(attempt())
    assert expected_ms(before, LOOKED_UP) == ENDED + EXPECT
    heard = adding(before, event(Shows.IN_PROGRESS, at=ENDED + 7))
    assert expected_ms(heard, LOOKED_UP) == ENDED + 7 + EXPECT
    open_one = tried(attempt(seen=None), state=State.EXECUTING)
    assert expected_ms(open_one, LOOKED_UP) == T0 + EXPECT


@pytest.mark.parametrize("rules", [contract(), contract(events=EVENTS)])
def test_nothing_is_expected_where_nothing_says_so(rules):
    assert expected_ms(tried(attempt()), rules) is None
    assert expected_ms(record(), LOOKED_UP) is None


@pytest.mark.proves("CORE-65")
def test_an_expected_event_that_does_not_come_is_looked_up_once():
    before = tried(attempt(), deadline_ms=T0 + 9 * HOUR)
    assert decide(before, LOOKED_UP, now(ENDED)).step == LookUp(at_ms=ENDED + EXPECT)
    looked = adding(before, evidence(Shows.ABSENT, at=ENDED + EXPECT))
    assert next_look(looked) > ENDED + EXPECT + HOUR / 2


@pytest.mark.proves("CORE-65")
def test_accepted_work_of_which_no_event_comes_is_looked_up_too():
    before = accepted_without_news()
    assert decide(before, LOOKED_UP, now(ENDED)).step == LookUp(at_ms=ENDED + EXPECT)


@pytest.mark.proves("CORE-65")
@pytest.mark.parametrize("state", [State.UNKNOWN, State.ACCEPTED])
def test_where_nothing_can_be_looked_up_a_missing_event_is_told_and_no_deadline_moves(state):
    before = accepted_without_news() if state is State.ACCEPTED else tried(attempt())
    early = settled(before, ALONE, ENDED + 1).operation
    assert (early.state, early.due_ms) == (state, ENDED + EXPECT)
    late = settled(before, ALONE, ENDED + EXPECT)
    assert (late.operation.state, late.operation.cause) == (state, Cause.WEBHOOK_MISSING)
    assert late.operation.due_ms == T0 + HOUR  # as the deadline was
    assert late.operation.deadline_ms == before.operation.deadline_ms
    assert decide(late, ALONE, now(ENDED + EXPECT + 1)).step == Wait(until_ms=T0 + HOUR)
    assert settled(late, ALONE, T0 + HOUR).operation.state is State.MANUAL_REVIEW


def test_a_missing_event_is_told_to_the_caller():
    late = settled(tried(attempt()), ALONE, ENDED + EXPECT)
    assert "is overdue" in told(late, ALONE, ENDED + EXPECT).message
    assert "is awaited" in told(tried(attempt()), ALONE, ENDED).message


@pytest.mark.parametrize("state", [State.UNKNOWN, State.ACCEPTED])
def test_an_event_that_comes_after_all_is_no_longer_missing(state):
    before = accepted_without_news() if state is State.ACCEPTED else tried(attempt())
    late = settled(before, ALONE, ENDED + EXPECT)
    news = event(Shows.IN_PROGRESS, at=ENDED + EXPECT + 5)
    if state is State.UNKNOWN:
        news = hint(ENDED + EXPECT + 5, Shows.IN_PROGRESS)
    after = settled(adding(late, news), ALONE, ENDED + EXPECT + 5).operation
    assert after.state is state
    assert after.cause is (None if state is State.ACCEPTED else Cause.TIMEOUT)
    assert after.due_ms == ENDED + EXPECT + 5 + EXPECT


def test_an_event_that_is_expected_after_the_deadline_waits_for_no_longer():
    rules = contract(events=replace(EVENTS, expect_ms=9 * HOUR), lookups=())
    assert decide(tried(attempt()), rules, now(ENDED)).step == Wait(until_ms=T0 + HOUR)


# --- only a reason to look -----------------------------------------------------------------------


@pytest.mark.proves("CORE-66")
def test_news_that_proves_nothing_is_looked_into_at_once_and_once():
    before = adding(tried(attempt(), deadline_ms=T0 + 9 * HOUR), hint(ENDED + 100))
    assert weigh(before, LOOKED_UP, now(ENDED + 100)).verdict.value == "unknown"
    assert decide(before, LOOKED_UP, now(ENDED + 100)).step == LookUp(at_ms=ENDED + 100)
    due_ms = settled(before, LOOKED_UP, ENDED + 100).operation.due_ms
    assert due_ms is not None
    assert due_ms <= ENDED + 100
    looked = adding(before, evidence(Shows.ABSENT, at=ENDED + 101))
    assert next_look(looked) > ENDED + 101 + 1_000


@pytest.mark.proves("CORE-66")
@pytest.mark.parametrize("state", [State.ACCEPTED, State.MANUAL_REVIEW])
def test_it_is_looked_into_wherever_an_open_operation_stands(state):
    rules = LOOKED_UP
    before = accepted_without_news()
    if state is State.MANUAL_REVIEW:
        before = tried(attempt(), state=state, cause=Cause.DEADLINE)
    before = adding(before, hint(ENDED + 100))
    assert decide(before, rules, now(ENDED + 100)).step == LookUp(at_ms=ENDED + 100)


def test_a_review_without_news_keeps_its_pace():
    before = tried(attempt(), state=State.MANUAL_REVIEW, cause=Cause.DEADLINE)
    heard = adding(before, hint(ENDED + 5), evidence(Shows.ABSENT, at=ENDED + 6))
    assert next_review_look_ms(before) > ENDED + 60_000
    assert next_review_look_ms(heard) > ENDED + 60_000


def test_authoritative_news_of_the_work_is_no_reason_to_look():
    before = adding(accepted_without_news(), event(Shows.IN_PROGRESS, at=ENDED + 100))
    assert next_look(before) == ENDED + 100 + EXPECT


def test_hearsay_confirms_nothing_and_names_nothing():
    before = tried(attempt()).operation
    heard = replace(hint(ENDED, Shows.IN_PROGRESS), provider_operation_id="re_1")
    assert absorb(before, heard, None) == before
    word = replace(heard, strength=Strength.AUTHORITATIVE)
    after = absorb(before, word, None)
    assert (after.provider_operation_id, after.confirmed_state) == ("re_1", "in_progress")


def test_a_deadline_is_kept_whatever_news_comes():
    before = adding(tried(attempt()), hint(T0 + HOUR - 1))
    assert settled(before, LOOKED_UP, T0 + HOUR).operation.state is State.MANUAL_REVIEW
