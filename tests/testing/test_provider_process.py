import asyncio
import json
import signal
import socket
import subprocess
import sys

import pytest

from doubtless.testing.provider import ConfigError, Provider, ProviderDied, spawn_provider
from doubtless.testing.provider_wire import call

REFUND = {"charge": "ch_1", "amount": 500, "metadata": {"operation": "op_1"}}
COMMAND = [sys.executable, "-m", "doubtless.testing.provider"]


def started(*options):
    return subprocess.Popen(
        [*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_command_says_where_it_listens_and_ends_with_its_stdin(tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": [{"then": {"action": "not_found_lie"}}]}))
    with started("--port", "0", "--rules", str(rules)) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        assert call(ready["port"], "POST", "/v1/refunds", REFUND).status == 404
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_the_command_ends_by_itself_when_its_lifetime_is_over():
    with started("--lifetime-s", "0.1") as process:
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("text", ["{", '{"rule": []}', "[{}]"])
def test_the_command_refuses_rules_that_it_cannot_read(tmp_path, text):
    rules = tmp_path / "rules.json"
    rules.write_text(text)
    with started("--rules", str(rules)) as process:
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (2, b"")
    assert err


def test_a_spawned_provider_is_gone_after_its_block():
    with spawn_provider() as provider:
        port = provider.port
        assert call(port, "POST", "/v1/refunds", REFUND).status == 201
        assert provider.url == f"http://127.0.0.1:{port}"
    assert call(port, "GET", "/v1/refunds").end == "refused"
    provider.stop()


def test_the_log_keeps_the_count_when_the_process_is_killed(tmp_path):
    log = tmp_path / "effects.jsonl"
    with spawn_provider(log=log) as provider:
        for key in "ab":
            call(provider.port, "POST", "/v1/refunds", REFUND, key=key)
        provider.kill()
        with pytest.raises(ProviderDied):
            provider.effects()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["number"], line["operation"], line["key"]) for line in lines] == [
        (1, "op_1", "a"),
        (2, "op_1", "b"),
    ]


def test_a_stopped_process_is_killed_in_the_end():
    provider = spawn_provider()
    try:
        provider.signal(signal.SIGSTOP)
    finally:
        provider.stop(timeout_s=0.1)
    assert call(provider.port, "GET", "/v1/refunds").end == "refused"


def test_rules_that_cannot_be_read_leave_no_process_behind():
    with pytest.raises(ConfigError, match="comit_then_fin"):
        spawn_provider([{"then": {"action": "comit_then_fin"}}])


def test_a_port_that_is_taken_is_told_at_once(capfd):
    with spawn_provider() as provider, pytest.raises(ProviderDied):
        spawn_provider(port=provider.port)
    assert "in use" in capfd.readouterr().err


def test_a_wait_for_what_never_comes_ends():
    with spawn_provider() as provider, pytest.raises(TimeoutError):
        provider.wait_for(lambda p: bool(p.effects()), timeout_s=0.05)


async def test_a_provider_in_this_process_answers_and_counts(tmp_path):
    log = tmp_path / "effects.jsonl"
    rules = [{"match": {"nth": 2}, "then": {"action": "commit_then_fin"}}]
    async with Provider(rules, log=log) as provider:
        seen = [
            await asyncio.to_thread(call, provider.port, "POST", "/v1/refunds", REFUND)
            for _ in range(2)
        ]
        assert [one.status for one in seen] == [201, None]
        assert provider.counts() == {"op_1": 2}
        assert provider.fired() == {"commit_then_fin": 1}
        assert len(provider.arrivals()) == provider.connections() == 2
        await provider.reset()
        assert provider.effects() == []
    assert len(log.read_text().splitlines()) == 2
    assert (await asyncio.to_thread(call, provider.port, "GET", "/v1/refunds")).end == "refused"


async def test_leaving_ends_requests_that_are_under_way():
    async with Provider([{"then": {"action": "hang"}}]) as provider:
        asked = asyncio.create_task(
            asyncio.to_thread(call, provider.port, "POST", "/v1/refunds", REFUND)
        )
        await provider.wait_for(lambda p: len(p.arrivals()) == 1)
    assert (await asked).end == "rst"


async def test_waiting_in_this_process_ends_too():
    async with Provider() as provider:
        with pytest.raises(TimeoutError):
            await provider.wait_for(lambda p: bool(p.effects()), timeout_s=0.05)


async def test_pending_work_is_finished_by_hand_and_stays_pending_after_the_end():
    rules = [{"then": {"action": "accept_pending", "completes_in_s": 30}}]
    async with Provider(rules) as provider:
        for _ in range(2):
            await asyncio.to_thread(call, provider.port, "POST", "/v1/refunds", REFUND)
        first, second = provider.pending()
        provider.complete(first)
        provider.complete(second, "failed")
        assert (provider.pending(), provider.counts()) == ([], {"op_1": 1})


async def test_while_it_refuses_the_port_stays_its_own():
    async with Provider() as provider:
        await provider.close_for(None)
        assert (await asyncio.to_thread(call, provider.port, "GET", "/v1/x")).end == "refused"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", provider.port))
        provider.reopen()
        assert (await asyncio.to_thread(call, provider.port, "GET", "/v1/x")).status == 200
