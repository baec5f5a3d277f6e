"""What waits for a person: what settles it, and what does not."""

import pytest
from tests.core.samples import (
    HOUR,
    INTERVAL,
    KEY,
    LATER,
    PROVES,
    REVIEWS,
    T0,
    absences,
    adding,
    attempt,
    contract,
    decided,
    ends,
    event,
    evidence,
    now,
    reviewed,
    rules_on,
    sends,
    settled,
    tried,
)

from doubtless.core.contract import OnAbsent
from doubtless.core.decisions import Word
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, Seen, Shows, State
from doubtless.core.policy import decide
from doubtless.core.steps import Escalate, LookUp, Settle, Wait

DECISIONS = {Word.DONE: State.SUCCEEDED, Word.NOT_DONE: State.FAILED}


@pytest.mark.proves("CORE-33")
@pytest.mark.parametrize("word", DECISIONS)
@pytest.mark.parametrize("cause", [cause for cause in REVIEWS if cause is not Cause.ABSENT_REVIEW])
def test_a_persons_decision_settles_a_review_whatever_its_cause(cause, word):
    after = rules_on(reviewed(cause), contract(), LATER, word)
    assert after.operation.state is DECISIONS[word]


def test_a_persons_not_done_settles_a_review_of_a_confirmed_absence():
    rules = contract(on_absent=OnAbsent.REVIEW)
    after = rules_on(reviewed(Cause.ABSENT_REVIEW), rules, LATER, Word.NOT_DONE).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.OPERATOR_NOT_DONE)


@pytest.mark.parametrize("cause", [cause for cause in REVIEWS if cause is not Cause.NOTHING_LEFT])
def test_looking_again_looks_whatever_the_review_was_about(cause):
    rules = contract(on_absent=OnAbsent.REVIEW)
    after = decided(reviewed(cause), rules, LATER, Word.LOOK_AGAIN)
    assert isinstance(decide(after, rules, now(LATER)).step, LookUp)


def test_a_persons_decision_settles_at_once_even_while_a_worker_is_looking():
    before = tried(attempt(), state=State.RECONCILING, owner="w", lease_end_ms=T0 + 60_000)
    after = rules_on(before, contract(), T0 + 30_000, Word.DONE)
    assert after.operation.state is State.SUCCEEDED


@pytest.mark.proves("CORE-34")
@pytest.mark.parametrize(
    ("shows", "state"), [(Shows.APPLIED, State.SUCCEEDED), (Shows.NOT_APPLIED, State.FAILED)]
)
@pytest.mark.parametrize("cause", [Cause.DEADLINE, Cause.NOTHING_LEFT])
def test_late_evidence_settles_a_review_that_only_ran_out_of_time(cause, shows, state):
    before = adding(reviewed(cause), evidence(shows, at=LATER - 10))
    assert settled(before, contract(), LATER).operation.state is state


def test_a_late_absence_settles_a_review_and_sends_nothing():
    rules = contract(on_absent=OnAbsent.RESEND, key=KEY)
    before = adding(reviewed(Cause.DEADLINE), *absences(PROVES, PROVES + INTERVAL))
    expected = Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    assert decide(before, rules, now(LATER)).step == expected


@pytest.mark.proves("CORE-34")
@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS])
def test_after_a_contradiction_only_a_person_settles_it(shows):
    before = adding(reviewed(Cause.CONTRADICTION), event(shows, at=LATER - 10))
    assert isinstance(decide(before, contract(), now(LATER)).step, Wait)


def test_a_persons_word_that_is_contradicted_at_once_settles_nothing():
    before = adding(
        decided(reviewed(Cause.CONTRADICTION), contract(), LATER, Word.DONE),
        evidence(Shows.NOT_APPLIED, at=LATER),
    )
    assert settled(before, contract(), LATER).operation.state is State.MANUAL_REVIEW


def test_a_contradiction_during_a_review_is_told():
    before = adding(reviewed(Cause.DEADLINE), evidence(Shows.CONFLICT, at=LATER - 10))
    step = decide(before, contract(), now(LATER)).step
    assert step == Escalate(cause=Cause.CONTRADICTION)


def test_an_absence_confirmed_during_a_review_is_left_to_the_person_where_the_contract_says_so():
    rules = contract(on_absent=OnAbsent.REVIEW)
    before = adding(reviewed(Cause.DEADLINE), *absences(PROVES, PROVES + INTERVAL))
    assert decide(before, rules, now(LATER)).step == Escalate(cause=Cause.ABSENT_REVIEW)
    told = settled(before, rules, LATER)
    assert told.operation.cause is Cause.ABSENT_REVIEW
    assert isinstance(decide(told, rules, now(LATER)).step, LookUp)


@pytest.mark.parametrize("cause", [Cause.DEADLINE, Cause.NOTHING_LEFT, Cause.NOT_ATTRIBUTED])
def test_what_waits_for_a_person_is_still_looked_at_slowly(cause):
    before = reviewed(cause)
    assert isinstance(decide(before, contract(), now(LATER)).step, LookUp)
    blind = decide(before, contract(lookups=()), now(LATER)).step
    assert isinstance(blind, Wait)
    assert blind.until_ms > LATER


def test_work_that_is_found_going_on_leaves_the_review():
    before = adding(reviewed(Cause.DEADLINE), evidence(Shows.IN_PROGRESS, at=LATER - 10))
    assert settled(before, contract(), LATER).operation.state is State.ACCEPTED


def test_overdue_work_that_goes_on_stays_in_review():
    before = adding(reviewed(Cause.OVERDUE), evidence(Shows.IN_PROGRESS, at=LATER - 10))
    assert settled(before, contract(), LATER).operation.state is State.MANUAL_REVIEW


def test_work_accepted_after_an_operators_retry_has_its_own_time_to_complete():
    rules = contract()
    again = sends(reviewed(Cause.OVERDUE), rules, LATER, resend=True, by=Need.OPERATOR)
    after = ends(again, rules, LATER + 5_000, Seen.ACCEPTED).operation
    assert after.state is State.ACCEPTED
    assert after.completes_by_ms == LATER + 5_000 + rules.completes_within_ms


def test_an_operators_retry_starts_new_budgets_and_a_new_deadline():
    rules = contract()
    again = sends(reviewed(Cause.DEADLINE), rules, LATER, resend=True, by=Need.OPERATOR)
    assert (again.operation.budget_from, again.operation.deadline_ms) == (1, None)
    after = ends(again, rules, LATER + 10_000, Seen.UNKNOWN).operation
    assert after.deadline_ms == LATER + 10_000 + rules.recovery_deadline_ms
    assert (after.deadline_ms or 0) > T0 + HOUR
