"""Services of two tenants on one ledger: neither sees or changes anything of the other's."""

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.cli.shell import Shell
from tests.service.serving import ROLES, Answer, Serving
from tests.service.signing import standard
from tests.service.test_api_more import MORE

from doubtless.core.model import Role
from doubtless.ledger.store import open_ledger
from doubtless.service import api, auth
from doubtless.service.routing import Row

SECRET = "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQ="
IDS = {
    "operation_id": "secret-1",
    "session_id": "secret-s",
    "event_id": "evt-secret",
    "exhibit": "reply",
}
TOLD = ("ch_secret", "acme-", "evt-secret")
"""What stands in nothing that the other tenant is told, unless it said so itself."""


class Tenant:
    """A service of one tenant, and a token of each role."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.name = name
        with open_ledger(shell.ledger) as ledger:
            self.tokens = {
                role: auth.issue(ledger, f"{name}-{role}", role, tenant=name).secret
                for _, role in ROLES.values()
            }
        # No worker: what is recorded changes by what is asked alone.
        self.serving = Serving(shell, "--tenant", name, "--secrets", "secrets", "--no-worker")

    def ask(self, role: Role, method: str, path: str, body: object = None) -> Answer:
        return self.serving.ask(method, path, body, token=self.tokens[role])

    def call(self, tool: str, name: str) -> Answer:
        body = {"tool": tool, "arguments": {"charge": "ch_secret", "amount": 5}}
        if tool == "big_refund":
            body["arguments"] = {"charge": "ch_secret"}
        said = {"operation_id": name, "session_id": "secret-s"}
        return self.ask(Role.AGENT, "POST", "/v1/operations", body | said)


def rows(folder: Path, tenant: str) -> dict[str, list[tuple[object, ...]]]:
    """All that a tenant has in the ledger, by table."""
    with closing(sqlite3.connect(folder / "doubtless.db")) as link:
        names = [
            row[0] for row in link.execute("select name from sqlite_schema where type='table'")
        ]
        asked = "select * from {} where tenant = ?"
        own = [name for name in names if not name.startswith("sqlite_")]
        return {name: list(link.execute(asked.format(name), (tenant,))) for name in own}


@pytest.fixture(scope="module")
def pair(contracts, running_provider, tmp_path_factory) -> Iterator[tuple[Shell, Tenant, Tenant]]:
    running_provider.configure({})  # whatever the tests before have asked of it
    running_provider.reset()
    folder = tmp_path_factory.mktemp("tenants")
    shell = Shell(folder)
    (folder / "contracts.toml").write_text(contracts + MORE, encoding="utf-8")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "payments-hook").write_text(SECRET)
    with ExitStack() as stack:
        both = [Tenant(shell, name) for name in ("acme", "bolt")]
        for each in both:
            stack.enter_context(each.serving)
        acme, bolt = both
        assert acme.call("refund", "secret-1").json["state"] == "succeeded"
        assert acme.call("big_refund", "secret-2").json["state"] == "awaiting_approval"
        grant = {"tool": "big_refund", "principal": "acme-x", "expires": "1h", "note": "fine"}
        place = "/v1/sessions/secret-s/approvals"
        assert acme.ask(Role.OPERATOR, "POST", place, grant).status == 200
        event = {"id": "evt-secret", "type": "refund.updated", "operation": "none"}
        said = {"source": "payments", "event": event}
        assert acme.ask(Role.WORKER, "POST", "/v1/events", said).status == 200
        yield shell, acme, bolt


CLOSED = [row for row in api.ROWS if row.roles]


def name(row: Row) -> str:
    return f"{row.method} {row.path}"


def bodies(acme: Tenant, operation_id: str) -> list[object]:
    """Return what the other tenant may say, were it told all ids, versions and hashes."""
    shown = acme.ask(Role.OPERATOR, "GET", f"/v1/operations/{operation_id}").json
    return [
        {},
        {"decision": "again", "note": "x", "version": shown["version"]},
        {"note": "x", "payload_hash": shown["payload_hash"]},
        {"operation_id": operation_id, "note": "x"},
    ]


@pytest.mark.proves("SCALE-11")
@pytest.mark.parametrize("row", CLOSED, ids=name)
def test_on_no_route_is_anything_of_another_tenants_seen_or_changed(pair, row):
    shell, acme, bolt = pair
    grants = acme.ask(Role.OPERATOR, "GET", "/v1/sessions/secret-s/approvals").json["approvals"]
    before = rows(shell.folder, "acme")
    for operation_id in ("secret-1", "secret-2"):
        ids = {**IDS, "operation_id": operation_id, "approval_id": grants[0]["id"]}
        path = re.sub(r"{(\w+)}", lambda found: ids[found[1]], row.path)  # noqa: B023 - called here
        said = bodies(acme, operation_id) if row.body else [None]
        answers = [bolt.ask(role, row.method, path, body) for role in row.roles for body in said]
        if "{operation_id}" in row.path or "{approval_id}" in row.path:
            assert {each.status for each in answers} <= {404, 422}
            assert 404 in {each.status for each in answers}
        for each in answers:
            assert [word for word in TOLD if word in each.text.replace("'evt-secret'", "")] == []
    assert rows(shell.folder, "acme") == before


@pytest.mark.proves("SCALE-11")
def test_what_two_tenants_call_the_same_is_two_things(pair, provider):
    shell, acme, bolt = pair
    assert 'tool="refund"' in acme.serving.ask("GET", "/metrics").text
    before = rows(shell.folder, "acme")  # what was counted up by the reading is in it
    assert 'tool="refund"' not in bolt.serving.ask("GET", "/metrics").text
    assert bolt.ask(Role.OPERATOR, "GET", "/v1/operations").json["operations"] == []
    own = bolt.call("refund", "secret-1").json
    assert (own["state"], own["already_done"]) == ("succeeded", False)
    assert len(provider.effects()) == 1
    event = {"id": "evt-1", "type": "refund.updated", "operation": "secret-2", "status": "x"}
    body = json.dumps(event).encode()
    headers = dict(standard(SECRET, body, int(time.time()), "evt-1"))
    told = bolt.serving.ask("POST", "/webhooks/payments", content=body, headers=headers)
    assert told.status == 200, told.text
    listed = bolt.ask(Role.OPERATOR, "GET", "/v1/events").json["events"]
    assert [(each["event_id"], each["matched"]) for each in listed] == [("evt-1", False)]
    theirs = acme.ask(Role.OPERATOR, "GET", "/v1/events").json["events"]
    assert [each["event_id"] for each in theirs] == ["evt-secret"]
    assert rows(shell.folder, "acme") == before
    mine = acme.ask(Role.OPERATOR, "GET", "/v1/operations/secret-1").json
    assert mine["ref"] != own["ref"]


@pytest.mark.proves("SCALE-11")
def test_a_token_opens_the_services_of_its_tenant_alone(pair):
    shell, acme, bolt = pair
    for ours, theirs in ((acme, bolt), (bolt, acme)):
        for role in ours.tokens:
            for row in CLOSED:
                if role in row.roles and row.method == "GET" and "{" not in row.path:
                    refused = theirs.serving.ask(row.method, row.path, token=ours.tokens[role])
                    assert (refused.status, refused.code) == (401, "unauthorised")
    made = shell.here("token", "create", "--role", "operator", "--name", "ann", "--tenant", "bolt")
    secret = made.out.strip()
    assert bolt.serving.ask("GET", "/v1/operations", token=secret).status == 200
    assert acme.serving.ask("GET", "/v1/operations", token=secret).status == 401
    (token,) = [
        each
        for each in shell.here("token", "list", "--json", DOUBTLESS_TENANT="bolt").json
        if each["name"] == "ann"
    ]
    assert token["id"] not in shell.here("token", "list", "--json", "--tenant", "acme").out
    assert shell.here("token", "revoke", token["id"], "--tenant", "acme").code == 2
    assert bolt.serving.ask("GET", "/v1/operations", token=secret).status == 200
    assert shell.here("token", "revoke", token["id"], "--tenant", "bolt").code == 0
    assert bolt.serving.ask("GET", "/v1/operations", token=secret).status == 401


COMMANDS = {
    "list": (0, "operations", "list", "--json"),
    "show": (2, "operations", "show", "secret-2"),
    "stop": (2, "operations", "stop", "secret-2", "--note", "x"),
    "exhibit": (2, "operations", "exhibit", "secret-1", "reply"),
    "session": (0, "sessions", "show", "secret-s", "--principal", "acme-agent", "--json"),
    "resolve": (2, "resolve", "secret-2", "not-done", "--note", "x"),
    "approve": (2, "approve", "secret-2", "--note", "x"),
    "deny": (2, "deny", "secret-2", "--note", "x"),
    "events": (0, "events", "list", "--json"),
    "match": (2, "events", "match", "evt-secret", "secret-2", "--note", "x"),
    "retention": (0, "retention", "run", "--retention", "1d"),
    "standing": (0, "retention", "show"),
}


@pytest.mark.proves("SCALE-11")
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_no_command_reaches_another_tenant(pair, words):
    (shell, *_), (code, *words) = pair, words
    before = rows(shell.folder, "acme")
    found = shell.here(*words, "--tenant", "crab")
    assert found.code == code, found
    assert [word for word in ("ch_secret", "secret-1", "secret-2") if word in found.out] == []
    assert rows(shell.folder, "acme") == before


@pytest.mark.proves("SCALE-11")
def test_commands_of_the_tenant_see_what_is_theirs(pair):
    shell, _, _ = pair
    listed = shell.here("operations", "list", "--json", "--tenant", "acme").json
    assert {each["operation_id"] for each in listed} == {"secret-1", "secret-2"}
    shown = shell.here("operations", "show", "secret-2", "--tenant", "acme").out
    assert "--tenant acme" in shown
    assert "evt-secret" in shell.here("events", "list", "--tenant", "acme").out
    (shell.folder / "doubtless.toml").write_text('tenant = "acme"\n')
    assert "secret-2" in shell.here("operations", "list").out
    assert "secret-2" not in shell.here("operations", "list", DOUBTLESS_TENANT="crab").out
    (shell.folder / "doubtless.toml").unlink()
