"""The processes of a command: whoever it started, found by /proc, and ended for sure.

A process is known by its id and its start time: an id alone is soon another's. It is signalled by a
pidfd, which never comes to mean another one.
"""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from doubtless.core.model import Json

KILL_WITHIN_S: Final = 5.0
PAUSE_S: Final = 0.02


class Process(NamedTuple):
    """One process, as /proc/PID/stat tells."""

    pid: int
    parent: int
    group: int
    session: int
    start: str


def all_processes() -> dict[int, Process]:
    """Return all processes that live, by id; zombies live no more."""
    found = {}
    names = (entry.name for entry in Path("/proc").iterdir())
    for name in filter(str.isdecimal, names):
        with suppress(OSError, IndexError, ValueError):
            stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            fields = stat.rpartition(")")[2].split()
            if fields[0] not in {"Z", "X"}:
                parent, group, session = (int(field) for field in fields[1:4])
                found[int(name)] = Process(int(name), parent, group, session, fields[19])
    return found


def tree(keeper: Mapping[str, Json], command: Mapping[str, Json] | None) -> list[Process]:
    """Return what lives of a command: itself, and all that it started, its keeper left out.

    While the keeper lives, that is whoever descends from it: orphans come to be its children,
    whatever session they chose. Without it, its session and the command's group are what is left.
    """
    alive = all_processes()
    if _is(alive, keeper):
        return _descendants(alive, _pid(keeper))
    found: dict[int, Process] = {}
    if command is not None and _is(alive, command):
        own = alive[_pid(command)]
        found = {each.pid: each for each in [own, *_descendants(alive, own.pid)]}
    if _pid(keeper) not in alive:  # else the number is another's by now
        found |= {each.pid: each for each in alive.values() if each.session == _pid(keeper)}
    if command is not None and (_pid(command) not in alive or _is(alive, command)):
        found |= {each.pid: each for each in alive.values() if each.group == _pid(command)}
    return list(found.values())


def _pid(told: Mapping[str, Json]) -> int:
    return int(str(told["pid"]))


def _is(alive: Mapping[int, Process], told: Mapping[str, Json]) -> bool:
    found = alive.get(_pid(told))
    return found is not None and found.start == told["start"]


def _descendants(alive: Mapping[int, Process], root: int) -> list[Process]:
    found, parents = [], {root}
    while parents:
        below = [each for each in alive.values() if each.parent in parents]
        found += below
        parents = {each.pid for each in below}
    return found


def end(
    keeper: Mapping[str, Json], command: Mapping[str, Json] | None, *, grace_s: float
) -> tuple[list[int], list[int]]:
    """End a command and all that it started: asked first, then killed.

    Args:
        keeper: Its keeper's identity.
        command: The command's own, where it is known.
        grace_s: How long they are given to end by themselves.

    Returns:
        Ids of those that were signalled, and of those that are still there.
    """
    signalled: dict[int, Process] = {}
    start_s = time.monotonic()
    while True:
        left = tree(keeper, command)
        passed_s = time.monotonic() - start_s
        if not left or passed_s > grace_s + KILL_WITHIN_S:
            return sorted(signalled), sorted(each.pid for each in left)
        for each in left:
            if passed_s >= grace_s:
                _signal(each, signal.SIGKILL)
            elif each.pid not in signalled:
                _signal(each, signal.SIGTERM)
                _signal(each, signal.SIGCONT)  # one that is stopped can't hear
            signalled[each.pid] = each
        time.sleep(PAUSE_S)


def _signal(process: Process, number: signal.Signals) -> None:
    """Signal a process, if it is still the one that was found."""
    with suppress(OSError):
        held = os.pidfd_open(process.pid)
        try:
            now = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
            if now.rpartition(")")[2].split()[19] == process.start:
                signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)
