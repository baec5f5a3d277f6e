"""Work that the provider took and goes on with."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    EVENTS,
    HOUR,
    LATER,
    T0,
    accepted_without_news,
    adding,
    attempt,
    contract,
    ends,
    evidence,
    looks,
    now,
    record,
    sends,
    settled,
    tried,
)

from doubtless.core import progress
from doubtless.core.model import Cause, Effect, Seen, Shows, State
from doubtless.core.policy import decide
from doubtless.core.settling import settle
from doubtless.core.steps import Escalate, LookUp, Move, Settle, Wait


def step(before, rules=None, at=T0 + 60_000):
    return decide(before, rules or contract(), now(at)).step


@pytest.mark.parametrize(
    ("rules", "takes"),
    [
        (contract(), contract().completes_within_ms),
        (contract(lookups=(), events=EVENTS), contract().completes_within_ms),
        (contract(lookups=()), contract().recovery_deadline_ms),
    ],
    ids=["look-up", "events", "nobody tells"],
)
def test_accepted_work_has_its_own_time_to_complete(rules, takes):
    after = ends(sends(record(), rules, T0), rules, T0 + 5_000, Seen.ACCEPTED).operation
    assert (after.accepted_ms, after.completes_by_ms) == (T0 + 5_000, T0 + 5_000 + takes)


@pytest.mark.parametrize(
    ("shows", "expected"),
    [
        (Shows.APPLIED, Settle(to=State.SUCCEEDED, cause=Cause.PROVEN)),
        (Shows.NOT_APPLIED, Settle(to=State.FAILED, cause=Cause.DEFINITE_FAILURE)),
        (Shows.CONFLICT, Escalate(cause=Cause.CONTRADICTION)),
    ],
)
def test_accepted_work_ends_as_the_provider_says(shows, expected):
    assert step(adding(accepted_without_news(), evidence(shows, at=T0 + 20_000))) == expected


def test_accepted_work_is_looked_up_or_waited_for_until_its_end():
    assert isinstance(step(accepted_without_news()), LookUp)
    rules = contract(lookups=(), events=EVENTS)
    assert step(accepted_without_news(), rules) == Wait(until_ms=T0 + HOUR)


@pytest.mark.proves("CORE-32")
def test_accepted_work_without_news_becomes_unknown_at_its_end():
    expected = Move(to=State.UNKNOWN, cause=Cause.NO_NEWS_AFTER_ACCEPTED)
    assert step(accepted_without_news(), at=T0 + HOUR) == expected


@pytest.mark.proves("CORE-32")
def test_while_a_look_up_answers_in_progress_only_the_time_to_complete_runs():
    before = adding(
        tried(attempt(), deadline_ms=T0 + 50_000), evidence(Shows.IN_PROGRESS, at=T0 + 45_000)
    )
    assert settled(before, contract(), T0 + 60_000).operation.state is State.ACCEPTED


def test_overdue_work_that_was_seen_going_on_is_a_persons():
    going = adding(accepted_without_news(), evidence(Shows.IN_PROGRESS, at=T0 + 50_000))
    assert step(going, at=T0 + HOUR) == Escalate(cause=Cause.OVERDUE)


@pytest.mark.parametrize(
    "rules", [contract(lookups=()), contract(Effect.TIME_SENSITIVE, lookups=())]
)
def test_overdue_work_that_nobody_can_ask_about_is_a_persons(rules):
    assert step(accepted_without_news(), rules, T0 + HOUR) == Escalate(cause=Cause.OVERDUE)


def test_overdue_work_asks_no_person_where_the_contract_wants_none():
    going = adding(accepted_without_news(), evidence(Shows.IN_PROGRESS, at=T0 + 50_000))
    assert not isinstance(step(going, contract(review=False), T0 + HOUR), Escalate)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.MANUAL_REVIEW])
def test_accepted_work_without_news_comes_to_rest_in_review(state):
    cause = Cause.DEADLINE if state is State.MANUAL_REVIEW else Cause.NO_NEWS_AFTER_ACCEPTED
    after = settled(accepted_without_news(state, cause, LATER), contract(), LATER + 1)
    assert after.operation.state is State.MANUAL_REVIEW
    assert settle(after, contract(), now(LATER + 1)) == ()


def test_accepted_work_whose_last_look_got_no_answer_becomes_unknown_without_a_review():
    asked = looks(accepted_without_news(), contract(), T0 + HOUR - 1)
    assert (asked.operation.state, asked.operation.origin) == (State.ACCEPTED, None)
    from_look = replace(asked, operation=replace(asked.operation, state=State.RECONCILING))
    states = [s.after.state for s in settle(from_look, contract(), now(T0 + HOUR))]
    assert states == [State.UNKNOWN]


def test_overdue_work_that_a_look_saw_going_on_is_a_persons_at_once():
    going = adding(
        accepted_without_news(State.UNKNOWN, deadline=LATER),
        evidence(Shows.IN_PROGRESS, at=T0 + 50_000),
    )
    assert step(going, at=T0 + HOUR) == Escalate(cause=Cause.OVERDUE)


def test_an_operation_remembers_that_it_was_accepted_while_it_is_looked_up():
    asking = progress.look(accepted_without_news(), contract(), now(T0 + 60_000), owner="w")
    assert (asking.state, asking.origin) == (State.RECONCILING, State.ACCEPTED)
    asked = looks(accepted_without_news(), contract(), T0 + 60_000, evidence(Shows.IN_PROGRESS))
    assert (asked.operation.state, asked.operation.origin) == (State.ACCEPTED, None)
