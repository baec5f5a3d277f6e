"""HTTP/1.1 on the wire: what one connection may cost before any request is understood."""

import asyncio
from http import HTTPStatus
from typing import ClassVar, Final

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from doubtless.service.intake import CLOSE
from doubtless.service.problems import MEDIA_TYPE, document, problem, to_bytes
from doubtless.service.settings import Limits

HARD_FACTOR: Final = 2  # so many times the bound, connections are closed unanswered


async def busy(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a connection above the bound."""
    headers = {**CLOSE, "Retry-After": "1"}
    detail = "too many connections at once: try again"
    await problem(503, "busy", detail, headers=headers)(scope, receive, send)


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol, with limits on connections, and on the time of heads and of answers."""

    limits: ClassVar[Limits] = Limits()
    _head_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count, and to wait for a request's head."""
        super().connection_made(transport)
        count = len(self.connections)
        if count > HARD_FACTOR * self.limits.connections_max:
            transport.abort()
        elif count > self.limits.connections_max:
            self.app = busy
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unwatch()
        self._go_on_writing()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the service: whoever still sends, or doesn't read, is not waited for."""
        super().shutdown()
        if self._is_answering and (self.cycle.more_body or self._answer_timer is not None):
            self.transport.abort()

    def pause_writing(self) -> None:
        """Wait until the client reads, but not for ever."""
        super().pause_writing()
        if self._answer_timer is None:
            # Closing would wait for it to read the rest.
            limit_s = self.limits.read_timeout_s
            self._answer_timer = self.loop.call_later(limit_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it reads."""
        self._go_on_writing()
        super().resume_writing()

    def _go_on_writing(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with a problem document."""
        self._refuse(400, "bad_http", "this is no HTTP/1.1 request, or its head is too long")

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None until the first request
        return cycle is not None and not cycle.response_complete

    def _watch_head(self) -> None:
        """Run the timer while a request's head is awaited, and only then."""
        if self._is_answering:
            self._unwatch()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._too_slow)

    def on_response_complete(self) -> None:
        """Wait for the next request, for as long as an idle connection may."""
        super().on_response_complete()
        self._unwatch()

    def _unwatch(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            detail = f"the request's head did not come within {self.limits.head_timeout_s:g} s"
            self._refuse(408, "too_slow", detail)

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer and close, without the state machine, which may be in error."""
        if self._is_answering:
            self.transport.close()  # something else is being answered: nothing fits in between
            return
        body = to_bytes(document(status, code, detail))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {MEDIA_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def protocol_of(limits: Limits) -> type[GuardedProtocol]:
    """Return the protocol with its limits: uvicorn makes the instances."""
    return type("LimitedProtocol", (GuardedProtocol,), {"limits": limits})
