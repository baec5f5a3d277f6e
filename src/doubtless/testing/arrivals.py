"""Count what really arrives: does an SDK send once for each call, when the answer is lost?

    with arrivals(loses="reset") as counted:
        with pytest.raises(Exception):
            sdk(base_url=counted.url).create_refund("ch_1")
    assert counted.count == 1

A retry by a library below the tool is invisible to whoever calls it: only the other side can tell.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, TypeAlias

Loses: TypeAlias = Literal["nothing", "reset", "close", "silence"] | int
"""What becomes of the answer: it is given; the connection is reset (RST) or closed (FIN) without a
byte; nothing comes at all; or a number: that status is answered."""

SILENCE_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that arrived whole, as the other side saw it."""

    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes


@dataclass(slots=True)
class Arrivals:
    """What has arrived so far. May be read from any thread."""

    url: str  # without a trailing slash
    requests: list[Arrival] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many requests arrived whole."""
        return len(self.requests)


class _Handler(BaseHTTPRequestHandler):
    """Takes requests, notes each that came whole, and ends its answer as it was told."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        length = int(self.headers.get("content-length") or 0)
        chunked = "chunked" in (self.headers.get("transfer-encoding") or "").lower()
        self.server.counted.requests.append(
            Arrival(
                method=self.command,
                path=self.path,
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self._chunks() if chunked else self.rfile.read(length),
            )
        )
        self._end(self.server.loses)

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _end(self, loses: Loses) -> None:
        self.close_connection = loses != "nothing"
        match loses:
            case "reset":
                linger = struct.pack("ii", 1, 0)  # close(2) sends RST
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            case "close":
                self.connection.shutdown(socket.SHUT_RDWR)
            case "silence":
                self.server.ended.wait(SILENCE_LIMIT_S)
            case _:
                self._answer(loses if isinstance(loses, int) else 200)

    def _answer(self, status: int) -> None:
        body = self.server.body
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: what arrived is counted."""

    def finish(self) -> None:
        with suppress(OSError, ValueError):  # the connection was ended on purpose
            super().finish()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, loses: Loses, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.loses, self.body = loses, body
        self.counted = Arrivals(f"http://127.0.0.1:{self.server_address[1]}")
        self.ended = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that give up are what this is for."""


@contextmanager
def arrivals(loses: Loses = "reset", *, body: bytes = b"{}") -> Iterator[Arrivals]:
    """Serve on a free port of loopback, take every request, and lose its answer in one way.

    Args:
        loses: What becomes of each answer.
        body: What an answer that is given holds: JSON.
    """
    with _Server(loses, body) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.counted
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
