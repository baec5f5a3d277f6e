"""`doubtless events`: what providers told by themselves, from the shell."""

import json

import pytest
from tests.cli.shell import Shell, too_wide

LOSES = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]
EVENTS = """
[sources.payments.webhook]
scheme = "standard"
credential = "hook"

[tools.refund.events]
types = ["refund.updated"]
match = { ref = "data.operation", operation_id = "data.name", provider_operation_id = "data.id" }
object = ["data.id", "data.version"]
applied = "data.status == 'succeeded'"
failed = "data.status == 'failed'"
"""


@pytest.fixture
def shell(provider, tmp_path) -> Shell:
    """A folder whose refunds are told of by events alone."""
    found = Shell(tmp_path)
    found.declare(provider)
    place = tmp_path / "contracts.toml"
    text = place.read_text(encoding="utf-8")
    before, _, after = text.partition("[tools.refund.lookup]")
    text = before + after[after.index("[tools.place_bid]") :]
    place.write_text(text + EVENTS, encoding="utf-8")
    provider.configure(LOSES)
    return found


def event(event_id: str = "e1", **data: object) -> str:
    told = {"status": "succeeded", **data}
    return json.dumps({"id": event_id, "type": "refund.updated", "data": told})


def add(shell: Shell, text: str, *words: str):
    return shell.here("events", "add", "payments", "--json", text, *words)


@pytest.mark.proves("CLI-16")
def test_an_event_is_added_and_settles_its_operation(shell):
    assert shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500).code == 3
    ref = shell.here("operations", "show", "r1", "--json").json["outcome"]["ref"]
    taken = add(shell, event(operation=ref)).json
    assert (taken["new"], taken["operation_id"], taken["reason"]) == (True, "r1", None)
    assert add(shell, event(operation=ref)).json["new"] is False
    again = shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    assert (again.code, again.json["state"]) == (0, "succeeded")
    shown = shell.here("operations", "show", "r1").out
    assert "webhook" in shown


@pytest.mark.proves("CLI-16")
def test_an_event_can_come_first_and_from_standard_input(shell):
    run = shell.run("events", "add", "payments", "--json", "-", stdin=event(name="r1"))
    assert (run.code, run.json["reason"]) == (0, "no_operation")
    assert shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500).code == 0


@pytest.mark.proves("CLI-17")
def test_the_list_says_what_became_of_each_event(shell):
    assert shell.here("events", "list").code == 2, "it makes no ledger"
    shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    add(shell, event("known", name="r1", id="re_1", version=1))
    add(shell, event("copy", name="r1", id="re_1", version=1))
    add(shell, event("early", name="r\x1b[31m2" + "x" * 200, id="re_2"), "--occurred-at", "17")
    listed = shell.here("events", "list")
    assert listed.code == 0
    assert "speaks of r1" in listed.out
    assert "tells the news of event 1" in listed.out
    assert "unmatched: the operation that it names is not there, or not yet" in listed.out
    assert too_wide(listed.out) == []
    assert "\x1b" not in listed.out
    only = shell.here("events", "list", "--unmatched", "--json").json
    assert [(each["event_id"], each["reason"]) for each in only] == [("early", "no_operation")]
    assert only[0]["occurred_at"] == "1970-01-01T00:00:17.000Z"
    assert shell.here("events", "list", "--source", "nobody").out == "No events.\n"
    assert (
        "the newest 1 events; --limit shows more"
        in shell.here("events", "list", "--limit", "1").out
    )


@pytest.mark.proves("CLI-18")
def test_an_operator_matches_an_event_without_contracts(shell):
    shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    number = add(shell, event("theirs", id="re_1")).json["id"]
    (shell.folder / "contracts.toml").unlink()
    words = ("events", "match", number, "r1", "--operator", "ops", "--note", "their console")
    matched = shell.here(*words)
    assert (matched.code, matched.out.split(":")[:1]) == (0, ["r1"])
    assert "r1: succeeded." in matched.out
    again = shell.here(*words)
    assert (again.code, "is matched to r1" in again.err) == (5, True)
    assert "by ops" in shell.here("events", "list").out
    assert "ops" in shell.here("operations", "show", "r1").out


@pytest.mark.proves("CLI-18")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("match", "99", "r1", "--note", "x"), "no such event"),
        (("match", "1", "nobody", "--note", "x"), "no operation 'nobody'"),
        (("match", "1", "r1", "--note", " "), "--note is empty"),
        (("match", "1", "r1"), "--note"),
        (("add", "nobody", "--json", "{}"), "Sources with events: payments"),
        (("add", "payments", "--json", "{"), "this is not JSON"),
        (("add", "payments", "--json", "[]"), "an object is wanted"),
        (("add", "payments", "--json", "{}", "--occurred-at", "noon"), "neither RFC 3339"),
        (("add", "payments", "--json", "{}", "--occurred-at", "nan"), "neither RFC 3339"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_mend(shell, words, told):
    shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    add(shell, event("theirs", id="re_1"))
    refused = shell.here("events", *words)
    assert refused.code == 2
    assert told in refused.err
