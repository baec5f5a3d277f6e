import base64
import ipaddress
import socket

import anyio
import pytest
from tests.transports import http_peer as peers
from tests.transports.http_peer import ANSWER, answering, serving, status_answer
from tests.transports.http_sends import CANARY, PRIVATE, GateLog, send, source_of, until

from doubtless.core.contract import SourceRules
from doubtless.core.model import Cause, Seen, Stage
from doubtless.transports.base import HttpRequest, Watch
from doubtless.transports.http import HttpTransport
from doubtless.transports.http_address import is_public


@pytest.fixture
def names(monkeypatch):
    """Answer name look-ups from lists, one after the other, and count them."""
    known: dict[str, list[list[str]]] = {}
    asked: list[str] = []

    async def getaddrinfo(host, port, **_):
        asked.append(host)
        if not known.get(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = known[host][0] if len(known[host]) == 1 else known[host].pop(0)
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    return known, asked


def named(peer, name="api.example", **rules):
    """Return the source and the URL by which `peer` is called `name`."""
    url = f"{peer.scheme}://{name}:{peer.port}"
    return {"source": SourceRules(name="peer", base_url=url, **rules), "url": f"{url}/v1"}


PRIVATE_ADDRESSES = [
    *("127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254"),
    *("100.100.100.200", "168.63.129.16", "0.0.0.0", "255.255.255.255", "224.0.0.1", "::1"),  # noqa: S104
    *("fe80::1", "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "::"),
    *("2002:7f00:1::", "ff02::1", "::127.0.0.1"),
]


@pytest.mark.parametrize("address", PRIVATE_ADDRESSES)
async def test_a_name_for_an_address_that_is_not_public_is_refused(names, address):
    names[0]["api.example"] = [["93.184.216.34", address]]
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **named(peer))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail.startswith("api.example stands for ")
    assert peer.truth.connections == 0


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_public(address):
    assert is_public(ipaddress.ip_address(address))


async def test_a_private_name_is_dialled_where_the_source_says_so(names):
    names[0]["api.example"] = [["127.0.0.1"]]
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **named(peer, private=True))
    assert reply.status == 200
    assert b"Host: api.example:%d\r\n" % peer.port in peer.truth.heads[0]


async def test_a_name_is_resolved_once_and_that_address_is_dialled(names):
    names[0]["api.example"] = [["127.0.0.1"], ["192.0.2.1"]]
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **named(peer, private=True))
    assert (reply.status, names[1]) == (200, ["api.example"])


async def test_the_next_address_of_a_name_is_dialled_if_the_first_refuses(names):
    names[0]["api.example"] = [["127.0.0.2", "127.0.0.1"]]
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **named(peer, private=True))
    assert (reply.status, len(peer.truth.heads)) == (200, 1)


async def test_a_literal_address_and_localhost_need_no_word(names):
    names[0]["localhost"] = [["127.0.0.1"]]
    async with serving(answering(ANSWER)) as peer:
        assert (await send(peer)).status == 200
    async with serving(answering(ANSWER)) as peer:
        assert (await send(peer, **named(peer, "127.0.0.1"))).status == 200
    assert names[1] == ["localhost"]


async def test_localhost_is_the_word_for_loopback_alone(names):
    names[0]["localhost"] = [["10.0.0.1"]]
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer)
    assert (reply.proof, peer.truth.connections) == (Seen.NOT_SENT, 0)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "017700000001"])
async def test_an_address_in_disguise_is_a_name_and_gets_no_word(host):
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, **named(peer, host))
    assert (reply.proof, peer.truth.connections) == (Seen.NOT_SENT, 0)


async def test_a_name_that_does_not_resolve_is_proof_that_nothing_was_sent(names):
    reply = await send(peers.Peer(80, "http", peers.Truth()))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail.startswith("the name could not be resolved while connecting")


async def test_a_name_server_that_does_not_answer_is_proof_that_nothing_was_sent(monkeypatch):
    async def getaddrinfo(*_, **__):
        await anyio.sleep_forever()

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    reply = await send(peers.Peer(80, "http", peers.Truth()), limit_s=0.1)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)


@pytest.mark.parametrize(
    "url",
    [
        "https://localhost:{port}/v1",
        "http://localhost:1/v1",
        "http://127.0.0.1:{port}/v1",
        "http://localhost.:{port}/v1",
        "http://localhost:{port}@evil.example/v1",
        "http://user:canary-4f1d9a77c2@localhost:{port}/v1",
        "http://evil.example\\@localhost:{port}/v1",
        "//localhost:{port}/v1",
        "/v1",
        "ftp://localhost:{port}/v1",
        "http://localhost:99999/v1",
        "http://localhost:{port}/v1\r\nX-Evil: 1",
        "",
    ],
)
async def test_a_url_outside_of_the_sources_origin_is_refused_before_connecting(url):
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, url=url.format(port=peer.port))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.OPENED)
    assert peer.truth.connections == 0


async def test_the_path_and_the_query_go_out_as_they_were_rendered():
    path = "/v1/a%2Fb/%C3%A9?q=a%26b&c=d+e#fragment"
    async with serving(answering(ANSWER)) as peer:
        await send(peer, path=path)
    assert peer.truth.heads[0].startswith(b"POST /v1/a%2Fb/%C3%A9?q=a%26b&c=d+e HTTP/1.1\r\n")


@pytest.mark.parametrize("status", [307, 302])
async def test_a_redirect_is_an_answer_and_is_not_followed(status):
    async with serving(answering(ANSWER)) as elsewhere:
        answer = status_answer(status, b"Location: %b/\r\n" % elsewhere.url.encode())
        async with serving(answering(answer)) as peer:
            reply = await send(peer)
    assert (reply.status, elsewhere.truth.connections) == (status, 0)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    return peers.certificate(tmp_path_factory.mktemp("tls"), "localhost")


async def tunnelled(certified, behaviour, **options):
    """Send to a TLS server through a tunnel; return what proxy and server saw, and the reply."""
    ca, context = certified
    async with (
        serving(behaviour, tls=context) as peer,
        serving(options.pop("proxy", None) or peers.proxy_to(peer.port)) as proxy,
    ):
        user = options.pop("user", "")
        source = source_of(peer, tls_ca=str(ca), proxy=f"http://{user}127.0.0.1:{proxy.port}")
        reply = await send(peer, source=source, **options)
    return proxy, peer, reply


async def test_a_request_goes_through_a_tunnel_and_its_credentials_stay_inside(certified):
    proxy, peer, reply = await tunnelled(certified, answering(ANSWER), user="me:pass%20word@")
    assert (reply.status, reply.body, len(peer.truth.heads)) == (200, b"ok", 1)
    (head,) = proxy.truth.tunnels
    assert head.startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % peer.port)
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:pass word") in head
    assert CANARY.encode() not in head
    assert b"roxy-" not in peer.truth.heads[0]
    assert reply.sent_bytes == peer.truth.received


@pytest.mark.parametrize("status", [407, 502, 504])
async def test_a_tunnel_that_the_proxy_refuses_is_proof_that_nothing_was_sent(certified, status):
    _, _, reply = await tunnelled(certified, answering(ANSWER), proxy=peers.proxy_refusing(status))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)
    assert reply.detail == f"the proxy refused a tunnel with status {status}"


@pytest.mark.parametrize("proxy", [peers.proxy_fin, peers.proxy_hang, peers.accept_rst])
async def test_a_proxy_that_never_opens_a_tunnel_is_proof_that_nothing_was_sent(certified, proxy):
    _, _, reply = await tunnelled(certified, answering(ANSWER), proxy=proxy, limit_s=0.25)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)


async def test_a_proxy_that_nobody_serves_is_proof_that_nothing_was_sent(certified):
    async with peers.refusing_port() as port, serving(answering(ANSWER)) as peer:
        source = source_of(peer, proxy=f"http://127.0.0.1:{port}")
        reply = await send(peer, source=source)
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.CONNECTING)


@pytest.mark.parametrize("behaviour", [peers.commit_rst, peers.commit_fin])
async def test_an_end_behind_a_tunnel_after_the_request_proves_nothing(certified, behaviour):
    _, peer, reply = await tunnelled(certified, behaviour)
    assert (reply.proof, reply.cause) == (None, Cause.CONNECTION_RESET)
    assert peer.truth.commits == 1


async def test_the_certificate_behind_a_tunnel_is_checked(certified, tmp_path):
    other = peers.certificate(tmp_path, "other.example")[0]
    _, peer, reply = await tunnelled((other, certified[1]), answering(ANSWER))
    assert (reply.proof, peer.truth.received) == (Seen.NOT_SENT, 0)
    assert reply.detail.startswith("certificate not accepted")


@pytest.mark.parametrize(("trusted", "status"), [(True, 200), (False, None)])
async def test_a_proxy_that_is_reached_by_tls_is_checked_too(certified, tmp_path, trusted, status):
    ca, context = certified
    other = peers.certificate(tmp_path, "localhost")[1]
    async with (
        serving(answering(ANSWER), tls=context) as peer,
        serving(peers.proxy_to(peer.port), tls=context if trusted else other) as proxy,
    ):
        source = source_of(peer, tls_ca=str(ca), proxy=proxy.url)
        reply = await send(peer, source=source)
    assert (reply.status, len(proxy.truth.tunnels)) == (status, int(trusted))
    assert reply.proof is (None if trusted else Seen.NOT_SENT)


@pytest.mark.parametrize("commits", [True, False])
async def test_an_error_of_a_forwarding_proxy_proves_nothing(commits):
    async with serving(answering(status_answer(502), commit=commits)) as proxy:
        source = SourceRules(
            name="peer",
            base_url="http://api.example",
            proxy=f"http://127.0.0.1:{proxy.port}",
        )
        peer = peers.Peer(80, "http", proxy.truth)
        reply = await send(peer, source=source, url="http://api.example/v1")
    assert (reply.status, reply.proof) == (502, None)
    assert proxy.truth.heads[0].startswith(b"POST http://api.example/v1 HTTP/1.1\r\n")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "127.0.0.1:1", "http://", "http://[::"])
async def test_a_proxy_that_is_no_http_proxy_is_refused_before_connecting(proxy):
    async with serving(answering(ANSWER)) as peer:
        reply = await send(peer, source=source_of(peer, proxy=proxy))
    assert (reply.proof, reply.stage) == (Seen.NOT_SENT, Stage.OPENED)


async def reading(transport, peer, body=b""):
    reply = await transport.perform(
        HttpRequest(method="GET", url=peer.url, body=body),
        source=source_of(peer),
        private=PRIVATE,
        gate=GateLog(),
        watch=Watch(),
        limit_s=10,
        fresh=False,
    )
    assert reply.proof is None or reply.sent_bytes == 0
    return reply


async def test_effects_have_a_connection_of_their_own_and_reads_share_one():
    transport = HttpTransport()
    async with serving(answering(ANSWER)) as peer:
        for _ in range(3):
            assert (await reading(transport, peer)).complete
        assert peer.truth.connections == 1
        for count in range(2, 5):
            peer.truth.heads, peer.truth.received = [], 0
            await send(peer, transport=transport)
            assert peer.truth.connections == count
        await transport.aclose()


@pytest.mark.parametrize("behaviour", [peers.commit_fin, peers.commit_rst, peers.hdr_rst])
async def test_a_kept_connection_that_ends_during_a_request_proves_nothing(behaviour):
    transport = HttpTransport()
    async with serving(peers.second_request(behaviour)) as peer:
        assert (await reading(transport, peer)).complete
        reply = await reading(transport, peer)
        assert (peer.truth.connections, len(peer.truth.heads)) == (1, 2)
        await transport.aclose()
    assert (reply.proof, reply.cause) == (None, Cause.CONNECTION_RESET)


async def test_a_kept_connection_that_ended_while_idle_is_not_used():
    transport = HttpTransport()
    async with serving(peers.answering_once(ANSWER)) as peer:
        for count in range(1, 4):
            assert (await reading(transport, peer)).complete
            assert peer.truth.connections == count
            await until(lambda closed=count: peer.truth.closed == closed)
        await transport.aclose()


async def test_requests_that_run_side_by_side_are_counted_apart():
    transport = HttpTransport()
    replies = {}

    async def one(peer, length):
        replies[length] = await reading(transport, peer, b"x" * length)

    async with serving(answering(ANSWER)) as peer:
        for _ in range(2):
            async with anyio.create_task_group() as group:
                for length in range(100, 130):
                    group.start_soon(one, peer, length)
            heads = {length: reply.sent_bytes - length for length, reply in replies.items()}
            assert (len(heads), len(set(heads.values()))) == (30, 1)
        assert peer.truth.connections < 60
        await transport.aclose()
