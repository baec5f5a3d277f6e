"""HTTP/1.1 on a bare non-blocking socket, so that every byte and every close is under control.

A framework's transport reads ahead, answers by itself and closes politely; a hostile provider must
be able to do none of these.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from doubtless.testing.provider_rules import Json

HEAD_MAX: Final = 64 * 1024  # bytes
BODY_MAX: Final = 16 * 1024 * 1024  # bytes
_CHUNK: Final = 64 * 1024  # bytes, at most, read at once
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)  # close() then sends RST and forgets unsent bytes


class Malformed(ValueError):
    """The peer does not speak HTTP/1.1, or more of it than is read here."""


class Incomplete(ConnectionError):
    """The peer went away before its body was complete."""

    def __init__(self, received: int) -> None:
        super().__init__(f"the body ended after {received} bytes")
        self.received = received


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request's line and headers."""

    method: str
    target: str  # as sent, with the query
    version: str  # "HTTP/1.1"
    headers: Mapping[str, str]  # lower-case names; repeated headers joined by ", "

    @property
    def path(self) -> str:
        """The target without its query."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of repeated ones the last."""
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def key(self) -> str | None:
        """The Idempotency-Key, without the quotes that the IETF draft asks for."""
        value = self.headers.get("idempotency-key")
        return value.strip('"') if value else None

    @property
    def closes(self) -> bool:
        """Whether the peer wants the connection closed after the answer."""
        asked = self.headers.get("connection", "").lower()
        return asked == "close" or (self.version == "HTTP/1.0" and asked != "keep-alive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that was read to its last byte."""

    number: int  # 1-based, in the order of the heads' arrival
    head: Head
    body: bytes

    def fields(self) -> dict[str, Json]:
        """Return the body's fields, from JSON or a form.

        Raises:
            Malformed: The body is neither.
        """
        if not self.body:
            return {}
        if "x-www-form-urlencoded" in self.head.headers.get("content-type", ""):
            return _form(self.body)
        try:
            value: Json = json.loads(self.body)
        except ValueError as error:
            raise Malformed(f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Malformed("the body is not a JSON object")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response that was not sent yet."""

    status: int
    payload: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, body: Json, headers: Mapping[str, str] | None = None) -> Answer:
        """Return an answer with `body` as JSON."""
        return cls(status=status, payload=json.dumps(body).encode(), headers=headers or {})

    def wire(self, *, closes: bool, length: int | None = None) -> bytes:
        """Return the response's bytes; `length` overrides what Content-Length promises."""
        lines = [f"HTTP/1.1 {self.status} {_phrase(self.status)}"]
        # A 304 or 204 must have no body, and clients rightly choke on one.
        payload = b"" if self.status in (204, 304) else self.payload
        headers = {
            "content-type": self.content_type,
            "content-length": str(len(payload) if length is None else length),
            "connection": "close" if closes else "keep-alive",
            **self.headers,
        }
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + payload


class Connection:
    """One accepted connection. Nothing is read before it is asked for."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self.open = True

    async def head(self) -> Head | None:
        """Read a request's head, or return None when the peer closed between two requests.

        Raises:
            Malformed: What came is no HTTP/1.1.
        """
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEAD_MAX:
                raise Malformed("the head is too long")
            if not await self._more():
                return None
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        try:
            method, target, version = lines[0].split(" ")
        except ValueError:
            raise Malformed(f"no request line: {lines[0]!r}") from None
        return Head(method=method, target=target, version=version, headers=_headers(lines[1:]))

    async def body(self, head: Head) -> bytes:
        """Read the body that `head` announces.

        Raises:
            Incomplete: The peer went away first.
            Malformed: The framing can't be read, or the body is longer than BODY_MAX.
        """
        if head.headers.get("expect", "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in head.headers.get("transfer-encoding", "").lower():
            return await self._chunked()
        return await self._exactly(announced(head), already=0)

    async def skip(self, count: int) -> int:
        """Read at most `count` bytes of the body and no more; return how many came."""
        while len(self._buffer) < count and await self._more(count - len(self._buffer)):
            pass
        return min(count, len(self._buffer))

    async def send(self, data: bytes) -> None:
        """Send all of `data`.

        Raises:
            ConnectionError: The peer is gone, or this side closed.
        """
        if not self.open:
            raise ConnectionAbortedError("this side closed the connection")
        await self._loop.sock_sendall(self._sock, data)

    async def until_closed(self, timeout_s: float | None) -> None:
        """Return when the peer closes or `timeout_s` has passed. Never sends a byte."""
        try:
            async with asyncio.timeout(timeout_s):
                while await self._more():
                    pass
        except TimeoutError:
            pass

    def fin(self) -> None:
        """Close politely: what was sent arrives, then the end of the stream."""
        self.open = False
        self._sock.close()

    def rst(self) -> None:
        """Reset: the peer's next read fails, and what was not delivered is lost."""
        if self.open:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self.fin()

    async def _more(self, count: int = _CHUNK) -> bool:
        try:
            data = await self._loop.sock_recv(self._sock, min(count, _CHUNK))
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    async def _exactly(self, count: int, *, already: int) -> bytes:
        if already + count > BODY_MAX:
            raise Malformed("the body is too long")
        while len(self._buffer) < count:
            if not await self._more():
                raise Incomplete(already + len(self._buffer))
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _chunked(self) -> bytes:
        body = bytearray()
        while True:
            line = await self._line(len(body))
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise Malformed(f"no chunk size: {line!r}") from None
            if size == 0:
                break
            body += await self._exactly(size, already=len(body))
            await self._line(len(body))
        while await self._line(len(body)):  # trailers
            pass
        return bytes(body)

    async def _line(self, already: int) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if not await self._more():
                raise Incomplete(already)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def announced(head: Head) -> int:
    """Return the body's length in bytes by its Content-Length; zero where there is none."""
    text = head.headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise Malformed(f"no length: {text!r}")
    return int(text)


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed(f"no header: {line!r}")
        known = headers.get(name.lower())
        headers[name.lower()] = f"{known}, {value.strip()}" if known else value.strip()
    return headers


def _form(body: bytes) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    for name, text in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        outer, bracket, inner = name.partition("[")
        if bracket:
            nested = fields.setdefault(outer, {})
            if isinstance(nested, dict):
                nested[inner.rstrip("]")] = text
        else:
            # A form has no numbers; amounts are compared as numbers all the same.
            fields[name] = int(text) if name == "amount" and text.isdecimal() else text
    return fields


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
