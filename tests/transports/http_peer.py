"""A scripted server on loopback, and what it can swear to: the heads and commits that it saw."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.scenarios.fronts import let_go, linked

BIG = b"x" * 8_388_608
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Truth:
    """What really reached the server; TLS and CONNECT left out."""

    connections: int = 0
    closed: int = 0
    received: int = 0  # bytes of requests
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    commits: int = 0
    tunnels: list[bytes] = field(default_factory=list)  # heads of CONNECT


class Wire:
    """The server's end of one connection."""

    def __init__(self, reader, writer, truth, hold):
        self.reader, self.writer, self.truth, self.hold = reader, writer, truth, hold

    async def head(self):
        data = await self.reader.readuntil(b"\r\n\r\n")
        if data.startswith(b"CONNECT "):
            self.truth.tunnels.append(data)
        else:
            self.truth.received += len(data)
            self.truth.heads.append(data)
        return data

    async def request(self):
        head = await self.head()
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = await self.reader.readexactly(length)
        self.truth.received += length
        self.truth.bodies.append(body)
        return head

    def commit(self):
        self.truth.commits += 1

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    def reset(self):
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def wait(self):
        """Do nothing until the test is over."""
        await self.hold.wait()


Behaviour = Callable[[Wire], Awaitable[None]]


@dataclass
class Peer:
    port: int
    scheme: str
    truth: Truth

    @property
    def url(self):
        return f"{self.scheme}://localhost:{self.port}"


@asynccontextmanager
async def serving(behaviour: Behaviour, *, tls: ssl.SSLContext | None = None):
    """Serve `behaviour` on a free port of 127.0.0.1."""
    truth, hold = Truth(), asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader, writer):
        truth.connections += 1
        with suppress(OSError, EOFError, asyncio.CancelledError):
            await behaviour(Wire(reader, writer, truth, hold))
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        truth.closed += 1

    def connected(reader, writer):
        writers.append(writer)
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Peer(port, "http" if tls is None else "https", truth)
    finally:
        hold.set()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await let_go(*writers)


def answering(data: bytes, *, commit: bool = True, then_wait: bool = False) -> Behaviour:
    """Read each request, and answer it with `data`."""

    async def behave(wire):
        while True:
            await wire.request()
            if commit:
                wire.commit()
            await wire.send(data)
            if then_wait:
                await wire.wait()

    return behave


def answering_once(data: bytes) -> Behaviour:
    """Read one request, answer it with `data` and end the connection."""

    async def behave(wire):
        await wire.request()
        wire.commit()
        await wire.send(data)

    return behave


def status_answer(status: int, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\n%bContent-Length: 0\r\n\r\n" % (status, extra)


async def accept_rst(wire):
    wire.reset()


async def plain_text(wire):
    await wire.send(ANSWER)
    await wire.wait()


async def hdr_rst(wire):
    await wire.head()
    wire.reset()


async def half_rst(wire):
    await wire.head()
    wire.truth.received += len(await wire.reader.readexactly(100_000))
    wire.reset()


async def act_on_hdr_rst(wire):
    await wire.head()
    wire.commit()
    wire.reset()


async def noread(wire):
    wire.writer.transport.pause_reading()
    await wire.wait()


async def nocommit_rst(wire):
    await wire.request()
    wire.reset()


async def commit_rst(wire):
    await wire.request()
    wire.commit()
    wire.reset()


async def commit_fin(wire):
    await wire.request()
    wire.commit()


async def commit_delay(wire):
    await wire.request()
    wire.commit()
    await wire.wait()


async def half_resp_rst(wire):
    await wire.request()
    wire.commit()
    await wire.send(b"HTTP/1.1 20")
    wire.reset()


async def body_rst(wire):
    await wire.request()
    wire.commit()
    await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
    wire.reset()


async def body_hang(wire):
    await wire.request()
    wire.commit()
    await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
    await wire.wait()


async def trunc(wire):
    await answering_once(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")(wire)


async def chunk_trunc(wire):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    await answering_once(head + b"5\r\nbegin\r\n9")(wire)


async def eof_delimited(wire):
    await answering_once(b"HTTP/1.1 200 OK\r\n\r\nbegin")(wire)


async def early_413(wire):
    await wire.head()
    await wire.send(status_answer(413))
    wire.truth.received += len(await wire.reader.read(100_000))


def second_request(behaviour: Behaviour) -> Behaviour:
    """Answer the first request of a connection, and do something else with the second."""

    async def behave(wire):
        await wire.request()
        await wire.send(ANSWER)
        await behaviour(wire)

    return behave


def proxy_refusing(status: int) -> Behaviour:
    async def behave(wire):
        await wire.head()
        await wire.send(status_answer(status))

    return behave


async def proxy_fin(wire):
    await wire.head()


async def proxy_hang(wire):
    await wire.head()
    await wire.wait()


def proxy_to(port: int) -> Behaviour:
    """Open a tunnel to `port`, and pass a reset on as a reset."""

    async def pump(reader, writer):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def behave(wire):
        await wire.head()
        async with linked(port) as (reader, writer):
            await wire.send(b"HTTP/1.1 200 Established\r\n\r\n")
            try:
                await asyncio.gather(pump(wire.reader, writer), pump(reader, wire.writer))
            except OSError:
                wire.reset()

    return behave


def certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Make a certificate that vouches for itself; return its file and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(tz=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    return cert_file, context


@asynccontextmanager
async def refusing_port():
    """Hold a port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@asynccontextmanager
async def deaf_port():
    """Hold a port that lets no further connection in: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                with suppress(BlockingIOError):
                    filler.connect(listener.getsockname())
            yield listener.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()
