"""The states, and every step between them."""

from itertools import product

import pytest
from tests.core.life import every_life
from tests.core.samples import T0, contract, now, operation

from doubtless.core.lifecycle import TRANSITIONS, Need, advance, leads_to
from doubtless.core.model import TERMINAL, Cause, State
from doubtless.core.settling import enter
from doubtless.errors import IllegalTransition
from doubtless.testing.strategies import Life

# Written out from the model: from → to → what must hold.
MODEL: dict[str, dict[str, Need | None]] = {
    "prepared": {
        "executing": Need.PERMITTED,
        "awaiting_approval": None,
        "rejected": Need.NO_TRACE,
        "cancelled": Need.NO_TRACE,
        "failed": Need.TRACE,
    },
    "awaiting_approval": {"prepared": None, "rejected": None, "cancelled": None},
    "executing": {
        "succeeded": None,
        "accepted": None,
        "unknown": None,
        "manual_review": Need.CONTRADICTION,
        "prepared": Need.ALL_PROVEN,
        "failed": Need.ALL_PROVEN,
    },
    "accepted": {
        "succeeded": None,
        "failed": None,
        "reconciling": None,
        "unknown": None,
        "manual_review": None,
    },
    "unknown": {
        "reconciling": None,
        "accepted": None,
        "succeeded": None,
        "failed": Need.ALL_PROVEN,
        "executing": Need.PERMITTED,
        "manual_review": None,
    },
    "reconciling": {
        "succeeded": None,
        "failed": Need.ALL_PROVEN,
        "accepted": None,
        "manual_review": None,
        "executing": Need.PERMITTED,
        "unknown": None,
    },
    "manual_review": {
        "succeeded": None,
        "failed": Need.ALL_PROVEN,
        "accepted": None,
        "executing": Need.OPERATOR,
        "reconciling": None,
        "manual_review": None,
    },
    "failed": {"executing": Need.PERMITTED, "manual_review": Need.CONTRADICTION},
    "succeeded": {"manual_review": Need.CONTRADICTION},
    "rejected": {},
    "cancelled": {},
}
LISTED = [(State(a), State(b), need) for a, steps in MODEL.items() for b, need in steps.items()]
UNLISTED = [(a, b) for a, b in product(State, State) if b.value not in MODEL[a.value]]


@pytest.mark.proves("CORE-1")
def test_the_table_lists_exactly_the_steps_of_the_model():
    assert {(a, b): need for a, b, need in LISTED} == TRANSITIONS


@pytest.mark.proves("CORE-1")
@pytest.mark.parametrize(("source", "target"), UNLISTED)
def test_a_step_that_is_not_listed_raises_whatever_is_proven(source, target):
    with pytest.raises(IllegalTransition):
        advance(source, target, holds=frozenset(Need))


@pytest.mark.parametrize(("source", "target", "need"), LISTED)
def test_a_listed_step_is_taken_once_what_it_needs_holds(source, target, need):
    holds = frozenset() if need is None else frozenset({need})
    assert advance(source, target, holds=holds) is target


@pytest.mark.proves("CORE-1")
@pytest.mark.parametrize(("source", "target", "need"), [row for row in LISTED if row[2]])
def test_a_step_without_its_proof_raises_although_all_else_is_proven(source, target, need):
    with pytest.raises(IllegalTransition, match=need.value):
        advance(source, target, holds=frozenset(Need) - {need})


@pytest.mark.parametrize("source", State)
def test_what_may_follow_a_state_is_what_the_model_lists(source):
    assert {state.value for state in leads_to(source)} == set(MODEL[source.value])


def test_four_states_end_an_operation():
    ends = {state for state in State if state.ends}
    assert ends == TERMINAL == {State.SUCCEEDED, State.FAILED, State.REJECTED, State.CANCELLED}


@pytest.mark.proves("CORE-2")
@pytest.mark.parametrize("target", sorted(leads_to(State.EXECUTING)))
def test_every_step_out_of_executing_raises_the_fence(target):
    before = operation(State.EXECUTING, fence=4, owner="worker-1", lease_end_ms=T0 + 1)
    after = enter(
        before, target, now(T0), cause=Cause.TIMEOUT, contract=contract(), holds=frozenset(Need)
    )
    assert (after.fence, after.owner, after.lease_end_ms) == (5, None, None)


@pytest.mark.proves("INV-4")
@pytest.mark.parametrize(("source", "target", "need"), LISTED)
def test_whatever_is_entered_has_a_due_time_unless_it_ends(source, target, need):
    after = enter(
        operation(source), target, now(T0), cause=None, contract=contract(), holds=frozenset(Need)
    )
    assert (after.due_ms is None) is target.ends


@pytest.mark.proves("INV-4")
@every_life
def test_every_open_operation_has_a_due_time_and_no_closed_one(life: Life):
    for record in life.records:
        assert (record.operation.due_ms is None) is record.operation.state.ends


@pytest.mark.proves("CORE-2")
@every_life
def test_the_fence_never_falls_and_no_two_attempts_share_one(life: Life):
    fences = [record.operation.fence for record in life.records]
    assert fences == sorted(fences)
    opened = [attempt.fence for attempt in life.last.attempts]
    assert len(set(opened)) == len(opened)
