"""A server on the pipes of a process that we started: one line for each message.

Written by ourselves, byte by byte counted, and not by the SDK: whether the system took any of a
line is the one thing that proves something. A line that was not even begun was not sent.
"""

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Self, TypeAlias
from weakref import WeakValueDictionary

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from doubtless.transports.mcp_servers import ServerRules
from doubtless.transports.mcp_ticket import TICKET, Ticket

LINE_MAX: Final = 64 * 1_048_576
CHUNK: Final = 65_536
END_S: Final = 2.0  # to end by itself once its input is closed; then it is asked, then killed
POLL_S: Final = 0.01

OWN: Final = "DOUBTLESS_SECRET_"
CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"

Streams: TypeAlias = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], "PipeWriter"]

_log = logging.getLogger("doubtless.mcp")


class PipeWriter:
    """The server's input. What the SDK takes for its write stream.

    Args:
        fd: The writing end, not blocking; owned by this object.
        closed: Called once nothing can be written any more.
    """

    def __init__(self, fd: int, closed: Callable[[], None]) -> None:
        self._fd: int | None = fd
        self._closed = closed
        self._lock = anyio.Lock()
        # Of calls that are waited for, by request id.
        self.tickets: WeakValueDictionary[object, Ticket] = WeakValueDictionary()

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message; a call only through its gate, and no cancellation of any.

        Raises:
            Halted: The call's gate did not open, or its time was over: nothing was written.
            anyio.ClosedResourceError: The server's input is closed.
            anyio.BrokenResourceError: The server does not read any more.
        """
        message = item.message
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            return  # what has begun is never interrupted from here
        line = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        ticket = None
        if isinstance(message, JSONRPCRequest) and message.method == CALL:
            ticket = TICKET.get(None)
            if ticket is None or ticket.taken:
                raise anyio.ClosedResourceError  # one call, one line
            ticket.taken = True
            self.tickets[message.id] = ticket
        async with self._lock:
            await self._write(line, ticket)

    async def _write(self, line: bytes, ticket: Ticket | None) -> None:
        if ticket is not None:
            await ticket.permit()
        left = memoryview(line)
        try:
            while left:
                left = left[await self._some(left, ticket) :]
        except BaseException:
            if len(left) < len(line):
                self.close()  # half a line: the other half must never follow
            raise
        if ticket is not None:
            ticket.watch.written = True

    async def _some(self, left: memoryview, ticket: Ticket | None) -> int:
        """Write what the system takes now; wait if it takes nothing."""
        if self._fd is None:
            raise anyio.ClosedResourceError
        if ticket is not None and not ticket.watch.sent_bytes:
            ticket.check()
        try:
            written = os.write(self._fd, left)
        except BlockingIOError:
            await anyio.wait_writable(self._fd)
            return 0
        except OSError as error:
            self.close()
            raise anyio.BrokenResourceError from error
        if ticket is not None:
            ticket.count(written)
        return written

    def close(self) -> None:
        """Close the server's input. Nothing can be written after that."""
        fd, self._fd = self._fd, None
        if fd is not None:
            anyio.notify_closing(fd)
            os.close(fd)
            self._closed()

    async def aclose(self) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _inherited(server: ServerRules) -> dict[str, str]:
    """Return what a server gets of our own environment. Never a secret that is ours by name."""
    if not server.inherits:
        return get_default_environment()
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)}


@asynccontextmanager
async def piped(
    server: ServerRules, secrets: Mapping[str, str], closed: Callable[[], None]
) -> AsyncIterator[Streams]:
    """Start a server, and end it with all that it has started.

    Args:
        server: Its command.
        secrets: Variables of its environment that hold credentials.
        closed: Called once nothing can be written to it any more.

    Raises:
        OSError: It can't be started.
    """
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    writer = PipeWriter(ours, closed)
    try:
        process = await anyio.open_process(
            server.command,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=None,
            cwd=server.cwd,
            env={**_inherited(server), **dict(server.env), **secrets},
            start_new_session=True,
        )
    except BaseException:
        writer.close()
        raise
    finally:
        os.close(theirs)
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    reading = asyncio.create_task(_read(process, send, writer))
    try:
        yield receive, writer
    finally:
        writer.close()
        with anyio.CancelScope(shield=True):
            receive.close()
            await _end(process)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await process.aclose()


async def _read(
    process: anyio.abc.Process,
    send: MemoryObjectSendStream[SessionMessage | Exception],
    writer: PipeWriter,
) -> None:
    """Pass on what the server says, line by line, until it ends; then its input is closed too."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    parts: list[bytes] = []
    size = 0
    with send:
        try:
            while True:
                chunk = await process.stdout.receive(CHUNK)
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    await _pass_on(b"".join([*parts, line]), send, writer)
                    parts, size = [], 0
                parts.append(rest)
                size += len(rest)
                if size > LINE_MAX:
                    _log.error("an MCP server wrote a line of more than %d bytes", LINE_MAX)
                    return
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            return  # whoever waits is told by the end of the stream
        finally:
            writer.close()


async def _pass_on(
    line: bytes, send: MemoryObjectSendStream[SessionMessage | Exception], writer: PipeWriter
) -> None:
    if not line.strip():
        return
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        _log.warning("an MCP server wrote a line that is no message")
        await send.send(error)
        return
    if isinstance(message, JSONRPCResponse | JSONRPCError):
        ticket = writer.tickets.pop(message.id, None)
        if ticket is not None:
            ticket.answered = True
    await send.send(SessionMessage(message))


async def _end(process: anyio.abc.Process) -> None:
    """Let it end by itself, now that its input is closed; else end its whole group."""
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, sign)
        with anyio.move_on_after(END_S):
            # Not `wait`: that waits for the pipes too, which a child may have inherited.
            while process.returncode is None:  # noqa: ASYNC110
                await anyio.sleep(POLL_S)
            return
