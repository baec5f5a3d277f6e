"""What the engine needs of the world besides ledger and transports: clocks, ids, who is alive.

They come in as arguments, so that the very same engine runs on a virtual clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from uuid_utils.compat import uuid7

from doubtless.core.progress import Liveness
from doubtless.engine.owner import liveness, this_process


def wall_ms() -> int:
    """Return milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def boot_s() -> float:
    """Return seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_id() -> str:
    """Return an operation id: UUIDv7 (RFC 9562) in hexadecimal, so that ids sort by time."""
    return uuid7().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The defaults are the real world."""

    wall_ms: Callable[[], int] = wall_ms
    boot_s: Callable[[], float] = boot_s
    new_id: Callable[[], str] = new_id
    owner: str = field(default_factory=this_process)
    liveness: Callable[[str], Liveness] = liveness
