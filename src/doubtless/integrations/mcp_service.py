"""The local service: clients come and go over a socket, and what is in flight goes on.

It belongs to one ledger and scope. It ends by itself once it had no client for a while and no
attempt is open, and in order at SIGTERM.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Final

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from doubtless.core.model import Principal, Role
from doubtless.integrations.mcp_building import GatewayApp, Plan, application, gateway, plan
from doubtless.integrations.mcp_calls import Caller
from doubtless.integrations.mcp_gateway import Context
from doubtless.integrations.mcp_place import GatewaySettings, Place
from doubtless.integrations.mcp_wire import LINK, Front, Link, serve_link

GREETING_S: Final = 10.0
GREETING_BYTES_MAX: Final = 4096
GRACE_S: Final = 10.0  # for attempts that are open when it is told to end
ANSWERS_S: Final = 2.0  # for answers that are being written when everything else has ended
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("doubtless.gateway")


def run(
    settings: GatewaySettings, place: Place, tell: Callable[[Mapping[str, object]], None]
) -> None:
    """Serve until it is idle, or ended.

    Args:
        settings: What is served.
        place: Where. This process holds its lock.
        tell: Called once clients may come, with this process's id.

    Raises:
        DoubtlessError: The ledger, the contracts or the settings can't be used.
    """
    log_to_stderr()

    def ready() -> None:
        _log.info("serving the scope %s (pid %d)", settings.scope, os.getpid())
        tell({"ready": os.getpid()})

    anyio.run(_serve, plan(settings), place, ready)


def log_to_stderr() -> None:
    """Write what this process reports as lines of text on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name, level in (("doubtless", logging.INFO), ("mcp", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


async def _serve(of: Plan, place: Place, ready: Callable[[], None]) -> None:
    settings = of.settings
    async with application(of) as app:
        principal = Principal(name=settings.principal, role=Role.AGENT)
        actor = app.actor(principal)

        def who_calls(_: Context) -> Caller:
            link = LINK.get()
            return Caller(
                actor=actor,
                principal=principal.name,
                session_id=settings.scope or principal.name,
                is_gone=link.has_gone if link is not None else _never,
            )

        front = gateway(app, of, who_calls).front()
        service = LocalService(
            app, front, place, digest=settings.digest(), idle_s=settings.idle_ms / 1000
        )
        await service.run(ready)


async def _never() -> bool:
    return False


class LocalService:
    """Serves clients on a socket.

    Args:
        app: Open.
        front: What they speak with.
        place: Where. This process holds its lock.
        digest: Of its settings: a client that wants others starts a new service, once this one is
            at rest.
        idle_s: Seconds without a client after which it ends, once no attempt is open.
    """

    def __init__(
        self, app: GatewayApp, front: Front, place: Place, *, digest: str, idle_s: float
    ) -> None:
        self._app, self._front, self._place = app, front, place
        self._digest, self._idle_s = digest, idle_s
        self._links: set[Link] = set()
        self._changed = anyio.Event()
        self._end = anyio.Event()

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until it is idle, or ended. Clients that still wait are answered first."""
        listener = await anyio.create_unix_listener(self._place.socket, mode=0o600)
        self._place.state.write_text(json.dumps({"pid": os.getpid()}), encoding="utf-8")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._on_signal)
            tasks.start_soon(self._on_idle)
            async with listener, anyio.create_task_group() as accepting:
                accepting.start_soon(listener.serve, self._client, tasks)
                ready()
                await self._end.wait()
                accepting.cancel_scope.cancel()
            self._place.socket.unlink(missing_ok=True)
            self._place.state.unlink(missing_ok=True)
            await self._app.drain(grace_s=GRACE_S)
            with anyio.move_on_after(ANSWERS_S):
                for link in tuple(self._links):
                    await link.answered()
            tasks.cancel_scope.cancel()
        _log.info("the service has ended")

    async def _on_signal(self) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            async for number in signals:
                if self._end.is_set():
                    # The ledger holds everything that matters; another process goes on from it.
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                self._end.set()

    async def _on_idle(self) -> None:
        while not self._end.is_set():
            self._changed = anyio.Event()
            if self._links:
                await self._changed.wait()
                continue
            with anyio.move_on_after(self._idle_s) as waited:
                await self._changed.wait()
            if waited.cancelled_caught:
                await self._app.rest()
                if not self._links:
                    _log.info("no client for %g s", self._idle_s)
                    self._end.set()

    async def _client(self, stream: anyio.abc.SocketStream) -> None:
        """Serve one client. Whatever goes wrong with it is no other's concern."""
        link, lines = Link(stream), BufferedByteReceiveStream(stream)
        async with stream:
            try:
                if not await self._greeted(stream, lines):
                    return
                self._links.add(link)
                self._changed.set()
                await serve_link(self._front, link, lines)
            except* (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                _log.info("a client went away")
            except* Exception:  # noqa: BLE001 - whatever it is, the others go on
                _log.exception("a client's link failed")
            finally:
                link.leave()
                self._links.discard(link)
                self._changed.set()

    async def _greeted(
        self, stream: anyio.abc.SocketStream, lines: BufferedByteReceiveStream
    ) -> bool:
        try:
            with anyio.fail_after(GREETING_S):
                said = json.loads(await lines.receive_until(b"\n", GREETING_BYTES_MAX))
        except (anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError, ValueError, OSError):
            return False
        if not isinstance(said, dict) or not (said.get("stop") or said.get("settings")):
            return False
        answer = await self._answer(said)
        await stream.send(json.dumps(answer).encode() + b"\n")
        return "welcome" in answer

    async def _answer(self, said: Mapping[str, object]) -> dict[str, object]:
        if said.get("stop"):
            self._end.set()
            return {"pid": os.getpid()}
        if self._end.is_set():
            return {"again": True}
        if said.get("settings") == self._digest:
            return {"welcome": True}
        if not self._links and await self._app.is_at_rest():
            _log.info("ending, since a client wants other settings")
            self._end.set()
            return {"again": True}
        return {
            "refused": f"the service for this ledger and scope (pid {os.getpid()}) runs with other"
            " settings, and is in use. Close its clients or end it with `doubtless mcp --stop …`,"
            " or say another --scope"
        }
