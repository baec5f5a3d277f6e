"""Who may send, and until when: key life, resends, and the repeat of what has failed."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    DAY,
    EVENTS,
    HORIZON,
    HOUR,
    INTERVAL,
    KEY,
    LATER,
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
    record,
    retrying,
    rules_on,
    tried,
    witnessed,
)

from doubtless.core.contract import OnAbsent
from doubtless.core.decisions import Word
from doubtless.core.evidence import FOREVER_MS
from doubtless.core.model import Blocker, Cause, Effect, Seen, Shows, Source, State
from doubtless.core.permission import (
    HASTY,
    key_last_send_ms,
    key_lives,
    may_repeat,
    may_resend,
    resends_left,
    tries_left,
)

KEYED = contract(Effect.IDEMPOTENT_CALL, key=KEY, lookups=())
LAST_SEND = T0 + DAY - 5_000 - TIMEOUT - HORIZON - KEY.margin_ms


# --- key life ------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-35")
def test_a_key_lives_until_a_send_could_meet_a_provider_that_has_forgotten_it():
    before = tried(attempt())
    assert key_last_send_ms(before, KEYED, now(T0)) == LAST_SEND
    assert key_lives(before, KEYED, now(LAST_SEND))
    assert not key_lives(before, KEYED, now(LAST_SEND + 1))


@pytest.mark.proves("CORE-35")
def test_the_life_of_a_key_counts_from_the_first_send_and_not_from_the_last():
    before = tried(attempt(), attempt(2, at=T0 + HOUR))
    assert key_last_send_ms(before, KEYED, now(T0)) == LAST_SEND


@pytest.mark.proves("CORE-35")
def test_an_unknown_life_of_the_key_allows_no_second_send():
    forgetful = replace(KEYED, key=replace(KEY, ttl_ms=None))
    assert key_lives(record(), forgetful, now(T0))
    assert not key_lives(tried(attempt()), forgetful, now(T0 + 1))


@pytest.mark.proves("CORE-11", "CORE-35")
def test_a_clock_that_broke_since_the_first_send_makes_the_key_count_as_expired():
    before = tried(attempt())
    assert not key_lives(before, KEYED, now(T0 + HOUR, break_ms=T0 + 1))
    assert key_lives(before, KEYED, now(T0 + HOUR, break_ms=T0 - 1))


@pytest.mark.parametrize(
    "rules", [contract(), contract(Effect.READ, key=KEY, lookups=())], ids=["no key", "read"]
)
def test_no_key_binds_what_has_none(rules):
    assert key_last_send_ms(tried(attempt()), rules, now(T0)) == FOREVER_MS


# --- resends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "at", "break_ms"),
    [
        (replace(tried(attempt()), overtaken_by="newer"), T0 + HOUR, 0),
        (replace(tried(attempt()), waits_for="older"), T0 + HOUR, 0),
        (
            replace(tried(attempt()), blockers=(Blocker(operation_id="b", state=State.UNKNOWN),)),
            T0 + HOUR,
            0,
        ),
        (tried(attempt(), valid_until_ms=T0 + HOUR), T0 + HOUR, 0),
        (tried(*[attempt(n) for n in range(1, 11)]), T0 + HOUR, 0),
        (tried(attempt(), attempt(2, resend=True)), T0 + HOUR, 0),
        (tried(attempt(), valid_until_ms=T0 + 9 * DAY), LAST_SEND + 1, 0),
        (tried(attempt()), T0 + HOUR, T0 + 1),
    ],
    ids=["overtaken", "waits", "after", "void", "ten", "resent", "key", "clock"],
)
@pytest.mark.proves("CORE-36")
def test_one_thing_that_is_wrong_is_enough_to_forbid_a_resend(before, at, break_ms):
    rules = replace(KEYED, retry=retrying(resend=1))
    assert may_resend(tried(attempt()), rules, now(T0 + HOUR), absent=True)
    assert not may_resend(before, rules, now(at, break_ms), absent=True)


@pytest.mark.proves("CORE-36")
def test_where_duplicates_are_acceptable_the_other_conditions_still_hold():
    rules = contract(duplicates_acceptable=True, lookups=())
    assert may_resend(tried(attempt()), rules, now(T0 + HOUR), absent=False)
    void = tried(attempt(), valid_until_ms=T0 + HOUR)
    assert not may_resend(void, rules, now(T0 + HOUR), absent=False)


def test_budgets_count_from_where_a_person_began_anew():
    again = tried(attempt(), attempt(2, resend=True, at=T0 + 1), budget_from=2)
    assert resends_left(again, KEYED) == 1
    assert tries_left(again, contract(retry=retrying(attempts=1)))


# --- the repeat of what has failed ---------------------------------------------------------------

REPEATABLE = ("not_sent", "not_processed", "confirmed_absent", "operator_not_done", "no_effect")


def failed(cause: Cause, *attempts, items=(), **changes):
    return adding(tried(*attempts, state=State.FAILED, cause=cause, **changes), *items)


def unsent(**changes):
    return failed(Cause.NOT_SENT, attempt(seen=Seen.NOT_SENT), **changes)


def absent(**changes):
    items = absences(PROVES - INTERVAL, PROVES)
    return failed(Cause.CONFIRMED_ABSENT, attempt(), items=items, **changes)


def repeat(before, rules=None, at=PROVES + 1_000):
    return may_repeat(before, rules or contract(), now(at))


@pytest.mark.proves("CORE-37")
@pytest.mark.parametrize("cause", Cause)
def test_only_what_provably_did_not_happen_may_be_repeated(cause):
    seen = Seen.NOT_PROCESSED
    items = absences(PROVES - INTERVAL, PROVES) if cause is Cause.CONFIRMED_ABSENT else ()
    attempts = (attempt(),) if items else (attempt(seen=seen),)
    before = failed(cause, *attempts, items=items)
    if cause is Cause.OPERATOR_NOT_DONE:
        before = adding(before, evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=T0 + 90_000))
    assert repeat(before).allowed is (cause.value in REPEATABLE)


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_only_what_has_failed_may_be_repeated(state):
    before = tried(attempt(seen=Seen.NOT_SENT), state=state, cause=Cause.NOT_SENT)
    assert not repeat(before).allowed


@pytest.mark.proves("CORE-37")
@pytest.mark.parametrize(
    ("before", "why"),
    [
        (replace(unsent(), object_taken_by="other"), "another operation"),
        (replace(unsent(), newer_twin="other"), "newer operation"),
        (replace(unsent(), overtaken_by="other"), "overtaken"),
        (unsent(valid_until_ms=PROVES + 1_000), "void"),
        (
            failed(Cause.NOT_SENT, *[attempt(n, seen=Seen.NOT_SENT) for n in range(1, 11)]),
            "used up",
        ),
    ],
)
def test_each_condition_alone_forbids_the_repeat(before, why):
    assert repeat(unsent()).allowed
    found = repeat(before)
    assert (found.allowed, why in found.why) == (False, True)


@pytest.mark.proves("CORE-35", "CORE-37")
def test_a_forgotten_key_forbids_the_repeat():
    rules = contract(key=replace(KEY, ttl_ms=None))
    refused = failed(Cause.NOT_PROCESSED, attempt(seen=Seen.NOT_PROCESSED))
    assert not repeat(refused, rules).allowed
    assert repeat(refused, contract(key=KEY)).allowed


@pytest.mark.proves("CORE-37", "INV-1")
def test_nothing_is_repeated_while_something_may_still_arrive():
    word = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=T0 + 20_000)
    before = failed(Cause.OPERATOR_NOT_DONE, attempt(), items=[word])
    found = repeat(before, at=T0 + 30_000)
    assert (found.allowed, found.may_arrive, found.from_ms) == (False, True, SETTLED)


def test_no_instant_is_named_while_the_worker_may_be_alive():
    word = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=T0 + 20_000)
    before = failed(Cause.OPERATOR_NOT_DONE, attempt(closed_ms=None), items=[word])
    found = repeat(before, at=LATER)
    assert (found.allowed, found.may_arrive, found.from_ms) == (False, True, None)


@pytest.mark.proves("CORE-38", "INV-1")
@pytest.mark.parametrize(("said", "allowed"), [(PROVES - 1, False), (PROVES, True)])
def test_an_early_word_of_not_done_permits_no_repeat_ever(said, allowed):
    word = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=said)
    before = failed(Cause.OPERATOR_NOT_DONE, attempt(), items=[word])
    found = repeat(before, at=LATER)
    assert (found.allowed, found.why) == (allowed, "" if allowed else HASTY)


def test_a_second_word_that_comes_late_enough_permits_the_repeat():
    early = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=T0 + 20_000)
    before = failed(Cause.OPERATOR_NOT_DONE, attempt(), items=[early])
    assert not repeat(before, at=PROVES).allowed
    again = rules_on(before, contract(), PROVES, Word.NOT_DONE)
    assert again.operation.state is State.FAILED
    assert repeat(again, at=PROVES).allowed


@pytest.mark.proves("CORE-37", "INV-1")
@pytest.mark.parametrize("shows", [Shows.IN_PROGRESS, Shows.PRESENT, Shows.SIGHTED, Shows.APPLIED])
def test_an_absence_that_no_longer_stands_permits_no_repeat(shows):
    assert repeat(absent()).allowed
    before = adding(absent(), event(shows, at=PROVES + 8_000))
    assert not repeat(before, contract(events=EVENTS), PROVES + 9_000).allowed


def test_a_clock_that_broke_since_permits_no_repeat_on_an_absence():
    broke = now(PROVES + HOUR, break_ms=PROVES + 1_000)
    assert not may_repeat(absent(), contract(), broke).allowed


def test_an_absence_that_is_left_to_a_person_may_be_repeated_once_it_was_decided():
    rules = contract(on_absent=OnAbsent.REVIEW)
    before = adding(tried(attempt(), state=State.MANUAL_REVIEW), *absences(PROVES - 5_000, PROVES))
    after = rules_on(before, rules, LATER, Word.NOT_DONE)
    assert repeat(after, rules, LATER).allowed


def test_a_late_proof_after_an_early_word_makes_nothing_arrive_any_more():
    word = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=T0 + 20_000)
    proof = witnessed(1, Shows.NOT_SENT, at=T0 + 21_000)
    before = failed(Cause.OPERATOR_NOT_DONE, attempt(), items=[word, proof])
    assert repeat(before, at=T0 + 22_000).may_arrive is False
