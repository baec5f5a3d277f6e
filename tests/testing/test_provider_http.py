import pytest

from doubtless.testing.provider import spawn_provider
from doubtless.testing.provider_http import BODY_MAX, HEAD_MAX
from doubtless.testing.provider_wire import Wire, call, request_bytes

START = b"POST /v1/refunds HTTP/1.1\r\nconnection: close\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def process():
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(process):
    yield process
    process.configure({})
    process.reset()


def sent(provider, data, *, half_closed=False):
    with Wire(provider.port) as wire:
        wire.send(data)
        if half_closed:
            wire.half_close()
        return wire.read_to_end()


@pytest.mark.parametrize(
    "data",
    [
        b"HELO\r\n\r\n",
        b"GET /v1/refunds HTTP/1.1\r\nno header\r\n\r\n",
        START + b"content-length: -1\r\n\r\n",
        START + b"content-length: %d\r\n\r\n" % (BODY_MAX + 1),
        CHUNKED + b"many\r\n",
        CHUNKED + b"%x\r\n" % (BODY_MAX + 1),
    ],
)
def test_what_is_no_http_is_told_so_and_makes_no_effect(provider, data):
    seen = sent(provider, data)
    assert (seen.status, seen.end) == (400, "fin")
    assert provider.effects() == []


def test_a_head_without_end_is_not_read_for_ever(provider):
    assert sent(provider, b"GET / HTTP/1.1\r\n" + b"a" * (HEAD_MAX + 1)).status == 400


@pytest.mark.parametrize("body", [b"", b"5", b"5\r\n", b"5\r\n{", b"2\r\n{}\r\n0\r\n"])
def test_a_chunked_body_without_its_end_is_incomplete(provider, body):
    seen = sent(provider, CHUNKED + body, half_closed=True)
    assert seen.object()["error"]["code"] == "incomplete_body"
    assert provider.effects() == []


def test_chunks_may_have_extensions_and_trailers(provider):
    body = b'7;x=1\r\n{"amoun\r\n6\r\nt": 5}\r\n0\r\nx-checksum: 1\r\n\r\n'
    assert sent(provider, CHUNKED + body).object()["amount"] == 5


def test_a_client_that_asks_first_is_told_to_go_on(provider):
    with Wire(provider.port) as wire:
        wire.send(START + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        provider.wait_for(lambda p: len(p.arrivals()) == 1)
        wire.send(b"{}")
        seen = wire.read_to_end()
    assert seen.data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n")


def test_an_old_client_gets_its_connection_closed(provider):
    seen = sent(provider, b"GET /v1/refunds HTTP/1.0\r\n\r\n")
    assert (seen.status, seen.headers["connection"], seen.end) == (200, "close", "fin")


def test_a_status_that_nobody_knows_and_one_without_a_body_are_framed_rightly(provider):
    for status, said in ((599, b"HTTP/1.1 599 Unknown"), (204, b"HTTP/1.1 204 No Content")):
        provider.configure([{"then": {"action": "status", "status": status}}])
        seen = call(provider.port, "GET", "/v1/refunds")
        assert seen.data.startswith(said)
        assert seen.complete


def test_repeated_headers_are_joined(provider):
    sent(provider, request_bytes("GET", "/v1/x").replace(b"\r\n\r\n", b"\r\na: 1\r\nA: 2\r\n\r\n"))
    assert provider.arrivals()[0].headers["a"] == "1, 2"


def test_a_client_that_resets_before_its_head_is_complete_is_no_arrival(provider):
    with Wire(provider.port) as wire:
        wire.send(b"POST /v1/ref")
        provider.wait_for(lambda p: p.connections() == 1)
        wire.reset()
    assert call(provider.port, "GET", "/v1/refunds").status == 200
    assert len(provider.arrivals()) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/_admin/complete", {"id": "re_1", "status": "lost"}, 400),
        ("/_admin/complete", {"id": "re_1"}, 404),
        ("/_admin/listener", {"closed_for_s": "long"}, 400),
        ("/_admin/objects", {"id": 1}, 400),
        ("/_admin/rules", {"rule": []}, 400),
        ("/_admin/listener", {}, 200),
    ],
)
def test_an_admin_route_says_what_it_does_not_understand(provider, path, body, status):
    assert call(provider.admin_port, "POST", path, body).status == status
