"""A client without manners or memory: bytes out, bytes in, and how the connection ended.

HTTP libraries fold a reset, a close and a cut-off body into a few exceptions. A test of what
happens on the wire must tell them apart.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from doubtless.testing.provider_rules import Json

End = Literal["fin", "rst", "refused", "silence"]  # silence: nothing came within the time-out

_LOOPBACK: Final = "127.0.0.1"
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client saw: the bytes of the response, and how the stream ended."""

    data: bytes
    end: End

    @property
    def status(self) -> int | None:
        """The response's status; None where no status line came."""
        parts = self.data.split(b" ", 2)
        return int(parts[1]) if len(parts) == 3 else None

    @property
    def headers(self) -> dict[str, str]:
        """The response's headers, with lower-case names."""
        lines = self.data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def body(self) -> bytes:
        """What came after the headers, however little."""
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def complete(self) -> bool:
        """Whether as many bytes came as the response promised."""
        promised = self.headers.get("content-length")
        return promised is not None and len(self.body) == int(promised)

    def object(self) -> dict[str, Json]:
        """Return the body as a JSON object.

        Raises:
            ValueError: It is no JSON.
            TypeError: It is JSON, but no object.
        """
        value: Json = json.loads(self.body)
        if not isinstance(value, dict):
            raise TypeError(f"not a JSON object: {value!r}")
        return value


class Wire:
    """One connection to a provider on loopback, for sending in pieces and leaving early.

    Raises:
        ConnectionRefusedError: Nobody listens.
        ConnectionResetError: The connection was reset as soon as it was accepted.
    """

    def __init__(self, port: int, *, timeout_s: float = 5.0) -> None:
        self._sock = socket.create_connection((_LOOPBACK, port), timeout=timeout_s)
        self._cut = False  # a reset that `send` met is not reported again by the next read

    def send(self, data: bytes) -> None:
        """Send `data`. A peer that is gone already is found out by reading."""
        try:
            self._sock.sendall(data)
        except ConnectionError:
            self._cut = True

    def read_to_end(self) -> Seen:
        """Read until the peer closes or resets, or nothing came for the time-out."""
        data = bytearray()
        while True:
            try:
                chunk = self._sock.recv(65536)
            except ConnectionResetError:
                return Seen(data=bytes(data), end="rst")
            except TimeoutError:
                return Seen(data=bytes(data), end="silence")
            if not chunk:
                return Seen(data=bytes(data), end="rst" if self._cut else "fin")
            data += chunk

    def half_close(self) -> None:
        """Send FIN, and go on listening."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with RST."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sock.close()


def request_bytes(
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return one HTTP/1.1 request that asks for the connection to be closed after it."""
    payload = b"" if body is None else json.dumps(body).encode()
    lines = {
        "host": _LOOPBACK,
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(payload)),
        **({} if key is None else {"idempotency-key": key}),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + payload


def call(
    port: int,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
) -> Seen:
    """Send one request on a connection of its own and return what was seen. Never sends twice."""
    try:
        wire = Wire(port, timeout_s=timeout_s)
    except ConnectionRefusedError:
        return Seen(data=b"", end="refused")
    except ConnectionResetError:  # a reset on accept may overtake the news of the connection
        return Seen(data=b"", end="rst")
    with wire:
        wire.send(request_bytes(method, path, body, key=key, headers=headers))
        return wire.read_to_end()
