import asyncio

import httpx2
import pytest
from tests.transports import http_peer as peers
from tests.transports.http_peer import ANSWER, BIG, answering, serving, status_answer
from tests.transports.http_sends import GateLog, until

from doubtless.core.contract import SourceRules
from doubtless.core.model import Stage
from doubtless.errors import GateClosed
from doubtless.transports.base import Watch, open_gate
from doubtless.transports.http_client import GuardedClient, RequestHalted

HEADERS = {"Idempotency-Key": "k-1", "X-Correlation-ID": "corr-1"}


def client(gate=open_gate, **options):
    options.setdefault("watch", Watch())
    return GuardedClient(gate=gate, headers=HEADERS, **options)


async def test_it_is_an_httpx2_client_that_attaches_the_key_and_moves_the_watch():
    watch, gate = Watch(), GateLog()
    async with serving(answering(ANSWER)) as peer, client(gate, watch=watch) as http:
        response = await http.post(
            peer.url + "/v1", json={"a": 1}, headers={"idempotency-key": "another"}
        )
    assert (response.status_code, response.text) == (200, "ok")
    assert (watch.stage, gate.calls) == (Stage.READ, 1)
    assert watch.sent_bytes == peer.truth.received
    head = peer.truth.heads[0].lower()
    assert (head.count(b"idempotency-key:"), b"idempotency-key: k-1\r\n" in head) == (1, True)
    (sent,) = http.sends
    assert (sent.method, sent.host, sent.stage) == ("POST", "localhost", Stage.READ)
    assert (sent.not_sent, sent.sent_bytes) == (False, watch.sent_bytes)
    assert not http.proves_not_sent()


async def test_a_streamed_answer_is_read_piece_by_piece():
    async with serving(answering(ANSWER)) as peer, client() as http:
        async with http.stream("GET", peer.url) as response:
            stages = [http.sends[0].stage]
            assert b"".join([part async for part in response.aiter_bytes()]) == b"ok"
        stages.append(http.sends[0].stage)
    assert stages == [Stage.ANSWERED, Stage.READ]


async def test_each_request_has_a_connection_and_a_gate_of_its_own():
    gate = GateLog()
    async with serving(answering(ANSWER)) as peer, client(gate) as http:
        for _ in range(3):
            await http.get(peer.url)
    assert (gate.calls, peer.truth.connections, len(http.sends)) == (3, 3, 3)


async def test_a_closed_gate_halts_the_request_with_an_error_of_httpx2():
    async def gate():
        raise GateClosed("overtaken")

    async with serving(answering(ANSWER)) as peer, client(gate) as http:
        with pytest.raises(httpx2.TransportError, match="overtaken") as caught:
            await http.post(peer.url)
    assert isinstance(caught.value, RequestHalted)
    assert caught.value.request.method == "POST"
    assert (peer.truth.received, http.sends[0].stage) == (0, Stage.GATE)
    assert http.proves_not_sent()


async def test_no_byte_leaves_once_the_time_for_the_first_one_is_past():
    async with (
        serving(answering(ANSWER)) as peer,
        client(GateLog(1.0), boot_clock=lambda: 2.0) as http,
    ):
        with pytest.raises(RequestHalted):
            await http.post(peer.url)
    assert (peer.truth.received, http.proves_not_sent()) == (0, True)


async def test_a_refused_connection_is_proof_and_httpx2s_own_error():
    async with peers.refusing_port() as port, client() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.post(f"http://127.0.0.1:{port}")
    assert (http.proves_not_sent(), http.sends[0].stage) == (True, Stage.CONNECTING)


async def test_a_connection_that_is_not_made_in_time_is_proof_and_httpx2s_own_error():
    async with peers.deaf_port() as port, client(limit_s=0.1) as http:
        with pytest.raises(httpx2.ConnectTimeout):
            await http.post(f"http://127.0.0.1:{port}")
    assert http.proves_not_sent()


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (peers.commit_rst, httpx2.ReadError),
        (peers.commit_fin, httpx2.RemoteProtocolError),
        (peers.commit_delay, httpx2.ReadTimeout),
        (peers.act_on_hdr_rst, httpx2.TransportError),
        (peers.trunc, httpx2.RemoteProtocolError),
    ],
)
async def test_after_the_first_byte_an_error_proves_nothing(behaviour, error):
    body = BIG if behaviour is peers.act_on_hdr_rst else b"x"
    async with serving(behaviour) as peer, client(limit_s=0.2) as http:
        with pytest.raises(error):
            await http.post(peer.url, content=body)
    assert (http.sends[0].not_sent, http.proves_not_sent()) == (False, False)
    assert peer.truth.commits == len(peer.truth.heads) == 1


async def test_one_proof_among_several_requests_proves_nothing_of_them_all():
    async with (
        peers.refusing_port() as port,
        serving(peers.commit_rst) as peer,
        client() as http,
    ):
        for url in (f"http://127.0.0.1:{port}", peer.url):
            with pytest.raises(httpx2.TransportError):
                await http.post(url)
    assert [sent.not_sent for sent in http.sends] == [True, False]
    assert not http.proves_not_sent()


async def test_without_any_request_nothing_is_proven():
    async with client() as http:
        assert not http.proves_not_sent()


@pytest.mark.parametrize("options", [{"follow_redirects": True}, {}])
async def test_a_redirect_never_becomes_a_second_request(options):
    answer = status_answer(307, b"Location: /elsewhere\r\n")
    async with serving(answering(answer)) as peer, client() as http:
        if options:
            with pytest.raises(RequestHalted, match="sent once"):
                await http.post(peer.url, **options)
        else:
            assert (await http.post(peer.url)).status_code == 307
    assert len(peer.truth.heads) == 1
    assert not http.proves_not_sent()


async def test_a_challenge_never_becomes_a_second_request():
    answer = status_answer(401, b'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"\r\n')
    async with serving(answering(answer)) as peer, client() as http:
        with pytest.raises(RequestHalted):
            await http.post(peer.url, auth=httpx2.DigestAuth("user", "password"))
    assert len(peer.truth.heads) == 1


async def test_the_same_request_is_not_sent_twice():
    async with serving(answering(ANSWER)) as peer, client() as http:
        request = http.build_request("POST", peer.url)
        await http.send(request)
        with pytest.raises(RequestHalted):
            await http.send(request)
    assert len(peer.truth.heads) == 1


async def test_requests_stay_within_the_sources_origin_where_it_has_one():
    async with serving(answering(ANSWER)) as peer, serving(answering(ANSWER)) as elsewhere:
        source = SourceRules(name="peer", base_url=peer.url)
        async with client(source=source) as http:
            assert (await http.get("/v1")).status_code == 200
            with pytest.raises(RequestHalted, match="origin of the source peer"):
                await http.get(elsewhere.url)
    assert elsewhere.truth.connections == 0


async def test_unreadable_authorities_halt_the_request():
    async with serving(answering(ANSWER)) as peer:
        source = SourceRules(name="peer", base_url=peer.url, tls_ca="missing.pem")
        async with client(source=source) as http:
            with pytest.raises(RequestHalted, match=r"tls\.ca"):
                await http.get("/v1")


async def test_cancelled_while_connecting_the_log_says_that_nothing_was_sent():
    async with peers.deaf_port() as port, client() as http:
        task = asyncio.create_task(http.post(f"http://127.0.0.1:{port}"))
        await until(lambda: http.sends and http.sends[0].stage is Stage.CONNECTING)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert http.proves_not_sent()


async def test_cancelled_while_waiting_for_the_answer_the_log_proves_nothing():
    async with serving(peers.commit_delay) as peer, client() as http:
        task = asyncio.create_task(http.post(peer.url))
        await until(lambda: peer.truth.commits == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (http.proves_not_sent(), http.sends[0].stage) == (False, Stage.SENT)


async def test_a_body_that_fails_while_it_is_sent_proves_nothing():
    async def body():
        yield b"half"
        raise ValueError("no more")

    async with serving(answering(ANSWER)) as peer, client() as http:
        with pytest.raises(ValueError, match="no more"):
            await http.post(peer.url, content=body())
    assert (http.sends[0].not_sent, http.sends[0].stage) == (False, Stage.SENT)
