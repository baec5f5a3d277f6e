"""`doubtless call`: what it prints and what it exits with."""

import json
import signal
import time

import pytest

from doubtless.cli_read import open_reader
from doubtless.testing.provider_process import ProviderProcess

LOST = [{"match": {"method": "POST", "nth": 1}, "then": {"action": "commit_then_rst"}}]
REFUSED = [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]


def sends(provider: ProviderProcess) -> int:
    return sum(arrival.method == "POST" for arrival in provider.arrivals())


@pytest.mark.proves("CLI-1", "CLI-2")
def test_a_call_prints_its_outcome_and_the_same_call_again_sends_nothing(shell, provider):
    first = shell.call_apart("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    assert (first.code, first.err) == (0, "")
    assert first.json["status"] == "succeeded"
    assert not first.json["already_done"]
    again = shell.call("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    assert again.code == 0
    assert again.json["already_done"]
    assert (len(provider.effects()), sends(provider)) == (1, 1)
    other = shell.call_apart("refund", "--operation-id", "r1", charge="ch_1", amount=501)
    assert (other.code, other.json["error"]["code"]) == (5, "payload_mismatch")


@pytest.mark.proves("CLI-1", "CLI-2")
def test_an_unknown_outcome_exits_with_3_and_is_settled_by_whoever_waits(shell, provider):
    provider.configure(LOST)
    told = shell.call_apart("refund", "--operation-id", "r1", charge="ch_1", amount=500)
    assert told.code == 3
    assert told.json["status"] == "unknown_reconciliation_required"
    assert not told.json["retry_allowed"]
    words = ("--operation-id", "r1", "--wait", "20s")
    settled = shell.call_apart("refund", *words, charge="ch_1", amount=500)
    assert (settled.code, settled.json["status"]) == (0, "succeeded")
    assert (len(provider.effects()), sends(provider)) == (1, 1)


@pytest.mark.proves("CLI-1", "CLI-2")
def test_a_call_that_waits_tells_of_its_own_effect_and_a_refusal_exits_with_4(shell, provider):
    provider.configure(LOST)
    waited = shell.call("refund", "--wait", "20s", charge="ch_1", amount=500)
    assert (waited.code, waited.json["already_done"]) == (0, False)
    assert waited.json["message"].startswith("refund took effect")
    provider.configure(REFUSED)
    refused = shell.call_apart("refund", charge="ch_2", amount=500)
    assert (refused.code, refused.json["status"]) == (4, "failed")


@pytest.mark.proves("CLI-12")
def test_an_interrupted_call_ends_cleanly_and_leaves_the_operation_in_the_ledger(shell, provider):
    provider.configure(LOST)
    text = json.dumps({"lot": "a", "amount": 1})
    words = ("call", "place_bid", "--json", text, "--operation-id", "b1", "--wait", "60s")
    with shell.start(*words) as process:
        end = time.monotonic() + 20
        while not _in_review(shell):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(POLL_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    told = "doubtless: what was sent can't be called back; the ledger has it"
    assert [line for line in err.splitlines() if line] == [told, "doubtless: interrupted"]


POLL_S = 0.1


def _in_review(shell) -> bool:
    path = shell.folder / "doubtless.db"
    if not path.exists() or not path.stat().st_size:
        return False
    with open_reader(shell.ledger, tenant="main") as reader:
        return [each.operation.state for each in reader.operations()] == ["manual_review"]


@pytest.mark.proves("CLI-15")
def test_tools_in_code_are_called_through_their_application(shell):
    (shell.folder / "shop.py").write_text(
        "from doubtless import Call, Doubtless, Effect\n"
        "app = Doubtless('sqlite:///shop.db')\n"
        "@app.tool(effect=Effect.WRITE)\n"
        "async def note(call: Call, text: str) -> str:\n"
        "    return text.upper()\n"
    )
    called = shell.run("call", "note", "--app", "shop:app", "--json", "-", stdin='{"text": "a"}')
    assert (called.code, called.json["result"]) == (0, "A"), called
    assert (shell.folder / "shop.db").exists()
    clash = shell.here("call", "note", "--app", "shop:app", "--json", "{}", "--ledger", "x")
    assert clash.code == 2
    assert "--app brings its own ledger" in clash.err
