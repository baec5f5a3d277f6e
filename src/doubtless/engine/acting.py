"""One attempt under way: its gate, how far it got, and how it ended if it was stopped."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from doubtless.core.contract import Kind
from doubtless.core.model import (
    Cause,
    Evidence,
    Observation,
    Seen,
    Shows,
    Source,
    Stage,
    Strength,
)
from doubtless.engine.book import Begun
from doubtless.engine.steps import Ending, Opened
from doubtless.errors import GateClosed, LedgerError
from doubtless.transports.base import Reply, Watch


class Gate:
    """One attempt's gate. It opens once, or is shut for good; whichever comes first.

    Args:
        ask: Judges, by the ledger, whether the first byte may be written.
        boot_s: The boot-time clock, in seconds.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[Opened | str]], boot_s: Callable[[], float]
    ) -> None:
        self._ask, self._boot_s = ask, boot_s
        self.is_shut = False
        self.opened_ms: int | None = None  # by the ledger's clock
        self._asked_s = 0.0
        self._sent_by_ms: int | None = None

    async def __call__(self) -> float:
        """Return until when the first byte may be written, in seconds since boot.

        Raises:
            GateClosed: It may not be written.
        """
        asked_s = self._boot_s()  # before the ledger's clock is read: the error is on our side
        try:
            found = "its time is over" if self.is_shut else await self._ask()
        except LedgerError as error:
            raise GateClosed(f"the ledger can't be asked: {error}") from error
        if isinstance(found, str) or self.is_shut:
            raise GateClosed(found if isinstance(found, str) else "its time is over")
        self.opened_ms, self._asked_s = found.at_ms, asked_s
        self._sent_by_ms = found.sent_by_ms
        return asked_s + (found.write_by_ms - found.at_ms) / 1000

    def sent_by_ms(self, first_byte_s: float | None) -> int | None:
        """Return the last instant at which the first byte can have left, by the ledger's clock.

        Args:
            first_byte_s: The boot-time clock as it was read after the first byte had left; without
                it, only the gate's own bound is known. None where the gate never opened.
        """
        if self.opened_ms is None or first_byte_s is None:
            return self._sent_by_ms
        return self.opened_ms + math.ceil((first_byte_s - self._asked_s) * 1000)


@dataclass(slots=True, kw_only=True)
class Act:
    """One attempt under way: what it may still do, and what it has brought."""

    begun: Begun
    gate: Gate
    watch: Watch = field(default_factory=Watch)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    done: anyio.Event = field(default_factory=anyio.Event)
    reply: Reply | None = None

    def sent_by_ms(self, boot_s: Callable[[], float]) -> int | None:
        """Return the last instant at which its first byte can have left."""
        if self.begun.contract.kind is Kind.FUNCTION:
            return self.gate.sent_by_ms(boot_s())  # its code may send at any time until now
        return self.gate.sent_by_ms(self.watch.first_byte_s)

    def replied(self) -> bool:
        """Whether there is a reply by now."""
        return self.reply is not None


def applied(begun: Begun, provider_operation_id: str | None) -> Evidence:
    """Return the tool's own word that the effect exists. Number and time are set when stored."""
    return Evidence(
        number=0,
        source=Source.RESPONSE,
        shows=Shows.APPLIED,
        strength=Strength.AUTHORITATIVE,
        at_ms=0,
        begun_ms=0,
        by="call.applied",
        attempt=begun.attempt.number,
        provider_operation_id=provider_operation_id,
        detail="the tool marked the point of no return",
    )


def stopped(
    act: Act, sent_by_ms: int | None, *, timed_out: bool = False, runs_on: bool = False
) -> Ending:
    """Say how an attempt ended that was stopped by the clock, or by this process going down."""
    why = "its time-out" if timed_out else "this process is ending"
    if act.gate.opened_ms is None and act.watch.sent_bytes == 0:
        detail = f"stopped before the first byte: {why}"
        seen = Observation(seen=Seen.NOT_SENT, stage=act.watch.stage, detail=detail)
        return Ending(observation=seen, sent_by_ms=None)
    unsent = act.done.is_set() and act.begun.contract.kind is not Kind.FUNCTION
    if unsent and act.watch.sent_bytes == 0:
        detail = f"the gate was open, but no byte had been written: {why}"
        seen = Observation(seen=Seen.NOT_SENT, stage=Stage.GATE, detail=detail)
        return Ending(observation=seen, sent_by_ms=sent_by_ms)
    detail = "response deadline exceeded after request write"
    if act.begun.contract.kind is Kind.FUNCTION:
        detail = "the function did not return within its time-out"
    elif not act.watch.written and timed_out:
        detail = "time ran out while the request was being written"
    if not timed_out:
        detail = "this process ended while the answer was awaited"
    seen = Observation(
        seen=Seen.UNKNOWN,
        stage=act.watch.stage,
        cause=Cause.TIMEOUT if timed_out else Cause.CANCELLED,
        detail=detail,
    )
    return Ending(
        observation=seen,
        sent_by_ms=sent_by_ms,
        closes_in_ms=None if runs_on else 0,
    )
