"""The one message in plain words: it never says more than is known."""

import re
from dataclasses import replace

import pytest
from tests.core.life import every_life
from tests.core.samples import (
    EVENTS,
    INTERVAL,
    KEY,
    LATER,
    PROVES,
    T0,
    absences,
    adding,
    attempt,
    contract,
    now,
    record,
    reviewed,
    rules_on,
    told,
    tried,
)

from doubtless.core.decisions import Word
from doubtless.core.evidence import weigh
from doubtless.core.model import Cause, Seen, State, Verdict
from doubtless.core.outcome import (
    Extras,
    message,
    outcome_of,
    status_of,
)
from doubtless.testing.strategies import Life

STATUS = {
    "succeeded": "succeeded",
    "failed": "failed",
    "prepared": "pending",
    "awaiting_approval": "pending",
    "executing": "pending",
    "accepted": "pending",
    "unknown": "unknown_reconciliation_required",
    "reconciling": "unknown_reconciliation_required",
    "manual_review": "unknown_reconciliation_required",
    "rejected": "rejected_by_policy",
    "cancelled": "rejected_by_policy",
}


def at(state: State, cause: Cause | None = Cause.REFUSED, **changes):
    return tried(attempt(), state=state, cause=cause, **changes)


CLAIMS = re.compile(
    r"\b(fail|did not|will not|took effect|succeeded|was done|been done|completed|proven|safe)",
    re.IGNORECASE,
)
IN_DOUBT = [state for state in State if STATUS[state][:4] in ("pend", "unkn")]


@pytest.mark.proves("CORE-59")
@pytest.mark.parametrize(
    "rules", [contract(), contract(lookups=()), contract(events=EVENTS, lookups=())]
)
@pytest.mark.parametrize("state", IN_DOUBT)
@pytest.mark.parametrize("cause", [None, *Cause])
def test_the_message_implies_neither_failure_nor_success_of_what_is_open(state, cause, rules):
    before = at(state, cause)
    text = message(before, rules, now(LATER), status_of(before, rules, now(LATER)))
    neutral = text.replace("It is not known whether create_refund took effect.", "")
    assert not CLAIMS.search(neutral), text
    assert "Do not repeat it and do not try a variant" in text
    assert "refund_1" in text


@pytest.mark.proves("CORE-59")
@every_life
def test_no_outcome_says_more_than_is_known(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        outcome = outcome_of(before, life.contract, when, Extras())
        assert outcome.retry_allowed is (outcome.status == "failed_safe_to_retry")
        if outcome.outcome in ("unknown", "pending"):
            assert "Do not repeat it and do not try a variant" in outcome.message
            assert (outcome.result, outcome.error) == (None, None)
        if outcome.status == "succeeded":
            found = weigh(before, life.contract, when)
            assert found.verdict in (Verdict.APPLIED, Verdict.CONTRADICTION)


@pytest.mark.proves("CORE-59")
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (contract(), "being looked up"),
        (contract(lookups=(), events=EVENTS), "provider's own message"),
        (contract(lookups=()), "A person will be asked"),
    ],
)
def test_the_message_says_what_is_being_done_about_it(rules, words):
    assert words in told(at(State.UNKNOWN), rules, T0 + 60_000).message
    assert "A person has been asked" in told(at(State.MANUAL_REVIEW), rules, LATER).message


def test_already_done_is_said_of_a_success_that_this_call_did_not_send():
    before = tried(attempt(), state=State.SUCCEEDED)
    outcome = told(before, contract(), LATER, already_done=True, result={"id": "re_1"})
    assert (outcome.already_done, outcome.recovery) == (True, "already_done")
    assert outcome.result == {"id": "re_1"}
    assert "nothing was sent now" in outcome.message
    unknown = told(at(State.UNKNOWN), contract(), LATER, already_done=True, result={"id": "re_1"})
    assert (unknown.already_done, unknown.recovery, unknown.result) == (False, None, None)


def test_a_review_needs_an_operator():
    assert told(reviewed(Cause.DEADLINE), contract(), LATER).recovery == "needs_operator"


@pytest.mark.parametrize("forgotten", [True, False])
def test_no_message_says_never_while_something_may_still_arrive(forgotten):
    rules = contract(key=replace(KEY, ttl_ms=None)) if forgotten else contract()
    before = tried(attempt() if forgotten else attempt(closed_ms=None))
    after = rules_on(before, rules, T0 + 20_000, Word.NOT_DONE)
    assert "will not" not in told(after, rules, T0 + 21_000).message


def test_what_was_closed_in_doubt_says_so():
    after = rules_on(reviewed(Cause.DEADLINE), contract(), LATER, Word.AGAIN, mark_duplicate=True)
    text = told(after, contract(), LATER).message
    assert "without certainty" in text
    assert not re.search(r"\b(took effect|did not|failed)\b", text)


def test_a_definite_failure_is_told_as_one():
    before = tried(attempt(seen=Seen.REJECTED), state=State.FAILED, cause=Cause.REFUSED)
    assert "did not take effect and will not" in told(before, contract(), LATER).message
    silent = replace(before, attempts=())
    assert "did not take effect" in told(silent, contract(), LATER).message
    absent = adding(
        tried(attempt(), state=State.FAILED, cause=Cause.CONFIRMED_ABSENT),
        *absences(PROVES - INTERVAL, PROVES),
    )
    assert "proven (confirmed_absent)" in told(absent, contract(), LATER).message


def test_what_was_withdrawn_says_that_nothing_was_done():
    assert "Nothing was done" in told(record(State.CANCELLED), contract(), T0).message
