"""Asking an application from any event loop and from any thread.

An application belongs to the event loop that it was opened on. Frameworks run their tools on loops
of their own, and in threads.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Final, TypeAlias, TypeVar

from doubtless.engine.app import Doubtless
from doubtless.engine.blocking import BlockingDoubtless
from doubtless.errors import DoubtlessError, Rejected

T = TypeVar("T")
App: TypeAlias = Doubtless | BlockingDoubtless
"""`Doubtless(…)` or `Doubtless.sync(…)`."""

STUCK_S: Final = 10.0  # an event loop that takes nothing up for so long waits for this very thread


def application(app: App) -> Doubtless:
    """Return the application itself, which has the coroutines."""
    return app.asynchronous if isinstance(app, BlockingDoubtless) else app


async def crossed(app: Doubtless, call: Callable[[], Coroutine[object, object, T]]) -> T:
    """Await a call on the application's event loop, from this one. No thread is held meanwhile.

    Raises:
        DoubtlessError: The application is not open.
    """
    if asyncio.get_running_loop() is app.loop:
        return await call()
    return await asyncio.wrap_future(_begun(app, call))


def waited(app: Doubtless, call: Callable[[], Coroutine[object, object, T]]) -> T:
    """Make a call on the application's event loop, and wait for it in this thread.

    Raises:
        DoubtlessError: The application is not open, or its event loop waits for this thread.
            Nothing was called.
    """
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    turned = threading.Event()
    if here is not app.loop:
        try:
            app.loop.call_soon_threadsafe(turned.set)
        except RuntimeError as error:
            raise _closed() from error
        turned.wait(STUCK_S)
    if not turned.is_set():
        raise DoubtlessError(
            "this thread would wait for the event loop that waits for it: call the agent"
            " asynchronously, or open the application with Doubtless.sync(…)"
        )
    future = _begun(app, call)
    try:
        return future.result()
    except CancelledError:
        raise _closed() from None
    finally:
        future.cancel()  # an interrupt ends the waiting; what has ended isn't touched


def _begun(app: Doubtless, call: Callable[[], Coroutine[object, object, T]]) -> Future[T]:
    coroutine = call()
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, app.loop)
    except RuntimeError as error:
        coroutine.close()
        raise _closed() from error


def _closed() -> DoubtlessError:
    return DoubtlessError("the application is not open, or was closed meanwhile")


async def on_loop(
    loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[object, object, T]]
) -> T:
    """Await a call on another event loop, in the context variables of this one.

    Raises:
        Rejected: That loop was closed. Nothing was called.
    """
    coroutine = call()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:
        coroutine.close()
        raise Rejected("the event loop that it was asked on was closed") from error
    return await asyncio.wrap_future(future)
