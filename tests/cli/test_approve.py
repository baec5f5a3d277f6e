"""Approving, denying and sequences from the command line."""

import json
import os
import pty
import subprocess
import sys

import pytest
from tests.cli.shell import Shell, environment, too_wide

EVIL = "nice \x1b[2J\x07 \u202etnega\u202c\nApproved. Payload hash sha256:ok"


@pytest.fixture
def guarded(shell: Shell) -> Shell:
    """Let refunds wait for approval."""
    with (shell.folder / "contracts.toml").open("a", encoding="utf-8") as file:
        file.write('\n[tools.refund.approval]\nwhen = "args.amount > `100`"\n')
    return shell


def asks(shell: Shell, name: str = "o1", **arguments: object) -> dict[str, object]:
    said = {"charge": name, "amount": 500, **arguments}
    told = shell.call("refund", "--operation-id", name, **said)
    assert told.code == 3, told
    outcome: dict[str, object] = told.json
    assert outcome["state"] == "awaiting_approval"
    return outcome


@pytest.mark.proves("APPROVAL-5", "APPROVAL-9")
def test_what_would_be_executed_is_shown_before_it_is_approved(guarded, provider):
    outcome = asks(guarded)
    told = guarded.here("approve", "o1", "--note", "seen", "--operator", "ann")
    assert (told.code, told.err, too_wide(told.out)) == (0, "", [])
    shown, said = told.out.split("o1: prepared.")
    assert "refund, effect money" in shown
    assert f"POST {provider.url}" in shown
    assert str(outcome["payload_hash"]) in shown
    assert '"amount": 500,' in shown
    assert "nobody so far, of 1" in shown
    assert "a worker carries it out" in said
    assert provider.effects() == []
    again = guarded.call("refund", "--operation-id", "o1", charge="o1", amount=500)
    assert again.code == 0
    assert len(provider.effects()) == 1
    page = guarded.here("operations", "show", "o1").out
    assert "approved by ann (operator): seen" in " ".join(page.split())


@pytest.mark.proves("APPROVAL-1")
def test_another_payload_than_the_one_shown_is_not_approved(guarded, provider):
    outcome = asks(guarded)
    for word in ("approve", "deny"):
        told = guarded.here(word, "o1", "--note", "x", "--payload-hash", "sha256:other")
        assert told.code == 5
        assert f"but {outcome['payload_hash']} would be executed: look again" in told.err
    bound = ("--payload-hash", str(outcome["payload_hash"]))
    told = guarded.here("approve", "o1", "--note", "x", *bound, "--json")
    assert (told.code, told.json["state"]) == (0, "prepared")
    assert provider.effects() == []


@pytest.mark.proves("APPROVAL-7")
def test_a_denial_is_recorded_with_its_reason(guarded, provider):
    asks(guarded)
    told = guarded.here("deny", "o1", "--note", "too much", "--operator", "ann")
    assert told.code == 0
    assert "o1: rejected." in told.out
    page = " ".join(guarded.here("operations", "show", "o1").out.split())
    assert "ann (operator) decided deny: too much" in page
    assert guarded.call("refund", "--operation-id", "o1", charge="o1", amount=500).code == 5
    assert provider.effects() == []


@pytest.mark.proves("APPROVAL-2")
def test_who_asked_can_not_approve(guarded):
    asks(guarded)
    told = guarded.here("approve", "o1", "--note", "x", "--operator", "local")
    assert told.code == 5
    assert "local asked for it: somebody else has to decide" in told.err


@pytest.mark.proves("APPROVAL-9")
def test_what_an_agent_wrote_can_do_nothing_to_who_reads_it(guarded):
    asks(guarded, charge=EVIL)
    told = guarded.here("approve", "o1", "--note", "x")
    assert told.code == 0
    assert all(letter.isascii() and (letter.isprintable() or letter == "\n") for letter in told.out)
    assert "\nApproved." not in told.out
    assert r"\u202etnega" in "".join(told.out.split())
    assert "as the agent wrote them; they tell you nothing about what to do" in told.out


@pytest.mark.proves("APPROVAL-9")
def test_the_page_of_what_waits_names_the_commands_for_it(guarded):
    outcome = asks(guarded)
    page = " ".join(guarded.here("operations", "show", "o1").out.replace("\\\n", "").split())
    assert "It waits for a person's approval" in page
    for word in ("approve", "deny"):
        assert f"doubtless {word} o1 --note 'why' --payload-hash {outcome['payload_hash']}" in page


@pytest.mark.proves("APPROVAL-9")
@pytest.mark.parametrize(("answer", "state"), [("n", "awaiting_approval"), ("y", "prepared")])
def test_a_person_at_a_terminal_is_asked_first(guarded, answer, state):
    asks(guarded)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "doubtless.cli", "approve", "o1", "--note", "x"],
        cwd=guarded.folder,
        env=environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        out, _ = process.communicate(timeout=50)
    os.close(ours)
    os.close(theirs)
    assert "It would execute:" in out
    assert process.returncode == (0 if answer == "y" else 1)
    shown = guarded.here("operations", "show", "o1", "--json").json
    assert shown["outcome"]["state"] == state


@pytest.mark.parametrize("word", ["approve", "deny"])
def test_without_a_reason_or_an_operation_nothing_is_decided(guarded, word):
    asks(guarded)
    assert guarded.here(word, "o1").code == 2
    empty = guarded.here(word, "o1", "--note", " ")
    assert (empty.code, "--note is empty" in empty.err) == (2, True)
    unknown = guarded.here(word, "o2", "--note", "x")
    assert (unknown.code, "no operation 'o2'" in unknown.err) == (2, True)


@pytest.mark.proves("SEQ-1", "SEQ-2")
def test_a_call_comes_after_others_from_the_command_line(shell, provider):
    assert shell.call("refund", "--operation-id", "a", charge="a", amount=1).code == 0
    after = ("--after", "a", "--operation-id", "b")
    assert shell.call("refund", *after, charge="b", amount=1).code == 0
    told = shell.call("refund", "--after", "none", charge="c", amount=1)
    assert (told.code, "you have no operation 'none'" in told.err) == (2, True)
    assert shell.call("refund", *after, "--on-unknown", "hope", charge="b", amount=1).code == 2
    page = " ".join(shell.here("operations", "show", "b").out.split())
    assert "comes after a" in page
    assert len(provider.effects()) == 2
    bid = shell.call("place_bid", "--operation-id", "bid", lot="x", amount=1)
    assert bid.code in (0, 3)
    assert json.loads(bid.out)["operation_id"] == "bid"
