"""Upstream MCP servers on pipes and on loopback, and what can go wrong between them and us."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.streamable_http import EventMessage, EventStore
from tests.actions.mcp_program import Book, server
from tests.scenarios.fronts import linked, listening

from doubtless import Doubtless

HERE = Path(__file__).parent
PATIENCE_S = 20
POLL_S = 0.01

CONTRACT = """
[servers.pay]
SERVER

[tools.charge]
effect = "write"
business_key = ["charge"]
timeout = "TIMEOUT"
in_flight_horizon = "HORIZON"
recovery_deadline = "60s"
retry = { attempts = 2, backoff = "10ms" }

[tools.charge.arguments]
type = "object"
required = ["charge"]
properties.charge = { type = "string" }
properties.how = { type = "string" }

[tools.charge.mcp]
server = "pay"
tool = "charge"
arguments = { memo = "{operation.ref}" }
meta_key = "example.com/key"
MORE

[tools.charge.mcp.pace]
interval = "100ms"
interval_max = "200ms"
confirmations = 1
"""
LOOKUP = """
[tools.charge.mcp.lookup]
tool = "find"
arguments = { memo = "{operation.ref}" }
items = "items"
complete = "!more"
id = "number"
authoritative = true
lag = "0s"
"""


def declare(folder: Path, said: str, *, timeout="4s", horizon="100ms", more=LOOKUP) -> Path:
    text = CONTRACT.replace("SERVER", said).replace("TIMEOUT", timeout).replace("MORE", more)
    file = folder / "contracts.toml"
    file.write_text(text.replace("HORIZON", horizon), encoding="utf-8")
    return file


def opened(folder: Path, **options: Any) -> Doubtless:
    contracts = folder / "contracts.toml"
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts, **options)


class Nursery:
    """Servers on pipes, started quickly."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "s")
        command = [sys.executable, str(HERE / "mcp_nursery.py"), self._socket]
        root = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=root)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def command(self, path: Path) -> list[str]:
        return [sys.executable, "-S", "-E", str(HERE / "mcp_start.py"), self._socket, str(path)]

    def said(self, path: Path) -> str:
        """Return the server as a contract file declares it."""
        return f"command = {json.dumps(self.command(path))}"

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(self._socket)
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def served(book: Book, port: int = 0, **options: Any) -> Iterator[int]:
    """Serve streamable HTTP on loopback in a thread, and yield the port."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        app = server(book).streamable_http_app(**options)
        runner = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        told = {"sockets": [bound]}
        thread = threading.Thread(target=runner.run, kwargs=told, daemon=True)
        thread.start()
        end = time.monotonic() + PATIENCE_S
        while not runner.started:
            assert time.monotonic() < end
            time.sleep(POLL_S)
        try:
            yield bound.getsockname()[1]
        finally:
            runner.should_exit = runner.force_exit = True
            thread.join(PATIENCE_S)


@dataclass
class Between:
    """A proxy for one request a connection, which does to calls what `how` says.

    "before" cuts the link before the request is passed on, "after" when the answer has come, "half"
    in the middle of it, "silence" never answers; a number is the status of an answer of its own,
    after the effect; "page" answers 200 with a page, "shape" with a result that is none, "ended"
    with a stream that ends.
    """

    port: int
    how: str | int = "pass"
    heads: list[bytes] = field(default_factory=list)  # of calls
    cancelled: int = 0  # cancellations, of either era, that came through here

    def serving(self):
        return listening(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-le")]
        body = await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)
        message = json.loads(body) if body else {}
        if message.get("method") == "notifications/cancelled":
            self.cancelled += 1
        is_charge = message.get("params", {}).get("name") == "charge"
        if not is_charge:
            await self._pass_on(head, body, writer, None)
            return
        self.heads.append(head)
        if self.how == "before":
            writer.transport.abort()
        elif self.how == 307:
            moved = b"HTTP/1.1 307 Moved\r\nLocation: /mcp/\r\nContent-Length: 0\r\n\r\n"
            writer.write(moved)
        else:
            await self._pass_on(head, body, writer, message["id"])

    async def _pass_on(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, call: object
    ) -> None:
        kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        async with linked(self.port) as (there, to):
            to.write(b"\r\n".join([*kept[:-2], b"Connection: close", b"", b""]) + body)
            if call is None or self.how == "pass":
                while chunk := await there.read(65_536):
                    writer.write(chunk)
                return
            answer = await there.read()
        await self._spoil(answer, writer, call)

    async def _spoil(self, answer: bytes, writer: asyncio.StreamWriter, call: object) -> None:
        own = {
            "page": (b"text/html", b"<p>log in</p>"),
            "ended": (b"text/event-stream", b": x\n\n"),
        }
        own["shape"] = (
            b"application/json",
            json.dumps({"jsonrpc": "2.0", "id": call, "result": {"content": 7}}).encode(),
        )
        match self.how:
            case "after":
                writer.transport.abort()
            case "half":
                writer.write(answer[: answer.index(b"\r\n\r\n") + 30])
                await writer.drain()
                writer.transport.abort()
            case "silence":
                await asyncio.sleep(PATIENCE_S)
            case int(status):
                writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 4\r\n\r\noops" % status)
            case _:
                kind, text = own[str(self.how)]
                told = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s"
                writer.write(told % (kind, len(text), text))


class Events(EventStore):
    """What an endpoint keeps of its streams, so that they can be taken up again."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._kept.append((stream_id, message))
        return str(len(self._kept) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str:
        stream_id = self._kept[int(last_event_id)][0]
        for number, (each, message) in enumerate(self._kept):
            if number > int(last_event_id) and each == stream_id and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream_id


class Cutting(Between):
    """Cuts the stream of a call behind its first event, which says where it can be taken up."""

    async def _pass_on(
        self, head: bytes, body: bytes, writer: asyncio.StreamWriter, call: object
    ) -> None:
        if call is None:
            await super()._pass_on(head, body, writer, call)
            return
        async with linked(self.port) as (there, to):
            to.write(head + body)
            for _ in range(2):
                writer.write(await there.readuntil(b"\r\n\r\n"))
            writer.write(b"\r\n")
            await writer.drain()
            writer.close()
            await there.readuntil(b"\r\n0\r\n")
