"""Paths below a root, walked folder by folder with descriptors: no link and no `..` leads out.

Every step opens one name in a folder that is already held open (openat(2) with O_NOFOLLOW). What is
swapped in meanwhile is either refused or never looked at.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from doubtless.core.model import Json

NAME_BYTES_MAX: Final = 255
OURS: Final = ".doubtless-"
"""How the names begin under which content is written before it is complete."""

CHUNK_BYTES: Final = 1 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Refused(Exception):
    """A path leads where it may not, or something else is there than can be meant."""


class What(StrEnum):
    """What is at a path."""

    ABSENT = "absent"
    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"  # a link, a device, a socket: it is never followed and never opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is at a path, as it was when it was opened."""

    what: What
    sha256: str | None = None  # of a file, where it was asked for
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0


ABSENT: Final = Found(what=What.ABSENT)


def parts_of(path: Json) -> tuple[str, ...]:
    """Return the names of a path below the root.

    Args:
        path: A text, in which `/` divides, or a list of names, in which none may hold one.

    Raises:
        Refused: It is no such path, and why.
    """
    if isinstance(path, str):
        return _checked(path.split("/"), path)
    if isinstance(path, Sequence) and all(isinstance(name, str) for name in path):
        names = [str(name) for name in path]
        for name in names:
            if "/" in name:
                raise Refused(f"{name!r} would name another folder: a '/' can't stand there")
        return _checked(names, "/".join(names))
    raise Refused(f"{path!r} is no path: it must be text")


def _checked(names: Sequence[str], path: str) -> tuple[str, ...]:
    for name in names:
        if name in ("", ".", ".."):
            wrong = "it begins, ends or goes on with '/'" if not name else f"it has a {name!r}"
            raise Refused(f"{path!r} is no path below the root: {wrong}")
        if not name.isprintable():
            raise Refused(f"{path!r} has a character that can't be shown")
        if len(name.encode()) > NAME_BYTES_MAX:
            raise Refused(f"{name[:20]!r}… is longer than {NAME_BYTES_MAX} bytes")
        if name.startswith(OURS):
            raise Refused(f"{name!r}: names that begin with {OURS!r} are ours")
    return tuple(names)


def identity(root: str) -> dict[str, Json]:
    """Return what tells this root from another file system at the same place."""
    found = Path(root).stat()
    # As text: canonical JSON has no integers beyond 2**53.
    return {"inode": str(found.st_ino), "file_system": str(os.statvfs(root).f_fsid)}


@contextmanager
def folder(root: str, names: Sequence[str]) -> Iterator[int]:
    """Hold a folder below the root open. The root itself may be a link; nothing below it may.

    Raises:
        OSError: `ENOENT` where there is none, `ELOOP` or `ENOTDIR` where there is something else.
    """
    held = os.open(root, _FOLDER)
    try:
        for name in names:
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def is_still(held: int, root: str, names: Sequence[str]) -> bool:
    """Whether the folder that is held open is still the one at its path."""
    try:
        with folder(root, names) as again:
            return os.path.sameopenfile(held, again)
    except OSError:
        return False


def look_at(parent: int, name: str, *, hashed: bool = True) -> Found:
    """Say what is at a name in a folder; nothing is followed, and only regular files are opened."""
    try:
        seen = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return ABSENT
    if stat.S_ISDIR(seen.st_mode):
        return Found(what=What.FOLDER)
    if not stat.S_ISREG(seen.st_mode):
        return Found(what=What.OTHER)
    if not hashed:
        return _found(seen, None)
    with opened(parent, name) as descriptor:
        return _found(os.fstat(descriptor), digest(descriptor))


def _found(seen: os.stat_result, sha256: str | None) -> Found:
    return Found(
        what=What.FILE,
        sha256=sha256,
        size_bytes=seen.st_size,
        mode=stat.S_IMODE(seen.st_mode),
        uid=seen.st_uid,
        gid=seen.st_gid,
    )


@contextmanager
def opened(parent: int, name: str) -> Iterator[int]:
    """Open a regular file for reading.

    Raises:
        Refused: Something else is there by now.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Refused(f"{name!r} is no regular file") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused(f"{name!r} is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def digest(descriptor: int) -> str:
    """Return the SHA-256 of a file from its beginning, in hexadecimal."""
    found, at = hashlib.sha256(), 0
    while chunk := os.pread(descriptor, CHUNK_BYTES, at):
        found.update(chunk)
        at += len(chunk)
    return found.hexdigest()


def words(error: OSError, path: str) -> str:
    """Say what went wrong at a path, and what can be done about it."""
    mends = {
        errno.ENOENT: "there is no such folder: make it first",
        errno.ELOOP: "it leads through a link, which is not followed",
        errno.ENOTDIR: "it leads through a file or a link, which is not followed",
        errno.ENOSPC: "the disk is full: make room",
        errno.EDQUOT: "the quota is used up: make room",
        errno.EFBIG: "the file would be larger than may be written here",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "this process may not write there: give it the right",
        errno.EPERM: "this process may not do that: give it the right",
    }
    why = mends.get(error.errno or 0, os.strerror(error.errno or errno.EIO).lower())
    return f"{path}: {why}"
