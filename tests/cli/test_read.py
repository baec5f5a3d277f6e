"""Finding and reading operations: what a person sees, and what a program gets."""

import re
import shlex

import pytest
from tests.cli.conftest import LONG_ID
from tests.cli.shell import Shell, too_wide

from doubtless.cli_text import WHY
from doubtless.core.model import Cause

ALL = {"refund-1", "refund-2", "bid-1", LONG_ID}


def listed(shell: Shell, *words: str) -> set[str]:
    found = shell.here("operations", "list", "--json", *words)
    assert (found.code, found.err) == (0, "")
    return {outcome["operation_id"] for outcome in found.json}


@pytest.mark.proves("CLI-6")
@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], ALL),
        (["--state", "unresolved"], {"bid-1", LONG_ID}),
        (["--state", "succeeded", "--state", "failed"], {"refund-1", "refund-2"}),
        (["--tool", "refund", "--session", "s1"], {"refund-1", "refund-2"}),
        (["--older-than", "1h"], set()),
        (["--session", "s2"], set()),
    ],
)
def test_operations_are_found_by_state_tool_session_and_age(history, words, ids):
    assert listed(history, *words) == ids


@pytest.mark.proves("CLI-6", "CLI-11")
@pytest.mark.parametrize("columns", ["100", "80"])
def test_the_list_fits_the_screen_and_names_who_acts(history, columns):
    found = history.here("operations", "list", COLUMNS=columns)
    assert found.code == 0
    assert [line for line in found.out.splitlines() if len(line.rstrip()) > int(columns)] == []
    row = next(line for line in found.out.splitlines() if line.startswith("bid-1 "))
    assert "place_bid" in row
    assert "manual_review" in row
    assert "operator" in row
    assert "2 for an operator to decide: doubtless operations show ID" in found.out


@pytest.mark.proves("CLI-5", "CLI-11")
@pytest.mark.parametrize("columns", ["100", "80"])
def test_an_operation_is_explained_with_its_evidence_and_what_each_step_came_from(history, columns):
    found = history.here("operations", "show", "refund-1", COLUMNS=columns)
    assert (found.code, found.err) == (0, "")
    assert [line for line in found.out.splitlines() if len(line) > int(columns)] == []
    told = " ".join(found.out.split())
    assert "SUCCEEDED" in told
    assert "attempt 1 ended at stage sent: connection reset after request write" in told
    assert "executing → unknown: the connection broke before an answer" in told
    assert "from: effect money, stage sent, verdict unknown, attempts 1" in told
    assert "evidence 2, lookup: the effect exists – found (re_000001)" in told
    assert "reconciling → succeeded: the effect is proven" in told
    assert "decide now" not in told


@pytest.mark.proves("CLI-5")
def test_a_review_offers_what_would_be_taken_and_says_why_not_of_the_rest(history):
    found = history.run("operations", "show", "bid-1")
    assert found.code == 0
    told = " ".join(found.out.split())
    assert "nothing is left to ask, and a second send could act twice (nothing_left)" in told
    assert "night-shift (operator) decided unsure: nobody" in told
    assert "doubtless resolve bid-1 done --version 5 --note 'what you saw, and where'" in told
    assert "look-again not possible: its contract declares no look-up" in told
    data = history.here("operations", "show", "bid-1", "--json").json
    possible = {each["decision"]: each["possible"] for each in data["decisions"]}
    assert possible["done"]
    assert not possible["look_again"]
    assert data["outcome"]["state"] == "manual_review"
    assert [entry["kind"] for entry in data["timeline"]][:3] == [
        "prepared",
        "transition",
        "attempt",
    ]


@pytest.mark.proves("CLI-11")
def test_what_others_wrote_can_t_steer_the_terminal_and_there_is_no_colour_in_a_pipe(history):
    for words in (["operations", "show", "bid-1"], ["sessions", "show", "s1"]):
        found = history.run(*words)
        assert found.code == 0
        assert "\x1b" not in found.out
        assert too_wide(found.out) == []
        assert re.search(r"\\(\\)?(x1b|u001b)", found.out)


@pytest.mark.proves("CLI-14")
def test_a_session_is_shown_with_what_is_open_first(history):
    found = history.here("sessions", "show", "s1")
    assert found.code == 0
    assert found.out.index("Not settled") < found.out.index("bid-1") < found.out.index("Finished")
    assert "2 operations are not settled" in " ".join(found.out.split())
    data = history.here("sessions", "show", "s1", "--json").json
    assert {each["operation_id"] for each in data["unresolved"]} == {"bid-1", LONG_ID}
    other = history.here("sessions", "show", "s1", "--principal", "somebody-else")
    assert "Nothing is open. 0 finished operations" in other.out


@pytest.mark.proves("CLI-4")
def test_reading_asks_nobody_and_changes_nothing(history, running_provider):
    before = running_provider.connections()
    first = history.here("operations", "show", "bid-1", "--json").json
    history.here("operations", "list")
    assert history.here("operations", "show", "bid-1", "--json").json == first
    assert running_provider.connections() == before
    missing = history.here("operations", "show", "r9")
    assert (missing.code, missing.err) == (2, "doubtless: no operation 'r9' in this ledger\n")


def test_every_cause_has_words():
    assert WHY.keys() == set(Cause)


@pytest.mark.proves("CLI-5", "CLI-7")
def test_the_commands_that_are_offered_work_as_they_are_printed(shell, provider):
    provider.configure([{"then": {"action": "commit_then_rst"}}])
    assert shell.call("place_bid", "--operation-id", "b1", lot="a", amount=1).code == 3
    address = f"sqlite:///{shell.folder}/doubtless.db"
    shown = shell.here("operations", "show", "b1", "--ledger", address)
    offered = shown.out.replace("\\\n", " ")
    lines = [line.strip() for line in offered.splitlines() if "doubtless resolve b1 done" in line]
    words = shlex.split(
        lines[0].replace("--provider-operation-id ID", "--provider-operation-id b_1")
    )
    done = shell.run(*words[1:], "--operator", "day-shift")
    assert (done.code, done.err) == (0, "")
    assert done.out == "b1: succeeded. place_bid took effect, as operation b1.\n"
    stale = shell.here(*words[1:])
    assert stale.code == 5
    assert "decided on version 4, but it is 5 now: look again" in stale.err
    refused = shell.here("resolve", "b1", "look-again", "--note", "x")
    assert refused.code == 5
    told = shell.here("operations", "show", "b1", "--json").json["outcome"]
    assert told["provider_operation_id"] == "b_1"


@pytest.mark.proves("CLI-7")
def test_a_decision_that_sends_is_carried_out_by_the_command(shell, provider):
    lost = {"match": {"method": "POST", "nth": 1}, "then": {"action": "drop_before_commit"}}
    provider.configure([lost])
    assert shell.call("place_bid", "--operation-id", "b1", lot="a", amount=1).code == 3
    words = ("resolve", "b1", "again", "--note", "the auctioneer has no bid of ours", "--json")
    sent = shell.run(*words)
    assert (sent.code, sent.json["status"]) == (0, "succeeded"), sent
    assert sent.json["operation_id"] != "b1"
    old = shell.here("operations", "show", "b1", "--json").json["outcome"]
    assert (old["state"], old["superseded_by"]) == ("failed", sent.json["operation_id"])
    assert len(provider.effects()) == 1
