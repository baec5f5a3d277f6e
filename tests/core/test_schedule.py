"""When the next send and the next look are due."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.samples import (
    HOUR,
    INTERVAL,
    LOOKUP,
    PROVES,
    T0,
    TIMEOUT,
    absences,
    adding,
    attempt,
    contract,
    evidence,
    now,
    observed,
    record,
    tried,
)

from doubtless.core.contract import RetryRules
from doubtless.core.evidence import FOREVER_MS, weigh
from doubtless.core.model import Cause, Seen, Shows, State
from doubtless.core.policy import decide
from doubtless.core.schedule import (
    jitter,
    last_look_ms,
    next_look_ms,
    next_review_look_ms,
    next_send_ms,
)
from doubtless.core.steps import LookUp

ENDED = T0 + TIMEOUT


@given(st.text(), st.integers(0, 10_000))
def test_the_jitter_is_a_fifth_either_way_and_always_the_same(ref, number):
    assert 0.8 <= jitter(ref, number) <= 1.2
    assert jitter(ref, number) == jitter(ref, number)


@pytest.mark.proves("CORE-40")
@pytest.mark.parametrize(
    ("number", "pause"), [(1, 1_000), (2, 2_000), (3, 4_000), (5, 16_000), (6, 30_000), (9, 30_000)]
)
def test_the_pause_between_two_sends_doubles_up_to_its_limit(number, pause):
    before = tried(*[attempt(n) for n in range(1, number + 1)])
    assert 0.8 * pause <= next_send_ms(before, contract()) - ENDED <= 1.2 * pause


def test_the_pauses_begin_anew_where_a_person_did():
    before = tried(*[attempt(n) for n in range(1, 6)], budget_from=4)
    assert 800 <= next_send_ms(before, contract()) - ENDED <= 1_200


def test_the_pauses_are_the_contracts():
    rules = contract(retry=RetryRules(backoff_ms=5_000, backoff_max_ms=5_000))
    assert 4_000 <= next_send_ms(tried(attempt()), rules) - ENDED <= 6_000


@pytest.mark.proves("CORE-40")
@pytest.mark.parametrize("asked", [60_000, 1])
def test_a_provider_that_names_a_pause_is_obeyed_where_it_is_longer(asked):
    observation = observed(Seen.NOT_PROCESSED, retry_after_ms=asked)
    before = tried(attempt(seen=Seen.NOT_PROCESSED, observation=observation))
    wait = next_send_ms(before, contract()) - ENDED
    assert wait == asked if asked == 60_000 else wait >= 800


def test_an_attempt_without_an_end_pauses_from_its_beginning():
    before = tried(attempt(seen=None), state=State.EXECUTING)
    assert T0 + 800 <= next_send_ms(before, contract()) <= T0 + 1_200


# --- looks ---------------------------------------------------------------------------------------


def look(before, rules=None, at=T0 + 20_000):
    rules = rules or contract()
    return next_look_ms(before, rules, weigh(before, rules, now(at)))


@pytest.mark.parametrize(("looks", "pause"), [(0, 5_000), (1, 10_000), (3, 40_000), (9, 60_000)])
def test_the_pause_between_two_looks_grows_up_to_its_limit(looks, pause):
    blind = contract(lookups=(replace(LOOKUP, authoritative=False),))
    before = tried(attempt(), looks=looks)
    assert 0.8 * pause <= look(before, blind) - ENDED <= 1.2 * pause


@pytest.mark.proves("CORE-41")
def test_a_look_is_made_at_the_instant_from_which_absence_can_be_confirmed():
    asked_at = PROVES - 2 * INTERVAL
    before = adding(tried(attempt(), looks=9), *absences(asked_at))
    assert look(before) == PROVES - INTERVAL
    then = adding(before, *absences(PROVES - INTERVAL))
    assert look(then) == PROVES


@pytest.mark.proves("CORE-41")
def test_two_absences_that_are_asked_for_when_due_always_both_count():
    begun = PROVES - INTERVAL + 700
    before = adding(tried(attempt(), looks=10), *absences(begun))
    assert look(before, at=begun) >= begun + INTERVAL


def test_what_could_not_be_asked_is_asked_no_sooner_than_the_grown_pause():
    failed = evidence(Shows.COULD_NOT_ASK, at=PROVES - INTERVAL - 1)
    before = adding(tried(attempt(), looks=9), failed)
    assert look(before) >= failed.begun_ms + 48_000


def test_accepted_work_is_looked_at_with_grown_pauses_alone():
    before = tried(attempt(seen=Seen.UNKNOWN), state=State.ACCEPTED, looks=9)
    assert look(before) >= ENDED + 48_000


def test_without_a_look_up_there_is_no_next_look():
    assert look(tried(attempt()), contract(lookups=())) == FOREVER_MS


@pytest.mark.proves("CORE-41", "INV-4")
def test_one_look_is_made_at_the_deadline():
    before = adding(tried(attempt(), deadline_ms=PROVES + 100, looks=9), *absences(PROVES + 1))
    step = decide(before, contract(), now(PROVES + 2)).step
    assert step == LookUp(at_ms=PROVES + 100)


@pytest.mark.proves("CORE-41")
@pytest.mark.parametrize("confirmations", [1, 2, 3, 4])
@pytest.mark.parametrize("late", [0, 1, 700, INTERVAL])
def test_looks_that_are_made_when_due_confirm_the_absence_before_the_deadline(confirmations, late):
    rules = contract(lookups=(replace(LOOKUP, confirmations=confirmations),))
    before, at = tried(attempt()), ENDED
    for _ in range(30):
        step = decide(before, rules, now(at)).step
        if not isinstance(step, LookUp):
            break
        at = max(at, step.at_ms) + late
        looked = replace(before.operation, looks=before.operation.looks + 1)
        before = adding(replace(before, operation=looked), *absences(at))
    assert weigh(before, rules, now(at)).basis is Cause.CONFIRMED_ABSENT
    assert at <= PROVES + (confirmations + 1) * (INTERVAL + late) + INTERVAL


def test_the_last_look_is_the_last_thing_that_was_seen():
    assert last_look_ms(record()) == T0
    assert last_look_ms(tried(attempt())) == ENDED
    assert last_look_ms(adding(tried(attempt()), *absences(T0 + HOUR))) == T0 + HOUR


@pytest.mark.parametrize(("looks", "minutes"), [(0, 5), (1, 10), (3, 40), (4, 60), (50, 60)])
def test_what_waits_for_a_person_is_looked_at_every_five_minutes_at_first(looks, minutes):
    before = tried(attempt(), state=State.MANUAL_REVIEW, looks=looks)
    assert next_review_look_ms(before) == ENDED + minutes * 60_000
