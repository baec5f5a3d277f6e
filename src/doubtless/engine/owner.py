"""Who carries an attempt out: host, boot, process and its start. Enough to prove a death.

A process id alone proves nothing: it is soon another's. Linux tells the boot id and the start time
of a process, in clock ticks since boot; where it doesn't, an owner is never proven dead.
"""

import json
import os
import socket
from functools import lru_cache
from pathlib import Path

from doubtless.core.progress import Liveness

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _namespace() -> str:
    """Return which process ids are meant; "" where that can't be told."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process, None if there is none, "" if it can't be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else ""
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    # The second field is the program's name in parentheses, which may hold anything.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return None  # ended, and only waiting to be reaped
    return fields[19]


def this_process() -> str:
    """Return the identity of this process, as JSON text."""
    pid = os.getpid()
    identity = {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "namespace": _namespace(),
        "pid": pid,
        "start": _started(pid) or "",
    }
    return json.dumps(identity, separators=(",", ":"))


def liveness(owner: str) -> Liveness:
    """Say what is known of the process behind `owner`; in doubt it is taken to be alive."""
    try:
        identity = json.loads(owner)
        host, boot = identity["host"], identity["boot"]
        pid, start = int(identity["pid"]), identity["start"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Liveness.FOREIGN
    if host != socket.gethostname():
        return Liveness.FOREIGN
    if boot != _boot_id():
        # The same name after a restart, or another machine that has it: the boot id is the proof.
        return Liveness.DEAD if boot and _boot_id() else Liveness.FOREIGN
    if identity.get("namespace", "") != _namespace():
        return Liveness.FOREIGN  # a container's process ids are not ours
    try:
        now = _started(pid)
    except (OverflowError, ValueError):
        return Liveness.FOREIGN
    if now is None or (start and now and now != start):
        return Liveness.DEAD
    return Liveness.ALIVE
