"""What a call means, given who is there already: every combination."""

from itertools import product

import pytest

from doubtless.core.identity import Asked, Join, Known, New, Refuse, meet
from doubtless.core.model import Cause, State

OPEN_AND_ENDED = (State.UNKNOWN, State.SUCCEEDED, State.FAILED, State.REJECTED)


def known(name: str, state: State = State.UNKNOWN, **changes) -> Known:
    base = {"tool": "t", "principal": "a", "payload_hash": "p"}
    return Known(id=name, state=state, **{**base, **changes})


def asked(operation_id: str | None = None) -> Asked:
    return Asked(tool="t", principal="a", payload_hash="p", operation_id=operation_id)


HOLDERS = [
    None,
    known("holder"),
    known("holder", payload_hash="q"),
    known("holder", tool="u"),
    known("holder", principal="b"),
    known("holder", principal="b", payload_hash="q"),
]
TWINS = [None, known("twin", State.SUCCEEDED)]


@pytest.mark.proves("CORE-47")
@pytest.mark.parametrize("state", OPEN_AND_ENDED)
@pytest.mark.parametrize(("holder", "twin"), list(product(HOLDERS, TWINS)))
def test_the_same_id_with_the_same_tool_and_payload_is_the_same_operation(state, holder, twin):
    found = meet(asked("x"), same_id=known("x", state), holder=holder, twin=twin)
    assert found == Join(operation_id="x")


@pytest.mark.proves("CORE-47")
@pytest.mark.parametrize("change", [{"payload_hash": "q"}, {"tool": "u"}])
@pytest.mark.parametrize(("holder", "twin"), list(product(HOLDERS, TWINS)))
def test_the_same_id_with_another_payload_is_refused(change, holder, twin):
    found = meet(asked("x"), same_id=known("x", **change), holder=holder, twin=twin)
    assert found == Refuse(code=Cause.PAYLOAD_MISMATCH, by="x")


@pytest.mark.proves("CORE-47")
@pytest.mark.parametrize("change", [{}, {"payload_hash": "q"}, {"tool": "u"}])
@pytest.mark.parametrize(("holder", "twin"), list(product(HOLDERS, TWINS)))
def test_another_principals_id_is_refused_and_nothing_of_it_is_shown(change, holder, twin):
    taken = known("x", principal="b", **change)
    found = meet(asked("x"), same_id=taken, holder=holder, twin=twin)
    assert found == Refuse(code=Cause.OPERATION_ID_TAKEN, by=None)


@pytest.mark.proves("CORE-48")
@pytest.mark.parametrize("twin", TWINS)
def test_the_same_call_without_an_id_joins_the_one_that_holds_the_object(twin):
    found = meet(asked(), same_id=None, holder=known("holder"), twin=twin)
    assert found == Join(operation_id="holder")


@pytest.mark.proves("CORE-48")
@pytest.mark.parametrize("twin", TWINS)
def test_a_caller_who_insists_on_another_id_is_refused_while_the_object_is_held(twin):
    found = meet(asked("x"), same_id=None, holder=known("holder"), twin=twin)
    assert found == Refuse(code=Cause.TARGET_UNRESOLVED, by="holder")


@pytest.mark.proves("CORE-48")
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("operation_id", [None, "x"])
@pytest.mark.parametrize("change", [{"payload_hash": "q"}, {"tool": "u"}])
def test_a_variant_hits_a_wall_that_says_who_stands_there(change, operation_id, twin):
    holder = known("holder", **change)
    found = meet(asked(operation_id), same_id=None, holder=holder, twin=twin)
    assert found == Refuse(code=Cause.TARGET_UNRESOLVED, by="holder")


@pytest.mark.proves("CORE-48")
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("operation_id", [None, "x"])
@pytest.mark.parametrize("change", [{}, {"payload_hash": "q"}, {"tool": "u"}])
def test_another_principals_hold_is_not_shown(change, operation_id, twin):
    holder = known("holder", principal="b", **change)
    found = meet(asked(operation_id), same_id=None, holder=holder, twin=twin)
    assert found == Refuse(code=Cause.TARGET_UNRESOLVED, by=None)


def test_a_call_without_an_id_within_the_window_gets_the_first_result():
    found = meet(asked(), same_id=None, holder=None, twin=TWINS[1])
    assert found == Join(operation_id="twin")


@pytest.mark.proves("CORE-48")
def test_equal_content_under_a_new_id_is_a_new_operation():
    assert meet(asked("x"), same_id=None, holder=None, twin=TWINS[1]) == New()


@pytest.mark.parametrize("operation_id", [None, "x"])
def test_a_call_that_meets_nothing_is_new(operation_id):
    assert meet(asked(operation_id), same_id=None, holder=None, twin=None) == New()
