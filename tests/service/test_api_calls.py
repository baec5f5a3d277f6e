"""What an agent is answered over HTTP, against a real service and a provider with its own count."""

from urllib.parse import quote

import pytest

LOSE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]
SLOW = [{"match": {"method": "POST"}, "then": {"action": "delay_then_commit", "delay_s": 0.6}}]


@pytest.mark.proves("SERVICE-1")
def test_a_call_is_answered_with_its_outcome_and_its_repeat_sends_nothing(stage, provider):
    first = stage.call("refund", "done-1", charge="ch_1", amount=5)
    again = stage.call("refund", "done-1", charge="ch_1", amount=5)

    assert (first.status, first.json["status"]) == (200, "succeeded")
    assert not first.json["already_done"]
    assert (again.status, again.json["already_done"]) == (200, True)
    assert first.headers["cache-control"] == "no-store"
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-1")
def test_the_first_unknown_is_answered_as_it_was_recorded_and_settles_later(stage, provider):
    provider.configure(LOSE)
    lost = stage.call("refund", "lost-1", charge="ch_lost", amount=5)
    assert lost.status == 200
    assert lost.json["status"] == "unknown_reconciliation_required"
    assert lost.json["state"] == "unknown"
    assert "location" not in lost.headers

    asked = stage.agent("GET", lost.json["reconcile"]["path"])
    assert asked.status == 200

    found = stage.call("refund", "lost-1", charge="ch_lost", amount=5, wait="20s")
    assert found.json["status"] == "unknown_reconciliation_required"  # unknown is an answer too
    provider.wait_for(
        lambda _: stage.agent("GET", "/v1/operations/lost-1").json["state"] == "succeeded",
        timeout_s=20,
    )
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-2")
@pytest.mark.parametrize("wait", ["0s", "50ms"])
def test_a_call_that_does_not_wait_is_told_where_to_ask(stage, provider, wait):
    provider.configure(SLOW)
    name = f"slow-{wait}"
    answer = stage.call("refund", name, charge=f"ch_{wait}", amount=5, wait=wait)

    assert (answer.status, answer.json["status"]) == (202, "pending")
    assert answer.headers["location"] == answer.json["status_url"] == f"/v1/operations/{name}"
    later = stage.call("refund", name, charge=f"ch_{wait}", amount=5, wait="10s")
    assert (later.status, later.json["status"]) == (200, "succeeded")
    assert stage.agent("GET", answer.headers["location"]).json["status"] == "succeeded"


@pytest.mark.proves("SERVICE-3")
@pytest.mark.parametrize(
    ("header", "name"), [("key-1", "key-1"), ('"key-2"', "key-2"), (' "key-3" ', "key-3")]
)
def test_an_idempotency_key_is_taken_as_the_operation_id(stage, header, name):
    body = {"tool": "refund", "arguments": {"charge": name, "amount": 5}}
    answer = stage.agent("POST", "/v1/operations", body, headers={"Idempotency-Key": header})
    assert (answer.status, answer.json["operation_id"]) == (200, name)


@pytest.mark.proves("SERVICE-3")
def test_the_body_says_the_operation_id_before_the_header_does(stage):
    body = {"tool": "refund", "arguments": {"charge": "ch_b", "amount": 5}, "operation_id": "b-1"}
    answer = stage.agent("POST", "/v1/operations", body, headers={"Idempotency-Key": "b-2"})
    assert answer.json["operation_id"] == "b-1"
    assert stage.agent("GET", "/v1/operations/b-2").status == 404


@pytest.mark.proves("SERVICE-3")
@pytest.mark.parametrize("header", ["", '""', '"half', "a/b", "x" * 129, "a, b", '"a"b"'])
def test_a_key_that_can_be_no_operation_id_is_refused(stage, provider, header):
    body = {"tool": "refund", "arguments": {"charge": "ch_k", "amount": 5}}
    answer = stage.agent("POST", "/v1/operations", body, headers={"Idempotency-Key": header})
    assert (answer.status, answer.code) == (422, "bad_operation_id")
    assert provider.effects() == []


@pytest.mark.proves("SERVICE-4")
def test_the_same_id_with_another_payload_is_409_with_ones_own_outcome(stage, provider):
    stage.call("refund", "mine-1", charge="ch_m", amount=5)
    answer = stage.call("refund", "mine-1", charge="ch_m", amount=6)

    assert (answer.status, answer.code) == (409, "payload_mismatch")
    assert answer.json["outcome"]["operation_id"] == "mine-1"
    assert answer.json["outcome"]["status"] == "succeeded"
    assert answer.json["refusal"]["error"]["code"] == "payload_mismatch"
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-4")
def test_another_principals_id_is_409_and_shows_nothing_of_it(stage, provider):
    stage.call("refund", "theirs-1", charge="ch_secret", amount=5)
    body = {"tool": "refund", "arguments": {"charge": "x", "amount": 1}, "operation_id": "theirs-1"}
    answer = stage.other("POST", "/v1/operations", body)

    assert (answer.status, answer.code) == (409, "operation_id_taken")
    assert "outcome" not in answer.json
    assert "ch_secret" not in answer.text
    assert "agent-1" not in answer.text
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-4")
def test_a_refusal_by_policy_is_an_outcome_and_no_error(stage, provider):
    provider.configure(LOSE)
    stage.call("refund", "held-1", charge="ch_held", amount=5)
    answer = stage.call("refund", "held-2", charge="ch_held", amount=6)

    assert (answer.status, answer.json["status"]) == (200, "rejected_by_policy")
    assert answer.json["error"]["code"] == "target_unresolved"
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-5")
@pytest.mark.parametrize(
    ("body", "status", "code", "names"),
    [
        ({"tool": "none", "arguments": {}}, 404, "unknown_tool", "none"),
        ({"tool": "refund", "arguments": {"charge": 1}}, 422, "bad_arguments", "amount"),
        ({"tool": "refund", "arguments": {"charge": "c"}}, 422, "bad_arguments", "amount"),
        ({"tool": "refund"}, 422, "bad_body", "arguments"),
        ({"tool": "refund", "arguments": {}, "retry": True}, 422, "bad_body", "retry"),
        ({"tool": 7, "arguments": {}}, 422, "bad_body", "tool"),
        ({"tool": "refund", "arguments": [1]}, 422, "bad_body", "arguments"),
        ({"tool": "refund", "arguments": {}, "operation_id": "/x"}, 422, "bad_operation_id", "id"),
        ({"tool": "refund", "arguments": {}, "operation_id": "x" * 129}, 422, "bad_operation_id",
         "id"),
        ({"tool": "refund", "arguments": {}, "session_id": "a/b"}, 422, "bad_body", "session_id"),
        ({"tool": "refund", "arguments": {}, "wait": "soon"}, 422, "bad_body", "wait"),
        ({"tool": "refund", "arguments": {}, "wait": 5}, 422, "bad_body", "wait"),
        ({"tool": "refund", "arguments": {}, "wait": "2h"}, 422, "bad_body", "wait"),
        ({"tool": "refund", "arguments": {}, "correlation_id": "a b"}, 422, "bad_body",
         "correlation_id"),
        ([], 422, "bad_body", "object"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_names_what_is_wrong(stage, provider, body, status, code, names):
    answer = stage.agent("POST", "/v1/operations", body)
    assert (answer.status, answer.code) == (status, code)
    assert names in answer.text
    # What earlier tests left open may be looked up meanwhile.
    assert [each for each in provider.arrivals() if each.method == "POST"] == []


@pytest.mark.proves("SERVICE-6")
def test_operations_are_found_by_what_is_known_of_them(stage):
    body = {
        "tool": "refund",
        "arguments": {"charge": "ch_find", "amount": 5},
        "operation_id": "find-1",
        "session_id": "find-session",
        "correlation_id": "run-42",
    }
    outcome = stage.agent("POST", "/v1/operations", body).json
    queries = {
        "session_id": "find-session",
        "correlation_id": "run-42",
        "provider_operation_id": outcome["provider_operation_id"],
        "idempotency_key": outcome["idempotency_key"],
        "business_key": '{ "charge": "ch_find" }',
    }
    for name, value in queries.items():
        more = "&tool=refund" if name == "session_id" else "&session_id=find-session"
        found = stage.agent("GET", f"/v1/operations?{name}={quote(value)}{more}")
        assert [each["operation_id"] for each in found.json["operations"]] == ["find-1"], name
        assert found.json["cursor"] is None
        other = stage.other("GET", f"/v1/operations?{name}={quote(value)}")
        assert other.json["operations"] == [], name
    assert stage.agent("GET", "/v1/operations?session_id=find-session&state=unknown").json == {
        "operations": [],
        "cursor": None,
    }


@pytest.mark.proves("SERVICE-6")
def test_unresolved_means_every_state_that_is_no_end(stage, provider):
    provider.configure(LOSE)
    body = {"tool": "place_bid", "arguments": {"lot": "lot-u", "amount": 1}, "session_id": "u"}
    outcome = stage.agent("POST", "/v1/operations", body).json
    assert outcome["status"] == "unknown_reconciliation_required"
    found = stage.agent("GET", "/v1/operations?state=unresolved&session_id=u").json["operations"]
    assert [each["operation_id"] for each in found] == [outcome["operation_id"]]


@pytest.mark.proves("SERVICE-7")
def test_pages_hold_every_operation_once_newest_first(stage):
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        body = {"tool": "refund", "arguments": {"charge": name, "amount": 5}, "operation_id": name}
        stage.agent("POST", "/v1/operations", body | {"session_id": "pages"})
    seen: list[str] = []
    cursor = ""
    while True:
        page = stage.agent("GET", f"/v1/operations?session_id=pages&limit=2{cursor}").json
        assert len(page["operations"]) <= 2
        seen += [each["operation_id"] for each in page["operations"]]
        if page["cursor"] is None:
            break
        cursor = f"&cursor={page['cursor']}"
    assert seen == names[::-1]


@pytest.mark.proves("SERVICE-7")
def test_a_cursor_of_another_principal_is_told_apart_from_none_at_all_by_nothing(stage):
    stage.call("refund", "cursor-1", charge="ch_cursor", amount=5)
    theirs = stage.other("GET", "/v1/operations?cursor=cursor-1")
    nobodys = stage.other("GET", "/v1/operations?cursor=cursor-0")
    assert (theirs.status, theirs.code) == (nobodys.status, nobodys.code) == (422, "bad_cursor")
    assert theirs.text.replace("cursor-1", "cursor-0") == nobodys.text


@pytest.mark.proves("SERVICE-5")
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("state=odd", "state"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=9999999999999999999999", "limit"),
        ("limit=x", "limit"),
        ("sort=asc", "sort"),
        ("tool=a&tool=b", "tool"),
        ("business_key=ch_1", "business_key"),
        ("business_key=[1]", "business_key"),
        ("cursor=a/b", "cursor"),
        ("tool=", "tool"),
        ("tool=a%00b", "tool"),
    ],
)
def test_a_query_that_says_something_unknown_is_refused_by_name(stage, query, names):
    answer = stage.agent("GET", f"/v1/operations?{query}")
    assert (answer.status, answer.code) == (422, "bad_query")
    assert names in answer.json["detail"]


@pytest.mark.proves("SERVICE-8")
def test_a_session_tells_what_is_open_and_what_has_ended(stage, provider):
    refund = {"tool": "refund", "arguments": {"charge": "ch_s", "amount": 5}, "session_id": "s-1"}
    bid = {"tool": "place_bid", "arguments": {"lot": "lot-s", "amount": 1}, "session_id": "s-1"}
    done = stage.agent("POST", "/v1/operations", refund).json["operation_id"]
    provider.configure(LOSE)
    open_one = stage.agent("POST", "/v1/operations", bid).json["operation_id"]

    record = stage.agent("GET", "/v1/sessions/s-1").json
    assert [each["operation_id"] for each in record["unresolved"]] == [open_one]
    assert [each["operation_id"] for each in record["recent"]] == [done]
    assert stage.other("GET", "/v1/sessions/s-1").json["recent"] == []
    assert stage.operator("GET", "/v1/sessions/s-1").json == record
    assert stage.operator("GET", "/v1/sessions/s-1?principal=agent-1").json == record
    assert stage.operator("GET", "/v1/sessions/s-none").code == "session_not_found"
    assert stage.other("GET", "/v1/sessions/s-1?principal=agent-1").code == "forbidden"


@pytest.mark.proves("SERVICE-8")
def test_calls_without_a_session_stand_in_the_implicit_one(stage):
    stage.call("refund", "implicit-1", charge="ch_i", amount=5)
    record = stage.agent("GET", "/v1/sessions").json
    assert record["session_id"] == ""
    assert "implicit-1" in [each["operation_id"] for each in record["recent"]]


@pytest.mark.proves("SERVICE-9")
def test_tools_are_told_with_their_schemas_and_what_needs_a_person(stage):
    found = {each["name"]: each for each in stage.agent("GET", "/v1/tools").json["tools"]}
    assert found.keys() == {"refund", "place_bid"}
    assert found["refund"]["effect"] == "money"
    assert found["refund"]["description"] == "Refund a charge."
    assert found["refund"]["arguments"]["required"] == ["charge", "amount"]
    assert found["refund"]["fully_automatic"]
    assert not found["place_bid"]["fully_automatic"]


@pytest.mark.proves("SERVICE-10")
def test_health_and_readiness_need_no_token(stage):
    assert stage.serving.ask("GET", "/healthz").json == {"status": "ok"}
    ready = stage.serving.ask("GET", "/readyz")
    assert (ready.status, ready.json["status"]) == (200, "ready")
