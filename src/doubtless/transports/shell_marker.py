"""Markers: folders that say what became of a command, for whoever asks later.

    MARKERS/REF/N/   of attempt N; making it is the fence: whoever comes second starts nothing
        begun        a keeper began, and starts the command next; or: void, nothing ever will
        running      the command's process
        ended        how it ended

An attempt is only made once each earlier one is void: whoever voids and whoever begins make the
same name, which one of them alone can make. So at most one of all attempts ever begins.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.core.progress import Liveness

TOKEN: Final = "markers"  # noqa: S105 - the name of a file
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Told = Mapping[str, Json]


class Phase(StrEnum):
    """Where a command stands."""

    NOT_BEGUN = "not begun"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # it began, nobody is there any more, and no end was recorded
    FOREIGN = "foreign"  # its processes can't be seen from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a marker says."""

    phase: Phase
    keeper: Told | None = None
    command: Told | None = None
    end: Told | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    why_not: str = ""  # where it provably was not started


NOT_BEGUN: Final = Standing(phase=Phase.NOT_BEGUN)


def token(root: str) -> str | None:
    """Return what tells these markers from any others; None where there are none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return (Path(root) / TOKEN).read_text(encoding="ascii")
    return None


def made_token(root: str) -> str:
    """Return it, and make the folder of markers if need be.

    Raises:
        OSError: It can't be made.
    """
    folder = Path(root)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = folder / f"{TOKEN}.{secrets.token_hex(8)}"
    try:
        with aside.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(16))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(aside, folder / TOKEN)
    finally:
        aside.unlink(missing_ok=True)
    for each in (folder, folder.parent):
        _flush(each)
    return (folder / TOKEN).read_text(encoding="ascii")


def _flush(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)


@contextmanager
def claimed(root: str, ref: str, attempt: int) -> Iterator[int | None]:
    """Make the marker of an attempt, and hold it open; None where one may have begun already."""
    above = _made(root, ref)
    try:
        if not all(_is_void(above, earlier) for earlier in range(1, attempt)):
            yield None
            return
        try:
            os.mkdir(str(attempt), 0o700, dir_fd=above)
        except FileExistsError:
            yield None
            return
        os.fsync(above)
        held = os.open(str(attempt), _FOLDER, dir_fd=above)
        try:
            yield held
        finally:
            os.close(held)
    finally:
        os.close(above)


def _made(root: str, ref: str) -> int:
    """Make and open the folder of an operation."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            os.mkdir(ref, 0o700, dir_fd=top)
        os.fsync(top)
        return os.open(ref, _FOLDER, dir_fd=top)
    finally:
        os.close(top)


def _is_void(above: int, attempt: int) -> bool:
    """Be sure that an earlier attempt never begins, if it has not begun."""
    with suppress(FileExistsError):
        os.mkdir(str(attempt), 0o700, dir_fd=above)
    held = os.open(str(attempt), _FOLDER, dir_fd=above)
    try:
        ended = _record(held, "ended")
        if ended is not None and "not_started" in ended:
            return True
        try:
            made = os.open("begun", _NEW, 0o600, dir_fd=held)
        except FileExistsError:
            begun = _record(held, "begun")
            return begun is not None and "keeper" not in begun
        os.close(made)
        os.fsync(held)
        return True
    finally:
        os.close(held)


def standing(root: str, ref: str, liveness: Callable[[str], Liveness]) -> Standing:
    """Say what became of an operation's command.

    Args:
        liveness: Of the process behind an identity, in JSON.

    Raises:
        OSError: The markers can't be read.
    """
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            above = os.open(ref, _FOLDER, dir_fd=top)
        except FileNotFoundError:
            return NOT_BEGUN
    finally:
        os.close(top)
    try:
        found = NOT_BEGUN
        names = os.listdir(above)  # noqa: PTH208 - of a folder that is held open
        for name in sorted(filter(str.isdecimal, names), key=int):
            held = os.open(name, _FOLDER, dir_fd=above)
            try:
                found = read(held, liveness)
            finally:
                os.close(held)
            if found.phase is not Phase.NOT_BEGUN:
                return found
        return found
    finally:
        os.close(above)


def read(held: int, liveness: Callable[[str], Liveness]) -> Standing:
    """Say what one marker tells. It may go on while it is read, and never back."""
    ended = _end(held)
    if ended is not None:
        return ended
    begun = _record(held, "begun")
    if begun is None or "keeper" not in begun:
        return NOT_BEGUN
    keeper = cast("Told", begun["keeper"])
    command = _record(held, "running")
    alive = [liveness(json.dumps(each)) for each in (keeper, command) if each]
    if Liveness.ALIVE in alive:
        return Standing(phase=Phase.RUNNING, keeper=keeper, command=command)
    if Liveness.FOREIGN in alive:
        return Standing(phase=Phase.FOREIGN, keeper=keeper, command=command)
    # It may have been recorded between the two looks.
    return _end(held) or Standing(phase=Phase.LOST, keeper=keeper, command=command)


def _end(held: int) -> Standing | None:
    ended = _record(held, "ended")
    if ended is None:
        return None
    if "not_started" in ended:
        return Standing(phase=Phase.NOT_BEGUN, why_not=str(ended["not_started"]))
    begun = _record(held, "begun") or {}
    return Standing(
        phase=Phase.ENDED,
        keeper=cast("Told | None", begun.get("keeper")),
        command=_record(held, "running"),
        end=ended,
        stdout=_content(held, "stdout") or b"",
        stderr=_content(held, "stderr") or b"",
    )


def _record(held: int, name: str) -> Told | None:
    """Return a record, {} where what is there is none, None where there is nothing."""
    content = _content(held, name)
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _content(held: int, name: str) -> bytes | None:
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as file:
        return file.read()
