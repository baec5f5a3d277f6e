"""HTTP/1.1, once: one request, no redirect, no retry, and a report of what was seen.

The barrier itself is in `http_exchange`, the rules for addresses in `http_address`, and how a
report is made in `http_reply`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import anyio
import httpcore2

from doubtless.core.contract import SourceRules
from doubtless.transports.base import Gate, HttpRequest, Private, Reply, Watch
from doubtless.transports.http_address import CheckedDialler, pool, tls_context
from doubtless.transports.http_exchange import (
    CountedBackend,
    Exchange,
    Halted,
    boot_clock_s,
)
from doubtless.transports.http_probe import probe
from doubtless.transports.http_reply import Answer, OutOfTime, render, reply, secrets_in


class HttpTransport:
    """Sends requests of contracts, each exactly once, and reports what it saw of them.

    One instance serves any number of concurrent calls on one event loop.

    Args:
        boot_clock: Seconds; the clock of what the gate returns.
        body_max_bytes: The longest body of an answer that is read, after decompression.
    """

    def __init__(
        self,
        *,
        boot_clock: Callable[[], float] = boot_clock_s,
        body_max_bytes: int = 1_048_576,
    ) -> None:
        self._boot_clock = boot_clock
        self._body_max_bytes = body_max_bytes
        self._pools: dict[SourceRules, httpcore2.AsyncConnectionPool] = {}

    async def perform(
        self,
        request: HttpRequest,
        *,
        source: SourceRules,
        private: Private,
        gate: Gate,
        watch: Watch,
        limit_s: float,
        fresh: bool = True,
    ) -> Reply:
        """Send `request` to `source` at most once, and say what was seen.

        Whatever goes wrong is told by the reply: it says `NOT_SENT` only where that is proven, and
        nothing at all where nobody can know. A status is not judged.

        Args:
            private: Credentials and correlation headers, or a function that gets them. They are
                attached after the gate, and credentials are blotted out of the answer.
            gate: Awaited at most once, when a connection stands and nothing was sent on it.
            watch: Moved as the request goes along; right also when this call is cancelled.
            limit_s: Seconds, for all of it together, from resolving the name to the last byte.
            fresh: Use a connection of its own. A kept one is for reads alone: the other side may
                be closing it at this very moment.
        """
        exchange = Exchange(gate=gate, watch=watch, private=private, boot_clock=self._boot_clock)
        answer = Answer()
        failure: Exception | None = None
        try:
            wire = render(request, source)
            if not limit_s > 0:
                raise Halted("the time was over before anything was begun")
            with anyio.move_on_after(limit_s) as deadline:
                await self._carry_out(wire, source, exchange, answer, limit_s, fresh=fresh)
            if deadline.cancelled_caught:
                failure = OutOfTime()
        except Exception as error:  # noqa: BLE001  # after the first byte any exception is an unknown outcome
            failure = error
        return reply(
            exchange,
            answer,
            failure,
            secrets=secrets_in(exchange.attached, source),
            body_max_bytes=self._body_max_bytes,
        )

    async def _carry_out(
        self,
        wire: httpcore2.Request,
        source: SourceRules,
        exchange: Exchange,
        answer: Answer,
        limit_s: float,
        *,
        fresh: bool,
    ) -> None:
        wire.extensions = {"trace": exchange.trace, "timeout": {"connect": limit_s}}
        with exchange.running():
            async with self._connections(source, fresh=fresh) as connections:
                response = await connections.handle_async_request(wire)
                try:
                    answer.head(response)
                    async with aclosing(response.aiter_stream()) as chunks:
                        async for chunk in chunks:
                            answer.add(chunk, self._body_max_bytes)
                    answer.complete = True
                finally:
                    await response.aclose()

    @asynccontextmanager
    async def _connections(
        self, source: SourceRules, *, fresh: bool
    ) -> AsyncIterator[httpcore2.AsyncConnectionPool]:
        if fresh:
            connections = connect(source, fresh=True)
            try:
                yield connections
            finally:
                with anyio.CancelScope(shield=True):
                    await connections.aclose()
            return
        if source not in self._pools:
            self._pools[source] = connect(source, fresh=False)
        yield self._pools[source]

    async def self_test(self) -> None:
        """Check that the HTTP library still announces what the barrier is built on.

        Nothing is connected.

        Raises:
            SettingsError: It does not: its version is not one that this release knows.
        """
        await probe()

    async def aclose(self) -> None:
        """Close the connections that reads have kept."""
        pools, self._pools = list(self._pools.values()), {}
        for kept in pools:
            await kept.aclose()


def connect(source: SourceRules, *, fresh: bool) -> httpcore2.AsyncConnectionPool:
    """Make the connections to a source; dialling is done when a request comes."""
    context = tls_context(source.tls_ca, source.tls_verify)
    return pool(source, CountedBackend(CheckedDialler(source)), context, fresh=fresh)
