"""A server at a URL (streamable HTTP): the SDK's requests, carried behind our own barrier.

Each request has a connection of its own. A tools/call is written through its gate, once, and every
byte of it is counted. No failure of the link is ever raised into the SDK, which would let it take
all other calls of the session down: it gets an answer made here, and the ticket says what happened.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification

from doubtless.core.contract import SourceRules
from doubtless.transports.base import Watch, open_gate
from doubtless.transports.http_client import GuardedTransport, SentRequest
from doubtless.transports.http_exchange import Exchange, Halted
from doubtless.transports.http_reply import reason
from doubtless.transports.mcp_pipe import CALL, CANCELLED, LINE_MAX
from doubtless.transports.mcp_servers import ServerRules
from doubtless.transports.mcp_ticket import ID, KEPT_BYTES, TICKET, Ticket

CONNECT_S: Final = 10.0
SESSION: Final = "mcp-session-id"
MADE_HERE: Final = 503
AUTHORIZATION: Final = "Authorization"

Streams: TypeAlias = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


def source_of(server: ServerRules) -> SourceRules:
    """Return the endpoint as a source: requests go to its origin only."""
    return SourceRules(
        name=server.name,
        base_url=server.url or "",
        auth_header=server.header or AUTHORIZATION,
        credential=server.credential,
        tls_ca=server.tls_ca,
        private=server.private,
    )


class Carrier(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests.

    Args:
        server: The endpoint.
        secret: Returns a credential by name.
        boot_s: The boot-time clock, in seconds.
    """

    def __init__(
        self, server: ServerRules, secret: Callable[[str], str], boot_s: Callable[[], float]
    ) -> None:
        self._server, self._secret, self._boot_s = server, secret, boot_s
        self._source = source_of(server)
        self._plain = GuardedTransport(self._source, self._begin)
        self.failure = ""  # the last one of a request that was no call
        self.leaves_calls = False  # the session is left, not ended: what has begun goes on

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, or return an answer made here that says why not."""
        ticket = TICKET.get(None)
        called = _called(request) if ticket is not None else None
        if ticket is None or called is None:
            return await self._asked(request)
        if ticket.taken:  # by a redirect, or by a library that sends again
            return _made_here(request, "a call is sent once")
        ticket.taken, ticket.session = True, SESSION in request.headers
        ticket.request_id = called
        return await self._call(request, ticket)

    async def _asked(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE" and self.leaves_calls:
            return _made_here(request, "calls are under way in this session")
        try:
            response = await self._plain.handle_async_request(request)
        except (httpx2.TransportError, Halted, OSError) as error:
            self.failure = words(error)
            return _made_here(request, self.failure)
        return _with(response, _Body(response, self._broke))

    def _broke(self, why: str) -> None:
        self.failure = why

    async def _call(self, request: httpx2.Request, ticket: Ticket) -> httpx2.Response:
        def begin(sent: httpx2.Request) -> SentRequest:
            exchange = Exchange(
                gate=ticket.gate,
                watch=ticket.watch,
                private=lambda: {**self._authority(), **ticket.headers},
                boot_clock=ticket.clock,
            )
            return SentRequest(sent, exchange)

        scope = anyio.CancelScope()
        ticket.abort = scope.cancel
        try:
            with scope:
                guarded = GuardedTransport(self._source, begin)
                response = await guarded.handle_async_request(request)
                ticket.status = response.status_code
                return _with(response, _CallBody(response, ticket))
        except (httpx2.TransportError, Halted, OSError) as error:
            ticket.broken = words(error)
        ticket.broken = ticket.broken or "it was given up while it was being written"
        return _made_here(request, ticket.broken)

    def _begin(self, request: httpx2.Request) -> SentRequest:
        exchange = Exchange(
            gate=open_gate, watch=Watch(), private=self._authority, boot_clock=self._boot_s
        )
        return SentRequest(request, exchange)

    def _authority(self) -> Mapping[str, str]:
        server = self._server
        if server.credential is None:
            return {}
        secret = self._secret(server.credential)
        return {server.header: secret} if server.header else {AUTHORIZATION: f"Bearer {secret}"}


class _Body(httpx2.AsyncByteStream):
    """The body of an answer. One that breaks off ends early, and is noted."""

    def __init__(self, response: httpx2.Response, broke: Callable[[str], None]) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - we made it
        self._stream, self._broke = response.stream, broke

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except (httpx2.TransportError, OSError) as error:
            self._broke(words(error))

    async def aclose(self) -> None:
        """Close the answer and its connection."""
        await self._stream.aclose()


class _CallBody(_Body):
    """The same of a call's answer: it is kept in the ticket, to be read if need be."""

    def __init__(self, response: httpx2.Response, ticket: Ticket) -> None:
        super().__init__(response, self._note)
        self._ticket = ticket
        ticket.kept_type = response.headers.get("content-type", "").lower()

    def _note(self, why: str) -> None:
        self._ticket.broken = why

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in super().__aiter__():
            self._ticket.kept += chunk[: KEPT_BYTES - len(self._ticket.kept)]
            yield chunk


class Quiet:
    """The SDK's write stream, without cancellations: what has begun is never interrupted."""

    def __init__(self, inner: WriteStream[SessionMessage]) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        """Pass a message on, unless it is a cancellation."""
        message = item.message
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            return
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> "Quiet":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def webbed(server: ServerRules, carrier: Carrier) -> AsyncIterator[Streams]:
    """Connect the SDK to an endpoint through our own carrier."""
    timeout = httpx2.Timeout(None, connect=CONNECT_S)
    async with (
        httpx2.AsyncClient(
            transport=carrier,
            timeout=timeout,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        ) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=LINE_MAX
        ) as (read, write),
    ):
        yield read, Quiet(write)


def words(error: BaseException) -> str:
    """Say what went wrong on a link, quoting nothing of the other side's."""
    cause = error.__cause__
    if isinstance(error, Halted):
        return error.detail
    if isinstance(cause, Halted):
        return cause.detail
    if isinstance(error, httpx2.TimeoutException):
        return "connecting took too long"
    if isinstance(error, httpx2.ConnectError):
        return reason(error)
    if isinstance(error, httpx2.RemoteProtocolError):
        return "the connection was closed before a whole answer"
    return f"the connection broke ({type(error).__name__})"


def _called(request: httpx2.Request) -> object:
    """Return the id of a tools/call; None for any other request."""
    if request.method != "POST":
        return None
    try:
        message = json.loads(request.content)
    except (httpx2.RequestNotRead, ValueError):
        return None
    is_call = isinstance(message, dict) and message.get("method") == CALL
    return message.get(ID) if is_call else None


def _with(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        extensions=response.extensions,
    )


def _made_here(request: httpx2.Request, why: str) -> httpx2.Response:
    return httpx2.Response(MADE_HERE, text=why, request=request)
