"""When "not found" proves something: the four conditions, and each of them broken alone."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    EVENTS,
    HORIZON,
    HOUR,
    INTERVAL,
    LAG,
    LOOKUP,
    PROVES,
    SETTLED,
    T0,
    TIMEOUT,
    absences,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    tried,
    witnessed,
)

from doubtless.core.contract import LookupRules
from doubtless.core.evidence import FOREVER_MS, absence, arrives_until_ms, weigh
from doubtless.core.model import Cause, Seen, Shows, Source, State, Strength, Verdict

LONG_AFTER = now(PROVES + 30 * 24 * HOUR)
SEEN_TWICE = absences(PROVES - INTERVAL, PROVES)


def verdict(before, rules=None, at=LONG_AFTER):
    return weigh(before, rules or contract(), at).verdict


@pytest.mark.proves("CORE-9", "INV-2")
def test_absence_is_proof_where_all_four_conditions_hold():
    found = weigh(adding(tried(attempt()), *SEEN_TWICE), contract(), now(PROVES))
    assert (found.verdict, found.basis) == (Verdict.NOT_APPLIED, Cause.CONFIRMED_ABSENT)
    assert found.numbers == (2, 3)


# --- 1. the look-up is declared authoritative ----------------------------------------------------


@pytest.mark.proves("CORE-9")
def test_absence_in_a_look_up_that_is_not_declared_authoritative_proves_nothing():
    rules = contract(lookups=(replace(LOOKUP, authoritative=False),))
    assert verdict(adding(tried(attempt()), *SEEN_TWICE), rules) is Verdict.UNKNOWN


def test_advisory_absences_prove_nothing():
    items = [replace(item, strength=Strength.ADVISORY) for item in SEEN_TWICE]
    assert verdict(adding(tried(attempt()), *items)) is Verdict.UNKNOWN


@pytest.mark.parametrize("source", [s for s in Source if s is not Source.LOOKUP])
def test_only_a_look_up_can_see_absence(source):
    items = [replace(item, source=source) for item in SEEN_TWICE]
    assert verdict(adding(tried(attempt()), *items)) is Verdict.UNKNOWN


def test_absence_in_a_look_up_that_the_contract_does_not_know_proves_nothing():
    items = absences(PROVES - INTERVAL, PROVES, by="another")
    assert verdict(adding(tried(attempt()), *items)) is Verdict.UNKNOWN


SECOND = LookupRules(name="second", authoritative=True, lag_ms=LAG, in_flight_horizon_ms=HORIZON)


@pytest.mark.proves("CORE-9")
def test_absence_needs_all_the_authoritative_look_ups():
    rules = contract(lookups=(LOOKUP, SECOND))
    before = adding(tried(attempt()), *SEEN_TWICE)
    assert verdict(before, rules) is Verdict.UNKNOWN
    both = adding(before, *absences(PROVES - INTERVAL, PROVES, by="second"))
    assert verdict(both, rules) is Verdict.NOT_APPLIED


def test_absence_needs_no_look_up_that_could_not_prove_it():
    rules = contract(lookups=(LOOKUP, replace(SECOND, authoritative=False)))
    assert verdict(adding(tried(attempt()), *SEEN_TWICE), rules) is Verdict.NOT_APPLIED


def test_without_a_look_up_there_is_no_absence():
    assert verdict(adding(tried(attempt()), *SEEN_TWICE), contract(lookups=())) is Verdict.UNKNOWN


# --- 2. no attempt can still arrive --------------------------------------------------------------


@pytest.mark.proves("CORE-9")
def test_absence_proves_nothing_while_an_attempt_can_still_arrive():
    early = absences(PROVES - INTERVAL - 1, PROVES - 1)
    assert verdict(adding(tried(attempt()), *early)) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-9")
def test_an_attempt_may_arrive_until_its_sending_its_timeout_and_the_horizon_are_over():
    assert arrives_until_ms(tried(attempt()), contract(), LONG_AFTER) == SETTLED


@pytest.mark.proves("CORE-9")
def test_without_a_stored_sending_the_end_of_the_lease_counts():
    before = tried(attempt(sent_by_ms=None))
    lease_end = before.attempts[0].lease_end_ms
    assert arrives_until_ms(before, contract(), LONG_AFTER) == lease_end + TIMEOUT + HORIZON
    assert verdict(adding(before, *SEEN_TWICE)) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-9")
def test_the_greatest_over_all_attempts_counts_whichever_was_last():
    slow, quick = attempt(sent_by_ms=T0 + HOUR), attempt(2, at=T0 + 20_000)
    until = arrives_until_ms(tried(slow, quick), contract(), LONG_AFTER)
    assert until == T0 + HOUR + TIMEOUT + HORIZON


def test_an_attempt_that_is_proven_not_done_can_not_arrive():
    before = tried(attempt(), attempt(2, seen=Seen.NOT_SENT, at=T0 + HOUR))
    assert arrives_until_ms(before, contract(), LONG_AFTER) == SETTLED


@pytest.mark.proves("CORE-9")
def test_an_attempt_whose_owner_may_be_alive_keeps_absence_open_for_ever():
    before = adding(tried(attempt(closed_ms=None)), *absences(PROVES + HOUR, PROVES + 2 * HOUR))
    assert arrives_until_ms(before, contract(), LONG_AFTER) == FOREVER_MS
    found = absence(before, contract(), LONG_AFTER)
    assert (found.provable, found.confirmed) == (False, False)


def test_an_attempt_that_is_closed_late_can_arrive_until_then():
    before = tried(attempt(closed_ms=T0 + HOUR))
    assert arrives_until_ms(before, contract(), LONG_AFTER) == T0 + HOUR


def test_an_absence_seen_before_the_last_attempt_was_opened_does_not_count():
    again = attempt(2, at=PROVES + 10_000)
    before = adding(tried(attempt(), again), *SEEN_TWICE)
    late = PROVES + 10_000 + (PROVES - T0)
    assert verdict(adding(before, *absences(late))) is Verdict.UNKNOWN
    assert verdict(adding(before, *absences(late, late + INTERVAL))) is Verdict.NOT_APPLIED


@pytest.mark.proves("CORE-10")
def test_a_sighting_under_the_key_restarts_the_horizon_and_does_not_block_for_ever():
    seen_at = PROVES - 1_000
    before = adding(tried(attempt()), evidence(Shows.SIGHTED, Source.RESPONSE, at=seen_at))
    assert verdict(adding(before, *SEEN_TWICE)) is Verdict.UNKNOWN
    again = seen_at + TIMEOUT + HORIZON + LAG
    assert verdict(adding(before, *absences(again - INTERVAL, again))) is Verdict.NOT_APPLIED


def test_an_absence_that_was_confirmed_stands_no_longer_once_the_key_is_sighted():
    before = adding(tried(attempt()), *SEEN_TWICE)
    sighted = adding(before, evidence(Shows.SIGHTED, Source.RESPONSE, at=PROVES + 1_000))
    assert verdict(sighted) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-11")
def test_a_clock_that_broke_starts_horizon_and_confirmations_again():
    broke = PROVES + 1_000
    after = now(PROVES + HOUR, break_ms=broke)
    before = adding(tried(attempt()), *SEEN_TWICE)
    assert verdict(before, at=after) is Verdict.UNKNOWN
    again = broke + TIMEOUT + HORIZON + LAG
    assert verdict(adding(before, *absences(again)), at=after) is Verdict.UNKNOWN
    twice = adding(before, *absences(again - INTERVAL, again))
    assert verdict(twice, at=after) is Verdict.NOT_APPLIED


def test_a_clock_that_broke_between_two_attempts_starts_the_horizon_again():
    before = tried(attempt(), attempt(2, at=T0 + 20_000, sent_by_ms=T0 + 20_000))
    broke = T0 + 19_000
    until = arrives_until_ms(before, contract(), now(PROVES, break_ms=broke))
    assert until == T0 + 20_000 + TIMEOUT + HORIZON
    proven = adding(before, witnessed(2, Shows.NOT_SENT))
    until = arrives_until_ms(proven, contract(), now(PROVES, break_ms=broke))
    assert until == broke + TIMEOUT + HORIZON
    slow = tried(attempt(), attempt(2, at=broke + 1, sent_by_ms=T0))
    assert arrives_until_ms(slow, contract(), now(PROVES, break_ms=broke)) == (
        broke + TIMEOUT + HORIZON
    )


def test_a_clock_that_broke_before_the_first_attempt_changes_nothing():
    before = adding(tried(attempt()), *SEEN_TWICE)
    assert verdict(before, at=now(PROVES, break_ms=T0 - 1)) is Verdict.NOT_APPLIED


# --- 3. confirmations, spaced --------------------------------------------------------------------


@pytest.mark.proves("CORE-9")
@pytest.mark.parametrize(
    "instants",
    [
        (PROVES,),
        (PROVES - INTERVAL + 1, PROVES),
        (PROVES, PROVES, PROVES),
        (PROVES - 2 * INTERVAL, PROVES - INTERVAL),
        (T0 - INTERVAL, PROVES),
    ],
    ids=["one", "too close", "at once", "the last too early", "before it was sent"],
)
def test_absences_that_are_too_few_too_close_or_too_early_prove_nothing(instants):
    assert verdict(adding(tried(attempt()), *absences(*instants))) is Verdict.UNKNOWN


def test_only_the_last_absence_has_to_be_late():
    before = adding(tried(attempt()), *absences(T0 + TIMEOUT, PROVES))
    assert verdict(before) is Verdict.NOT_APPLIED


def test_an_absence_counts_at_the_moment_its_request_began():
    slow = [replace(item, begun_ms=PROVES - 1) for item in absences(PROVES + 5_000)]
    before = adding(tried(attempt()), *absences(PROVES - INTERVAL - 1), *slow)
    assert verdict(before) is Verdict.UNKNOWN


@pytest.mark.parametrize("confirmations", [1, 2, 3, 5])
def test_as_many_absences_as_are_declared_are_needed(confirmations):
    rules = contract(lookups=(replace(LOOKUP, confirmations=confirmations),))
    instants = [PROVES - INTERVAL * back for back in range(confirmations)]
    before = adding(tried(attempt()), *absences(*instants[:-1]))
    assert verdict(before, rules) is Verdict.UNKNOWN
    assert verdict(adding(before, *absences(instants[-1])), rules) is Verdict.NOT_APPLIED


def test_one_more_absence_never_takes_a_confirmation_back():
    before = adding(tried(attempt()), *SEEN_TWICE, *absences(PROVES + 1))
    assert verdict(before) is Verdict.NOT_APPLIED


@pytest.mark.proves("CORE-12")
@pytest.mark.parametrize("at", [PROVES - INTERVAL + 1, PROVES + 1])
def test_a_look_that_could_not_ask_neither_counts_nor_resets(at):
    failed = evidence(Shows.COULD_NOT_ASK, at=at)
    before = tried(attempt())
    assert verdict(adding(before, failed, *absences(PROVES))) is Verdict.UNKNOWN
    ordered = sorted((*SEEN_TWICE, failed), key=lambda item: item.at_ms)
    assert verdict(adding(before, *ordered)) is Verdict.NOT_APPLIED


# --- 4. no other evidence says anything else -----------------------------------------------------


@pytest.mark.proves("CORE-9")
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("shows", "told"),
    [
        (Shows.PRESENT, Verdict.UNKNOWN),
        (Shows.IN_PROGRESS, Verdict.IN_PROGRESS),
        (Shows.APPLIED, Verdict.APPLIED),
        (Shows.CONFLICT, Verdict.CONTRADICTION),
    ],
)
def test_presence_ends_the_count(shows, told, first):
    seen = evidence(shows, at=T0 + TIMEOUT if first else PROVES + 1)
    items = (seen, *SEEN_TWICE) if first else (*SEEN_TWICE, seen)
    assert verdict(adding(tried(attempt()), *items)) is told


@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.PRESENT, Shows.IN_PROGRESS])
def test_even_an_advisory_sighting_speaks_against_absence(shows):
    seen = event(shows, at=T0 + 20_000, strength=Strength.ADVISORY)
    before = adding(tried(attempt()), seen, *SEEN_TWICE)
    assert verdict(before, contract(events=EVENTS)) is Verdict.UNKNOWN


def test_a_later_not_found_never_undoes_a_success():
    before = adding(tried(attempt()), witnessed(1, Shows.APPLIED, source=Source.RESPONSE))
    many = absences(*range(PROVES, PROVES + 10 * INTERVAL, INTERVAL))
    assert verdict(adding(before, *many)) is Verdict.APPLIED


def test_absence_says_nothing_of_an_operation_whose_attempt_is_under_way():
    before = tried(attempt(seen=None), state=State.EXECUTING)
    assert verdict(adding(before, *SEEN_TWICE)) is Verdict.UNKNOWN
