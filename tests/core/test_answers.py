"""What an answer proves about the attempt that got it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.samples import KEY, T0, attempt, contract, now, tried

from doubtless.core import answers
from doubtless.core.answers import Answer, classify
from doubtless.core.evidence import weigh
from doubtless.core.model import Cause, Effect, Observation, Seen, Shows, Source, Stage, Verdict

PLAIN = contract(response=answers.default_rules())

# Measured with seven clients and written out: status → class; all others are unknown.
MEASURED = {
    **dict.fromkeys([*range(200, 202), *range(203, 300), 303], Seen.SUCCEEDED),
    202: Seen.ACCEPTED,
    **dict.fromkeys(range(400, 500), Seen.REJECTED),
    **dict.fromkeys([501, 505], Seen.REJECTED),
    **dict.fromkeys([408, 409, 423, 424, 499], Seen.UNKNOWN),
    **dict.fromkeys([307, 308, 421, 425, 429], Seen.NOT_PROCESSED),
}


def answered(status: int | None = 200, **changes) -> Answer:
    return Answer(stage=Stage.READ, complete=True, **{"status": status, **changes})


@pytest.mark.proves("CORE-49")
@pytest.mark.parametrize("status", range(100, 600))
def test_a_status_proves_what_the_measured_table_says(status):
    assert classify(answered(status), PLAIN).seen is MEASURED.get(status, Seen.UNKNOWN)


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (500, "gateway_error"),
        (502, "gateway_error"),
        (503, "gateway_error"),
        (504, "gateway_error"),
        (302, "unproven_status"),
        (304, "unproven_status"),
        (408, "unproven_status"),
    ],
)
def test_an_unknown_names_its_cause(status, cause):
    seen = classify(answered(status), PLAIN)
    assert (seen.cause, str(status) in seen.detail) == (Cause(cause), True)


@pytest.mark.proves("CORE-49")
@pytest.mark.parametrize("status", [200, 202, 303, 400, 402, 429, 501])
def test_a_status_whose_answer_broke_off_is_unknown(status):
    seen = classify(replace(answered(status), complete=False), PLAIN)
    assert (seen.seen, seen.cause) == (Seen.UNKNOWN, Cause.TRUNCATED)
    why = classify(Answer(stage=Stage.ANSWERED, status=status, cause=Cause.CONNECTION_RESET), PLAIN)
    assert (why.seen, why.cause) == (Seen.UNKNOWN, Cause.CONNECTION_RESET)


@pytest.mark.parametrize("cause", [Cause.TIMEOUT, Cause.CONNECTION_RESET, Cause.CANCELLED])
def test_no_answer_is_unknown_for_the_reason_that_was_seen(cause):
    seen = classify(Answer(stage=Stage.SENT, cause=cause, detail="late"), PLAIN)
    assert (seen.seen, seen.cause, seen.detail) == (Seen.UNKNOWN, cause, "late")


def test_an_answer_without_a_status_and_a_reason_is_unreadable():
    assert classify(answered(None), PLAIN).cause is Cause.UNREADABLE


@pytest.mark.parametrize("proof", [Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_what_the_transport_proves_is_believed(proof):
    seen = classify(Answer(stage=Stage.CONNECTING, proof=proof, detail="refused"), PLAIN)
    assert (seen.seen, seen.cause, seen.detail) == (proof, None, "refused")


def test_a_body_that_can_not_be_read_as_declared_is_unknown():
    seen = classify(answered(unreadable="no JSON"), PLAIN)
    assert (seen.seen, seen.cause) == (Seen.UNKNOWN, Cause.UNREADABLE)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [({"accepted": True}, Seen.ACCEPTED), ({"failed": True}, Seen.REJECTED)],
)
def test_what_the_body_of_a_success_says_counts(changes, seen):
    assert classify(answered(**changes), PLAIN).seen is seen


@pytest.mark.parametrize("status", [400, 429, 500])
def test_what_the_body_of_no_success_says_does_not_count(status):
    plain = classify(answered(status), PLAIN).seen
    assert classify(answered(status, accepted=True, failed=True), PLAIN).seen is plain


# --- what the contract knows better --------------------------------------------------------------

LEVELS = ["unproven", "in_progress", "mismatch", "not_processed", "rejected"]
SEEN = {
    "unproven": (Seen.UNKNOWN, Cause.UNPROVEN_STATUS),
    "in_progress": (Seen.UNKNOWN, Cause.KEY_IN_PROGRESS),
    "mismatch": (Seen.UNKNOWN, Cause.KEY_MISMATCH),
    "not_processed": (Seen.NOT_PROCESSED, None),
    "rejected": (Seen.REJECTED, None),
}


def declaring(status: int, levels: list[str]):
    response, key = answers.default_rules(), KEY
    for level in levels:
        if level in ("in_progress", "mismatch"):
            changes: dict[str, Any] = {level: (status,)}
            key = replace(key, **changes)
        else:
            changes = {level: (status,)}
            response = replace(response, **changes)
    return contract(response=response, key=key)


@pytest.mark.proves("CORE-50")
@pytest.mark.parametrize("first", range(len(LEVELS)))
@pytest.mark.parametrize("status", [200, 409, 422, 500])
def test_of_what_is_declared_of_a_status_the_strictest_counts(status, first):
    seen = classify(answered(status), declaring(status, LEVELS[first:]))
    assert (seen.seen, seen.cause) == SEEN[LEVELS[first]]


def test_what_a_key_declares_counts_only_where_there_is_one():
    rules = replace(declaring(409, ["in_progress"]), key=None)
    assert classify(answered(409), rules).cause is Cause.UNPROVEN_STATUS


@pytest.mark.proves("CORE-10")
def test_a_first_request_that_still_runs_is_a_sighting():
    seen = classify(answered(409), declaring(409, ["in_progress"]))
    assert (seen.key_in_progress, answers.shows(seen)) == (True, Shows.SIGHTED)


@pytest.mark.proves("CORE-50")
def test_a_key_collision_on_a_first_send_is_unknown_and_no_refusal():
    seen = classify(answered(422), declaring(422, ["mismatch"]))
    assert (seen.seen, answers.shows(seen)) == (Seen.UNKNOWN, Shows.NOTHING)


@pytest.mark.proves("CORE-40")
@pytest.mark.parametrize(("status", "kept"), [(429, 9_000), (503, None), (402, None), (200, None)])
def test_a_pause_counts_only_on_an_answer_that_proves_not_processed(status, kept):
    assert classify(answered(status, retry_after_ms=9_000), PLAIN).retry_after_ms == kept


# --- a transaction id ----------------------------------------------------------------------------

NOW_ONLY = contract(Effect.TIME_SENSITIVE, lookups=(), response=answers.default_rules())


@pytest.mark.proves("CORE-21")
@pytest.mark.parametrize("answer", [answered(500), answered(200, unreadable="cut off")])
def test_a_transaction_id_in_an_answer_that_we_hold_is_proof_of_done(answer):
    named = replace(answer, provider_operation_id="tx_1")
    assert classify(named, NOW_ONLY).seen is Seen.SUCCEEDED
    assert classify(named, PLAIN).seen is Seen.UNKNOWN
    assert classify(answer, NOW_ONLY).seen is Seen.UNKNOWN


@pytest.mark.parametrize("answer", [answered(200, failed=True), answered(402), answered(429)])
def test_a_transaction_id_does_not_outweigh_an_answer_that_says_no(answer):
    named = replace(answer, provider_operation_id="tx_1")
    assert classify(named, NOW_ONLY).seen is classify(answer, NOW_ONLY).seen


# --- as evidence ---------------------------------------------------------------------------------


def test_every_class_says_something_as_evidence():
    assert set(answers.SHOWS) == set(Seen)


@pytest.mark.parametrize(
    ("seen", "status", "source"),
    [
        (Seen.NOT_SENT, None, Source.TRANSPORT),
        (Seen.UNKNOWN, None, Source.TRANSPORT),
        (Seen.UNKNOWN, 500, Source.RESPONSE),
        (Seen.SUCCEEDED, 200, Source.RESPONSE),
        (Seen.NOT_PROCESSED, None, Source.RESPONSE),
    ],
)
def test_the_transport_speaks_where_the_other_side_said_nothing(seen, status, source):
    observation = Observation(seen=seen, stage=Stage.SENT, status=status)
    assert answers.source_of(observation, PLAIN) is source


def test_the_names_that_a_provider_gave_are_kept():
    seen = classify(
        answered(202, provider_operation_id="job_1", status_url="/jobs/1", replayed=True), PLAIN
    )
    assert (seen.provider_operation_id, seen.status_url, seen.replayed) == (
        "job_1",
        "/jobs/1",
        True,
    )


@given(st.integers(100, 599), st.booleans(), st.booleans(), st.booleans())
def test_only_the_other_sides_complete_word_makes_a_sent_request_certain(
    status, complete, accepted, failed
):
    answer = replace(answered(status, accepted=accepted, failed=failed), complete=complete)
    if classify(answer, PLAIN).seen is not Seen.UNKNOWN:
        assert complete
        assert status in MEASURED


def test_a_precondition_that_fails_after_an_unknown_is_not_believed():
    assert classify(answered(412), PLAIN).seen is Seen.REJECTED
    before = tried(attempt(), attempt(2, seen=Seen.REJECTED, at=T0 + 20_000))
    found = weigh(before, contract(Effect.CONDITIONAL_UPDATE), now(T0 + 60_000))
    assert found.verdict is Verdict.UNKNOWN
