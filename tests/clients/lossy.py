"""What stands between a client and the service: it loses answers, and never a request."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.scenarios.fronts import linked, listening


@dataclass(kw_only=True)
class Seen:
    """A request that passed, and what was told of it."""

    method: str
    path: str
    body: Any
    status: int
    lost: bool


@dataclass
class Lossy:
    """A proxy for one request a connection. `loses` says which answers are lost, and how.

    "rst" and "fin" close the connection without a byte of the answer, "half" within it, "silence"
    says nothing, "before" loses the request itself, "502" answers as a gateway does.
    """

    port: int
    loses: Callable[[str, str, int], str | None] = lambda method, path, number: None
    seen: list[Seen] = field(default_factory=list)
    told: dict[tuple[str, str], int] = field(default_factory=dict)

    def serving(self, port: int = 0):
        return listening(self._serve, port=port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await _read(reader)
        method, path = head.split(b" ", 2)[:2]
        said = (method.decode(), path.decode().partition("?")[0])
        number = self.told[said] = self.told.get(said, 0) + 1
        how = self.loses(*said, number)
        if how == "before":
            writer.transport.abort()
            return
        answer = await self._forward(head, body)
        status = int(answer.split(b" ", 2)[1])
        parsed = json.loads(body) if body else None
        self.seen.append(
            Seen(method=said[0], path=said[1], body=parsed, status=status, lost=how is not None)
        )
        match how:
            case None:
                writer.write(answer)
            case "half":
                writer.write(answer[: len(answer) // 2])
            case "502":
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops")
            case "rst":
                writer.transport.abort()
                return
            case "silence":
                await reader.read()
                return
        await writer.drain()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")
        ]
        async with linked(self.port) as (reader, writer):
            writer.write(b"\r\n".join([*lines[:-2], b"Connection: close", b"", b""]) + body)
            await writer.drain()
            answer: bytes = await reader.read()
            return answer

    def posts(self, path: str = "/v1/operations") -> list[Seen]:
        return [each for each in self.seen if (each.method, each.path) == ("POST", path)]


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head, await reader.readexactly(length)


def first(how: str, method: str = "POST", times: int = 1) -> Callable[[str, str, int], str | None]:
    """Lose the first answers to requests of one method."""
    return lambda said, path, number: how if said == method and number <= times else None
