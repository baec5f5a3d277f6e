"""Running the service, or a worker alone, as a process: sockets, signals, and an orderly end."""

import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from typing import Final

import anyio
import anyio.abc
import uvicorn

from doubtless.engine.app import Doubtless
from doubtless.engine.sockets import bind, url_of
from doubtless.service.app import Service, create_app
from doubtless.service.settings import ServiceSettings
from doubtless.service.wire import protocol_of

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
RESPONSES_S: Final = 5.0  # for answers that are being written when everything else has ended


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to us: work is drained before the sockets are closed."""
        yield


async def serve(
    application: Doubtless,
    settings: ServiceSettings,
    *,
    listening: Callable[[str], None],
) -> None:
    """Serve until a signal, then end in order.

    Args:
        application: Not open yet.
        settings: How.
        listening: Called with the address once requests are answered.
    """
    asgi = create_app(application, settings)
    service: Service = asgi.state.service
    limits = settings.limits
    with bind(settings.host, settings.port) as sock:
        config = uvicorn.Config(
            asgi,
            http=protocol_of(limits),
            ws="none",
            lifespan="off",  # it is ours, so that what goes wrong in it is told in a line
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.idle_timeout_s),
            timeout_graceful_shutdown=int(RESPONSES_S),
            h11_max_incomplete_event_size=limits.head_bytes_max,
        )
        server = _Server(config)

        async def stop() -> None:
            await service.drain()
            server.should_exit = True

        async with asgi.router.lifespan_context(asgi), anyio.create_task_group() as tasks:
            await tasks.start(_on_signal, stop)
            listening(url_of(sock))
            await server.serve(sockets=[sock])
            tasks.cancel_scope.cancel()


async def work(application: Doubtless, *, grace_s: float, working: Callable[[], None]) -> None:
    """Run a worker alone until a signal, then end in order."""
    ended = anyio.Event()

    async def stop() -> None:
        await application.drain(grace_s=grace_s)
        ended.set()

    async with application, anyio.create_task_group() as tasks:
        await tasks.start(_on_signal, stop)
        working()
        await ended.wait()
        tasks.cancel_scope.cancel()


async def _on_signal(
    stop: Callable[[], Coroutine[None, None, None]],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Stop in order at the first signal; at the second one die, as if killed."""
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            stopping = False
            async for number in signals:
                if stopping:
                    # The ledger holds everything that matters; another process goes on from it.
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
                stopping = True
                tasks.start_soon(stop)
