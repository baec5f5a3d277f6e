"""Hostile input over raw sockets: a clear 4xx, a bounded cost, and no crash in the log."""

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.service.serving import Serving, Stage, read_all, staged, until

from doubtless.service.settings import Limits
from doubtless.service.strict_json import NotJson, parse

LIMITS = Limits()
DEEP = LIMITS.json_depth_max
COST_MAX_S = 3  # on a busy machine; what is quadratic takes minutes
START = b'{"tool":"refund","arguments":{"charge":"ch_h","amount":1,"x":'


def brief(value: object) -> str:
    """Name a parameter in short, unlike any other."""
    text = ascii(value)
    return text if len(text) < 40 else f"{text[:12]}..{text[-30:]}-{len(text)}"


@pytest.fixture(scope="module")
def hostile(running_provider, contracts, tmp_path_factory) -> Iterator[Stage]:
    """A service of their own, whose log is looked at in the end."""
    running_provider.configure({})
    running_provider.reset()
    with staged(tmp_path_factory.mktemp("hostile"), contracts) as found:
        yield found
        assert found.serving.ask("GET", "/healthz").status == 200
        check_log(found.serving)
        listed = found.operator("GET", "/v1/operations").json
        assert [each["operation_id"] for each in listed["operations"]] == []


def check_log(serving: Serving) -> None:
    text = serving.log.read_text(encoding="utf-8")
    for word in ("Traceback", "Error", "Exception", "exception", '"error"', '"critical"'):
        assert word not in text.replace("UnicodeError", ""), word
    assert all(line["level"] in ("info", "warning") for line in serving.log_lines())


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "bad_json"),
        (b"{", 400, "bad_json"),
        (b"\xff\xfe{}", 400, "bad_json"),
        (b"\xef\xbb\xbf{}", 400, "bad_json"),
        (b"null", 422, "bad_body"),
        (b'"text"', 422, "bad_body"),
        (START + b"NaN}}", 400, "bad_json"),
        (START + b"Infinity}}", 400, "bad_json"),
        (START + b"-Infinity}}", 400, "bad_json"),
        (START + b"1e999}}", 400, "bad_json"),
        (START + b"9007199254740993}}", 400, "bad_json"),
        (START + b"9" * 500_000 + b"}}", 400, "bad_json"),
        (START + b'"\\u0000"}}', 400, "bad_json"),
        (START + b'{"\\u0000":1}}}', 400, "bad_json"),
        (START + b'"\x00"}}', 400, "bad_json"),
        (START + b'"\\ud800"}}', 400, "bad_json"),
        (START + b'"\\udc00\\ud800"}}', 400, "bad_json"),
        (START + b'"\xed\xa0\x80"}}', 400, "bad_json"),
        (START + b'1,"x":2}}', 400, "bad_json"),
        (b'{"tool":"a","tool":"b","arguments":{}}', 400, "bad_json"),
        (START + deep(DEEP - 1) + b"}}", 400, "bad_json"),
        (START + deep(200_000) + b"}}", 400, "bad_json"),
        (b"[" * 1_000_000, 400, "bad_json"),
        (b'{"a":' * 150_000, 400, "bad_json"),
        (START + b'"' + b'\\"' * 480_000, 400, "bad_json"),
        (START + b"[" + b"1," * 480_000 + b"1]}}", 400, "bad_json"),
        (START + b"[" + b"[]," * 320_000 + b"1]}}", 400, "bad_json"),
        (START + b"1}} trailing", 400, "bad_json"),
        (START + b"1}," + b'"y' * 300_000, 400, "bad_json"),
        (b'{"tool":"refund","arguments":{}' + b',"f":1}' , 422, "bad_body"),
    ],
    ids=brief,
)  # fmt: skip
def test_a_body_that_means_nothing_is_refused(hostile, content, status, code):
    began_s = time.monotonic()
    answer = hostile.agent("POST", "/v1/operations", content=content)
    assert (answer.status, answer.code) == (status, code)
    assert time.monotonic() - began_s < COST_MAX_S
    assert len(answer.text) < 2_000  # what was sent isn't sent back


@pytest.mark.proves("SERVICE-19")
def test_a_surrogate_pair_and_the_greatest_integer_are_fine():
    found = parse(b'{"a":"\\ud83d\\ude00","b":9007199254740991}', depth_max=10, values_max=10)
    assert found == {"a": "\U0001f600", "b": 2**53 - 1}


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize("content", [b'["[[[["]', b'["\\"[[[["]', b"[[[1],[2]],[3]]"])
def test_depth_counts_what_is_nested_and_no_text(content):
    assert parse(content, depth_max=3, values_max=50) == json.loads(content)
    with pytest.raises(NotJson, match="nested"):
        parse(b"[[[[1]]]]", depth_max=3, values_max=50)


@pytest.mark.proves("SERVICE-19")
def test_a_body_that_is_too_long_is_refused_before_it_is_read(hostile):
    head = (
        "POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {hostile.tokens['agent']}\r\n"
    )
    said = f"{head}Content-Length: {LIMITS.body_bytes_max + 1}\r\n\r\n".encode()
    answer = hostile.serving.raw(said)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer

    chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 17
    with socket.create_connection(("127.0.0.1", hostile.serving.port), timeout=10) as link:
        link.settimeout(10)
        try:
            link.sendall(chunked)
        except ConnectionError:
            return  # it was closed on us meanwhile, which is refusal enough
        answer = read_all(link)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize(
    "media",
    [
        "",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin-1",
        "application/json, text/plain",
        "multipart/form-data; boundary=x",
    ],
)
def test_a_body_of_another_kind_is_415(hostile, media):
    answer = hostile.agent("POST", "/v1/operations", content=b"{}", headers={"Content-Type": media})
    assert (answer.status, answer.code) == (415, "not_json")


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize(
    "media", ["application/json;charset=utf-8", 'Application/JSON; charset="UTF-8"']
)
def test_json_may_say_that_it_is_utf_8(hostile, media):
    answer = hostile.agent("POST", "/v1/operations", content=b"{}", headers={"Content-Type": media})
    assert answer.code == "bad_body"


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/operations/../x", 404),
        ("/v1/operations/..%2Fx", 404),
        ("/v1/operations/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404),
        ("/v1/operations/a%2Fb", 404),
        ("/v1/operations/a%00b", 422),
        ("/v1/operations/a%0d%0aX-Y:%20z", 422),
        ("/v1/operations/%ff%fe", 422),
        ("/v1/operations/%ed%a0%80", 422),
        ("/v1/operations/%F0%9F%98%80", 422),
        ("/v1/operations/%", 422),
        ("/v1/operations/" + "x" * 129, 422),
        ("/v1/operations/" + "x" * 10_000, 414),
        ("/v1/operations/'%20or%20'1'='1", 422),
        ("/v1/operations//", 404),
        ("/v1/operations/", 404),
        ("//v1/operations", 404),
        ("/v1/sessions/a%2Fb", 404),
        ("/v1/sessions/a%20b", 422),
        ("/v1/sessions/" + "x" * 129, 422),
        ("/v1/operations?" + "x=1&" * 2_000, 414),
        ("/v1/operations?tool=" + "x" * 200, 422),
        ("/v1/operations?tool=%ff", 400),
        ("/v1/operations?" + "&".join(f"x{number}=1" for number in range(60)), 400),
        ("/v1/operations?tool=a;limit=1", 200),
        ("/nothing/" + "x" * 1_000, 404),
    ],
    ids=brief,
)
def test_a_path_or_query_that_leads_nowhere_is_a_plain_4xx(hostile, path, status):
    answer = hostile.agent("GET", path)
    assert answer.status == status
    if status != 200:
        assert answer.code
        assert "\r" not in "".join(answer.headers.values())
    assert len(answer.text) < 2_000


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # somebody speaks TLS
        b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/0.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
    ids=brief,
)
def test_what_is_no_http_is_answered_and_closed(hostile, sent):
    answer = hostile.serving.raw(sent)
    assert re.match(rb"HTTP/1.1 4\d\d ", answer) or answer == b"", answer[:80]
    if answer:
        assert b"application/problem+json" in answer


@pytest.mark.proves("SERVICE-19")
def test_a_body_that_breaks_off_harms_nobody(hostile):
    head = (
        "POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {hostile.tokens['agent']}\r\n"
    )
    for part in (b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"):
        with socket.create_connection(("127.0.0.1", hostile.serving.port)) as link:
            link.sendall(head.encode() + part)
    until(lambda: hostile.serving.ask("GET", "/healthz").status == 200)


@pytest.mark.proves("SERVICE-19")
@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_another_method_is_405_and_names_those_there_are(hostile, method):
    answer = hostile.agent(method, "/v1/operations")
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert {"GET", "POST"} <= set(re.split(r",\s*", answer.headers["allow"]))


@pytest.mark.proves("SERVICE-19")
def test_head_is_get_without_a_body(hostile):
    answer = hostile.agent("HEAD", "/v1/tools")
    assert (answer.status, answer.text) == (200, "")


@pytest.mark.proves("SERVICE-22")
def test_the_log_has_a_line_for_each_request_and_neither_payload_nor_secret(stage, provider):
    mark = "canary-4711"
    body = {
        "tool": "refund",
        "arguments": {"charge": mark, "amount": 5},
        "operation_id": "logged-1",
    }
    stage.agent("POST", "/v1/operations", body)
    stage.agent("POST", "/v1/operations", body | {mark: mark})
    stage.agent("GET", f"/v1/operations?business_key=%22{mark}%22")
    stage.agent("GET", f"/v1/nothing/{mark}")
    stage.serving.ask("GET", "/v1/tools", token=mark)
    until(lambda: any(line.get("status") == 401 for line in stage.serving.log_lines()[-3:]))

    text = stage.serving.log.read_text(encoding="utf-8")
    assert mark not in text
    for secret in stage.tokens.values():
        assert secret not in text
    (line,) = [
        each
        for each in stage.serving.log_lines()
        if each.get("operation_id") == "logged-1" and each["method"] == "POST"
    ]
    assert line["route"] == "/v1/operations"
    assert (line["status"], line["principal"], line["outcome"]) == (200, "agent-1", "succeeded")
    assert line["ms"] > 0
    fields = {"at", "level", "logger", "method", "route", "status", "ms", "principal"}
    assert fields <= line.keys()


# --- slow clients, and many of them --------------------------------------------------------------


@pytest.mark.proves("SERVICE-20")
@pytest.mark.timeout(90)
def test_clients_that_never_finish_are_let_go_in_time(hostile):
    """All at once, since each takes as long as the limits say."""
    head = b"GET /healthz HTTP/1.1\r\n"
    post = (
        "POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {hostile.tokens['agent']}\r\nContent-Length: 100\r\n\r\n{{"
    ).encode()
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with ExitStack() as stack:
        address = ("127.0.0.1", hostile.serving.port)
        links = [
            stack.enter_context(socket.create_connection(address, timeout=40)) for _ in range(4)
        ]
        _silent, half, body, second = links
        half.sendall(head)
        body.sendall(post)
        second.sendall(whole)
        answered = b""
        while not answered.endswith(b"}"):
            answered += second.recv(65_536)
        second.sendall(head)  # a second request that never ends
        began_s = time.monotonic()
        answers = [read_all(link) for link in links]
        took_s = time.monotonic() - began_s

    assert took_s < max(LIMITS.head_timeout_s, LIMITS.body_timeout_s) + 5
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in answers)
    assert all(b'"code":"too_slow"' in answer for answer in answers)


def send_on(link: socket.socket, content: bytes) -> None:
    """Send until neither side's buffers take any more, and the connection is gone."""
    while True:
        link.sendall(content)


@pytest.mark.proves("SERVICE-20")
def test_a_client_that_reads_no_answer_is_cut_off(hostile):
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.create_connection(("127.0.0.1", hostile.serving.port)) as link:
        link.settimeout(LIMITS.read_timeout_s + 10)
        began_s = time.monotonic()
        with pytest.raises(ConnectionError):
            send_on(link, asked * 1000)
        assert time.monotonic() - began_s < LIMITS.read_timeout_s + 9
    assert hostile.serving.ask("GET", "/healthz").status == 200


@pytest.mark.proves("SERVICE-20")
def test_connections_above_the_bound_are_told_so_and_those_within_go_on(hostile):
    with ExitStack() as stack:
        address = ("127.0.0.1", hostile.serving.port)
        for _ in range(LIMITS.connections_max):
            stack.enter_context(socket.create_connection(address))
        answer = until(lambda: refused(hostile))
        assert answer.code == "busy"
        assert answer.headers["retry-after"] == "1"
    until(lambda: hostile.serving.ask("GET", "/healthz").status == 200)


def refused(stage: Stage):
    answer = stage.serving.ask("GET", "/healthz")
    return answer if answer.status == 503 else None
