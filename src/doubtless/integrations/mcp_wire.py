"""One client's link to the local service: the protocol's lines over a socket.

A client that has closed its side may still be answered: what it asked for runs to its end, and only
then the link is closed.
"""

import logging
from contextvars import ContextVar
from typing import Final, TypeAlias

import anyio
import anyio.abc
import mcp_types as types
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The longest message that is taken from a client, as over HTTP."""

_log = logging.getLogger("doubtless.gateway")

Front: TypeAlias = Server[dict[str, object]]
Incoming: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing: TypeAlias = MemoryObjectReceiveStream[SessionMessage]


class Link:
    """One client's connection, and what it still waits for."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.is_gone = False  # its side is closed: an answer may reach nobody
        self.gone = anyio.Event()
        self._waiting: set[str] = set()
        self._answered = anyio.Event()

    async def receive(self, lines: BufferedByteReceiveStream, incoming: Incoming) -> None:
        """Hand on what the client says, until it closes its side and is answered."""
        async with incoming:
            try:
                while True:
                    line = await lines.receive_until(b"\n", LINE_BYTES_MAX)
                    await incoming.send(self._read(line))
            except (anyio.EndOfStream, anyio.IncompleteRead, OSError, anyio.BrokenResourceError):
                self.leave()
            except (anyio.DelimiterNotFound, anyio.ClosedResourceError) as error:
                _log.warning("a client's link was closed: %s", error)
                self.leave()
                self._waiting.clear()
            await self.answered()

    async def answered(self) -> None:
        """Wait until nothing that the client asked for is left to be answered."""
        while self._waiting:
            self._answered = anyio.Event()
            await self._answered.wait()

    async def send(self, outgoing: Outgoing) -> None:
        """Hand on what the client is told. Ends where nobody takes it any more."""
        async with outgoing:
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await self.stream.send(text.encode() + b"\n")
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    self.leave()
                    return
                if isinstance(message.message, types.JSONRPCResponse | types.JSONRPCError):
                    self._done(message.message.id)

    async def has_gone(self) -> bool:
        """Whether the client has closed its side."""
        return self.is_gone

    def leave(self) -> None:
        """Note that the client has closed its side."""
        self.is_gone = True
        self.gone.set()

    def _read(self, line: bytes) -> SessionMessage | Exception:
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as error:
            return error
        match message:
            case types.JSONRPCRequest(id=asked):
                self._waiting.add(str(asked))
            case types.JSONRPCNotification(method="notifications/cancelled", params=params):
                # What was cancelled is never answered.
                self._done((params or {}).get("requestId"))
        return SessionMessage(message)

    def _done(self, asked: object) -> None:
        self._waiting.discard(str(asked))
        self._answered.set()


LINK: ContextVar[Link | None] = ContextVar("doubtless_gateway_link", default=None)
"""The link on which the request that is being answered came; None over HTTP."""


async def serve_link(front: Front, link: Link, lines: BufferedByteReceiveStream) -> None:
    """Serve one client until it is gone, and everything that it asked for is answered."""
    LINK.set(link)
    incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    async def send() -> None:
        await link.send(outgoing)
        tasks.cancel_scope.cancel()  # nobody takes answers: what is in flight runs on without it

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.receive, lines, incoming)
        tasks.start_soon(send)
        await front.run(read, write, front.create_initialization_options())
        tasks.cancel_scope.cancel()
