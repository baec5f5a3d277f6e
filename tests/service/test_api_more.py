"""Sequences, approvals and the inbox over HTTP; their rules are tested where they are made."""

from collections.abc import Iterator

import pytest
from tests.service.serving import Stage, staged, until

LOSE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]
MORE = """
[sources.payments.webhook]
scheme = "standard"
credential = "payments-hook"

[tools.big_refund]
description = "Refund much."
effect = "money"
source = "payments"
timeout = "1s"
in_flight_horizon = "1s"
valid_for = "1h"
approval = { expires = "10m" }

[tools.big_refund.arguments]
type = "object"
required = ["charge"]
properties.charge = { type = "string" }

[tools.big_refund.request]
method = "POST"
path = "/v1/refunds"
json = { charge = "{args.charge}", amount = 9000 }

[tools.refund.events]
types = ["refund.updated"]
match = { operation_id = "operation" }
applied = "status == 'succeeded'"
"""


@pytest.fixture(scope="module")
def approving_stage(contracts, tmp_path_factory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("more")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "payments-hook").write_text("whsec_" + "c2VjcmV0IHNlY3JldCBzZWNyZXQ=")
    with staged(folder, contracts + MORE, "--secrets", "secrets") as found:
        yield found


@pytest.fixture
def stage(approving_stage: Stage, provider) -> Stage:
    return approving_stage


def ask_for(stage: Stage, name: str, **more: object):
    body = {"tool": "big_refund", "arguments": {"charge": name}, "operation_id": name}
    return stage.agent("POST", "/v1/operations", body | more)


@pytest.mark.proves("SERVICE-27")
def test_what_needs_approval_waits_for_it_and_is_sent_once_it_is_given(stage, provider):
    asked = ask_for(stage, "big-1")
    assert (asked.status, asked.json["state"]) == (202, "awaiting_approval")
    assert asked.headers["location"] == "/v1/operations/big-1"
    assert provider.effects() == []

    shown = stage.operator("GET", "/v1/operations/big-1").json
    wrong = {"note": "checked", "payload_hash": "sha256:" + "0" * 64}
    refused = stage.operator("POST", "/v1/operations/big-1/approve", wrong)
    assert (refused.status, refused.code) == (409, "payload_not_shown")
    assert provider.effects() == []

    right = wrong | {"payload_hash": shown["payload_hash"]}
    given = stage.operator("POST", "/v1/operations/big-1/approve", right)
    assert given.status == 200
    until(lambda: stage.agent("GET", "/v1/operations/big-1").json["state"] == "succeeded")
    assert len(provider.effects()) == 1
    again = stage.operator("POST", "/v1/operations/big-1/approve", right)
    assert again.status == 409


@pytest.mark.proves("SERVICE-27")
def test_what_is_denied_is_rejected_and_never_sent(stage, provider):
    payload_hash = ask_for(stage, "big-2").json["payload_hash"]
    body = {"note": "too much", "payload_hash": payload_hash}
    denied = stage.operator("POST", "/v1/operations/big-2/deny", body)
    assert (denied.status, denied.json["status"]) == (200, "rejected_by_policy")
    assert stage.agent("GET", "/v1/operations/big-2").json["error"]["code"] == "denied"
    assert provider.effects() == []


@pytest.mark.proves("SERVICE-13", "SERVICE-27")
def test_what_still_waits_may_be_withdrawn_by_its_agent(stage, provider):
    ask_for(stage, "big-3")
    assert stage.other("POST", "/v1/operations/big-3/cancel").status == 404
    taken_back = stage.agent("POST", "/v1/operations/big-3/cancel")
    assert (taken_back.status, taken_back.json["state"]) == (200, "cancelled")
    again = stage.agent("POST", "/v1/operations/big-3/cancel", {})
    assert (again.status, again.code) == (409, "already_cancelled")
    assert provider.effects() == []


@pytest.mark.proves("SERVICE-27")
def test_a_sessions_approval_is_given_listed_and_taken_back(stage, provider):
    place = "/v1/sessions/batch-1/approvals"
    body = {"tool": "big_refund", "principal": "agent-1", "expires": "1h", "note": "the batch"}
    granted = stage.operator("POST", place, body)
    assert granted.status == 200
    assert granted.json["by"] == "night-shift"
    assert ask_for(stage, "big-4", session_id="batch-1").json["status"] == "succeeded"

    listed = stage.operator("GET", place).json["approvals"]
    assert [each["id"] for each in listed] == [granted.json["id"]]
    taken = stage.operator("DELETE", f"{place}/{granted.json['id']}")
    assert taken.json["revoked_by"] == "night-shift"
    assert ask_for(stage, "big-5", session_id="batch-1").json["state"] == "awaiting_approval"
    missing = stage.operator("DELETE", f"{place}/none")
    assert (missing.status, missing.code) == (404, "approval_not_found")
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-27")
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"tool": "refund"}, 409, "grant_refused"),
        ({"tool": "none"}, 404, "unknown_tool"),
        ({"principal": "night-shift"}, 409, "grant_refused"),
        ({"expires": "0s"}, 409, "grant_refused"),
        ({"expires": "1y"}, 422, "bad_body"),
    ],
)
def test_a_sessions_approval_that_cannot_be_given_is_refused(stage, change, status, code):
    body = {"tool": "big_refund", "principal": "agent-1", "expires": "1h", "note": "the batch"}
    answer = stage.operator("POST", "/v1/sessions/batch-2/approvals", body | change)
    assert (answer.status, answer.code) == (status, code)
    assert stage.operator("GET", "/v1/sessions/batch-2/approvals").json == {"approvals": []}


@pytest.mark.proves("SERVICE-27")
def test_what_comes_after_another_waits_and_names_only_ones_own(stage, provider):
    ask_for(stage, "big-6")
    body = {"tool": "refund", "arguments": {"charge": "ch_after", "amount": 5}}
    waits = stage.agent(
        "POST",
        "/v1/operations",
        body | {"operation_id": "after-1", "after": ["big-6"], "wait": "0s"},
    )
    assert (waits.status, waits.json["state"]) == (202, "prepared")
    for who, after in ((stage.other, "big-6"), (stage.agent, "none-such")):
        other = {"tool": "refund", "arguments": {"charge": after, "amount": 5}}
        answer = who("POST", "/v1/operations", other | {"after": [after]})
        assert (answer.status, answer.code) == (422, "bad_sequence")
    stage.agent("POST", "/v1/operations/big-6/cancel")
    until(lambda: stage.agent("GET", "/v1/operations/after-1").json["state"] == "rejected")
    assert provider.effects() == []


@pytest.mark.proves("SERVICE-27")
def test_an_event_is_taken_in_once_listed_and_matched_by_an_operator(stage, provider):
    token = stage.tokens["worker"]
    event = {"id": "evt-1", "type": "refund.updated", "operation": "nobodys", "status": "succeeded"}
    body = {"source": "payments", "event": event, "event_id": "evt-1"}
    first = stage.serving.ask("POST", "/v1/events", body, token=token)
    again = stage.serving.ask("POST", "/v1/events", body, token=token)
    assert (first.status, first.json["new"]) == (200, True)
    assert (again.status, again.json["new"]) == (200, False)
    assert first.json["id"] == again.json["id"]

    listed = stage.operator("GET", "/v1/events?matched=false").json["events"]
    assert [each["event_id"] for each in listed] == ["evt-1"]
    assert "nobodys" not in str(listed)

    provider.configure(LOSE)
    asked = stage.call("refund", "told-1", charge="ch_told", amount=5)
    assert asked.json["status"] == "unknown_reconciliation_required"
    place = f"/v1/events/{listed[0]['id']}/match"
    matched = stage.operator("POST", place, {"operation_id": "told-1", "note": "same charge"})
    assert (matched.status, matched.json["operation_id"]) == (200, "told-1")
    assert stage.operator("GET", "/v1/events?matched=false").json["events"] == []
    until(lambda: stage.agent("GET", "/v1/operations/told-1").json["state"] == "succeeded")

    missing = stage.operator(
        "POST", "/v1/events/999/match", {"operation_id": "told-1", "note": "n"}
    )
    assert (missing.status, missing.code) == (404, "event_not_found")
    unknown = stage.serving.ask(
        "POST", "/v1/events", {"source": "nobody", "event": {}}, token=token
    )
    assert (unknown.status, unknown.code) == (404, "unknown_source")


@pytest.mark.proves("SERVICE-10")
def test_metrics_are_read_without_a_token(stage):
    answer = stage.serving.ask("GET", "/metrics")
    assert answer.status == 200
    assert "doubtless_operations_total" in answer.text
    assert "told-1" not in answer.text


@pytest.mark.proves("SERVICE-19")
def test_a_webhook_of_nobody_is_404_and_other_methods_are_405(stage):
    answer = stage.serving.ask("POST", "/webhooks/nobody", content=b"{}")
    assert (answer.status, answer.code) == (404, "unknown_source")
    assert stage.serving.ask("GET", "/webhooks/nobody").code == "method_not_allowed"
