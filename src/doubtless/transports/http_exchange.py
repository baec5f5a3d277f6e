"""One HTTP exchange as a barrier: who may write its first byte, and what was seen of it.

Only one boundary changes what is known: the first byte of *this* request. It is guarded twice. The
HTTP library announces it by a trace event, in which the gate is awaited and the credentials are
attached; and the network stream under it counts every byte before it is handed over, and refuses
those that the gate did not permit. So a library that renamed its events would send nothing.
"""

# The library hands its time-outs to streams as an argument of that name.
# ruff: noqa: ASYNC109

import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import anyio.lowlevel
import httpcore2

from doubtless.core.model import Stage
from doubtless.errors import DoubtlessError
from doubtless.transports.base import Gate, Private, Watch

ASKED: Final = "send_request_headers.started"
WRITTEN: Final = "send_request_body.complete"  # anyio keeps no bytes back: the system has them
HEAD_CAME: Final = "receive_response_headers.complete"
BEFORE_REQUEST: Final = ("connection.connect_tcp.", "connection.start_tls.", "proxy.start_tls.")
REQUEST_NOT_WRITTEN: Final = "http11.send_request_headers.failed"

STAGES: Final = tuple(Stage)

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one connection, not of the message (RFC 9110, 7.6.1): never anybody else's to set."""

FRAMING: Final = HOP_BY_HOP | {"content-length", "expect", "host"}

NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def boot_clock_s() -> float:
    """Read the boot-time clock: seconds, and it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Halted(DoubtlessError):
    """We stopped before a byte of the request was handed over. `detail` holds no secret."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class Exchange:
    """What is seen of one request, from the moment at which it is handed to the library.

    Args:
        gate: Awaited exactly once, when a connection stands and nothing of the request was sent.
        watch: Moved along, never back.
        private: Attached to the request after the gate, in place of headers of the same name.
        boot_clock: Seconds; the clock of the gate's `write_by_s`.
    """

    def __init__(
        self, *, gate: Gate, watch: Watch, private: Private, boot_clock: Callable[[], float]
    ) -> None:
        self._gate, self._private, self._boot_clock = gate, private, boot_clock
        self._write_by_s: float | None = None  # None: the gate has not opened
        self._asked = False
        self._tunnelling = False  # the last head was our CONNECT to the proxy, not the request
        self.attached: Mapping[str, str] = {}  # the private headers, once they were got
        self.watch = watch
        self.stage = Stage.OPENED
        self.events: list[str] = []
        self.sent_bytes = 0
        self.received_bytes = 0  # since the first byte of the request
        self.ended = False  # the peer ended the stream

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the streams know whose bytes they carry: pooled ones outlive an exchange."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)

    async def trace(self, name: str, info: Mapping[str, object]) -> None:
        """Take one event of the library. Only memory is touched, save for the gate."""
        event = name.partition(".")[2]
        if event.startswith("response_closed"):
            return  # clean-up: it comes last and says nothing
        self.events.append(name)
        if event == ASKED:
            request = info["request"]
            if not isinstance(request, httpcore2.Request):
                raise Halted("the HTTP library did not say which request it is about to send")
            self._tunnelling = request.method == b"CONNECT"
            if not self._tunnelling:
                await self._ask(request)
        elif event == WRITTEN and not self._tunnelling:
            self.watch.written = True
        elif event == HEAD_CAME and not self._tunnelling:
            self.move(Stage.ANSWERED)

    async def _ask(self, request: httpcore2.Request) -> None:
        if self._asked:
            raise Halted("the HTTP library was about to send the request a second time")
        self._asked = True
        self.move(Stage.GATE)
        try:
            write_by_s = await self._gate()
        except DoubtlessError as error:
            raise Halted(f"the gate did not open: {error}") from error
        except Exception as error:
            raise Halted(f"the gate did not open: {type(error).__name__}") from error
        self.attached = private_headers(self._private)
        attach(request.headers, self.attached)
        self._write_by_s = write_by_s

    def connecting(self) -> None:
        """Record that a connection is being made for this exchange."""
        self.move(Stage.CONNECTING)

    async def before_write(self) -> None:
        """Let a cancellation that is due come now, while nothing has been written."""
        if not self.sent_bytes and not self._tunnelling:
            await anyio.lowlevel.checkpoint()

    def count(self, buffer: bytes) -> None:
        """Permit `buffer` and count it. Called right before it is written, in the same step.

        Raises:
            Halted: The gate has not opened, or its `write_by_s` is past. Nothing may be written.
        """
        if self._tunnelling:
            if not buffer.startswith(b"CONNECT "):
                raise Halted("the HTTP library was about to write the request without asking")
            return
        if self._write_by_s is None:
            raise Halted("the HTTP library was about to write the request without asking")
        # Written so that a `write_by_s` that is no number permits nothing.
        if not self.sent_bytes and not self._boot_clock() <= self._write_by_s:
            raise Halted("the time for the first byte had passed before it was written")
        self.sent_bytes += len(buffer)
        self.watch.sent_bytes += len(buffer)
        self.move(Stage.SENT)

    def wrote(self) -> None:
        """Note when the first byte of the request had surely left, or never will."""
        if self.watch.first_byte_s is None and self.sent_bytes:
            self.watch.first_byte_s = self._boot_clock()

    def received(self, data: bytes) -> None:
        """Record what a read brought; nothing at all is the end of the stream."""
        if self.sent_bytes:
            self.received_bytes += len(data)
            self.ended = not data

    def move(self, stage: Stage) -> None:
        """Go on to `stage`, never back, and let the watch follow."""
        self.stage = later(self.stage, stage)
        self.watch.stage = later(self.watch.stage, stage)

    @property
    def tunnelling(self) -> bool:
        """Whether the last request head was for the proxy alone."""
        return self._tunnelling

    def never_left(self, failure: Exception | None) -> bool:
        """Whether it is proven that no byte of the request left, once the exchange has failed.

        Proof needs something that was seen, and a counter that reads zero. An exception's type
        proves nothing, and no event at all proves nothing either.
        """
        if self.sent_bytes:
            return False
        if isinstance(failure, Halted):
            return True
        last = self.events[-1] if self.events else ""
        if self._asked:
            return self._write_by_s is None or last == REQUEST_NOT_WRITTEN
        return self._tunnelling or last.startswith(BEFORE_REQUEST)


CURRENT: Final[ContextVar[Exchange]] = ContextVar("exchange")


def current() -> Exchange:
    """Return the exchange that runs in this task; without one nothing is connected or written."""
    try:
        return CURRENT.get()
    except LookupError:
        raise Halted("the HTTP library worked outside of any exchange") from None


def later(one: Stage, other: Stage) -> Stage:
    """Return the stage that is farther along."""
    return max(one, other, key=STAGES.index)


def private_headers(private: Private) -> Mapping[str, str]:
    """Get and check the private headers. No value of theirs is ever part of an error's text.

    Raises:
        Halted: They can't be had, or can't be sent as they are.
    """
    try:
        headers = private() if callable(private) else private
    except DoubtlessError as error:
        raise Halted(f"a credential is missing: {error}") from error
    except Exception as error:
        # Its text is somebody else's, and could quote the secret.
        raise Halted(f"a credential is missing: {type(error).__name__}") from error
    for name, value in headers.items():
        if not NAME.fullmatch(name) or name.lower() in FRAMING:
            raise Halted(f"the private header {name!r} is not one that may be attached")
        if not value or not value.isascii() or not value.isprintable() or value != value.strip():
            raise Halted(f"the private header {name} is empty, or not a line of printable ASCII")
    return headers


def attach(headers: list[tuple[bytes, bytes]], private: Mapping[str, str]) -> None:
    """Put the private headers into the library's own list, in place of others of the same name."""
    names = {name.lower().encode() for name in private}
    headers[:] = [pair for pair in headers if pair[0].lower() not in names]
    headers.extend((name.encode(), value.encode()) for name, value in private.items())


class Dialler(Protocol):
    """Says which addresses a host name stands for, having checked them."""

    async def __call__(self, host: str, port: int, /) -> Sequence[str]:
        """Return addresses to dial, the first one first.

        Raises:
            Halted: None of them may be dialled.
            OSError: The name can't be resolved.
        """


class CountedStream(httpcore2.AsyncNetworkStream):
    """A connection that counts what it is given, before it passes it on."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read, and tell the exchange how much came."""
        data = await self._inner.read(max_bytes, timeout)
        if exchange := CURRENT.get(None):
            exchange.received(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write what the gate permits; the last look at the clock is in this very call."""
        if not buffer:
            return
        exchange = current()
        await exchange.before_write()
        exchange.count(buffer)
        try:
            await self._inner.write(buffer, timeout)
        finally:
            exchange.wrote()

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Shake hands below the counter: handshakes are not the request's bytes."""
        try:
            secured = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            # A cancelled handshake would leave the socket open for as long as the process runs.
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise
        return CountedStream(secured)

    def get_extra_info(self, info: str) -> object:
        """Pass on what is known of the socket."""
        return self._inner.get_extra_info(info)


class CountedBackend(httpcore2.AsyncNetworkBackend):
    """Dials checked addresses only, and counts on each connection.

    A name is resolved once, and the addresses that were checked are the ones that are dialled: a
    name server that answers otherwise the second time is not asked a second time.
    """

    def __init__(
        self, dialler: Dialler, inner: httpcore2.AsyncNetworkBackend | None = None
    ) -> None:
        self._dialler = dialler
        self._inner = inner or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that accepts; each gets an equal share of `timeout`."""
        current().connecting()
        try:
            with anyio.fail_after(timeout):
                addresses = await self._dialler(host, port)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from error
        except OSError as error:
            raise httpcore2.ConnectError("the name could not be resolved") from error
        share_s = None if timeout is None else timeout / len(addresses)
        refused: Exception = httpcore2.ConnectError("the name stands for no address")
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(
                    address, port, share_s, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                refused = error
            else:
                return CountedStream(stream)
        raise refused

    async def sleep(self, seconds: float) -> None:
        """Wait. Nothing here retries, so nobody should ask."""
        await self._inner.sleep(seconds)
