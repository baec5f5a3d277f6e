"""Callers that wait for an operation: woken at once by their own process, and by news of others.

News may be missed, and on a file there are none, so they look by themselves as well.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from doubtless.core.model import Record
from doubtless.ledger.news import News

POLL_MIN_S = 0.05  # another process may have moved it on
POLL_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class Known:
    """An operation as it stands, and its result where that is at hand."""

    record: Record
    result: bytes | None = None  # JSON; None: it stands in the ledger, if anywhere


@dataclass(eq=False, slots=True)
class _Waiter:
    event: anyio.Event = field(default_factory=anyio.Event)
    told: "Known | None" = None


class Waiting:
    """Who waits for which operation, in this process."""

    def __init__(self, load: Callable[[str], Record]) -> None:
        self._load = load
        self._waiters: dict[str, list[_Waiter]] = {}
        self._released = False

    def changed(self, record: Record, result: bytes | None = None) -> None:
        """Wake whoever waits for that operation."""
        for waiter in self._waiters.get(record.operation.id, ()):
            waiter.told = Known(record, result)
            waiter.event.set()

    def heard(self, news: News) -> None:
        """Let those look again who wait for what another process has moved on."""
        for operation_id, waiters in self._waiters.items():
            if news.concerns(operation_id):
                for waiter in waiters:
                    waiter.event.set()

    def release(self) -> None:
        """Let everybody go with what is known now, and nobody wait any more: it is the end."""
        self._released = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.event.set()

    @contextmanager
    def _listening(self, operation_id: str) -> Iterator[_Waiter]:
        waiter = _Waiter()
        self._waiters.setdefault(operation_id, []).append(waiter)
        try:
            yield waiter
        finally:
            waiters = self._waiters[operation_id]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[operation_id]

    async def until(
        self,
        operation_id: str,
        ready: Callable[[Record], bool],
        *,
        timeout_s: float,
        record: Record | None = None,
    ) -> Known:
        """Return the operation once it is `ready`, or as it stands when time is up.

        Args:
            operation_id: Which one.
            ready: Judges a record.
            timeout_s: Seconds. At zero it is only read.
            record: As it is known to stand now, where this process is at work on it: spares the
                first look at the ledger, and polling it often.
        """
        with self._listening(operation_id) as waiter:
            current = Known(self._load(operation_id) if record is None else record)
            pause_s = POLL_MIN_S if record is None else POLL_MAX_S
            end_s = anyio.current_time() + timeout_s
            while not ready(current.record) and (left_s := end_s - anyio.current_time()) > 0:
                if self._released:
                    break
                with anyio.move_on_after(min(pause_s, left_s)):
                    await waiter.event.wait()
                pause_s = min(pause_s * 2, POLL_MAX_S)
                waiter.event = anyio.Event()
                told, waiter.told = waiter.told, None
                current = Known(self._load(operation_id)) if told is None else told
        return current
