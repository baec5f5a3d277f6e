"""The simulated provider's sockets: one port for the API, one for the admin routes."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from doubtless.testing.provider_admin import Admin
from doubtless.testing.provider_app import Application, refusal
from doubtless.testing.provider_faults import Exchange, serve
from doubtless.testing.provider_http import Connection, Head, Incomplete, Malformed, Request
from doubtless.testing.provider_rules import Action, Document, Json, RuleBook, parse_config
from doubtless.testing.provider_store import Arrival, Effect, Store

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 256
_POLL_S: Final = 0.005
_ADMIN_PREFIX: Final = "/_admin/"


class Listener:
    """A listening socket on loopback that can be closed and opened again on the same port."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        self._accepted = accepted
        self._guard: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.port = 0

    def open(self, port: int = 0) -> None:
        """Listen. Port 0 takes a free one, which is kept from then on."""
        if self._listening is not None:
            return
        if not self.port:
            self._reserve(port)
        self._listening = _bound(self.port)
        self._listening.listen(_BACKLOG)
        self._accepting = asyncio.create_task(self._accept(self._listening))

    async def close(self) -> None:
        """Refuse connections from now on. The port stays ours."""
        if self._accepting is not None:
            self._accepting.cancel()
            # The loop must have let go of the descriptor before its number can be used again.
            await asyncio.wait([self._accepting])
        if self._listening is not None:
            self._listening.close()
        self._accepting = self._listening = None

    async def release(self) -> None:
        """Close for good, and give the port back."""
        await self.close()
        if self._guard is not None:
            self._guard.close()

    def _reserve(self, port: int) -> None:
        guard = _bound(port)
        self.port = int(guard.getsockname()[1])
        if sys.platform == "linux":
            # Bound and not listening: connections are refused, and nobody else gets the port.
            self._guard = guard
        else:
            guard.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listening)
            self._accepted(sock)


class Provider:
    """A hostile payment API on loopback, in this process and on the running event loop.

    It keeps its own count of effects. Use it as an async context manager; leaving it resets every
    connection and abandons what was still under way.

    Args:
        rules: A configuration document, as `configure` takes it.
        port: 0 takes a free one.
        log: A file to which every effect is appended, on disk before the request goes on.

    Raises:
        ConfigError: `rules` can't be read.
    """

    def __init__(
        self, rules: Document | None = None, *, port: int = 0, log: Path | None = None
    ) -> None:
        self._wanted_port = port
        self._store = Store(log)
        self._api = Listener(self._api_connection)
        self._admin_listener = Listener(self._admin_connection)
        self._tasks: set[asyncio.Task[None]] = set()
        self._reopening: asyncio.TimerHandle | None = None
        self._app = Application(self._store)
        self._book = RuleBook(())
        if rules is not None:
            self.configure(rules)
        self._admin = Admin(self)

    @property
    def port(self) -> int:
        """The API's port. The admin routes answer there too, while it listens."""
        return self._api.port

    @property
    def admin_port(self) -> int:
        """The port of the admin routes alone, which no fault touches."""
        return self._admin_listener.port

    @property
    def url(self) -> str:
        """The API's origin, without a slash at its end."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def app(self) -> Application:
        """The application behind the sockets."""
        return self._app

    @property
    def book(self) -> RuleBook:
        """The rules in force, with their counters."""
        return self._book

    def configure(self, rules: Document) -> None:
        """Replace the configuration, or with a bare list the rules alone; counters start anew.

        Raises:
            ConfigError: `rules` can't be read; nothing was changed.
        """
        self._app.config = parse_config(rules, self._app.config)
        self._book = RuleBook(self._app.config.rules)

    def effects(
        self,
        *,
        operation: str | None = None,
        collection: str | None = None,
        key: str | None = None,
    ) -> list[Effect]:
        """Return the effects, in the order of commits; what is given must be equal."""
        return self._store.found(operation, collection, key)

    def counts(self) -> dict[str, int]:
        """Return the number of effects by operation; those without one stand under ""."""
        return self._store.counts()

    def arrivals(self) -> list[Arrival]:
        """Return every request head that was read from the API's port."""
        return list(self._store.arrivals)

    def connections(self) -> int:
        """Return how many connections the API's port accepted, reset ones too."""
        return self._store.connections

    def pending(self) -> list[str]:
        """Return the ids of the work that was accepted and is not finished."""
        return [item.id for item in self._store.pending()]

    def fired(self) -> dict[str, int]:
        """Return how often each fault really happened, by the action's name."""
        return self._book.fired()

    def seed(
        self, collection: str, fields: Mapping[str, Json], *, item_id: str | None = None
    ) -> str:
        """Add an object that was there before the story begins, and return its id.

        It is no effect. `fields` may carry a `status`; "succeeded" is the default.
        """
        return self._app.seed(collection, fields, item_id).id

    def complete(self, item_id: str, status: str = "succeeded") -> None:
        """Finish pending work as "succeeded" (now it is an effect) or "failed".

        Raises:
            LookupError: Nothing is pending under `item_id`.
        """
        self._app.complete(item_id, status)

    async def wait_for(
        self, condition: Callable[[Provider], bool], *, timeout_s: float = 5.0
    ) -> None:
        """Return as soon as `condition(self)` holds.

        Raises:
            TimeoutError: It did not hold within `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            # ASYNC110 wants an event, but what a caller may wait for has none.
            while not condition(self):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    async def reset(self) -> None:
        """Forget all but the configuration, whose counters start anew; listen again.

        Requests under way are reset, so that no late commit falls into the next test.
        """
        await self._end_connections()
        self._app.reset()
        self._book = RuleBook(self._app.config.rules)
        self.reopen()

    async def close_for(self, duration_s: float | None) -> None:
        """Refuse connections for `duration_s` seconds; None: until `reopen`."""
        self._stop_reopening()
        await self._api.close()
        if duration_s is not None:
            loop = asyncio.get_running_loop()
            self._reopening = loop.call_later(duration_s, self._api.open)

    def reopen(self) -> None:
        """Listen again, on the same port."""
        self._stop_reopening()
        self._api.open()

    async def __aenter__(self) -> Self:
        self._api.open(self._wanted_port)
        self._admin_listener.open()
        self._app.base_url = self.url
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_reopening()
        await self._api.release()
        await self._admin_listener.release()
        await self._end_connections()
        self._app.reset_timers()

    def _stop_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    async def _end_connections(self) -> None:
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def _api_connection(self, sock: socket.socket) -> None:
        self._store.connections += 1
        self._spawn(sock, self._converse)

    def _admin_connection(self, sock: socket.socket) -> None:
        self._spawn(sock, self._administrate)

    def _spawn(
        self, sock: socket.socket, converse: Callable[[Connection], Awaitable[None]]
    ) -> None:
        task = asyncio.create_task(_guarded(Connection(sock), converse))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, connection: Connection) -> None:
        if (action := self._book.on_accept()) is not None:
            await _at_the_door(connection, action)
            return
        while connection.open and (head := await connection.head()) is not None:
            if head.path.startswith(_ADMIN_PREFIX):
                await self._administer(connection, head)
                continue
            exchange = Exchange(
                connection=connection,
                head=head,
                arrival=self._store.arrive(head),
                app=self._app,
                door=self,
            )
            await serve(exchange, self._book.on_head(head.method, head.path, head.key))

    async def _administrate(self, connection: Connection) -> None:
        while connection.open and (head := await connection.head()) is not None:
            await self._administer(connection, head)

    async def _administer(self, connection: Connection, head: Head) -> None:
        body = await connection.body(head)
        answer = await self._admin.answer(Request(number=0, head=head, body=body))
        await connection.send(answer.wire(closes=head.closes))
        if head.closes:
            connection.fin()


async def _at_the_door(connection: Connection, action: Action) -> None:
    if action.name == "never_read":
        # For ever, where no time is given: only the end of the provider ends it.
        await asyncio.sleep(3600 if action.delay_s is None else action.delay_s)
    connection.rst()


async def _guarded(
    connection: Connection, converse: Callable[[Connection], Awaitable[None]]
) -> None:
    try:
        await converse(connection)
    except Malformed as error:
        await connection.send(refusal(400, "malformed", str(error)).wire(closes=True))
    except (ConnectionError, Incomplete):
        pass  # the client left: its right, and no news to us
    except asyncio.CancelledError:
        connection.rst()
        raise
    finally:
        if connection.open:
            connection.fin()


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    # Both the guard and the listener carry it: on Linux they share the port that way.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((LOOPBACK, port))
    except OSError:
        sock.close()
        raise
    return sock
