"""Prepared and awaiting approval: what has to hold before anything is sent."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    DAY,
    HOUR,
    KEY,
    PROVES,
    T0,
    absences,
    adding,
    approval,
    attempt,
    contract,
    ends,
    now,
    record,
    recovers,
    resending,
    retrying,
    sends,
    settled,
    tried,
    witnessed,
)

from doubtless.core.contract import ApprovalRules
from doubtless.core.model import Blocker, Cause, Effect, Seen, Shows, State
from doubtless.core.policy import decide
from doubtless.core.progress import Liveness
from doubtless.core.steps import Move, Send, Settle, Wait

RULES = contract()


def step(before, rules=RULES, at=T0):
    return decide(before, rules, now(at)).step


def test_what_is_prepared_and_free_is_sent():
    assert step(record()) == Send(resend=False, why=None)


# --- the intent ----------------------------------------------------------------------------------


@pytest.mark.proves("CORE-23")
def test_a_void_intent_that_was_never_tried_is_rejected():
    expected = Settle(to=State.REJECTED, cause=Cause.INTENT_EXPIRED)
    assert step(record(), at=T0 + DAY) == expected
    assert isinstance(step(record(), at=T0 + DAY - 1), Send)


@pytest.mark.parametrize("seen", [Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_a_void_intent_whose_attempts_did_nothing_is_rejected(seen):
    before = tried(attempt(seen=seen), state=State.PREPARED)
    after = settled(before, RULES, T0 + DAY).operation
    assert (after.state, after.cause) == (State.REJECTED, Cause.INTENT_EXPIRED)


@pytest.mark.proves("CORE-23")
def test_a_void_intent_after_any_other_attempt_fails_with_its_proof():
    before = adding(
        tried(attempt(), state=State.PREPARED), *absences(PROVES - 5_000, PROVES, PROVES + 5_000)
    )
    after = settled(before, resending(), T0 + DAY).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.CONFIRMED_ABSENT)


def test_a_void_read_fails_without_an_effect():
    before = tried(attempt(), state=State.PREPARED, cause=Cause.NO_EFFECT)
    after = settled(before, contract(Effect.READ, lookups=()), T0 + DAY).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.NO_EFFECT)


def test_a_late_proof_that_nothing_was_sent_lets_a_void_intent_be_rejected():
    crashed = recovers(sends(record(), RULES, T0), RULES, T0 + 30_000, Liveness.DEAD)
    proven = adding(crashed, witnessed(1, Shows.NOT_SENT, at=T0 + 31_000))
    again = sends(settled(proven, RULES, T0 + 31_000), RULES, T0 + 40_000)
    waiting = ends(again, RULES, T0 + 41_000, Seen.NOT_SENT)
    assert waiting.operation.state is State.PREPARED
    after = settled(waiting, RULES, waiting.operation.valid_until_ms)
    assert after.operation.state is State.REJECTED


# --- between two attempts ------------------------------------------------------------------------


def test_the_next_attempt_waits_for_its_pause_and_not_beyond_the_intent():
    before = tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED, not_before_ms=T0 + 2 * DAY)
    assert step(before, at=T0 + 20_000) == Wait(until_ms=T0 + DAY)
    soon = replace(before, operation=replace(before.operation, not_before_ms=T0 + 30_000))
    assert step(soon, at=T0 + 20_000) == Wait(until_ms=T0 + 30_000)
    assert step(soon, at=T0 + 30_000) == Send(resend=False, why=Cause.NOT_SENT)


@pytest.mark.parametrize("seen", [Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_an_attempt_that_did_nothing_is_followed_by_another_until_they_are_used_up(seen):
    rules = contract(retry=retrying(attempts=2))
    first = ends(sends(record(), rules, T0), rules, T0 + 1_000, seen)
    assert first.operation.state is State.PREPARED
    second = ends(sends(first, rules, T0 + 60_000), rules, T0 + 61_000, seen)
    assert (second.operation.state, second.operation.cause) == (State.FAILED, Cause(seen.value))


def test_what_was_prepared_with_its_attempts_used_up_fails():
    rules = contract(retry=retrying(attempts=1))
    before = tried(attempt(seen=Seen.NOT_PROCESSED), state=State.PREPARED)
    assert step(before, rules) == Settle(to=State.FAILED, cause=Cause.NOT_PROCESSED)


def test_a_forgotten_key_ends_it_between_two_attempts():
    before = tried(attempt(seen=Seen.NOT_PROCESSED), state=State.PREPARED)
    rules = contract(key=replace(KEY, ttl_ms=None))
    assert step(before, rules) == Settle(to=State.FAILED, cause=Cause.NOT_PROCESSED)


def test_an_attempt_that_never_left_starts_no_key_life():
    before = tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED)
    assert isinstance(step(before, contract(key=replace(KEY, ttl_ms=None))), Send)


def test_a_confirmed_absence_is_sent_again_only_while_that_is_permitted():
    before = adding(tried(attempt(), state=State.PREPARED), *absences(PROVES - 5_000, PROVES))
    assert step(before, resending(), PROVES) == Send(resend=True, why=Cause.CONFIRMED_ABSENT)
    spent = resending(retry=retrying(resend=0))
    assert step(before, spent, PROVES) == Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)


# --- approval ------------------------------------------------------------------------------------


APPROVED = contract(approval=ApprovalRules(expires_ms=HOUR))


@pytest.mark.proves("CORE-24")
def test_what_needs_approval_is_not_sent_before_it_is_there():
    before = record(needs_approval=True)
    assert step(before, APPROVED) == Move(to=State.AWAITING_APPROVAL, cause=None)
    after = settled(before, APPROVED, T0).operation
    assert (after.state, after.not_before_ms, after.due_ms) == (
        State.AWAITING_APPROVAL,
        T0 + HOUR,
        T0 + HOUR,
    )


@pytest.mark.proves("CORE-24")
def test_an_approval_lets_it_go_on():
    waiting = settled(record(needs_approval=True), APPROVED, T0)
    after = settled(replace(waiting, approvals=(approval(),)), APPROVED, T0 + 1_000)
    assert (after.operation.state, after.operation.not_before_ms) == (State.PREPARED, None)
    assert isinstance(step(after, APPROVED, T0 + 1_000), Send)


@pytest.mark.proves("CORE-24")
@pytest.mark.parametrize("at", [T0 + HOUR, T0 + DAY])
def test_an_approval_that_did_not_come_in_time_rejects_it(at):
    waiting = settled(record(needs_approval=True), APPROVED, T0)
    after = settled(waiting, APPROVED, at).operation
    assert (after.state, after.cause) == (State.REJECTED, Cause.APPROVAL_EXPIRED)


def test_nobody_is_waited_for_beyond_the_intent():
    waiting = settled(record(needs_approval=True, valid_until_ms=T0 + 5_000), APPROVED, T0)
    assert waiting.operation.due_ms == T0 + 5_000
    assert settled(waiting, APPROVED, T0 + 5_000).operation.state is State.REJECTED


@pytest.mark.parametrize("until", [T0, T0 + 999])
def test_an_approval_that_has_expired_permits_nothing(until):
    before = replace(record(needs_approval=True), approvals=(approval(until=until),))
    assert step(before, APPROVED, T0 + 1_000) == Move(to=State.AWAITING_APPROVAL, cause=None)


@pytest.mark.proves("CORE-24")
@pytest.mark.parametrize("people", [("p",), ("p", "p")])
def test_four_eyes_need_two_people(people):
    rules = contract(approval=ApprovalRules(people=2))
    before = replace(
        record(State.AWAITING_APPROVAL, needs_approval=True),
        approvals=tuple(approval(name) for name in people),
    )
    assert settled(before, rules, T0 + 1_000).operation.state is State.AWAITING_APPROVAL
    two = replace(before, approvals=(approval("p"), approval("q")))
    assert settled(two, rules, T0 + 1_000).operation.state is State.PREPARED


# --- after, and latest wins ----------------------------------------------------------------------


def after(*states: State, on_unknown: str = "stop"):
    blockers = tuple(Blocker(operation_id=f"b{n}", state=s) for n, s in enumerate(states))
    return replace(record(on_unknown=on_unknown), blockers=blockers)


OPEN = [state for state in State if not state.ends]


@pytest.mark.proves("CORE-25")
@pytest.mark.parametrize("state", OPEN)
def test_it_waits_while_an_operation_that_it_comes_after_is_open(state):
    assert isinstance(step(after(State.SUCCEEDED, state)), Wait)


@pytest.mark.proves("CORE-25")
@pytest.mark.parametrize("state", [State.FAILED, State.REJECTED, State.CANCELLED])
@pytest.mark.parametrize("on_unknown", ["stop", "continue"])
def test_it_is_rejected_if_an_operation_that_it_comes_after_ended_otherwise(state, on_unknown):
    expected = Settle(to=State.REJECTED, cause=Cause.AFTER_FAILED)
    assert step(after(State.SUCCEEDED, state, on_unknown=on_unknown)) == expected


def test_it_is_sent_once_all_that_it_comes_after_succeeded():
    assert isinstance(step(after(State.SUCCEEDED, State.SUCCEEDED)), Send)


@pytest.mark.proves("CORE-25")
@pytest.mark.parametrize("state", OPEN)
def test_it_goes_on_after_an_unknown_only_if_it_was_told_to(state):
    goes_on = state in (State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW)
    assert isinstance(step(after(state, on_unknown="continue")), Send) is goes_on


def test_it_waits_for_an_unknown_until_its_intent_is_void():
    expected = Settle(to=State.REJECTED, cause=Cause.INTENT_EXPIRED)
    assert step(after(State.UNKNOWN), at=T0 + DAY) == expected
    assert step(after(State.UNKNOWN), at=T0 + DAY - 10) == Wait(until_ms=T0 + DAY)


@pytest.mark.proves("CORE-26")
def test_a_newer_operation_waits_until_nothing_of_the_older_one_can_arrive():
    assert isinstance(step(replace(record(), waits_for="older")), Wait)


@pytest.mark.proves("CORE-26")
def test_a_still_newer_operation_rejects_it():
    overtaken = replace(record(), overtaken_by="newer", waits_for="older")
    assert step(overtaken) == Settle(to=State.REJECTED, cause=Cause.OVERTAKEN)


@pytest.mark.proves("CORE-26")
@pytest.mark.parametrize("seen", [Seen.UNKNOWN, Seen.NOT_SENT])
def test_an_operation_with_a_newer_sibling_is_never_sent_again(seen):
    rules = contract(Effect.KEYED_CREATE, latest_wins=True, lookups=())
    before = replace(tried(attempt(seen=seen)), overtaken_by="newer")
    assert not isinstance(step(before, rules, T0 + 60_000), Send)
