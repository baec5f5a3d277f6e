"""What a person may decide, where, and what it does."""

from dataclasses import replace

import pytest
from tests.core.life import every_life
from tests.core.samples import (
    DAY,
    EVENTS,
    HOUR,
    INTERVAL,
    KEY,
    LATER,
    PROVES,
    SETTLED,
    T0,
    absences,
    adding,
    attempt,
    contract,
    decided,
    evidence,
    now,
    operation,
    record,
    reviewed,
    rules_on,
    told,
    tried,
)

from doubtless.core.contract import FOREIGN_OWNER_MS
from doubtless.core.decisions import LEGAL, Word, rule, superseded
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, Effect, Seen, Shows, Source, State, Strength
from doubtless.core.outcome import instant
from doubtless.core.progress import begin, claim_until_ms
from doubtless.errors import DecisionRefused
from doubtless.testing.strategies import Life

OPEN = {State.ACCEPTED, State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW}
# Written out from the model: where each decision may be taken.
MODEL = {
    "done": OPEN,
    "not_done": OPEN | {State.FAILED},
    "unsure": {State.MANUAL_REVIEW},
    "retry": {State.MANUAL_REVIEW, State.FAILED},
    "look_again": {State.MANUAL_REVIEW},
    "again": OPEN,
}


def decide(before, word: Word, rules=None, at=LATER, **how):
    return rule(before, rules or contract(), now(at), word, operator="o", note="saw it", **how)


def in_state(state: State):
    cause = Cause.OPERATOR_NOT_DONE if state is State.FAILED else None
    word = evidence(Shows.NOT_APPLIED, Source.OPERATOR, at=PROVES)
    before = tried(attempt(), state=state, cause=cause, looks=1)
    return adding(before, word) if state is State.FAILED else before


@pytest.mark.proves("CORE-51", "INV-8")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("word", Word)
def test_a_decision_is_taken_where_the_model_says_and_refused_elsewhere(word, state):
    assert LEGAL[word] == MODEL[word]
    if state in MODEL[word]:
        assert decide(in_state(state), word)
    else:
        with pytest.raises(DecisionRefused, match=f"while it is {state}"):
            decide(in_state(state), word)


@pytest.mark.proves("CORE-51", "INV-8")
@pytest.mark.parametrize(
    ("word", "shows"),
    [
        (Word.DONE, Shows.APPLIED),
        (Word.NOT_DONE, Shows.NOT_APPLIED),
        (Word.AGAIN, Shows.NOT_APPLIED),
    ],
)
def test_a_persons_word_is_evidence_by_that_persons_name(word, shows):
    item = decide(reviewed(Cause.DEADLINE), word, provider_operation_id="re_1").evidence
    assert item is not None
    assert (item.source, item.shows, item.strength) == (
        Source.OPERATOR,
        shows,
        Strength.AUTHORITATIVE,
    )
    assert (item.by, item.detail, item.at_ms, item.number) == ("o", "saw it", LATER, 2)
    assert item.provider_operation_id == "re_1"


@pytest.mark.parametrize("word", [Word.DONE, Word.NOT_DONE])
@pytest.mark.parametrize("state", sorted(OPEN))
def test_done_and_not_done_settle_in_every_state_where_they_are_legal(state, word):
    before = in_state(state)
    if state is State.ACCEPTED:
        before = adding(before, evidence(Shows.IN_PROGRESS, at=T0 + 20_000))
    after = rules_on(before, contract(), T0 + 30_000, word).operation
    expected = State.SUCCEEDED if word is Word.DONE else State.FAILED
    assert after.state is expected


@pytest.mark.proves("CORE-51")
@pytest.mark.parametrize("word", [Word.DONE, Word.NOT_DONE, Word.AGAIN])
def test_a_decision_settles_at_once_although_a_look_was_asked_for_before(word):
    asked = decided(reviewed(Cause.DEADLINE), contract(), LATER, Word.LOOK_AGAIN)
    assert rules_on(asked, contract(), LATER + 1, word).operation.state.ends


@pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.CONFIRMED_ABSENT, Cause.DEFINITE_FAILURE])
def test_not_done_adds_nothing_to_what_failed_otherwise(cause):
    with pytest.raises(DecisionRefused, match="ended already"):
        decide(tried(attempt(), state=State.FAILED, cause=cause), Word.NOT_DONE)


# --- unsure, look again --------------------------------------------------------------------------


@pytest.mark.proves("CORE-52")
def test_unsure_keeps_the_review_as_it_is_and_is_journalled():
    before = reviewed(Cause.DEADLINE)
    change = decide(before, Word.UNSURE).change
    assert change is not None
    assert (change.after, change.reason) == (before.operation, "unsure")


@pytest.mark.proves("CORE-52")
def test_looking_again_starts_a_new_deadline_and_is_due_at_once():
    change = decide(reviewed(Cause.DEADLINE), Word.LOOK_AGAIN).change
    assert change is not None
    after = change.after
    deadline = LATER + contract().recovery_deadline_ms
    assert (after.state, after.deadline_ms) == (State.RECONCILING, deadline)
    assert (after.due_ms, after.looks) == (LATER, 0)


def test_looking_again_is_refused_where_there_is_nothing_to_ask():
    with pytest.raises(DecisionRefused, match="no look-up"):
        decide(reviewed(Cause.DEADLINE), Word.LOOK_AGAIN, contract(lookups=()))


# --- retry ---------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-53")
def test_a_retry_is_the_same_operation_and_key():
    before = reviewed(Cause.DEADLINE)
    ruling = decide(before, Word.RETRY)
    assert (ruling.sends, ruling.prepares, ruling.evidence) == (True, False, None)
    after, opened = begin(
        before,
        contract(),
        now(LATER),
        owner="w",
        correlation_id="c",
        resend=True,
        by=Need.OPERATOR,
    )
    assert (after.id, after.key, opened.number) == (before.operation.id, before.operation.key, 2)


@pytest.mark.proves("CORE-53")
@pytest.mark.parametrize(
    ("before", "rules", "why"),
    [
        (tried(attempt(), valid_until_ms=LATER), contract(), "void"),
        (tried(attempt()), contract(key=replace(KEY, ttl_ms=HOUR)), "forgotten"),
        (tried(attempt()), contract(key=replace(KEY, ttl_ms=None)), "forgotten"),
        (tried(*[attempt(n) for n in range(1, 11)]), contract(), "10 attempts"),
        (replace(tried(attempt()), overtaken_by="newer"), contract(), "newer"),
    ],
)
def test_a_retry_is_refused_once_it_is_void_forgotten_used_up_or_overtaken(before, rules, why):
    review = replace(before, operation=replace(before.operation, state=State.MANUAL_REVIEW))
    with pytest.raises(DecisionRefused, match=why):
        decide(review, Word.RETRY, rules)


@pytest.mark.proves("CORE-11", "CORE-53")
def test_a_retry_is_refused_under_a_key_after_the_clock_broke():
    broke = now(LATER, break_ms=T0 + HOUR)
    with pytest.raises(DecisionRefused, match="forgotten"):
        rule(
            reviewed(Cause.DEADLINE),
            contract(key=KEY),
            broke,
            Word.RETRY,
            operator="o",
            note="n",
        )


def test_a_retry_of_what_has_failed_needs_what_a_repeat_needs():
    refused = tried(attempt(seen=Seen.REJECTED), state=State.FAILED, cause=Cause.REFUSED)
    with pytest.raises(DecisionRefused, match="provably"):
        decide(refused, Word.RETRY)
    unsent = tried(attempt(seen=Seen.NOT_SENT), state=State.FAILED, cause=Cause.NOT_SENT)
    assert decide(unsent, Word.RETRY).sends


# --- again ---------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-54")
@pytest.mark.parametrize("state", sorted(OPEN))
def test_again_closes_it_as_not_done_and_prepares_another(state):
    before = in_state(state)
    assert decide(before, Word.AGAIN).prepares
    after = rules_on(before, contract(), LATER, Word.AGAIN).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.OPERATOR_NOT_DONE)


@pytest.mark.proves("CORE-54")
@pytest.mark.parametrize("state", sorted(OPEN))
def test_again_in_doubt_closes_it_as_unsure_and_marks_what_follows(state):
    before = in_state(state)
    ruling = decide(before, Word.AGAIN, mark_duplicate=True)
    assert (ruling.prepares, ruling.evidence) == (True, None)
    after = rules_on(before, contract(), LATER, Word.AGAIN, mark_duplicate=True)
    assert (after.operation.state, after.operation.cause) == (State.FAILED, Cause.OPERATOR_UNSURE)
    assert told(after, contract(), LATER).retry_allowed is False


def test_what_is_closed_for_another_operation_points_to_it():
    assert superseded(operation(State.FAILED), "refund_2").superseded_by == "refund_2"


# --- not done, while something may still arrive --------------------------------------------------


@pytest.mark.proves("CORE-55", "INV-1")
def test_an_early_not_done_is_taken_and_keeps_the_claim_until_nothing_can_arrive():
    after = rules_on(tried(attempt()), contract(), T0 + 20_000, Word.NOT_DONE)
    assert (after.operation.state, after.operation.cause) == (
        State.FAILED,
        Cause.OPERATOR_NOT_DONE,
    )
    assert claim_until_ms(after, contract(), now(T0 + 20_000)) == SETTLED
    assert claim_until_ms(after, contract(), now(LATER)) == LATER


@pytest.mark.proves("CORE-55")
@pytest.mark.parametrize("ttl", [None, DAY])
def test_the_time_of_arrival_is_shown_even_where_the_key_is_forgotten(ttl):
    rules = contract(key=replace(KEY, ttl_ms=ttl))
    after = rules_on(tried(attempt()), rules, T0 + 20_000, Word.NOT_DONE)
    outcome = told(after, rules, T0 + 21_000)
    assert outcome.acts["by"] == instant(SETTLED)
    assert (outcome.status, outcome.retry_allowed) == ("failed", False)


@pytest.mark.proves("CORE-55")
def test_the_claim_outlasts_a_worker_that_may_be_alive():
    before = tried(attempt(closed_ms=None))
    after = rules_on(before, contract(), T0 + 20_000, Word.NOT_DONE)
    rules = contract()
    lease_end = before.attempts[0].lease_end_ms
    until = lease_end + FOREIGN_OWNER_MS + rules.timeout_ms + rules.horizon_ms
    assert claim_until_ms(after, rules, now(T0 + 20_000)) == until
    assert claim_until_ms(after, rules, now(until + 1)) == until + 1


@pytest.mark.proves("CORE-55")
def test_an_early_not_done_shows_the_time_although_another_attempt_was_refused():
    before = tried(attempt(), attempt(2, seen=Seen.REJECTED, at=T0 + 11_000))
    after = rules_on(before, contract(), T0 + 22_000, Word.NOT_DONE)
    outcome = told(after, contract(), T0 + 23_000)
    assert "will not" not in outcome.message
    assert outcome.acts["by"] == instant(SETTLED)


# --- the claim at every other end ----------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if not state.ends])
def test_an_open_operation_keeps_its_claim(state):
    assert claim_until_ms(in_state(state), contract(), now(LATER)) is None


@pytest.mark.parametrize("state", [State.REJECTED, State.CANCELLED])
def test_what_was_withdrawn_gives_its_claim_back(state):
    assert claim_until_ms(record(state), contract(), now(LATER)) == LATER


def test_a_success_gives_the_claim_back_unless_another_attempt_is_on_its_way():
    one = tried(attempt(), state=State.SUCCEEDED)
    assert claim_until_ms(one, contract(), now(T0 + 20_000)) == T0 + 20_000
    two = tried(attempt(), attempt(2), state=State.SUCCEEDED)
    assert claim_until_ms(two, contract(), now(T0 + 20_000)) == SETTLED


def test_a_confirmed_absence_gives_the_claim_back():
    before = tried(attempt(), state=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    absent = adding(before, *absences(PROVES - INTERVAL, PROVES))
    assert claim_until_ms(absent, contract(), now(PROVES)) == PROVES


@pytest.mark.proves("INV-8")
@every_life
def test_only_a_persons_word_closes_what_no_proof_closes(life: Life):
    for before in life.records:
        spoke = any(item.source is Source.OPERATOR for item in before.evidence)
        by_person = before.operation.cause in (Cause.OPERATOR_DONE, Cause.OPERATOR_NOT_DONE)
        assert spoke or not by_person


def test_a_decision_on_an_effect_that_is_never_looked_up_needs_no_look_up():
    rules = contract(Effect.BROWSER, lookups=(), events=EVENTS)
    after = rules_on(reviewed(Cause.NOTHING_LEFT), rules, LATER, Word.DONE)
    assert after.operation.state is State.SUCCEEDED
