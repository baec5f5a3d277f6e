"""An HTTP client for tools in Python code, behind the same barrier as the HTTP transport."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Final

import anyio
import httpcore2
import httpx2

from doubtless.core.contract import SourceRules
from doubtless.core.model import Stage
from doubtless.transports.base import Gate, Watch
from doubtless.transports.http_address import CheckedDialler, pool, target, tls_context
from doubtless.transports.http_exchange import CountedBackend, Exchange, Halted, boot_clock_s

MARK: Final = "doubtless.sent"  # an extension of a request, which its followers inherit

ERRORS: Final[tuple[tuple[type[Exception], type[httpx2.TransportError]], ...]] = (
    (httpcore2.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore2.ReadTimeout, httpx2.ReadTimeout),
    (httpcore2.WriteTimeout, httpx2.WriteTimeout),
    (httpcore2.PoolTimeout, httpx2.PoolTimeout),
    (httpcore2.ConnectError, httpx2.ConnectError),
    (httpcore2.ReadError, httpx2.ReadError),
    (httpcore2.WriteError, httpx2.WriteError),
    (httpcore2.ProxyError, httpx2.ProxyError),
    (httpcore2.UnsupportedProtocol, httpx2.UnsupportedProtocol),
    (httpcore2.LocalProtocolError, httpx2.LocalProtocolError),
    (httpcore2.RemoteProtocolError, httpx2.RemoteProtocolError),
)


class RequestHalted(httpx2.TransportError):
    """We stopped before a byte of this request was handed over; the cause says why."""


class SentRequest:
    """One request of a tool's code, and how far it got. Readable while it runs."""

    def __init__(self, request: httpx2.Request, exchange: Exchange) -> None:
        self.method = request.method
        self.host = request.url.host
        self.not_sent = False  # True once it is proven that no byte of it left
        self.exchange = exchange

    @property
    def stage(self) -> Stage:
        """How far it got."""
        return self.exchange.stage

    @property
    def sent_bytes(self) -> int:
        """How many of its bytes were handed over, counted before each write."""
        return self.exchange.sent_bytes


class GuardedClient(httpx2.AsyncClient):
    """`httpx2.AsyncClient` that sends each request once, and only through the gate.

    Each request has a connection of its own. Nothing is retried, and neither a redirect nor a
    challenge is answered: what would be sent as a second request is halted. Errors are those of
    httpx2, with `RequestHalted` among them. Where the source has a `base_url`, requests go to its
    origin only; without one the tool's code says where to.

    Args:
        gate: Awaited once for each request, before its first byte.
        watch: Moved along by all requests together, never back.
        headers: Attached to each request after the gate, such as the idempotency key.
        limit_s: Seconds for each of connecting, writing and the next part of the answer.
        boot_clock: Seconds; the clock of what the gate returns.
    """

    def __init__(
        self,
        *,
        gate: Gate,
        watch: Watch,
        headers: Mapping[str, str],
        source: SourceRules | None = None,
        limit_s: float = 30.0,
        boot_clock: Callable[[], float] = boot_clock_s,
    ) -> None:
        self.sends: list[SentRequest] = []

        def begin(request: httpx2.Request) -> SentRequest:
            exchange = Exchange(gate=gate, watch=watch, private=headers, boot_clock=boot_clock)
            self.sends.append(SentRequest(request, exchange))
            return self.sends[-1]

        super().__init__(
            transport=GuardedTransport(source, begin),
            base_url="" if source is None else source.base_url,
            headers={"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(limit_s),
            follow_redirects=False,
            trust_env=False,
        )

    def proves_not_sent(self) -> bool:
        """Whether requests were tried, and it is proven of every one that no byte of it left."""
        return bool(self.sends) and all(sent.not_sent for sent in self.sends)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Carries each request over a connection of its own, as one exchange.

    Args:
        source: Bounds where requests may go, or None.
        begin: Called for each request that is about to be tried.
    """

    def __init__(
        self, source: SourceRules | None, begin: Callable[[httpx2.Request], SentRequest]
    ) -> None:
        self._source, self._begin = source, begin

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` at most once, and return its answer while the body is still to come.

        Raises:
            RequestHalted: We stopped before its first byte.
            httpx2.TransportError: Anything else that went wrong; the log says how far it got.
        """
        sent = self._begin(request)
        try:
            with errors_of_httpx():
                return await self._carry_out(request, sent.exchange)
        except BaseException as error:
            known = error.__cause__ if isinstance(error, RequestHalted) else error
            sent.not_sent = sent.exchange.never_left(
                known if isinstance(known, Exception) else None
            )
            raise

    async def _carry_out(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        if MARK in request.extensions:
            raise Halted("one request is sent once: no redirect, no challenge and no repeat")
        request.extensions[MARK] = True
        connections = self._pool(request)
        try:
            with exchange.running():
                response = await connections.handle_async_request(wire(request, exchange))
        except BaseException:
            await close(connections)
            raise
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=AnswerStream(response, connections, exchange),
            extensions=response.extensions,
        )

    def _pool(self, request: httpx2.Request) -> httpcore2.AsyncConnectionPool:
        source = self._source
        if source is not None and source.base_url:
            target(str(request.url), source)
        ca, verify = (None, True) if source is None else (source.tls_ca, source.tls_verify)
        backend = CountedBackend(CheckedDialler(source))
        return pool(source, backend, tls_context(ca, verify), fresh=True)


class AnswerStream(httpx2.AsyncByteStream):
    """The body of an answer; with it the connection ends."""

    def __init__(
        self,
        response: httpcore2.Response,
        connections: httpcore2.AsyncConnectionPool,
        exchange: Exchange,
    ) -> None:
        self._response, self._connections, self._exchange = response, connections, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with errors_of_httpx():
            async with aclosing(self._response.aiter_stream()) as chunks:
                async for chunk in chunks:
                    yield chunk
        self._exchange.move(Stage.READ)

    async def aclose(self) -> None:
        """Close the answer and its connection."""
        try:
            await self._response.aclose()
        finally:
            await close(self._connections)


def wire(request: httpx2.Request, exchange: Exchange) -> httpcore2.Request:
    """Make the lower library's request, whose steps `exchange` follows."""
    if not isinstance(request.stream, httpx2.AsyncByteStream):
        raise Halted("the body of the request can't be read asynchronously")
    return httpcore2.Request(
        request.method,
        httpcore2.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        ),
        headers=request.headers.raw,
        content=request.stream,
        extensions={**request.extensions, "trace": exchange.trace},
    )


async def close(connections: httpcore2.AsyncConnectionPool) -> None:
    """Close all connections, also while the task is being cancelled."""
    with anyio.CancelScope(shield=True):
        await connections.aclose()


@contextmanager
def errors_of_httpx() -> Iterator[None]:
    """Raise the errors of the lower library as those that a user of httpx2 expects."""
    try:
        yield
    except Halted as error:
        raise RequestHalted(error.detail) from error
    except tuple(lower for lower, _ in ERRORS) as error:
        raise next(
            upper(str(error)) for lower, upper in ERRORS if isinstance(error, lower)
        ) from error
