"""The provider's messages: ordered by its clock, early ones held, old ones advisory."""

from itertools import permutations

import pytest
from tests.core.samples import (
    EVENTS,
    HOUR,
    INTERVAL,
    LAG,
    PROVES,
    T0,
    absences,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    record,
    sends,
    settled,
    tried,
    witnessed,
)

from doubtless.core.contract import EventRules
from doubtless.core.evidence import weigh
from doubtless.core.model import Cause, Seen, Shows, Source, State, Verdict
from doubtless.core.permission import Pass, gate, may_repeat
from doubtless.core.policy import decide
from doubtless.core.steps import Send

RULES = contract(events=EVENTS)
NOON = T0 + 20_000


def verdict(before, rules=RULES, at=T0 + 2 * HOUR):
    return weigh(before, rules, now(at)).verdict


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-13")
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_events_are_ordered_by_the_providers_time_and_not_by_their_arrival(order):
    occurred = [NOON, NOON + 1_000, NOON + 2_000]
    shows = [Shows.IN_PROGRESS, Shows.NOT_APPLIED, Shows.APPLIED]
    items = [
        event(shows[which], at=NOON + 5_000 + came, occurred=occurred[which])
        for came, which in enumerate(order)
    ]
    assert verdict(adding(tried(attempt()), *items)) is Verdict.APPLIED


@pytest.mark.proves("CORE-13")
def test_an_older_event_that_arrives_late_changes_nothing():
    before = adding(tried(attempt()), event(Shows.APPLIED, at=NOON + 1_000))
    late = event(Shows.NOT_APPLIED, at=NOON + 9_000, occurred=NOON)
    assert verdict(adding(before, late)) is Verdict.APPLIED


def test_a_failure_after_a_success_is_a_contradiction():
    items = (event(Shows.APPLIED, at=NOON), event(Shows.NOT_APPLIED, at=NOON + 1_000))
    assert verdict(adding(tried(attempt()), *items)) is Verdict.CONTRADICTION


def test_an_event_that_names_no_time_is_overtaken_by_none():
    items = (
        evidence(Shows.NOT_APPLIED, Source.WEBHOOK, at=NOON),
        event(Shows.APPLIED, at=NOON + 1_000),
    )
    assert verdict(adding(tried(attempt()), *items)) is Verdict.CONTRADICTION


@pytest.mark.parametrize(
    ("begun", "told"),
    [(NOON + LAG - 1, Verdict.APPLIED), (NOON + LAG, Verdict.CONTRADICTION)],
)
def test_a_look_up_disagrees_with_a_newer_event_only_if_it_was_asked_after_the_lag(begun, told):
    items = (event(Shows.APPLIED, at=NOON), evidence(Shows.NOT_APPLIED, at=begun))
    assert verdict(adding(tried(attempt()), *items)) is told


# --- ties ----------------------------------------------------------------------------------------


def tied():
    return (event(Shows.APPLIED, at=NOON), event(Shows.NOT_APPLIED, at=NOON))


@pytest.mark.proves("CORE-14")
def test_a_tie_is_a_contradiction_without_a_look_up():
    before = adding(tried(attempt()), *tied())
    assert verdict(before, contract(lookups=(), events=EVENTS)) is Verdict.CONTRADICTION


@pytest.mark.proves("CORE-14")
def test_on_a_tie_the_object_is_read_first():
    assert verdict(adding(tried(attempt()), *tied())) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-14")
@pytest.mark.parametrize(
    ("shows", "told"),
    [(Shows.APPLIED, Verdict.APPLIED), (Shows.NOT_APPLIED, Verdict.NOT_APPLIED)],
)
def test_a_tie_of_events_is_settled_by_the_object_once_it_is_read(shows, told):
    read = adding(tried(attempt()), *tied(), evidence(shows, at=T0 + 90_000))
    assert verdict(read) is told


def test_an_object_that_was_read_before_the_lag_was_over_settles_no_tie():
    read = adding(tried(attempt()), *tied(), evidence(Shows.APPLIED, at=NOON + LAG - 1))
    assert verdict(read) is Verdict.UNKNOWN


def test_a_tie_that_comes_to_light_after_a_success_is_not_lost():
    before = adding(tried(attempt(), state=State.SUCCEEDED), *tied())
    assert settled(before, RULES, T0 + 30_000).operation.state is State.MANUAL_REVIEW


def test_a_tie_takes_nothing_away_from_an_answer_that_says_success():
    answered = adding(tried(attempt()), witnessed(1, Shows.APPLIED, source=Source.RESPONSE))
    read = adding(answered, *tied(), evidence(Shows.NOT_APPLIED, at=T0 + 90_000))
    assert verdict(read) is Verdict.CONTRADICTION


def test_a_tie_between_two_attempts_that_never_left_goes_to_a_person():
    before = tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED, cause=Cause.NOT_SENT)
    after = settled(adding(before, *tied()), RULES, NOON + 1_000)
    assert not may_repeat(after, RULES, now(NOON + 1_000)).allowed
    assert after.operation.state is State.MANUAL_REVIEW


# --- early and old -------------------------------------------------------------------------------


@pytest.mark.proves("CORE-15")
@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS])
def test_an_event_before_the_first_attempt_is_held_and_does_not_stop_the_send(shows):
    early = adding(record(), event(shows, at=T0 - 1_000))
    assert isinstance(decide(early, RULES, now(T0)).step, Send)
    opened = sends(early, RULES, T0)
    passed = gate(opened, RULES, now(T0), attempt=1, fence=opened.operation.fence)
    assert isinstance(passed, Pass)


@pytest.mark.proves("CORE-15")
def test_a_held_event_counts_from_the_first_attempt_on():
    early = adding(tried(attempt()), event(Shows.APPLIED, at=T0 - 1_000))
    assert verdict(early) is Verdict.APPLIED


@pytest.mark.proves("CORE-15")
@pytest.mark.parametrize("rules", [RULES, contract()], ids=["declared", "not declared"])
@pytest.mark.parametrize(
    ("ahead", "told"), [(300_000, Verdict.APPLIED), (300_001, Verdict.UNKNOWN)]
)
def test_an_event_that_is_older_than_the_tolerance_is_advisory(ahead, told, rules):
    old = event(Shows.APPLIED, at=NOON, occurred=T0 - ahead)
    assert verdict(adding(tried(attempt()), old), rules) is told


def test_the_tolerance_is_the_contracts():
    rules = contract(events=EventRules(types=("refund.updated",), tolerance_ms=1_000))
    old = event(Shows.APPLIED, at=NOON, occurred=T0 - 1_001)
    assert verdict(adding(tried(attempt()), old), rules) is Verdict.UNKNOWN


@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.IN_PROGRESS])
def test_a_held_event_and_attempts_that_never_left_are_a_contradiction(shows):
    before = adding(tried(attempt(seen=Seen.NOT_SENT)), event(shows, at=T0 - 1_000))
    assert verdict(before) is Verdict.CONTRADICTION


def test_news_of_the_work_between_two_attempts_that_never_left_goes_to_a_person():
    before = tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED, cause=Cause.NOT_SENT)
    after = settled(adding(before, event(Shows.IN_PROGRESS, at=T0 + 15_000)), RULES, NOON)
    assert after.operation.state is State.MANUAL_REVIEW


# --- after the end -------------------------------------------------------------------------------


@pytest.mark.proves("CORE-16", "INV-5")
@pytest.mark.parametrize(
    ("state", "cause", "shows"),
    [
        (State.SUCCEEDED, Cause.PROVEN, Shows.NOT_APPLIED),
        (State.FAILED, Cause.DEFINITE_FAILURE, Shows.APPLIED),
    ],
)
def test_contradicting_evidence_opens_a_closed_operation_for_a_person(state, cause, shows):
    first = Shows.APPLIED if state is State.SUCCEEDED else Shows.NOT_APPLIED
    before = adding(
        tried(attempt(), state=state, cause=cause),
        event(first, at=NOON + 10),
        event(shows, at=NOON + 20),
    )
    after = settled(before, RULES, T0 + 30_000).operation
    assert (after.state, after.cause) == (State.MANUAL_REVIEW, Cause.CONTRADICTION)


def absent_and_closed():
    before = tried(attempt(), state=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    return adding(before, *absences(PROVES, PROVES + INTERVAL))


@pytest.mark.proves("CORE-16", "INV-5")
@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.IN_PROGRESS])
def test_news_of_the_effect_contradicts_a_confirmed_absence(shows):
    before = adding(absent_and_closed(), event(shows, at=PROVES + 8_000))
    assert settled(before, RULES, PROVES + 9_000).operation.state is State.MANUAL_REVIEW


@pytest.mark.parametrize("shows", [Shows.ABSENT, Shows.COULD_NOT_ASK])
def test_absence_after_a_success_is_drift_and_opens_nothing(shows):
    before = adding(tried(attempt(), state=State.SUCCEEDED), event(Shows.APPLIED, at=NOON))
    late = [evidence(shows, at=PROVES + i * INTERVAL) for i in range(4)]
    assert settled(adding(before, *late), RULES, PROVES + HOUR).operation.state is State.SUCCEEDED


@pytest.mark.parametrize("state", [State.REJECTED, State.CANCELLED])
def test_evidence_in_an_operation_that_was_withdrawn_changes_no_state(state):
    before = adding(tried(attempt(seen=Seen.NOT_SENT), state=state), event(Shows.APPLIED, at=NOON))
    assert settled(before, RULES, T0 + 30_000).operation.state is state


def test_what_was_closed_in_doubt_is_contradicted_by_nothing():
    before = tried(attempt(), state=State.FAILED, cause=Cause.OPERATOR_UNSURE)
    after = settled(adding(before, event(Shows.APPLIED, at=NOON)), RULES, T0 + 30_000)
    assert after.operation.state is State.FAILED
