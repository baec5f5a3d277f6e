"""What all transports share: the gate, and the report of what was seen.

A transport calls the gate immediately before the first byte (or the first step) of an action. The
gate either returns `write_by_s`, on the boot-time clock, or raises `GateClosed`: then nothing may
leave. The transport compares `write_by_s` once more in the same call as its first write.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from doubtless.core.contract import SourceRules
from doubtless.core.model import Cause, Seen, Stage

Gate = Callable[[], Awaitable[float]]
"""Ask for permission to write the first byte: returns `write_by_s` or raises `GateClosed`."""


async def open_gate() -> float:
    """Let everything pass: for reads and look-ups, which need no permission."""
    return float("inf")


@dataclass(slots=True)
class Watch:
    """How far an attempt got, readable while it runs. The transport moves it, never back."""

    stage: Stage = Stage.OPENED
    sent_bytes: int = 0  # of the request itself, counted before each write
    first_byte_s: float | None = None  # boot-time clock, read after the first write had returned
    written: bool = False  # all of it was handed over: nothing more of it will begin


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A rendered request: what is stored, and what every attempt sends. No credential in it."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one transport saw of one attempt. Witnessed, not judged."""

    stage: Stage
    proof: Seen | None = None  # NOT_SENT or NOT_PROCESSED, where the transport itself proves it
    cause: Cause | None = None  # why no complete answer came
    detail: str = ""  # for people; no payload, no secret
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    body: bytes = b""
    complete: bool = False  # the whole answer came, within the bounds
    sent_bytes: int = 0


Private: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Headers that are attached after the gate and stored nowhere, or how to get them then."""


class HttpSender(Protocol):
    """Sends requests of contracts, each at most once: `HttpTransport`, or a simulated one."""

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
        """Do as `HttpTransport.perform` does."""
        ...

    async def self_test(self) -> None:
        """Check that what the barrier is built on is still there."""
        ...

    async def aclose(self) -> None:
        """Close what is kept open."""
        ...
