import asyncio
import base64
from itertools import pairwise

import anyio
import httpcore2
import pytest
from httpcore2._trace import Trace
from tests.transports import http_peer as peers
from tests.transports.http_peer import ANSWER, answering, serving
from tests.transports.http_sends import CANARY, PRIVATE, GateLog, send, source_of, until

from doubtless.core.model import Cause, Seen, Stage
from doubtless.errors import GateClosed, LedgerUnavailable, SettingsError
from doubtless.transports.base import HttpRequest, Watch
from doubtless.transports.http import HttpTransport
from doubtless.transports.http_exchange import STAGES, Exchange, Halted


@pytest.mark.parametrize(
    ("refusal", "detail"),
    [
        (GateClosed("the fence is somebody else's"), "the fence is somebody else's"),
        (LedgerUnavailable("the disk is full"), "the disk is full"),
        (ValueError(CANARY), "ValueError"),
    ],
)
async def test_a_gate_that_does_not_open_lets_no_byte_out(refusal, detail):
    async def gate():
        raise refusal

    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, gate=gate)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.GATE)
    assert reply.detail == f"the gate did not open: {detail}"
    assert (peer.truth.connections, peer.truth.received) == (1, 0)


@pytest.mark.parametrize("write_by_s", [99.9, float("-inf"), float("nan")])
async def test_no_byte_leaves_once_the_time_for_the_first_one_is_past(write_by_s):
    transport = HttpTransport(boot_clock=lambda: 100.0)
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, transport=transport, gate=GateLog(write_by_s))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.GATE)
    assert reply.detail == "the time for the first byte had passed before it was written"
    assert (peer.truth.connections, peer.truth.received) == (1, 0)


async def test_the_clock_is_read_before_and_after_the_first_byte_alone():
    read = []
    gate = GateLog(100.0)

    def clock():
        read.append(gate.calls)
        return 100.0 if len(read) == 1 else 1_000.0

    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, transport=HttpTransport(boot_clock=clock), gate=gate)
    assert (reply.status, read) == (200, [1, 1])
    assert peer.truth.bodies == [b"amount=500"]


async def test_credentials_are_got_after_the_gate_and_replace_rendered_headers():
    order = []

    class Gate(GateLog):
        async def __call__(self):
            order.append("gate")
            return await super().__call__()

    def private():
        order.append("credential")
        return PRIVATE

    headers = (("X-Correlation-Id", "stale"), ("Idempotency-Key", "k-1"))
    async with serving(answering(ANSWER)) as peer:
        await send(peer, gate=Gate(), private=private, headers=headers)
    assert order == ["gate", "credential"]
    lines = peer.truth.heads[0].split(b"\r\n")
    assert lines.count(b"Authorization: Bearer " + CANARY.encode()) == 1
    assert [line for line in lines if line.lower().startswith(b"x-corr")] == [
        b"X-Correlation-ID: corr-1"
    ]
    assert b"Idempotency-Key: k-1" in lines


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (SettingsError("set REFUNDS_TOKEN"), "a credential is missing: set REFUNDS_TOKEN"),
        (KeyError(CANARY), "a credential is missing: KeyError"),
    ],
)
async def test_a_missing_credential_is_proof_that_nothing_was_sent(error, detail):
    def private():
        raise error

    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, private=private)
    assert (reply.proof, reply.detail) == (Seen.NOT_SENT, detail)
    assert peer.truth.received == 0


@pytest.mark.parametrize(
    "private",
    [
        {"Authorization": f"Bearer {CANARY}\r\nX-Evil: 1"},
        {"Authorization": f"Bearer {CANARY}é"},
        {"Authorization": ""},
        {"Content-Length": CANARY},
        {"Transfer-Encoding": CANARY},
        {"Bad Name": CANARY},
    ],
)
async def test_a_credential_that_is_no_header_is_not_sent_and_not_quoted(private, caplog):
    caplog.set_level("DEBUG")
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, private=private)
    assert reply.proof is Seen.NOT_SENT
    assert CANARY not in caplog.text


async def test_headers_that_carry_authority_are_dropped_from_what_was_rendered():
    names = (
        *("Authorization", "proxy-authorization", "Cookie", "HOST", "X-Forwarded-For", "Via"),
        *("X-Forwarded-Host", "Forwarded", "Connection", "TE", "Transfer-Encoding", "X-Api-Key"),
        *("Content-Length", "Expect", "Upgrade", "Accept-Encoding", "Keep-Alive"),
    )
    headers = (*((name, "evil") for name in names), ("X-Kept", "yes"))
    async with serving(answering(ANSWER)) as peer:
        source = source_of(peer, auth_scheme="header", auth_header="X-API-Key")
        reply = await send(peer, source=source, headers=headers, private={})
    head = peer.truth.heads[0]
    assert reply.status == 200
    assert b"evil" not in head
    assert b"X-Kept: yes\r\n" in head
    assert b"Host: localhost:%d\r\n" % peer.port in head


@pytest.mark.parametrize(
    "request_",
    [
        {"headers": (("X-A", "a\r\nX-B: b"),)},
        {"headers": (("X-A", "a\x00"),)},
        {"headers": (("X A", "a"),)},
        {"headers": (("X-A", "\u20ac"),)},
        {"method": "GET / HTTP/1.1\r\nX:"},
        {"method": "CONNECT"},
        {"method": "TRACE"},
    ],
)
async def test_a_request_that_breaks_the_rules_of_http_is_not_sent(request_):
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **request_)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.OPENED)
    assert peer.truth.connections == 0


async def test_credentials_that_the_other_side_sends_back_are_blotted_out():
    basic = base64.b64encode(f"user:{CANARY}".encode()).decode()

    async def echo(wire):
        head = (await wire.request()).removesuffix(b"\r\n\r\n") + CANARY.encode()
        await wire.send(
            b"HTTP/1.1 400 X\r\nX-Echo: %b\r\nSet-Cookie: id=%b\r\nContent-Length: %d\r\n\r\n%b"
            % (CANARY.encode(), CANARY.encode(), len(head), head)
        )

    async with serving(echo) as peer:
        private = {"Authorization": f"Basic {basic}", "X-Correlation-ID": "corr-1"}
        reply = await send(peer, private=private)
    assert basic.encode() not in reply.body
    assert reply.headers["x-echo"] == "[redacted]"
    assert "set-cookie" not in reply.headers
    assert b"X-Correlation-ID: corr-1" in reply.body


async def cancelled(peer, reached, *, gate=None, by_scope=False):
    """Cancel a send when `reached` is true of its watch; return the watch."""
    watch = Watch()
    request = HttpRequest(method="POST", url=peer.url, body=b"x")
    sending = HttpTransport().perform(
        request,
        source=source_of(peer),
        private=PRIVATE,
        gate=gate or GateLog(),
        watch=watch,
        limit_s=10,
    )
    if by_scope:
        async with anyio.create_task_group() as group:

            async def run():
                await sending

            group.start_soon(run)
            await until(lambda: reached(watch))
            group.cancel_scope.cancel()
        return watch
    task = asyncio.create_task(sending)
    await until(lambda: reached(watch))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return watch


async def hang_in_the_gate():
    await asyncio.Event().wait()
    return 0.0


@pytest.mark.parametrize("by_scope", [True, False])
async def test_cancelled_in_the_gate_nothing_was_sent(by_scope):
    async with serving(answering(ANSWER)) as peer:
        watch = await cancelled(
            peer, lambda seen: seen.stage is Stage.GATE, gate=hang_in_the_gate, by_scope=by_scope
        )
    assert (watch.stage, watch.sent_bytes, peer.truth.received) == (Stage.GATE, 0, 0)


@pytest.mark.parametrize("by_scope", [True, False])
async def test_cancelled_while_connecting_nothing_was_sent(by_scope):
    async with peers.deaf_port() as port:
        peer = peers.Peer(port, "http", peers.Truth())
        watch = await cancelled(
            peer, lambda seen: seen.stage is Stage.CONNECTING, by_scope=by_scope
        )
    assert (watch.stage, watch.sent_bytes) == (Stage.CONNECTING, 0)


@pytest.mark.parametrize("by_scope", [True, False])
async def test_cancelled_while_waiting_for_the_answer_the_watch_says_that_bytes_left(by_scope):
    async with serving(peers.commit_delay) as peer:
        watch = await cancelled(peer, lambda _: peer.truth.commits == 1, by_scope=by_scope)
    assert watch.stage is Stage.SENT
    assert watch.sent_bytes >= peer.truth.received > 0


async def test_a_cancellation_that_comes_with_the_gates_answer_stops_the_first_byte():
    async def gate():
        task.cancel()
        return float("inf")

    watch = Watch()
    async with serving(answering(ANSWER)) as peer:
        request = HttpRequest(method="POST", url=peer.url)
        task = asyncio.create_task(
            HttpTransport().perform(
                request,
                source=source_of(peer),
                private={},
                gate=gate,
                watch=watch,
                limit_s=10,
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (watch.stage, watch.sent_bytes, peer.truth.received) == (Stage.GATE, 0, 0)


async def test_time_that_runs_out_in_the_gate_is_proof_that_nothing_was_sent():
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, gate=hang_in_the_gate, limit_s=0.1)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.GATE)
    assert reply.detail.startswith("deadline exceeded while asking the gate")


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
async def test_without_any_time_nothing_is_begun(limit_s):
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, limit_s=limit_s)
    assert (reply.proof, reply.stage, peer.truth.connections) == (Seen.NOT_SENT, Stage.OPENED, 0)


async def test_the_watch_passes_every_stage_in_order_while_the_request_runs():
    stages = []

    class Recorder(Watch):
        def __setattr__(self, name, value):
            if name == "stage":
                stages.append(value)
            super().__setattr__(name, value)

    async with serving(answering(ANSWER)) as peer:
        await HttpTransport().perform(
            HttpRequest(method="GET", url=peer.url),
            source=source_of(peer),
            private={},
            gate=GateLog(),
            watch=Recorder(),
            limit_s=10,
        )
    assert list(dict.fromkeys(stages)) == list(STAGES)
    assert all(STAGES.index(one) <= STAGES.index(two) for one, two in pairwise(stages))


def test_no_event_at_all_proves_nothing():
    exchange = Exchange(gate=GateLog(), watch=Watch(), private={}, boot_clock=lambda: 0.0)
    for failure in (None, httpcore2.ConnectError(), httpcore2.PoolTimeout(), OSError()):
        assert not exchange.never_left(failure)


def announced(method):
    return {"request": httpcore2.Request(method, "http://api.example/")}


async def test_once_a_byte_was_counted_nothing_proves_that_none_left():
    exchange = Exchange(gate=GateLog(), watch=Watch(), private={}, boot_clock=lambda: 0.0)
    await exchange.trace("http11.send_request_headers.started", announced("POST"))
    exchange.count(b"P")
    with pytest.raises(Halted, match="a second time") as caught:
        await exchange.trace("http11.send_request_headers.started", announced("POST"))
    await exchange.trace("connection.connect_tcp.failed", {})
    for failure in (None, caught.value, httpcore2.ConnectError()):
        assert not exchange.never_left(failure)


async def test_in_a_tunnels_name_nothing_but_connect_is_written():
    exchange = Exchange(gate=GateLog(), watch=Watch(), private={}, boot_clock=lambda: 0.0)
    with pytest.raises(Halted, match="without asking"):
        exchange.count(b"CONNECT api.example:443 HTTP/1.1")
    await exchange.trace("http11.send_request_headers.started", announced("CONNECT"))
    exchange.count(b"CONNECT api.example:443 HTTP/1.1")
    with pytest.raises(Halted, match="without asking"):
        exchange.count(b"POST / HTTP/1.1")
    assert (exchange.sent_bytes, exchange.stage) == (0, Stage.OPENED)


async def test_the_self_test_accepts_the_installed_library():
    await HttpTransport().self_test()


def silence(monkeypatch, *, events):
    """Make the library forget to announce the steps that contain one of `events`."""
    original = Trace.atrace

    async def atrace(self, name, info):
        if not any(event in name for event in events):
            await original(self, name, info)

    monkeypatch.setattr(Trace, "atrace", atrace)


@pytest.mark.parametrize(
    "event",
    ["send_request_headers.started", "receive_response_headers", "connect_tcp", "start_tls"],
)
async def test_the_self_test_refuses_a_library_with_other_events(event, monkeypatch):
    silence(monkeypatch, events=[event])
    with pytest.raises(SettingsError, match=r"install httpcore2==2\.16"):
        await HttpTransport().self_test()


async def test_a_library_that_does_not_ask_before_it_writes_sends_nothing(monkeypatch):
    silence(monkeypatch, events=["started"])
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer)
    assert (reply.proof, peer.truth.received) == (Seen.NOT_SENT, 0)
    assert reply.cause is Cause.NOT_SENT
