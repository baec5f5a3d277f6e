"""The self-test of the barrier, against the installed HTTP library and no network."""

# The library hands its time-outs to streams as an argument of that name.
# ruff: noqa: ASYNC109

import ssl
from collections.abc import Iterable
from typing import Final

import httpcore2

from doubtless.core.contract import SourceRules
from doubtless.errors import SettingsError
from doubtless.transports.base import Watch
from doubtless.transports.http_address import pool
from doubtless.transports.http_exchange import CountedBackend, Exchange, Halted

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TUNNEL: Final = b"HTTP/1.1 200 Established\r\n\r\n"
SECRET: Final = "attached after the gate"  # noqa: S105  # a made-up value that goes nowhere

EXCHANGE_EVENTS: Final = tuple(
    f"http11.{step}.{end}"
    for step in (
        "send_request_headers",
        "send_request_body",
        "receive_response_headers",
        "receive_response_body",
    )
    for end in ("started", "complete")
)
DIRECT_EVENTS: Final = (
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    *EXCHANGE_EVENTS,
)
TUNNEL_EVENTS: Final = (
    "connection.connect_tcp.started",
    "connection.connect_tcp.complete",
    *EXCHANGE_EVENTS[:6],
    "proxy.start_tls.started",
    "proxy.start_tls.complete",
    *EXCHANGE_EVENTS,
)


class Scripted(httpcore2.AsyncNetworkStream):
    """A connection to nowhere: it answers what it was told to, and keeps what it was given."""

    def __init__(self, answers: Iterable[bytes]) -> None:
        self._answers = list(answers)
        self.written: list[bytes] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next answer."""
        return self._answers.pop(0) if self._answers else b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep what is written."""
        self.written.append(buffer)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Go on in the clear."""
        return self

    def get_extra_info(self, info: str) -> object:
        """Know nothing."""
        return None


class ScriptedBackend(httpcore2.AsyncNetworkBackend):
    """Hands out one scripted connection."""

    def __init__(self, stream: Scripted) -> None:
        self._stream = stream

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to nowhere."""
        return self._stream


async def anywhere(_host: str, _port: int) -> list[str]:
    """Resolve every name to an address that is dialled by nobody."""
    return ["192.0.2.1"]


async def probe() -> None:
    """Send one request directly and one through a tunnel, and compare all that was seen.

    Raises:
        SettingsError: Something else was seen than what the barrier is built on.
    """
    direct = SourceRules(name="self-test", base_url="http://doubtless.invalid")
    tunnelled = SourceRules(name="self-test", proxy="http://proxy.invalid:3128")
    await expect(direct, "http", [ANSWER], DIRECT_EVENTS)
    await expect(tunnelled, "https", [TUNNEL, ANSWER], TUNNEL_EVENTS)


async def expect(
    source: SourceRules, scheme: str, answers: list[bytes], events: tuple[str, ...]
) -> None:
    """Send one request to nowhere.

    Raises:
        SettingsError: The events, the bytes before the gate or those after it are other ones.
    """
    stream = Scripted(answers)
    before_gate: list[bytes] = []

    async def gate() -> float:
        before_gate.extend(stream.written)
        return float("inf")

    exchange = Exchange(
        gate=gate, watch=Watch(), private={"Authorization": SECRET}, boot_clock=lambda: 0.0
    )
    request = httpcore2.Request(
        "POST",
        f"{scheme}://doubtless.invalid/",
        headers=[(b"Host", b"doubtless.invalid"), (b"Content-Length", b"4")],
        content=b"body",
        extensions={"trace": exchange.trace},
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    backend = CountedBackend(anywhere, ScriptedBackend(stream))
    try:
        with exchange.running():
            async with pool(source, backend, context, fresh=True) as connections:
                response = await connections.handle_async_request(request)
                await response.aread()
                await response.aclose()
    except Halted as error:
        wrong = error.detail
    except Exception as error:  # noqa: BLE001  # any failure without a network is the library's
        wrong = f"it failed with {type(error).__name__}"
    else:
        sent = b"".join(stream.written[len(before_gate) :])
        wrong = judge(exchange, events, before_gate, sent)
    if wrong:
        raise SettingsError(
            f"httpcore2 {httpcore2.__version__} does not announce its steps as this release needs "
            f"it to: {wrong}. Nothing can be sent safely. Mend: install httpcore2==2.16.* and "
            "httpx2==2.16.*"
        )


def judge(
    exchange: Exchange, events: tuple[str, ...], before_gate: list[bytes], sent: bytes
) -> str:
    """Return what is wrong with an exchange, or nothing."""
    if tuple(exchange.events) != events:
        return f"the events were {', '.join(exchange.events) or 'none'}"
    if any(not written.startswith(b"CONNECT ") for written in before_gate):
        return "the request was written before the gate was asked"
    if exchange.sent_bytes != len(sent):
        return f"{exchange.sent_bytes} bytes were counted, and {len(sent)} written"
    if SECRET.encode() not in sent:
        return "a header that was attached after the gate was not sent"
    return ""
