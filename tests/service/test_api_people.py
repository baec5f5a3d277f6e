"""What operators and auditors do over HTTP."""

import pytest

LOSE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]


def in_review(stage, provider, name):
    """A bid whose answer was lost, and which only a person can settle."""
    provider.configure(LOSE)
    outcome = stage.call("place_bid", name, lot=f"lot {name}", amount=1).json
    assert outcome["state"] in ("unknown", "manual_review")
    provider.wait_for(
        lambda _: stage.agent("GET", f"/v1/operations/{name}").json["state"] == "manual_review"
    )
    provider.configure({})
    return stage.operator("GET", f"/v1/operations/{name}").json


@pytest.mark.proves("SERVICE-11")
def test_an_operators_decision_settles_what_only_a_person_can(stage, provider):
    shown = in_review(stage, provider, "bid-1")
    body = {
        "decision": "done",
        "note": "seen in the auction's list",
        "version": shown["version"],
        "provider_operation_id": "bid_77",
    }
    answer = stage.operator("POST", "/v1/operations/bid-1/resolve", body)

    assert (answer.status, answer.json["status"]) == (200, "succeeded")
    assert stage.agent("GET", "/v1/operations/bid-1").json["provider_operation_id"] == "bid_77"
    timeline = stage.operator("GET", "/v1/operations/bid-1/timeline").json["timeline"]
    assert {"principal": "night-shift", "role": "operator"}.items() <= timeline[-1].items()
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-11")
def test_a_decision_on_an_old_version_is_409_with_the_other_decision(stage, provider):
    shown = in_review(stage, provider, "bid-2")
    body = {"decision": "unsure", "note": "nobody answers there", "version": shown["version"]}
    assert stage.operator("POST", "/v1/operations/bid-2/resolve", body).status == 200
    again = stage.operator("POST", "/v1/operations/bid-2/resolve", body | {"decision": "done"})

    assert (again.status, again.code) == (409, "stale_version")
    other = again.json["decision"]
    assert other["decision"] == "unsure"
    assert other["note"] == "nobody answers there"
    assert other["by"] == "night-shift"
    assert again.json["outcome"]["state"] == "manual_review"


@pytest.mark.proves("SERVICE-11")
def test_a_decision_that_is_not_legal_is_409_and_changes_nothing(stage):
    outcome = stage.call("refund", "legal-1", charge="ch_legal", amount=5).json
    body = {"decision": "not-done", "note": "none", "version": outcome["version"]}
    answer = stage.operator("POST", "/v1/operations/legal-1/resolve", body)
    assert (answer.status, answer.code) == (409, "decision_refused")
    assert answer.json["decision"] is None
    assert answer.json["outcome"]["version"] == outcome["version"]


@pytest.mark.proves("SERVICE-11")
@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"decision": "done", "note": "n"}, "version"),
        ({"decision": "maybe", "note": "n", "version": 1}, "decision"),
        ({"decision": "done", "note": " ", "version": 1}, "note"),
        ({"decision": "done", "version": 1}, "note"),
        ({"decision": "done", "note": "n", "version": "1"}, "version"),
        ({"decision": "done", "note": "n", "version": True}, "version"),
        ({"decision": "done", "note": "n", "version": 1, "operator": "root"}, "operator"),
    ],
)
def test_a_decision_says_all_that_it_must_and_nothing_else(stage, body, names):
    answer = stage.operator("POST", "/v1/operations/any/resolve", body)
    assert (answer.status, answer.code) == (422, "bad_body")
    assert [each["where"] for each in answer.json["errors"]] == [names]


@pytest.mark.proves("SERVICE-12")
def test_a_timeline_tells_what_happened_to_operators_and_auditors(stage):
    stage.call("refund", "line-1", charge="ch_line", amount=5)
    for role in ("operator", "auditor"):
        token = stage.tokens[role]
        answer = stage.serving.ask("GET", "/v1/operations/line-1/timeline", token=token)
        kinds = [each["kind"] for each in answer.json["timeline"]]
        assert kinds[0] == "prepared"
        assert {"attempt", "observation"} <= set(kinds)
    missing = stage.operator("GET", "/v1/operations/none/timeline")
    assert (missing.status, missing.code) == (404, "operation_not_found")


@pytest.mark.proves("SERVICE-13")
def test_what_was_sent_cannot_be_taken_back(stage):
    stage.call("refund", "sent-1", charge="ch_sent", amount=5)
    for who in (stage.agent, stage.operator):
        answer = who("POST", "/v1/operations/sent-1/cancel")
        assert (answer.status, answer.code) == (409, "decision_refused")
        assert answer.json["outcome"]["status"] == "succeeded"
    assert stage.other("POST", "/v1/operations/sent-1/cancel").code == "operation_not_found"
