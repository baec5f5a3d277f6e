"""Settling: everything that policy does by itself, until nothing is left to do now."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.life import every_life
from tests.core.samples import (
    EVENTS,
    HOUR,
    LATER,
    T0,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    record,
    reviewed,
    tried,
)

from doubtless.core.evidence import weigh
from doubtless.core.lifecycle import TRANSITIONS
from doubtless.core.model import Cause, Effect, Seen, Shows, Source, State, Strength, Verdict
from doubtless.core.policy import decide
from doubtless.core.reasons import explain
from doubtless.core.settling import settle
from doubtless.core.steps import Escalate, LookUp, Move, Send, Settle, Wait
from doubtless.testing.strategies import Life, prepared


@pytest.mark.proves("CORE-63")
@every_life
def test_settling_twice_changes_nothing_the_second_time(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        assert settle(before, life.contract, when) == ()


@pytest.mark.proves("CORE-63")
@every_life
def test_the_same_arguments_always_give_the_same_decision(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        assert decide(before, life.contract, when) == decide(before, life.contract, when)


@pytest.mark.proves("CORE-1", "INV-6")
@every_life
def test_every_step_of_a_life_is_in_the_table_and_follows_from_the_one_before(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        later = replace(when, ms=when.ms + HOUR)
        changes = settle(before, life.contract, later)
        operation = before.operation
        for change in changes:
            assert change.before == operation
            assert change.before.state is change.after.state or (
                (change.before.state, change.after.state) in TRANSITIONS
            )
            assert change.reason
            operation = change.after


@pytest.mark.proves("INV-4")
@every_life
def test_an_unknown_is_settled_or_in_review_by_its_deadline(life: Life):
    for before in life.records:
        operation = before.operation
        deadline = operation.deadline_ms
        if operation.state is not State.UNKNOWN or deadline is None or not life.contract.review:
            continue
        late = now(deadline + 1, break_ms=life.now.break_ms)
        changes = settle(before, life.contract, late)
        target = changes[-1].after.state if changes else operation.state
        sends = isinstance(decide(before, life.contract, late).step, Send)
        assert target is not State.UNKNOWN or sends


@pytest.mark.proves("INV-4")
@every_life
def test_an_open_operation_is_due_in_time_for_its_deadline(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        operation = before.operation
        if operation.state is State.UNKNOWN and life.contract.review:
            assert operation.due_ms is not None
            assert operation.deadline_ms is not None
            assert operation.due_ms <= max(operation.deadline_ms, when.ms)


@pytest.mark.proves("INV-2")
@every_life
def test_what_succeeded_was_seen_and_what_is_absent_was_proven(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        operation = before.operation
        if operation.state is State.SUCCEEDED:
            assert any(item.shows is Shows.APPLIED for item in before.evidence)
        if operation.state is State.REJECTED:
            shown = {Seen.NOT_SENT, Seen.NOT_PROCESSED}
            late = any(item.attempt for item in before.evidence)
            assert {a.seen for a in before.attempts} <= shown or late
        if operation.state is State.FAILED and operation.cause is Cause.REFUSED:
            assert any(item.shows is Shows.REFUSED for item in before.evidence)
        assert weigh(before, life.contract, when).verdict in Verdict


@pytest.mark.proves("INV-8")
@every_life
def test_nothing_but_evidence_attempts_and_time_moves_an_operation(life: Life):
    for (before, after), when in zip(pairwise(life.records), life.times[1:], strict=True):
        if before.evidence == after.evidence and before.attempts == after.attempts:
            target, source = after.operation.state, before.operation.state
            person = source is State.MANUAL_REVIEW or target is State.MANUAL_REVIEW
            doubt = after.operation.cause is Cause.OPERATOR_UNSURE
            assert target is not State.SUCCEEDED or source is State.SUCCEEDED
            if target is State.FAILED and source is not State.FAILED:
                assert (
                    person
                    or doubt
                    or after.operation.cause is Cause.NO_EFFECT
                    or weigh(before, life.contract, when).verdict is (Verdict.NOT_APPLIED)
                )


@pytest.mark.parametrize("effect", Effect)
def test_a_fresh_operation_of_any_effect_is_ready_to_be_sent(effect):
    rules = contract(effect)
    before = prepared(rules)
    when = now(before.operation.created_ms)
    assert settle(before, rules, when) == ()
    assert decide(before, rules, when).step == Send(resend=False, why=None)


def test_what_was_due_already_stays_so_for_whoever_can_take_it_up():
    before = tried(attempt(), due_ms=T0 + 5)
    assert settle(before, contract(), now(LATER - HOUR - 60_000)) == ()


def test_several_steps_are_journalled_one_by_one_with_their_reasons():
    before = adding(
        tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED, cause=Cause.NOT_SENT),
        event(Shows.APPLIED, at=T0 + 15_000),
    )
    changes = settle(before, contract(events=EVENTS), now(T0 + 20_000))
    assert [change.after.state for change in changes] == [State.FAILED, State.MANUAL_REVIEW]
    assert [change.reason for change in changes] == [
        "settle: not_sent",
        "escalate: contradiction",
    ]
    assert changes[-1].after.due_ms is not None


def test_a_change_of_the_due_time_alone_is_a_change_too():
    before = tried(attempt(), due_ms=T0 + HOUR)
    changes = settle(before, contract(), now(T0 + 12_000))
    assert [change.after.state for change in changes] == [State.UNKNOWN]
    assert changes[0].reason == "lookup"


@pytest.mark.proves("CORE-64")
def test_a_decision_lists_what_it_was_made_from():
    before = adding(tried(attempt(), due_ms=T0 + HOUR), evidence(Shows.ABSENT, at=T0 + 20_000))
    inputs = settle(before, contract(), now(T0 + 60_000))[0].inputs
    assert set(inputs) == {
        *("effect", "stage", "verdict", "basis", "evidence", "attempts", "unproven_attempts"),
        *("key", "key_life_left_ms", "resends_left", "absences", "absence_provable"),
        *("absence_from_ms", "time_left_ms", "review_allowed"),
    }
    assert (inputs["effect"], inputs["stage"], inputs["verdict"]) == ("write", "sent", "unknown")
    assert (inputs["time_left_ms"], inputs["key_life_left_ms"]) == (HOUR - 60_000, None)


@pytest.mark.parametrize("before", [record(), reviewed(Cause.OVERDUE)])
def test_a_decision_can_be_explained_whatever_is_known(before):
    inputs = explain(before, contract(), now(LATER), weigh(before, contract(), now(LATER)))
    assert inputs["attempts"] == len(before.attempts)


SHOWN = st.sampled_from([s for s in Shows if s not in (Shows.NOT_SENT, Shows.NOT_PROCESSED)])


@pytest.mark.proves("INV-5")
@given(
    st.sampled_from(State),
    SHOWN,
    st.sampled_from([Source.LOOKUP, Source.WEBHOOK, Source.OBJECT]),
    st.sampled_from(Strength),
)
def test_no_evidence_in_any_state_breaks_the_rules(state, shows, source, strength):
    item = evidence(shows, source, at=T0 + 30_000, strength=strength, occurred_ms=T0 + 30_000)
    ended = state is not State.EXECUTING
    before = adding(tried(attempt(seen=Seen.UNKNOWN if ended else None), state=state), item)
    after = settle(before, contract(events=EVENTS), now(T0 + 60_000))
    last = after[-1].after if after else before.operation
    assert (last.due_ms is None) is last.state.ends
    if strength is Strength.ADVISORY and not state.ends:
        assert last.state is not State.SUCCEEDED


def test_every_step_is_one_of_six():
    kinds = (Send, LookUp, Wait, Move, Settle, Escalate)
    for state in State:
        step = decide(tried(attempt(), state=state), contract(), now(T0 + 60_000)).step
        assert isinstance(step, kinds)
