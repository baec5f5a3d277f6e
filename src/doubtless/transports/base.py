"""What all transports share: the gate, and the report of what was seen.

A transport calls the gate immediately before the first byte (or the first step) of an action. The
gate either returns `write_by_s`, on the boot-time clock, or raises `GateClosed`: then nothing may
leave. The transport compares `write_by_s` once more in the same call as its first write.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from doubtless.core.contract import Kind, SourceRules
from doubtless.core.model import Cause, Json, Seen, Shows, Stage
from doubtless.core.progress import Liveness

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
class Action:
    """A rendered action of any other kind: what is stored, and what every attempt carries out."""

    kind: Kind
    members: Mapping[str, Json]  # the contract's block with the call's values; no credential in it


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
    provider_operation_id: str | None = None  # where a transport knows it without the contract
    exhibits: Mapping[str, bytes] = field(default_factory=dict)  # for a person to look at, by name


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """What one look-up found."""

    shows: Shows
    detail: str
    provider_operation_id: str | None = None
    result: Json = None


def could_not_ask(why: str) -> Sighting:
    """Return the third answer: it counts neither for nor against."""
    return Sighting(shows=Shows.COULD_NOT_ASK, detail=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """What came of ending an operation's processes. It says nothing about its effect."""

    signalled: tuple[int, ...]  # process ids
    left: tuple[int, ...]  # those that are still there all the same


Keep: TypeAlias = Callable[[str, bytes], Awaitable[None]]
"""Store an exhibit of the running attempt, by name; durable when it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One attempt, or one look, as the transport of its kind is told of it."""

    operation_id: str
    ref: str  # ours, unique everywhere: the name of markers, and what goes into objects
    tool: str
    action: Action
    arguments: Mapping[str, Json]
    attempt: int  # from 1; in a look, the number of attempts so far
    baseline: Json = None  # what `survey` returned, stored before the first attempt acted
    duplicate_of: str | None = None  # set where an operator knowingly does it once more
    duplicate_ref: str | None = None  # the ref of that operation
    correlation_id: str = ""  # of the attempt: both sides' logs then share it
    keep: Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What a transport needs of the process that it works in."""

    owner: str  # identity of this process: JSON of host, boot id, pid and start time
    liveness: Callable[[str], Liveness]  # of the process behind such an identity
    boot_s: Callable[[], float]  # the boot-time clock, in seconds
    wall_ms: Callable[[], int]
    secret: Callable[[str], str]  # by name; raises `SettingsError` where there is none


class ActionTransport(Protocol):
    """Carries out one kind of action, and can be asked afterwards what became of one.

    One instance serves any number of concurrent errands on one event loop.
    """

    async def survey(self, errand: Errand) -> Json:
        """Say how things stand before the first attempt. Changes nothing.

        The answer is stored durably before anything is done, once for the whole operation, and
        comes back as `errand.baseline`: what a later look is compared with.

        Raises:
            NotSent: It can't be said, so that nothing is done either; the text goes to people.
        """
        ...

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Carry the action out at most once, and say what was seen. It never raises but cancelled.

        Args:
            errand: What is to be done.
            gate: Awaited once, at the last moment at which nothing was done yet. If it raises
                `GateClosed`, or its `write_by_s` is past in the very call that would begin, the
                reply is `NOT_SENT`.
            watch: `stage` and `sent_bytes` are moved before each step, `written` once nothing more
                of it can begin: then a late answer is waited for beyond the time-out.
            limit_s: Seconds for all of it, late answer included.

        The reply's `proof` says what is proven (`SUCCEEDED`, `REJECTED`, `NOT_PROCESSED` or
        `NOT_SENT`), its `body` is the result as canonical JSON; without a proof it is unknown, for
        the reason in `cause`. Where it is cancelled, `watch` says how far it got.
        """
        ...

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Ask what became of the operation. Changes nothing; any exception is could-not-ask."""
        ...

    async def aclose(self) -> None:
        """Let go of what is kept open. Nothing that was begun is ended by it."""
        ...
