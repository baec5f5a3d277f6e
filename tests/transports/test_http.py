import gzip

import pytest
from tests.transports import http_peer as peers
from tests.transports.http_peer import BIG, answering, serving, status_answer
from tests.transports.http_sends import send, source_of

from doubtless.core.model import Cause, Seen, Stage
from doubtless.transports.base import Watch
from doubtless.transports.http_address import tls_context

SHORT_S = 0.25


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    return peers.certificate(tmp_path_factory.mktemp("tls"), "localhost")


async def test_an_answer_is_reported_whole_and_is_not_judged():
    answer = b"HTTP/1.1 402 No\r\nX-One: a\r\nx-one: b\r\nContent-Length: 4\r\n\r\nbody"
    async with serving(answering(answer)) as peer:
        reply = await send(peer)
    assert (reply.status, reply.body, reply.complete) == (402, b"body", True)
    assert reply.headers == {"x-one": "a, b", "content-length": "4"}
    assert (reply.stage, reply.proof, reply.cause, reply.detail) == (Stage.READ, None, None, "")
    assert peer.truth.bodies == [b"amount=500"]


@pytest.mark.parametrize(
    "status",
    [*(200, 201, 202, 204, 301, 302, 303, 304, 307, 308), *range(400, 432), *range(500, 512)],
)
async def test_each_status_comes_back_as_it_is_after_one_send(status):
    extra = b"Location: /elsewhere\r\nRetry-After: 0\r\n"
    async with serving(answering(status_answer(status, extra))) as peer:
        reply = await send(peer)
    assert (reply.status, reply.complete, reply.cause) == (status, True, None)
    assert (len(peer.truth.heads), peer.truth.connections) == (1, 1)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "GET"])
@pytest.mark.parametrize(
    ("behaviour", "commits"),
    [(peers.nocommit_rst, 0), (peers.commit_rst, 1), (peers.commit_fin, 1)],
)
async def test_a_connection_that_ends_before_any_answer_proves_nothing(method, behaviour, commits):
    async with serving(behaviour) as peer:
        reply = await send(peer, method=method)
    assert (reply.proof, reply.cause) == (None, Cause.CONNECTION_RESET)
    assert (reply.stage, reply.status) == (Stage.SENT, None)
    assert reply.detail.endswith("after request write, before any answer")
    assert (len(peer.truth.heads), peer.truth.commits) == (1, commits)


@pytest.mark.parametrize("behaviour", [peers.hdr_rst, peers.half_rst, peers.act_on_hdr_rst])
async def test_a_reset_in_the_middle_of_a_big_body_proves_nothing(behaviour):
    async with serving(behaviour) as peer:
        reply = await send(peer, body=BIG)
    assert (reply.proof, reply.cause) == (None, Cause.CONNECTION_RESET)
    assert len(peer.truth.heads) == 1


async def test_an_early_refusal_of_a_big_body_is_an_answer_or_nothing_known():
    async with serving(peers.early_413) as peer:
        reply = await send(peer, body=BIG)
    assert reply.status in {None, 413}
    assert reply.proof is None


@pytest.mark.parametrize(
    ("behaviour", "body"),
    [(peers.noread, b"small"), (peers.noread, BIG), (peers.commit_delay, b"small")],
)
async def test_an_answer_that_does_not_come_in_time_proves_nothing(behaviour, body):
    async with serving(behaviour) as peer:
        reply = await send(peer, body=body, limit_s=SHORT_S)
    assert (reply.proof, reply.cause, reply.stage) == (None, Cause.TIMEOUT, Stage.SENT)
    assert reply.detail == "response deadline exceeded after request write, before any answer"


@pytest.mark.parametrize(
    ("behaviour", "body", "written"),
    [(peers.noread, BIG, False), (peers.commit_delay, BIG, True), (peers.commit_fin, b"", True)],
)
async def test_the_watch_says_whether_the_whole_request_was_handed_over(behaviour, body, written):
    watch = Watch()
    async with serving(behaviour) as peer:
        await send(peer, body=body, limit_s=SHORT_S, watch=watch)
    assert watch.written is written


async def test_a_request_to_the_proxy_alone_was_not_handed_over(certified):
    ca, context = certified
    watch = Watch()
    async with (
        serving(answering(peers.ANSWER), tls=context) as peer,
        serving(peers.proxy_refusing(502)) as proxy,
    ):
        source = source_of(peer, tls_ca=str(ca), proxy=f"http://127.0.0.1:{proxy.port}")
        await send(peer, source=source, watch=watch)
    assert watch.written is False


@pytest.mark.parametrize(
    ("behaviour", "causes"),
    [
        (peers.half_resp_rst, {Cause.CONNECTION_RESET}),
        (peers.body_rst, {Cause.CONNECTION_RESET}),
        (peers.trunc, {Cause.TRUNCATED}),
        (peers.chunk_trunc, {Cause.TRUNCATED}),
        (peers.body_hang, {Cause.TIMEOUT}),
    ],
)
async def test_an_answer_that_breaks_off_is_never_complete(behaviour, causes):
    async with serving(behaviour) as peer:
        reply = await send(peer, limit_s=SHORT_S)
    assert (reply.proof, reply.complete, peer.truth.commits) == (None, False, 1)
    assert reply.cause in causes
    assert reply.status in {None, 200}


@pytest.mark.parametrize("behaviour", [peers.trunc, peers.chunk_trunc, peers.body_hang])
async def test_the_status_of_an_answer_that_breaks_off_is_kept(behaviour):
    async with serving(behaviour) as peer:
        reply = await send(peer, limit_s=SHORT_S)
    assert (reply.status, reply.stage, reply.body) == (200, Stage.ANSWERED, b"begin")


async def test_an_answer_cut_after_any_number_of_bytes_is_complete_only_with_all_of_them():
    whole = b"HTTP/1.1 201 Created\r\nX-A: b\r\nContent-Length: 6\r\n\r\nbounty"
    for length in range(len(whole) + 1):
        async with serving(peers.answering_once(whole[:length])) as peer:
            reply = await send(peer)
        assert reply.complete == (length == len(whole))
        assert reply.proof is None
        assert peer.truth.commits == 1


async def test_a_body_that_only_the_end_of_the_connection_ends_is_taken_as_whole():
    async with serving(peers.eof_delimited) as peer:
        reply = await send(peer)
    assert (reply.status, reply.body, reply.complete) == (200, b"begin", True)


async def test_informational_answers_are_skipped():
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: <x>\r\n\r\n"
    async with serving(answering(early + peers.ANSWER)) as peer:
        reply = await send(peer)
    assert (reply.status, reply.body, reply.complete) == (200, b"ok", True)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-server\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 OK\r\n\r\n", id="no status"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
            id="two lengths",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", id="no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", id="no header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n", id="too long"),
    ],
)
async def test_an_answer_that_breaks_the_rules_of_http_is_unreadable(answer):
    async with serving(answering(answer, then_wait=True)) as peer:
        reply = await send(peer)
    assert (reply.proof, reply.cause, reply.status) == (None, Cause.UNREADABLE, None)


async def test_bad_chunks_are_unreadable_and_the_status_is_kept():
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    async with serving(answering(answer, then_wait=True)) as peer:
        reply = await send(peer)
    assert (reply.cause, reply.status) == (Cause.UNREADABLE, 200)


async def test_a_protocol_switch_that_nobody_asked_for_is_no_answer():
    answer = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with serving(answering(answer, then_wait=True)) as peer:
        reply = await send(peer)
    assert (reply.cause, reply.complete, reply.proof) == (Cause.UNREADABLE, False, None)


@pytest.mark.parametrize(("length", "complete"), [(10_000, True), (10_001, False)])
async def test_a_body_is_read_up_to_its_bound(length, complete):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, b"z" * length)
    async with serving(answering(answer)) as peer:
        reply = await send(peer)
    assert (reply.status, reply.complete, len(reply.body)) == (200, complete, 10_000)
    assert reply.cause is (None if complete else Cause.TRUNCATED)
    assert complete or reply.detail == "the answer's body is over the bound; status 200"


async def test_an_endless_body_is_given_up_at_the_bound():
    async def endless(wire):
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await wire.send(b"400\r\n" + b"z" * 1024 + b"\r\n")

    async with serving(endless) as peer:
        reply = await send(peer)
    assert (reply.status, reply.cause, len(reply.body)) == (200, Cause.TRUNCATED, 10_000)


@pytest.mark.parametrize(
    ("encoding", "sent", "cause", "body"),
    [
        ("gzip", gzip.compress(b"plain"), None, b"plain"),
        ("identity", b"plain", None, b"plain"),
        ("gzip", gzip.compress(BIG), Cause.TRUNCATED, None),
        ("gzip", gzip.compress(b"plain")[:-4], Cause.TRUNCATED, None),
        ("gzip", b"no gzip at all", Cause.UNREADABLE, None),
        ("br", b"whatever", Cause.UNREADABLE, None),
    ],
    ids=["gzip", "identity", "bomb", "cut", "no gzip", "unknown"],
)
async def test_compression_that_nobody_asked_for_is_undone_within_the_bound(
    encoding, sent, cause, body
):
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(sent)}"
    async with serving(answering(head.encode() + b"\r\n\r\n" + sent)) as peer:
        reply = await send(peer)
    assert (reply.status, reply.cause, reply.complete) == (200, cause, cause is None)
    assert body is None or reply.body == body
    assert b"Accept-Encoding: identity\r\n" in peer.truth.heads[0]


async def test_a_refused_connection_is_proof_that_nothing_was_sent():
    async with peers.refusing_port() as port:
        reply = await send(peers.Peer(port, "http", peers.Truth()))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail == "connection refused while connecting, before the request was written"


async def test_a_connection_that_is_not_made_in_time_is_proof_that_nothing_was_sent():
    async with peers.deaf_port() as port:
        reply = await send(peers.Peer(port, "http", peers.Truth()), limit_s=SHORT_S)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail.startswith("deadline exceeded while connecting")


async def test_a_connection_reset_at_once_is_never_called_more_than_it_is():
    async with serving(peers.accept_rst) as peer:
        reply = await send(peer)
    assert (reply.status, reply.complete) == (None, False)


async def test_tls_carries_a_request_whose_certificate_is_accepted(certified):
    ca, context = certified
    async with serving(answering(peers.ANSWER), tls=context) as peer:
        reply = await send(peer, source=source_of(peer, tls_ca=str(ca)))
    assert (reply.status, reply.body) == (200, b"ok")


async def test_a_certificate_is_not_looked_at_where_the_source_says_so(certified):
    async with serving(answering(peers.ANSWER), tls=certified[1]) as peer:
        assert (await send(peer, source=source_of(peer, tls_verify=False))).status == 200


async def test_an_unknown_certificate_is_proof_that_nothing_was_sent(certified):
    async with serving(answering(peers.ANSWER), tls=certified[1]) as peer:
        reply = await send(peer)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail.startswith("certificate not accepted (self-signed certificate)")


async def test_a_certificate_for_another_name_is_proof_that_nothing_was_sent(tmp_path):
    ca, context = peers.certificate(tmp_path, "other.example")
    async with serving(answering(peers.ANSWER), tls=context) as peer:
        reply = await send(peer, source=source_of(peer, tls_ca=str(ca)))
    assert (reply.proof, reply.detail[:24]) == (Seen.NOT_SENT, "certificate not accepted")


@pytest.mark.parametrize("ca", ["missing.pem", __file__])
async def test_unreadable_authorities_are_proof_that_nothing_was_sent(ca):
    async with serving(answering(peers.ANSWER)) as peer:
        reply = await send(peer, source=source_of(peer, tls_ca=ca))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.OPENED)
    assert reply.detail.startswith("the certificates in tls.ca can't be read")


@pytest.mark.parametrize(
    ("behaviour", "detail"),
    [
        (peers.noread, "deadline exceeded in the TLS handshake"),
        (peers.accept_rst, ""),
        (peers.plain_text, "TLS failed"),
    ],
)
async def test_a_failed_tls_handshake_is_proof_that_nothing_was_sent(behaviour, detail):
    async with serving(behaviour) as plain:
        peer = peers.Peer(plain.port, "https", peers.Truth())
        reply = await send(peer, limit_s=SHORT_S)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail.startswith(detail)


async def test_a_reset_after_the_request_under_tls_proves_nothing(certified):
    ca, context = certified
    async with serving(peers.commit_rst, tls=context) as peer:
        reply = await send(peer, source=source_of(peer, tls_ca=str(ca)))
    assert (reply.proof, reply.cause) == (None, Cause.CONNECTION_RESET)
    assert peer.truth.commits == 1


async def test_the_environment_names_neither_proxies_nor_authorities(certified, monkeypatch):
    ca, context = certified
    tls_context.cache_clear()
    async with peers.refusing_port() as port:
        for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        async with serving(answering(peers.ANSWER)) as peer:
            assert (await send(peer)).status == 200
        async with serving(answering(peers.ANSWER), tls=context) as peer:
            assert (await send(peer)).proof is Seen.NOT_SENT
