"""What is done about an unknown, and about accepted work, until a deadline."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.core.life import every_life
from tests.core.samples import (
    DAY,
    EVENTS,
    HOUR,
    INTERVAL,
    KEY,
    LATER,
    LOOKUP,
    PROVES,
    SHOWS,
    T0,
    TIMEOUT,
    absences,
    adding,
    attempt,
    contract,
    ends,
    evidence,
    now,
    record,
    resending,
    retrying,
    sends,
    settled,
    tried,
    witnessed,
)

from doubtless.core.contract import OnAbsent
from doubtless.core.model import Cause, Effect, Seen, Shows, Source, State
from doubtless.core.policy import decide
from doubtless.core.schedule import next_send_ms
from doubtless.core.steps import Escalate, LookUp, Send, Settle, Wait
from doubtless.testing.strategies import Life

UNKNOWN = tried(attempt())


def step(before, rules=None, at=T0 + 60_000):
    return decide(before, rules or contract(), now(at)).step


# --- an attempt ends -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "state", "cause"),
    [
        (Seen.SUCCEEDED, State.SUCCEEDED, Cause.PROVEN),
        (Seen.ACCEPTED, State.ACCEPTED, None),
        (Seen.UNKNOWN, State.UNKNOWN, Cause.TIMEOUT),
        (Seen.NOT_SENT, State.PREPARED, Cause.NOT_SENT),
        (Seen.NOT_PROCESSED, State.PREPARED, Cause.NOT_PROCESSED),
        (Seen.REJECTED, State.FAILED, Cause.REFUSED),
    ],
)
def test_what_the_first_attempt_saw_decides_the_state(seen, state, cause):
    after = ends(sends(record(), contract(), T0), contract(), T0 + 5_000, seen).operation
    assert (after.state, after.cause) == (state, cause)


@pytest.mark.proves("CORE-3")
@pytest.mark.parametrize("seen", [Seen.NOT_SENT, Seen.NOT_PROCESSED, Seen.REJECTED])
def test_a_second_attempt_that_did_nothing_leaves_the_operation_unknown(seen):
    again = sends(UNKNOWN, contract(), T0 + 60_000, resend=True)
    after = ends(again, contract(), T0 + 61_000, seen).operation
    assert (after.state, after.cause) == (State.UNKNOWN, Cause.TIMEOUT)


def test_an_attempt_that_is_under_way_is_waited_for_until_its_lease_ends():
    opened = sends(record(), contract(), T0)
    assert step(opened) == Wait(until_ms=T0 + TIMEOUT + 10_000)


def test_an_attempt_that_contradicts_the_rest_goes_to_a_person():
    opened = adding(sends(record(), contract(), T0), evidence(Shows.NOT_APPLIED, at=T0 + 10))
    after = ends(opened, contract(), T0 + 5_000, Seen.SUCCEEDED).operation
    assert (after.state, after.cause) == (State.MANUAL_REVIEW, Cause.CONTRADICTION)


@pytest.mark.parametrize(
    ("on_absent", "state", "cause"),
    [
        (OnAbsent.RESEND, State.PREPARED, Cause.CONFIRMED_ABSENT),
        (OnAbsent.REPORT, State.FAILED, Cause.CONFIRMED_ABSENT),
        (OnAbsent.REVIEW, State.MANUAL_REVIEW, Cause.ABSENT_REVIEW),
    ],
)
def test_a_resend_that_never_left_leaves_the_absence_as_it_was(on_absent, state, cause):
    rules = resending(on_absent=on_absent)
    absent = adding(tried(attempt()), *absences(PROVES - INTERVAL, PROVES))
    after = ends(
        sends(absent, rules, PROVES + 1_000, resend=True), rules, PROVES + 2_000, Seen.NOT_SENT
    )
    assert (after.operation.state, after.operation.cause) == (state, cause)


def test_a_resend_that_never_left_when_no_other_is_permitted_is_reported():
    rules = resending(retry=retrying(resend=0))
    absent = adding(tried(attempt()), *absences(PROVES - INTERVAL, PROVES))
    after = ends(
        sends(absent, rules, PROVES + 1_000, resend=True), rules, PROVES + 2_000, Seen.NOT_SENT
    )
    assert (after.operation.state, after.operation.cause) == (State.FAILED, Cause.CONFIRMED_ABSENT)


def test_a_crash_is_the_cause_where_nothing_else_is_known():
    before = tried(attempt(observation=None), state=State.EXECUTING)
    assert settled(before, contract(), T0 + 60_000).operation.cause is Cause.CRASH


# --- evidence comes ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW])
@pytest.mark.parametrize(
    ("shows", "target", "cause"),
    [
        (Shows.APPLIED, State.SUCCEEDED, Cause.PROVEN),
        (Shows.NOT_APPLIED, State.FAILED, Cause.DEFINITE_FAILURE),
        (Shows.IN_PROGRESS, State.ACCEPTED, None),
        (Shows.CONFLICT, State.MANUAL_REVIEW, Cause.CONTRADICTION),
    ],
)
def test_authoritative_evidence_settles_what_is_unknown(state, shows, target, cause):
    before = adding(
        tried(attempt(), state=state, cause=Cause.DEADLINE, looks=1),
        evidence(shows, at=T0 + 20_000),
    )
    after = settled(before, contract(), T0 + 60_000).operation
    assert (after.state, after.cause) == (target, cause)


def test_a_worker_that_is_looking_holds_back_what_is_not_proof():
    asking = tried(attempt(), state=State.RECONCILING, owner="w", lease_end_ms=T0 + 90_000)
    assert step(asking) == Wait(until_ms=T0 + 90_000)
    assert isinstance(step(asking, at=T0 + 90_000), LookUp)
    proven = adding(asking, evidence(Shows.APPLIED, at=T0 + 20_000))
    assert step(proven) == Settle(to=State.SUCCEEDED, cause=Cause.PROVEN)
    torn = adding(asking, evidence(Shows.CONFLICT, at=T0 + 20_000))
    assert step(torn) == Escalate(cause=Cause.CONTRADICTION)


def test_a_look_whose_worker_was_lost_is_unknown_again():
    before = tried(attempt(), state=State.RECONCILING, owner="w", lease_end_ms=T0 + 20_000, looks=5)
    asked = adding(before, *absences(T0 + 59_000))
    after = settled(asked, contract(lookups=(LOOKUP,)), T0 + 60_000).operation
    assert after.state is State.UNKNOWN


@pytest.mark.proves("CORE-27")
@pytest.mark.parametrize("seen", [Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_a_late_proof_that_nothing_was_done_permits_a_send_after_its_pause(seen):
    proven = adding(UNKNOWN, witnessed(1, SHOWS[seen]))
    pause = Wait(until_ms=next_send_ms(proven, contract()))
    assert step(proven, at=T0 + TIMEOUT + 100) == pause
    assert step(proven, at=pause.until_ms) == Send(resend=False, why=Cause(seen.value))


# --- deadlines -----------------------------------------------------------------------------------


@pytest.mark.proves("CORE-28", "INV-4")
def test_an_unknown_is_in_review_at_its_deadline():
    assert isinstance(step(UNKNOWN, at=T0 + HOUR - 1), LookUp)
    assert step(UNKNOWN, at=T0 + HOUR) == Escalate(cause=Cause.DEADLINE)


@pytest.mark.proves("CORE-28", "INV-4")
@pytest.mark.parametrize(
    "rules",
    [
        contract(),
        contract(lookups=(), events=EVENTS),
        contract(Effect.KEYED_CREATE, lookups=(), retry=retrying(resend=0)),
        contract(Effect.BROWSER, lookups=()),
    ],
    ids=["look-up", "event", "resends spent", "browser"],
)
def test_every_unknown_is_due_at_its_deadline_at_the_latest(rules):
    after = settled(tried(attempt()), rules, T0 + 60_000).operation
    assert after.state is State.MANUAL_REVIEW or (after.due_ms or 0) <= T0 + HOUR


def test_the_deadline_runs_from_the_first_entry_to_unknown_and_no_resend_renews_it():
    rules = contract(Effect.KEYED_CREATE, lookups=())
    first = ends(sends(record(), rules, T0), rules, T0 + TIMEOUT, Seen.UNKNOWN)
    deadline = first.operation.deadline_ms
    assert deadline == T0 + TIMEOUT + rules.recovery_deadline_ms
    again = ends(sends(first, rules, T0 + 60_000, resend=True), rules, T0 + 70_000, Seen.UNKNOWN)
    assert again.operation.deadline_ms == deadline


@pytest.mark.proves("CORE-29")
def test_without_review_it_stays_unknown_past_its_deadline_and_is_still_looked_at():
    rules = contract(review=False)
    after = settled(UNKNOWN, rules, LATER).operation
    assert (after.state, isinstance(step(UNKNOWN, rules, LATER), LookUp)) == (State.UNKNOWN, True)
    assert after.due_ms is not None
    blind = contract(review=False, lookups=())
    assert step(UNKNOWN, blind, LATER) == Wait(until_ms=LATER + DAY)


@pytest.mark.parametrize("at", [LATER, LATER + 12 * HOUR])
@pytest.mark.parametrize("effect", [Effect.KEYED_CREATE, Effect.IDEMPOTENT_CALL, Effect.MONEY])
def test_without_review_nothing_is_resent_past_the_deadline(effect, at):
    rules = resending(effect, review=False)
    assert not isinstance(step(adding(UNKNOWN, *absences(T0 + 20_000)), rules, at), Send)


@pytest.mark.proves("CORE-29")
@pytest.mark.parametrize(
    "items",
    [absences(LATER, LATER + INTERVAL), (witnessed(1, Shows.NOT_SENT, at=LATER),)],
    ids=["absent", "not sent"],
)
def test_without_review_nothing_is_sent_past_the_deadline_whatever_comes_to_light(items):
    before = adding(UNKNOWN, *items)
    assert not isinstance(step(before, resending(review=False), LATER + INTERVAL), Send)


@pytest.mark.parametrize("at", [T0 + 60_000, T0 + HOUR - 1])
def test_an_event_is_waited_for_until_the_deadline(at):
    rules = contract(lookups=(), events=EVENTS)
    assert step(UNKNOWN, rules, at) == Wait(until_ms=T0 + HOUR)
    assert step(UNKNOWN, rules, T0 + HOUR) == Escalate(cause=Cause.DEADLINE)


@pytest.mark.proves("CORE-30")
def test_an_unknown_whose_key_has_died_and_that_nothing_else_can_settle_goes_to_a_person():
    rules = contract(Effect.IDEMPOTENT_CALL, lookups=(), key=replace(KEY, ttl_ms=None))
    assert step(UNKNOWN, rules) == Escalate(cause=Cause.NOTHING_LEFT)


def test_a_match_that_nothing_attributes_goes_to_a_person_once_nothing_can_arrive():
    seen = adding(UNKNOWN, evidence(Shows.PRESENT, at=T0 + 20_000))
    assert isinstance(step(seen, at=PROVES - 1), LookUp)
    assert step(seen, at=PROVES) == Escalate(cause=Cause.NOT_ATTRIBUTED)


@pytest.mark.proves("CORE-23")
@pytest.mark.parametrize("at", [T0 + DAY, T0 + 2 * DAY])
@pytest.mark.parametrize("shows", [Shows.NOT_SENT, Shows.NOT_PROCESSED])
def test_after_its_validity_nothing_is_sent_whatever_the_evidence(shows, at):
    late = tried(attempt(), deadline_ms=T0 + 3 * DAY)
    assert isinstance(step(adding(late, witnessed(1, shows)), at=at), Settle)
    absent = adding(late, *absences(at - INTERVAL, at))
    assert step(absent, resending(), at) == Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    free = contract(Effect.KEYED_CREATE, lookups=())
    assert step(late, free, at) == Escalate(cause=Cause.NOTHING_LEFT)


@pytest.mark.proves("CORE-23", "INV-3")
@every_life
def test_nothing_is_sent_after_its_validity_or_beyond_ten_attempts(life: Life):
    for before, at in zip(life.records, life.times, strict=True):
        if isinstance(decide(before, life.contract, at).step, Send):
            assert at.ms < before.operation.valid_until_ms
            assert len(before.attempts) < 10
    for before, after in pairwise(life.records):
        assert len(after.attempts) <= len(before.attempts) + 1


# --- budgets -------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-31")
def test_a_resend_that_never_left_uses_no_resend():
    rules = contract(Effect.KEYED_CREATE, lookups=(), retry=retrying(resend=1))
    unsent = tried(attempt(), attempt(2, resend=True, seen=Seen.NOT_SENT, at=T0 + 20_000))
    assert step(unsent, rules, T0 + 90_000) == Send(resend=True)
    spent = tried(attempt(), attempt(2, resend=True, at=T0 + 20_000))
    assert step(spent, rules, T0 + 90_000) == Escalate(cause=Cause.NOTHING_LEFT)


def test_resends_use_up_none_of_the_attempts_for_what_is_proven_not_done():
    rules = contract(Effect.IDEMPOTENT_CALL, key=KEY, retry=retrying(attempts=2, resend=4))
    resent = [attempt(n, resend=True, at=T0 + n * 20_000) for n in (2, 3)]
    before = adding(
        tried(attempt(), *resent), witnessed(3, Shows.NOT_PROCESSED, source=Source.KEY_REPLAY)
    )
    assert isinstance(step(before, rules, T0 + HOUR - 1), Send)


@pytest.mark.proves("CORE-31")
def test_ten_attempts_are_all_there_are():
    rules = contract(Effect.KEYED_CREATE, lookups=(), retry=retrying(attempts=99, resend=99))
    nine = tried(*[attempt(n, at=T0 + n) for n in range(1, 10)])
    assert isinstance(step(nine, rules, T0 + 60_000), Send)
    ten = tried(*[attempt(n, at=T0 + n) for n in range(1, 11)])
    assert step(ten, rules, T0 + 60_000) == Escalate(cause=Cause.NOTHING_LEFT)
