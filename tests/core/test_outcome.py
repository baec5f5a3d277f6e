"""What the agent is told."""

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.life import every_life
from tests.core.samples import (
    DAY,
    EVENTS,
    HOUR,
    KEY,
    LATER,
    T0,
    accepted_without_news,
    attempt,
    contract,
    evidence,
    looks,
    observed,
    record,
    reviewed,
    rules_on,
    told,
    tried,
)

from doubtless.core.decisions import Word
from doubtless.core.evidence import FOREVER_MS
from doubtless.core.model import Cause, Effect, Seen, Shows, Source, State
from doubtless.core.outcome import (
    Extras,
    Status,
    instant,
    outcome_of,
    telling,
)
from doubtless.core.refusals import refusal
from doubtless.testing.strategies import Life

# The example of the interface, field by field.
FIELDS = [
    "operation_id",
    "tool",
    "status",
    "outcome",
    "state",
    "retry_allowed",
    "already_done",
    "result",
    "error",
    "transport_observation",
    "recovery",
    "correlation_id",
    "last_confirmed",
    "acts",
    "sent_at",
    "observed_at",
    "observation",
    "target",
    "attempts",
    "idempotency_key",
    "ref",
    "payload_hash",
    "provider_operation_id",
    "reconcile",
    "superseded_by",
    "version",
    "created_at",
    "updated_at",
    "message",
]

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
OUTCOME = {
    "succeeded": "success",
    "failed": "failure",
    "failed_safe_to_retry": "failure",
    "pending": "pending",
    "unknown_reconciliation_required": "unknown",
    "rejected_by_policy": "rejected",
}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def at(state: State, cause: Cause | None = Cause.REFUSED, **changes):
    return tried(attempt(), state=state, cause=cause, **changes)


@pytest.mark.proves("CORE-56")
@pytest.mark.parametrize("state", State)
def test_every_state_has_its_status(state):
    outcome = told(at(state), contract(), T0 + 60_000)
    assert outcome.status == STATUS[state]
    assert outcome.outcome == OUTCOME[outcome.status]
    assert outcome.state == state


@pytest.mark.proves("CORE-56")
def test_accepted_work_that_is_being_looked_up_is_pending():
    asking = at(State.RECONCILING, origin=State.ACCEPTED)
    assert told(asking, contract(), T0 + 60_000).status == "pending"


@pytest.mark.proves("CORE-56")
def test_what_may_act_again_now_is_safe_to_retry_and_nothing_else_is():
    unsent = tried(attempt(seen=Seen.NOT_SENT), state=State.FAILED, cause=Cause.NOT_SENT)
    outcome = told(unsent, contract(), T0 + HOUR)
    assert (outcome.status, outcome.retry_allowed) == ("failed_safe_to_retry", True)
    assert outcome.recovery == "safe_retry"
    assert outcome.operation_id in outcome.message
    late = told(unsent, contract(), T0 + DAY)
    assert (late.status, late.retry_allowed, late.recovery) == ("failed", False, None)


# --- form ----------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-57")
@pytest.mark.parametrize("state", State)
def test_the_object_has_exactly_the_fields_of_the_interface(state):
    wire = told(at(state), contract(key=KEY), LATER).to_json()
    assert list(wire) == FIELDS
    assert json.loads(json.dumps(wire)) == wire


@pytest.mark.proves("CORE-57")
def test_a_read_says_how_far_it_may_be_relied_on():
    read = {"consistency": "etag", "usable_for_decision": False}
    wire = told(at(State.SUCCEEDED), contract(Effect.READ, lookups=()), LATER, read=read).to_json()
    assert list(wire) == [*FIELDS, "read"]
    assert wire["read"] == read


def instants(value):
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("at", "by", "next_check_at", "deadline") or name.endswith("_at"):
                if not (name == "by" and member in ("lookup", "event", "operator")):
                    yield member
            else:
                yield from instants(member)


@pytest.mark.proves("CORE-57")
@every_life
def test_every_instant_is_rfc_3339_in_utc(life: Life):
    for before, when in zip(life.records, life.times, strict=True):
        for found in instants(outcome_of(before, life.contract, when, Extras()).to_json()):
            assert found is None or RFC3339.fullmatch(found)


@given(st.integers(0, 4_000_000_000_000))
def test_an_instant_is_exact_to_the_millisecond(ms):
    written = instant(ms)
    assert written is not None
    moment = datetime.fromisoformat(written)
    assert moment - datetime.fromisoformat("1970-01-01T00:00:00Z") == timedelta(milliseconds=ms)


@pytest.mark.parametrize("ms", [None, FOREVER_MS, FOREVER_MS + 1])
def test_an_instant_that_never_comes_is_none(ms):
    assert instant(ms) is None


@pytest.mark.proves("CORE-57")
def test_what_was_seen_is_told():
    before = tried(attempt(observation=observed(Seen.UNKNOWN, detail="deadline exceeded")))
    outcome = told(before, contract(key=KEY), T0 + 60_000)
    assert outcome.observation == {
        "class": "unknown",
        "cause": "timeout",
        "stage": "sent",
        "detail": "deadline exceeded",
    }
    assert outcome.transport_observation == "deadline exceeded"
    assert (outcome.sent_at, outcome.observed_at) == (instant(T0 + 1_000), instant(T0 + 10_000))
    assert (outcome.attempts, outcome.correlation_id) == (1, "c1")
    assert outcome.idempotency_key == before.operation.key


def test_a_key_is_shown_only_where_there_is_one():
    assert told(record(), contract(), T0).idempotency_key is None


def test_the_callers_correlation_id_comes_first():
    outcome = told(tried(attempt(), correlation_id="run_42"), contract(), T0 + 60_000)
    assert outcome.correlation_id == "run_42"


@pytest.mark.parametrize("state", [State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW])
def test_what_is_not_known_is_explained_by_the_attempt_that_is_not_known(state):
    before = tried(attempt(), attempt(2, seen=Seen.REJECTED, at=T0 + 20_000), state=state)
    seen = telling(before)
    assert seen is not None
    assert seen.seen is Seen.UNKNOWN
    closed = replace(before, operation=replace(before.operation, state=State.FAILED))
    last = telling(closed)
    assert last is not None
    assert last.seen is Seen.REJECTED


def test_an_operation_that_was_never_tried_saw_nothing():
    outcome = told(record(), contract(), T0)
    assert (outcome.observation, outcome.transport_observation, outcome.sent_at) == (None,) * 3
    assert outcome.last_confirmed == {"state": "prepared", "at": instant(T0), "source": "ledger"}


def test_the_last_thing_that_was_confirmed_is_told_with_its_time_and_source():
    asked = looks(
        tried(attempt()), contract(), T0 + 50_000, evidence(Shows.IN_PROGRESS, at=T0 + 50_000)
    )
    assert told(asked, contract(), T0 + 60_000).last_confirmed == {
        "state": "in_progress",
        "at": instant(T0 + 50_000),
        "source": "lookup",
    }


# --- who acts, and what would settle it ----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "who"),
    [
        (at(State.MANUAL_REVIEW), "operator"),
        (record(State.AWAITING_APPROVAL), "operator"),
        (at(State.UNKNOWN), "worker"),
        (accepted_without_news(), "worker"),
        (record(), "worker"),
        (at(State.FAILED), "caller"),
        (at(State.SUCCEEDED), "caller"),
    ],
)
def test_who_is_expected_to_act_is_told(before, who):
    assert told(before, contract(), T0 + 60_000).acts["who"] == who


def test_by_when_is_the_deadline_that_runs():
    assert told(at(State.UNKNOWN), contract(), T0 + 60_000).acts["by"] == instant(T0 + HOUR)
    accepted = told(accepted_without_news(), contract(), T0 + 60_000)
    assert accepted.acts["by"] == instant(T0 + HOUR)
    assert told(record(), contract(), T0).acts["by"] == instant(T0)
    assert told(at(State.MANUAL_REVIEW), contract(), T0).acts["by"] is None
    awaiting = record(State.AWAITING_APPROVAL, not_before_ms=T0 + HOUR)
    assert told(awaiting, contract(), T0).acts["by"] == instant(T0 + HOUR)


@pytest.mark.proves("CORE-58")
@pytest.mark.parametrize(
    ("rules", "by", "automatic"),
    [
        (contract(), "lookup", True),
        (contract(lookups=(), events=EVENTS), "event", True),
        (contract(lookups=()), "operator", False),
    ],
)
def test_what_would_settle_it_is_told_or_that_nothing_would(rules, by, automatic):
    found = told(at(State.UNKNOWN, due_ms=T0 + 61_000), rules, T0 + 60_000).reconcile
    assert found is not None
    assert (found["by"], found["automatic"]) == (by, automatic)
    assert (found["method"], found["path"]) == ("GET", "/operations/by-id/refund_1")
    assert found["next_check_at"] == instant(T0 + 61_000)
    assert found["deadline"] == instant(T0 + HOUR)
    assert found["request"] is None
    assert isinstance(found["none"], str)


@pytest.mark.proves("CORE-58")
def test_the_exact_look_up_is_told():
    asked = told(at(State.UNKNOWN), contract(), T0, lookup_request="GET /v1/refunds?charge=ch_1")
    assert asked.reconcile is not None
    assert asked.reconcile["request"] == "GET /v1/refunds?charge=ch_1"
    assert "none" not in asked.reconcile
    review = told(at(State.MANUAL_REVIEW), contract(), T0).reconcile
    assert review is not None
    assert (review["by"], review["automatic"]) == ("operator", False)


@pytest.mark.parametrize("state", [state for state in State if state.ends])
def test_what_has_ended_needs_nothing_to_settle_it(state):
    assert told(at(state), contract(), LATER).reconcile is None


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.REJECTED, "after_failed"),
        (State.CANCELLED, "cancelled"),
        (State.FAILED, "after_failed"),
    ],
)
def test_an_error_has_a_code(state, code):
    assert told(at(state, Cause.AFTER_FAILED), contract(), LATER).error == {"code": code}


@pytest.mark.parametrize("state", [s for s in State if STATUS[s][:4] in ("succ", "pend", "unkn")])
def test_what_is_no_failure_has_no_error(state):
    assert told(at(state), contract(), LATER).error is None


def test_an_operators_done_is_told_as_a_success():
    after = rules_on(reviewed(Cause.DEADLINE), contract(), LATER, Word.DONE)
    outcome = told(after, contract(), LATER)
    assert outcome.status == "succeeded"
    assert outcome.last_confirmed["source"] == Source.OPERATOR


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-60")
@pytest.mark.parametrize(
    ("code", "by", "error"),
    [
        (Cause.PAYLOAD_MISMATCH, "refund_1", {"operation_id": "refund_1"}),
        (Cause.OPERATION_ID_TAKEN, None, {"operation_id": None}),
        (Cause.TARGET_UNRESOLVED, "refund_9", {"operation_id": "refund_9"}),
        (Cause.TARGET_UNRESOLVED, None, {"operation_id": None, "held_by": "another"}),
    ],
)
def test_a_refusal_has_the_same_form_and_says_what_stands_in_the_way(code, by, error):
    refused = refusal(
        operation_id="refund_1",
        tool="create_refund",
        code=code,
        by=by,
        payload_hash="sha256:0",
        target={"source": "payments", "business_key": None},
        correlation_id="run_42",
    )
    assert list(refused.to_json()) == FIELDS
    assert (refused.status, refused.retry_allowed, refused.attempts) == (
        Status.REJECTED,
        False,
        0,
    )
    assert refused.error == {"code": code.value, **error}
    assert "Nothing was sent" in refused.message
    assert (by or "held by another") in refused.message or code is not Cause.TARGET_UNRESOLVED


def test_a_refusal_of_a_call_without_an_id_names_none():
    refused = refusal(
        operation_id=None,
        tool="t",
        code=Cause.TARGET_UNRESOLVED,
        by="a",
        payload_hash="p",
        target={},
    )
    assert refused.operation_id == ""
    assert "None" not in refused.message
