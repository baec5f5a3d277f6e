"""From what an exchange saw to a `Reply`: bounded, without credentials, and not judged."""

import base64
import binascii
import re
import socket
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpcore2

from doubtless.core.contract import SourceRules
from doubtless.core.model import Cause, Seen, Stage
from doubtless.transports.base import HttpRequest, Reply
from doubtless.transports.http_address import target
from doubtless.transports.http_exchange import (
    FRAMING,
    HOP_BY_HOP,
    NAME,
    Exchange,
    Halted,
)

AUTHORITY: Final = frozenset(
    {"authorization", "proxy-authorization", "proxy-authenticate", "cookie", "cookie2"}
)
"""Headers that carry authority: they come from the credential store or not at all."""

ORIGINATING: Final = frozenset({"forwarded", "x-forwarded", "x-real-ip", "true-client-ip", "via"})
"""Headers by which a proxy vouches for a client, besides all of `X-Forwarded-…`."""

OURS: Final = FRAMING | {"accept-encoding"}
NOT_KEPT: Final = HOP_BY_HOP | {"set-cookie", "set-cookie2"}
UNSENDABLE: Final = frozenset({"CONNECT", "TRACE"})
LENGTH_ALWAYS: Final = frozenset({"POST", "PUT", "PATCH"})

SECRET_LENGTH_MIN: Final = 6  # shorter ones would blot out innocent text
REDACTED: Final = b"[redacted]"


class OverBound(Exception):
    """The answer's body is longer than the transport reads."""


class OutOfTime(Exception):
    """The time for the whole exchange is over."""


@dataclass(slots=True)
class Answer:
    """What has come of the answer so far."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    def head(self, response: httpcore2.Response) -> None:
        """Take the status line and the headers, without those that set cookies."""
        self.status = response.status
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            if name not in NOT_KEPT:
                known = self.headers.get(name)
                self.headers[name] = value if known is None else f"{known}, {value}"

    def add(self, chunk: bytes, body_max_bytes: int) -> None:
        """Take a part of the body.

        Raises:
            OverBound: It does not fit. What fits is kept.
        """
        room = body_max_bytes - len(self.body)
        self.body += chunk[:room]
        if len(chunk) > room:
            raise OverBound


def render(request: HttpRequest, source: SourceRules) -> httpcore2.Request:
    """Make the library's request, without any header that could carry authority.

    Raises:
        Halted: It can't be sent as it is, or not to this source.
    """
    url = target(request.url, source)
    if not NAME.fullmatch(request.method) or request.method.upper() in UNSENDABLE:
        raise Halted("the request's method is not one that may be sent")
    headers = [(b"Host", url.netloc), (b"Accept-Encoding", b"identity")]
    headers.extend(kept(request.headers, source))
    present = {name.lower() for name, _ in headers}
    for name, value in ((b"Accept", b"*/*"), (b"User-Agent", b"doubtless")):
        if name.lower() not in present:
            headers.append((name, value))
    if request.body or request.method.upper() in LENGTH_ALWAYS:
        headers.append((b"Content-Length", str(len(request.body)).encode()))
    return httpcore2.Request(
        request.method,
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=headers,
        content=request.body,
    )


def kept(headers: Iterable[tuple[str, str]], source: SourceRules) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rendered headers that may be sent.

    Raises:
        Halted: One of them holds something that no header can hold.
    """
    for name, value in headers:
        lower = name.lower()
        if lower in AUTHORITY | ORIGINATING | OURS or lower.startswith("x-forwarded-"):
            continue
        if lower == source.auth_header.lower():
            continue
        try:
            raw = value.strip().encode("latin-1")
        except UnicodeEncodeError as error:
            raise Halted(f"the header {name!r} has characters outside of Latin-1") from error
        if not NAME.fullmatch(name) or re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", raw):
            raise Halted(f"the header {name!r} has characters that no header may have")
        yield name.encode(), raw


def secrets_in(private: Mapping[str, str], source: SourceRules) -> tuple[bytes, ...]:
    """Return what must not come back: credentials, whole, without their scheme, and decoded."""
    found: set[bytes] = set()
    for name, value in private.items():
        if name.lower() not in AUTHORITY | {source.auth_header.lower()}:
            continue  # a key or a correlation id; a look-up may have to find it in the answer
        scheme, _, token = value.partition(" ")
        found |= {value.encode(), token.strip().encode()}
        if scheme.lower() == "basic":
            found |= {decoded(token), decoded(token).partition(b":")[2]}
    longest_first = sorted(found, key=len, reverse=True)
    return tuple(secret for secret in longest_first if len(secret) >= SECRET_LENGTH_MIN)


def decoded(token: str) -> bytes:
    """Return what a Basic token stands for, or nothing."""
    try:
        return base64.b64decode(token, validate=True)
    except binascii.Error:
        return b""


def without(secrets: Iterable[bytes], data: bytes) -> bytes:
    """Blot out credentials that the other side sent back."""
    for secret in secrets:
        data = data.replace(secret, REDACTED)
    return data


def inflate(body: bytes, encoding: str, body_max_bytes: int) -> bytes:
    """Undo a compression that was not asked for, up to the bound on what comes out.

    Raises:
        OverBound: More would come out.
        EOFError: The end is missing.
        ValueError: It is no gzip or deflate.
    """
    if encoding in {"", "identity"} or not body:
        return body
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ValueError("unknown content encoding")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # either header
    try:
        plain = inflater.decompress(body, body_max_bytes + 1)
    except zlib.error as error:
        raise ValueError("corrupt content encoding") from error
    if len(plain) > body_max_bytes:
        raise OverBound
    if not inflater.eof:
        raise EOFError
    if inflater.unused_data:
        raise ValueError("data after the end of the content encoding")
    return plain


def reply(
    exchange: Exchange,
    answer: Answer,
    failure: Exception | None,
    *,
    secrets: Iterable[bytes],
    body_max_bytes: int,
) -> Reply:
    """Say what was seen. `failure` is None only if nothing failed."""
    secrets = tuple(secrets)
    body = bytes(answer.body)
    if answer.complete:
        failure = None
        try:
            body = inflate(body, answer.headers.get("content-encoding", "").lower(), body_max_bytes)
        except (OverBound, EOFError, ValueError) as error:
            failure = error
    if failure is None:
        exchange.move(Stage.READ)
    cause, detail = (None, "") if failure is None else diagnose(exchange, answer, failure)
    return Reply(
        stage=exchange.stage,
        proof=Seen.NOT_SENT if cause is Cause.NOT_SENT else None,
        cause=cause,
        detail=without(secrets, detail.encode()).decode(),
        status=answer.status,
        headers={
            name: without(secrets, value.encode("latin-1")).decode("latin-1")
            for name, value in answer.headers.items()
        },
        body=without(secrets, body),
        complete=failure is None,
        sent_bytes=exchange.sent_bytes,
    )


def diagnose(exchange: Exchange, answer: Answer, failure: Exception) -> tuple[Cause, str]:
    """Say why no complete answer came. No text of the other side's is quoted."""
    if answer.status is None and exchange.never_left(failure):
        return Cause.NOT_SENT, before_request(exchange, failure)
    where = "before any answer"
    if answer.status is not None:
        where = f"in the body of an answer with status {answer.status}"
    elif exchange.received_bytes:
        where = "in the head of the answer"
    after = "after request write" if exchange.sent_bytes else "with no proof that nothing was sent"
    match failure:
        case OutOfTime() | httpcore2.TimeoutException():
            return Cause.TIMEOUT, f"response deadline exceeded {after}, {where}"
        case OverBound():
            return Cause.TRUNCATED, f"the answer's body is over the bound; status {answer.status}"
        case EOFError():
            return Cause.TRUNCATED, f"the compressed body ends too early; status {answer.status}"
        case httpcore2.RemoteProtocolError() if exchange.ended:
            # An end in the middle of an answer; before one it looks just like a reset.
            begun = bool(exchange.received_bytes)
            cause = Cause.TRUNCATED if begun else Cause.CONNECTION_RESET
            return cause, f"connection closed {after}, {where}"
        case httpcore2.ProtocolError() | ValueError():
            return Cause.UNREADABLE, f"unreadable answer {after}, {where}"
        case _:
            return Cause.CONNECTION_RESET, f"connection reset {after}, {where}"


def before_request(exchange: Exchange, failure: Exception) -> str:
    """Say what stopped the exchange before the first byte of the request."""
    if isinstance(failure, Halted):
        return failure.detail
    if isinstance(failure, httpcore2.LocalProtocolError):
        return "the request breaks the rules of HTTP"
    last = exchange.events[-1] if exchange.events else ""
    doing = "while connecting"
    if exchange.stage is Stage.GATE:
        doing = "while asking the gate"
    elif "start_tls" in last:
        doing = "in the TLS handshake"
    elif exchange.tunnelling:
        doing = "while asking the proxy for a tunnel"
    if isinstance(failure, httpcore2.ProxyError):
        status = re.match(r"\d{3}\b", str(failure))
        return f"the proxy refused a tunnel with status {status[0] if status else 'unknown'}"
    if isinstance(failure, OutOfTime | httpcore2.TimeoutException):
        return f"deadline exceeded {doing}, before the request was written"
    return f"{reason(failure)} {doing}, before the request was written"


def reason(failure: BaseException) -> str:
    """Name what is at the bottom of a failed connection, in words of ours or OpenSSL's."""
    at: BaseException | None = failure
    while at is not None:
        match at:
            case socket.gaierror():
                return "the name could not be resolved"
            case ConnectionRefusedError():
                return "connection refused"
            case ssl.SSLCertVerificationError():
                return f"certificate not accepted ({at.verify_message})"
            case ssl.SSLError():
                return f"TLS failed ({at.reason or 'connection closed'})"
            case ConnectionResetError() | BrokenPipeError():
                return "connection reset"
            case _:
                at = at.__cause__ or at.__context__
    return "connection failed"
