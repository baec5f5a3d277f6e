"""What stands between an application and the provider: TLS, a proxy, and the names of hosts."""

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Self

NO_TLS = b"HTTP/1.1 400 This is no TLS port\r\nContent-Length: 0\r\n\r\n"
NO_TUNNEL = b"HTTP/1.1 503 No way\r\nContent-Length: 0\r\n\r\n"


async def let_go(*writers: asyncio.StreamWriter) -> None:
    """Break connections off, and wait until they are: a loop that ends first leaves them open."""
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        # A task that was cancelled while it waited has cancelled what all others wait for.
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


@asynccontextmanager
async def linked(port: int):
    """Connect to a port of loopback, and yield both ends. At the end the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


@asynccontextmanager
async def listening(connected, *, port: int = 0, tls: ssl.SSLContext | None = None):
    """Serve on loopback, and yield the port. Connections that are still open are cut at the end."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            await connected(reader, writer)
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await let_go(*writers)


def forwarding(port: int):
    """Carry bytes both ways between a connection and a port of loopback."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with linked(port) as (there_reader, there):
            both = [
                asyncio.create_task(_copy(reader, there)),
                asyncio.create_task(_copy(there_reader, writer)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()

    return carry


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()


class Proxy:
    """An HTTP proxy that refuses every tunnel until it `works`."""

    def __init__(self, port: int) -> None:
        self.works, self.refused, self._port = False, 0, port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"CONNECT ")
        if not self.works:
            self.refused += 1
            writer.write(NO_TUNNEL)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 Established\r\n\r\n")
        await forwarding(self._port)(reader, writer)


async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a handshake as a port does on which nobody speaks TLS."""
    await reader.read(1)
    writer.write(NO_TLS)
    await writer.drain()


class TlsLater:
    """A port on which nobody speaks TLS at first; after `heal` it leads to another one by TLS."""

    def __init__(self, leads_to: int, tls: ssl.SSLContext) -> None:
        self.port, self._leads_to, self._tls = 0, leads_to, tls
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(listening(no_tls))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def heal(self) -> None:
        await self._stack.aclose()
        serves = listening(forwarding(self._leads_to), port=self.port, tls=self._tls)
        await self._stack.enter_async_context(serves)


class Names:
    """A resolver that knows nothing of `payments.invalid` until it `works`; then it is loopback."""

    def __init__(self, ask=socket.getaddrinfo) -> None:
        self.works, self._ask = False, ask

    def __call__(self, host, *arguments, **options):
        known = self.works and host in ("payments.invalid", b"payments.invalid")
        return self._ask("127.0.0.1" if known else host, *arguments, **options)
