"""Telling subscribers of settlements: at least once, in order, one at a time, after restarts too.

A subscriber has a name, and under it a position that is durable. Where several processes have the
same subscriber, one of them delivers; another one goes on when that one is gone.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread

from doubtless.engine.stream import Settlement, SettlementPage
from doubtless.errors import DoubtlessError
from doubtless.telemetry import Event
from doubtless.transports.function import is_cancelled

Callback: TypeAlias = Callable[[Settlement], Awaitable[object] | object]

POLL_S: Final = 1.0  # how often the stream is looked at for what other processes settled
HOLD_S: Final = 15.0  # whoever delivers has it so long, and prolongs it
RETRY_MIN_S: Final = 0.1  # the first pause after a failure; it doubles
RETRY_MAX_S: Final = 60.0
RELEASE_S: Final = 2.0  # how long a subscriber is given back at the end; else its hold runs out
SKIP_MAX: Final = 1_000  # others' settlements that are read again after a restart, at most
PAGE: Final = 100

_log: Final = logging.getLogger("doubtless.settlements")


class Position(Protocol):
    """Up to which settlement one subscriber was told, and who may tell it the next."""

    async def read(self) -> int:
        """Return up to which it was told."""
        ...

    async def page(self, after: int, limit: int) -> SettlementPage:
        """Return the settlements after that."""
        ...

    async def take(self) -> int | None:
        """Become the one who delivers, and return up to which it was told; None: another is."""
        ...

    async def advance(self, seq: int) -> bool:
        """Note up to which it was told, and go on holding it; False: it was lost to another."""
        ...

    async def release(self) -> None:
        """Let others deliver."""
        ...


class Bell:
    """Wakes whoever waits for news of the stream, of this process and of those it hears of."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        """Wake them."""
        self._event.set()
        self._event = anyio.Event()

    def next(self) -> anyio.Event:
        """Return what is set when it rings next."""
        return self._event


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """Somebody who wants to be told."""

    name: str
    callback: Callback
    after: int = 0  # where a name that is new begins


class Delivery:
    """Delivers to one subscriber until it is cancelled."""

    def __init__(self, subscriber: Subscriber, position: Position, bell: Bell) -> None:
        self._name, self._callback = subscriber.name, subscriber.callback
        self._position, self._bell = position, bell

    async def run(self) -> None:
        """Deliver for ever. A ledger or a service that fails for a while is asked again."""
        pause_s = RETRY_MIN_S
        seen: int | None = None
        while True:
            rings = self._bell.next()
            try:
                if seen is None:
                    seen = await self._position.read()
                page = await self._position.page(seen, PAGE)
                if page.settlements or page.after > seen + SKIP_MAX:
                    told = await self._position.read()
                    if told > seen:  # another process told them meanwhile
                        seen = told
                        continue
                    seen = await self._deliver()
                    if seen is not None:
                        continue
                else:
                    seen = page.after
                with anyio.move_on_after(POLL_S):
                    await rings.wait()
                pause_s = RETRY_MIN_S
                continue
            except DoubtlessError as error:
                _log.warning("%s: %s: %s", Event.DELIVERY_FAILED, self._name, error)
            except Exception:  # noqa: BLE001 - one subscriber must not end the application
                _log.exception("%s: %s", Event.DELIVERY_FAILED, self._name)
            await anyio.sleep(pause_s)
            pause_s, seen = min(pause_s * 2, RETRY_MAX_S), None

    async def _deliver(self) -> int | None:
        """Deliver one page. Returns how far it came; None where somebody else delivers."""
        after = await self._position.take()
        if after is None:
            return None
        try:
            page = await self._position.page(after, PAGE)
            for settlement in page.settlements:
                await self._tell(settlement, after)
                if not await self._position.advance(settlement.id):
                    _log.warning("%s: %s: another process has it", Event.DELIVERY_LOST, self._name)
                    return None
                after = settlement.id
            if page.after > after:  # what follows is of others, or there is nothing
                await self._position.advance(page.after)
            return page.after
        finally:
            # Whoever closes the application doesn't wait long for a service that is away.
            with anyio.move_on_after(RELEASE_S, shield=True), suppress(DoubtlessError):
                await self._position.release()

    async def _tell(self, settlement: Settlement, after: int) -> None:
        """Tell the subscriber, until it takes it. Meanwhile it stays ours."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hold, after)
            pause_s = RETRY_MIN_S
            while not await self._took(settlement):
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            tasks.cancel_scope.cancel()

    async def _hold(self, after: int) -> None:
        while True:
            await anyio.sleep(HOLD_S / 3)
            with suppress(DoubtlessError):
                await self._position.advance(after)

    async def _took(self, settlement: Settlement) -> bool:
        try:
            await _call(self._callback, settlement)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._failed(settlement, "it was cancelled")
            return False
        except (Exception, SystemExit) as error:  # noqa: BLE001 - its failure is its own
            self._failed(settlement, f"{type(error).__name__}: {error}")
            return False
        return True

    def _failed(self, settlement: Settlement, why: str) -> None:
        told = (Event.DELIVERY_FAILED, self._name, settlement.id, why[:200])
        _log.warning("%s: %s could not take %d: %s", *told)


async def _call(callback: Callback, settlement: Settlement) -> None:
    """Call it; what is no coroutine function runs in a thread, so that it may block."""
    called = callback if inspect.isroutine(callback) else getattr(callback, "__call__", callback)  # noqa: B004 - its own code tells
    if inspect.iscoroutinefunction(called):
        await called(settlement)
        return
    found = await anyio.to_thread.run_sync(callback, settlement, abandon_on_cancel=True)
    if isinstance(found, Awaitable):
        await found
