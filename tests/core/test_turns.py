"""Waiting for another operation: by what it is woken, and what its caller is told meanwhile."""

from dataclasses import replace

import pytest
from tests.core.samples import DAY, T0, contract, now, record, told

from doubtless.core.model import Blocker, Cause, State
from doubtless.core.outcome import Extras, outcome_of
from doubtless.core.policy import decide
from doubtless.core.schedule import POLL_MAX_MS, POLL_MS
from doubtless.core.steps import Send, Wait

RULES = contract()


def after(*states, **changes):
    blockers = tuple(Blocker(operation_id=f"b{n}", state=s) for n, s in enumerate(states))
    return replace(record(**changes), blockers=blockers)


def step(before, at=T0):
    return decide(before, RULES, now(at)).step


@pytest.mark.proves("SEQ-3")
def test_what_comes_after_others_is_woken_by_them_and_asks_nobody():
    assert step(after(State.EXECUTING)) == Wait(until_ms=T0 + DAY)
    assert isinstance(step(after(State.SUCCEEDED)), Send)


@pytest.mark.proves("SEQ-3")
@pytest.mark.parametrize(
    "waiting",
    [replace(record(), waits_for="older"), replace(record(), object_taken_by="older")],
    ids=["sibling", "object"],
)
def test_an_object_that_comes_free_by_itself_is_asked_for_ever_less_often(waiting):
    assert step(waiting) == Wait(until_ms=T0 + POLL_MS)
    assert step(waiting, T0 + 80_000) == Wait(until_ms=T0 + 80_000 + 10_000)
    late = T0 + DAY - 60_000
    assert step(waiting, late) == Wait(until_ms=late + POLL_MAX_MS)


@pytest.mark.proves("SEQ-2")
def test_a_pending_outcome_says_what_it_waits_for():
    outcome = told(after(State.UNKNOWN, State.SUCCEEDED), RULES, T0)
    assert outcome.status == "pending"
    assert "waits for its turn after operation b0, which is unknown." in outcome.message
    assert "b1" not in outcome.message


def test_what_is_under_way_on_its_object_is_not_named_for_it_may_be_anothers():
    outcome = told(replace(record(), object_taken_by="secret"), RULES, T0)
    assert "still under way on the same object" in outcome.message
    assert "secret" not in str(outcome.to_json())


@pytest.mark.proves("SEQ-2")
def test_a_rejection_names_what_did_not_succeed():
    ended = record(State.REJECTED, cause=Cause.AFTER_FAILED)
    blockers = (
        Blocker(operation_id="b0", state=State.SUCCEEDED),
        Blocker(operation_id="b1", state=State.CANCELLED),
    )
    outcome = told(replace(ended, blockers=blockers), RULES, T0)
    assert outcome.error == {"code": "after_failed", "by": "b1"}


def test_what_overtook_it_is_named_only_if_it_may_be_shown():
    ended = replace(record(State.REJECTED, cause=Cause.OVERTAKEN), overtaken_by="newer")
    assert told(ended, RULES, T0).error == {"code": "overtaken"}
    shown = outcome_of(ended, RULES, now(T0), Extras(overtaken_by="newer"))
    assert shown.error == {"code": "overtaken", "by": "newer"}
