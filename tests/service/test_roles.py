"""Who may do what: read from the route table itself, so that no new route is forgotten."""

import re

import pytest
from tests.service.serving import ROLES

from doubtless.core.model import Role
from doubtless.service import api, openapi
from doubtless.service.routing import Row

ROWS = (*api.ROWS, openapi.row(api.ROWS))
CLOSED = [row for row in ROWS if row.roles]
OPERATORS = [row for row in CLOSED if Role.AGENT not in row.roles]
IDS = {
    "operation_id": "guarded-1",
    "session_id": "guarded",
    "event_id": "1",
    "approval_id": "a-1",
    "exhibit": "end.jpg",
}
GUARDED = {
    "tool": "refund",
    "arguments": {"charge": "ch_guarded", "amount": 5},
    "operation_id": "guarded-1",
    "session_id": "guarded",
}


def name(row: Row) -> str:
    return f"{row.method} {row.path}"


def place(row: Row) -> str:
    return re.sub(r"{(\w+)}", lambda found: IDS[found[1]], row.path)


@pytest.fixture
def guarded(stage):
    """An operation of the first agent."""
    assert stage.agent("POST", "/v1/operations", GUARDED).status == 200
    return stage


def test_the_routes_that_agents_have_are_these():
    assert {name(row) for row in CLOSED if Role.AGENT in row.roles} == {
        "POST /v1/operations",
        "GET /v1/operations",
        "GET /v1/operations/{operation_id}",
        "GET /operations/by-id/{operation_id}",
        "POST /v1/operations/{operation_id}/cancel",
        "GET /v1/sessions",
        "GET /v1/sessions/{session_id}",
        "GET /v1/outcomes",
        "GET /v1/subscriptions",
        "POST /v1/subscriptions",
        "GET /v1/tools",
    }


def test_the_routes_that_need_no_token_are_these():
    assert {row.path for row in ROWS if not row.roles} == {"/healthz", "/readyz", "/openapi.json"}


@pytest.mark.proves("SERVICE-14")
@pytest.mark.parametrize("row", CLOSED, ids=name)
def test_without_a_live_token_nothing_is_answered(stage, row):
    secret = stage.tokens["agent"]
    wrong = [
        None,
        "Bearer",
        "Bearer ",
        f"Basic {secret}",
        secret,
        f"Bearer {secret}x",
        f"Bearer {secret[:-1]}",
        f"Bearer {secret} {secret}",
        "Bearer " + "x" * 5000,
        "Bearer \xff\xfe",
    ]
    for header in wrong:
        said = {} if header is None else {"Authorization": header}
        answer = stage.serving.ask(row.method, place(row), headers=said)
        assert (answer.status, answer.code) == (401, "unauthorised"), header
        assert answer.headers["www-authenticate"].startswith('Bearer realm="doubtless"')


@pytest.mark.proves("SERVICE-14")
@pytest.mark.parametrize("row", CLOSED, ids=name)
def test_a_token_of_another_role_is_forbidden(stage, row):
    for short, (_, role) in ROLES.items():
        answer = stage.serving.ask(row.method, place(row), token=stage.tokens[short])
        if role in row.roles:
            assert answer.status not in (401, 403), short
        else:
            assert (answer.status, answer.code) == (403, "forbidden"), short


@pytest.mark.proves("SERVICE-15")
@pytest.mark.parametrize("row", OPERATORS, ids=name)
def test_an_agent_can_do_nothing_that_operators_do(guarded, row):
    before = guarded.agent("GET", "/v1/operations/guarded-1").json
    bodies = [
        None,
        {"decision": "not_done", "note": "it failed, believe me", "version": before["version"]},
        {"note": "fine", "payload_hash": before["payload_hash"]},
        {"tool": "refund", "principal": "agent-1", "expires": "1h", "note": "fine"},
        {"operation_id": "guarded-1", "note": "mine"},
        {"source": "payments", "event": {"id": "e"}},
    ]
    for body in bodies:
        answer = guarded.agent(row.method, place(row), body)
        assert (answer.status, answer.code) == (403, "forbidden"), body
    assert guarded.agent("GET", "/v1/operations/guarded-1").json == before


@pytest.mark.proves("SERVICE-16")
@pytest.mark.parametrize(
    "row",
    [row for row in CLOSED if Role.AGENT in row.roles and "{operation_id}" in row.path],
    ids=name,
)
def test_another_principals_operation_is_not_told_apart_from_none(guarded, row):
    theirs = guarded.other(row.method, place(row))
    nobodys = guarded.other(row.method, place(row).replace("guarded-1", "guarded-0"))
    assert (theirs.status, theirs.code) == (404, "operation_not_found")
    assert theirs.text.replace("guarded-1", "guarded-0") == nobodys.text
    assert theirs.headers.keys() == nobodys.headers.keys()


@pytest.mark.proves("SERVICE-16")
@pytest.mark.parametrize(
    "path",
    ["/v1/operations", "/v1/operations?session_id=guarded", "/v1/sessions/guarded", "/v1/outcomes"],
)
def test_lists_show_an_agent_nothing_of_another_one(guarded, path):
    assert "guarded-1" in guarded.agent("GET", path).text
    shown = guarded.other("GET", path).text
    assert "guarded-1" not in shown
    assert "ch_guarded" not in shown
    assert "agent-1" not in shown
    assert "guarded-1" in guarded.operator("GET", path).text
