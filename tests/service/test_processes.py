"""The service as processes: killed in the middle, several at once, and stopped in order."""

import http.client
import json
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from tests.cli.shell import Shell
from tests.service.serving import Answer, Serving, Stage, make_tokens, staged, until

from doubtless.testing.demo_stage import contracts as demo_contracts

LOSE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]
LATE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_delay", "delay_s": 0.8}}]
SILENT = [{"match": {"method": "POST"}, "then": {"action": "commit_then_delay", "delay_s": 30}}]


@pytest.fixture
def patient(running_provider) -> str:
    """Contracts whose attempts take long before they are given up."""
    return demo_contracts(running_provider.url, timeout_ms=20_000)


class InBackground:
    """A request in a thread, which may be cut off."""

    def __init__(self, stage: Stage, *said: Any, **more: Any) -> None:
        self.answer: Answer | None = None
        self.error: Exception | None = None

        def run() -> None:
            try:
                self.answer = stage.call(*said, **more)
            except (OSError, http.client.HTTPException) as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def ended(self) -> Answer | None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answer


def state(stage: Stage, operation_id: str, serving: Serving | None = None) -> str:
    path = f"/v1/operations/{operation_id}"
    asked = serving or stage.serving
    return str(asked.ask("GET", path, token=stage.tokens["agent"]).json["state"])


def has_succeeded(stage: Stage, operation_id: str) -> bool:
    return state(stage, operation_id) == "succeeded"


@pytest.mark.proves("SERVICE-23")
def test_a_service_killed_in_the_middle_of_a_call_settles_it_after_its_restart(
    provider, patient, tmp_path
):
    provider.configure(SILENT)
    with staged(tmp_path, patient) as stage:
        call = InBackground(stage, "refund", "killed-1", charge="ch_k", amount=5)
        provider.wait_for(lambda it: bool(it.effects()))
        stage.serving.kill()
        assert call.ended() is None
        assert isinstance(call.error, OSError | http.client.HTTPException)

        provider.configure({})
        with Serving(stage.shell) as again:
            until(lambda: state(stage, "killed-1", again) == "succeeded")
            body = {"tool": "refund", "arguments": {"charge": "ch_k", "amount": 5}}
            repeat = again.ask(
                "POST",
                "/v1/operations",
                body | {"operation_id": "killed-1"},
                token=stage.tokens["agent"],
            )
            assert repeat.json["already_done"]
    assert len(provider.effects()) == 1
    assert sum(arrival.method == "POST" for arrival in provider.arrivals()) == 1


@pytest.mark.proves("SERVICE-24")
def test_two_workers_and_a_service_without_one_double_nothing(provider, contracts, tmp_path):
    provider.configure(LOSE)
    count = 12
    with staged(tmp_path, contracts, "--no-worker") as stage:
        assert "no worker here" in stage.serving.first_line
        for number in range(count):
            answer = stage.call("refund", f"shared-{number}", charge=f"ch_{number}", amount=5)
            assert answer.json["status"] == "unknown_reconciliation_required"
        first, last = "shared-0", "shared-after"
        body = {"tool": "refund", "arguments": {"charge": "ch_after", "amount": 5}}
        waits = stage.agent(
            "POST", "/v1/operations", body | {"operation_id": last, "after": [first], "wait": "0s"}
        )
        assert waits.status == 202
        assert state(stage, first) in ("unknown", "reconciling")
        provider.configure({})
        with (
            Serving(stage.shell, command="worker") as one,
            Serving(stage.shell, command="worker") as two,
        ):
            assert "working" in one.first_line
            names = [f"shared-{number}" for number in range(count)] + [last]
            for name in names:
                until(partial(has_succeeded, stage, name), timeout_s=30)
            assert [one.stop(), two.stop()] == [0, 0]
            assert one.log_lines() == two.log_lines() == []
    assert set(provider.counts().values()) == {1}
    assert len(provider.effects()) == count + 1


@pytest.mark.proves("SERVICE-24")
@pytest.mark.long
def test_two_services_on_one_ledger_tell_the_same_and_double_nothing(provider, contracts, tmp_path):
    with staged(tmp_path, contracts) as stage, Serving(stage.shell) as second:
        other = Stage(serving=second, tokens=stage.tokens, shell=stage.shell)
        provider.configure(LATE)
        calls = [
            InBackground(each, "refund", "both-1", charge="ch_both", amount=5)
            for each in (stage, other, stage, other)
        ]
        answers = [call.ended() for call in calls]
    told = [answer.json for answer in answers if answer is not None]
    assert [each["status"] for each in told] == ["succeeded"] * 4
    assert len({each["provider_operation_id"] for each in told}) == 1
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-25")
def test_a_signal_lets_the_open_attempt_end_and_takes_nothing_new(provider, patient, tmp_path):
    provider.configure(LATE)
    with staged(tmp_path, patient) as stage:
        call = InBackground(stage, "refund", "stop-1", charge="ch_stop", amount=5)
        provider.wait_for(lambda it: bool(it.effects()))
        stage.serving.process.send_signal(signal.SIGTERM)
        until(lambda: stage.serving.ask("GET", "/readyz").status == 503)
        refused = stage.call("refund", "stop-2", charge="ch_stop_2", amount=5)
        shown = stage.agent("GET", "/v1/operations/stop-1")

        assert (refused.status, refused.code) == (503, "stopping")
        assert int(refused.headers["retry-after"]) > 0
        assert shown.json["state"] == "executing"
        answer = call.ended()
        assert answer is not None
        assert (answer.status, answer.json["status"]) == (200, "succeeded")
        assert stage.serving.process.wait(20) == 0
        assert "Traceback" not in stage.serving.log.read_text(encoding="utf-8")
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-25")
@pytest.mark.long
def test_an_attempt_that_outlasts_the_grace_is_recorded_as_unknown(provider, patient, tmp_path):
    provider.configure(SILENT)
    with staged(tmp_path, patient, "--grace", "200ms") as stage:
        call = InBackground(stage, "refund", "grace-1", charge="ch_grace", amount=5)
        provider.wait_for(lambda it: bool(it.effects()))
        assert stage.serving.stop() == 0
        answer = call.ended()
        assert answer is not None
        assert (answer.status, answer.json["status"]) == (202, "pending")

        shown = stage.shell.here("operations", "show", "grace-1", "--json").json["outcome"]
        assert shown["status"] == "unknown_reconciliation_required"
        assert shown["observation"]["cause"] == "cancelled"
        provider.configure({})
        with Serving(stage.shell) as again:
            until(lambda: state(stage, "grace-1", again) == "succeeded")
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-25")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_the_ledger_is_right(
    provider, patient, tmp_path, number
):
    provider.configure(SILENT)
    with staged(tmp_path, patient, "--grace", "60s") as stage:
        call = InBackground(stage, "refund", "twice-1", charge="ch_twice", amount=5)
        provider.wait_for(lambda it: bool(it.effects()))
        stage.serving.process.send_signal(number)
        until(lambda: stage.serving.ask("GET", "/readyz").status == 503)
        stage.serving.process.send_signal(number)
        assert stage.serving.process.wait(5) == -number
        assert call.ended() is None
        provider.configure({})
        with Serving(stage.shell) as again:
            until(lambda: state(stage, "twice-1", again) == "succeeded")
    assert len(provider.effects()) == 1


@pytest.mark.proves("SERVICE-25")
def test_clients_that_do_nothing_hold_up_no_end(provider, contracts, tmp_path):
    with staged(tmp_path, contracts) as stage, ExitStack() as stack:
        address = ("127.0.0.1", stage.serving.port)
        links = [stack.enter_context(socket.create_connection(address)) for _ in range(4)]
        _silent, half, idle, deaf = links
        half.sendall(
            f"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {stage.tokens['agent']}\r\nContent-Length: 9\r\n\r\n{{".encode()
        )
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        deaf.settimeout(1)
        with suppress(TimeoutError):
            while True:
                deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        began_s = time.monotonic()
        assert stage.serving.stop() == 0
        assert time.monotonic() - began_s < 4
    assert "Traceback" not in stage.serving.log.read_text(encoding="utf-8")


@pytest.mark.proves("SERVICE-25")
def test_a_client_that_goes_away_stops_nothing(provider, patient, tmp_path):
    provider.configure(LATE)
    with staged(tmp_path, patient) as stage:
        body = json.dumps(
            {
                "tool": "refund",
                "arguments": {"charge": "ch_gone", "amount": 5},
                "operation_id": "gone-1",
            }
        ).encode()
        head = (
            f"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {stage.tokens['agent']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", stage.serving.port)) as link:
            link.sendall(head.encode() + body)
            provider.wait_for(lambda it: bool(it.effects()))
        until(lambda: state(stage, "gone-1") == "succeeded")
        (line,) = [each for each in stage.serving.log_lines() if each.get("method") == "POST"]
        assert line["status"] == 499
    assert len(provider.effects()) == 1


# --- starting ------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path, contracts) -> Shell:
    (tmp_path / "contracts.toml").write_text(contracts, encoding="utf-8")
    return Shell(tmp_path)


@pytest.mark.proves("SERVICE-26")
def test_the_first_line_says_where_it_listens_on_what_and_what_needs_people(shell):
    with Serving(shell) as serving:
        line = serving.first_line
        assert f"listening on http://127.0.0.1:{serving.port};" in line
        assert "ledger sqlite:///doubtless.db; 2 tools; not fully automatic: place_bid" in line
        assert serving.stop() == 0
        rest = serving.more_lines()
    assert "doubtless token create --role agent --name NAME" in rest


@pytest.mark.proves("SERVICE-26")
def test_a_ledger_with_tokens_is_not_told_how_to_make_one(shell):
    make_tokens(shell.ledger)
    with Serving(shell) as serving:
        assert serving.stop() == 0
        assert serving.more_lines() == ""


@pytest.mark.proves("SERVICE-26")
def test_a_service_that_cannot_start_says_why_in_a_line(shell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = shell.run("serve", "--port", str(port))
    assert told.code == 2
    assert f"can't listen on 127.0.0.1:{port}" in told.err

    (shell.folder / "contracts.toml").unlink()
    told = shell.run("serve", "--port", "0")
    assert told.code == 2
    assert "--contracts" in told.err
    assert not (shell.folder / "doubtless.db").exists()
