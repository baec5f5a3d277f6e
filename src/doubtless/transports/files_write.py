"""What one file operation is to do, and its doing: aside, flushed, and into place by one rename."""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.transports.base import Errand, Watch
from doubtless.transports.files_tree import (
    CHUNK_BYTES,
    OURS,
    Found,
    Refused,
    What,
    folder,
    is_still,
    look_at,
    opened,
    parts_of,
)

LOCK_WAIT_S: Final = 5.0
LOCK_PAUSE_S: Final = 0.02
UNLOCKABLE: Final = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that can't lock a folder, such as NFS."""


class TooLate(Exception):
    """The time in which it might be put in place had passed."""

    def __init__(self) -> None:
        super().__init__("the time to begin was over")


class Held(Exception):
    """Another process of ours is putting something into the same folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One operation on one path."""

    ref: str
    attempt: int
    members: Mapping[str, Json]
    baseline: Mapping[str, Json]  # what `survey` found; empty before

    @classmethod
    def of(cls, errand: Errand) -> "Job":
        """Read an errand."""
        baseline = cast("Mapping[str, Json]", errand.baseline or {})
        return cls(
            ref=errand.ref,
            attempt=errand.attempt,
            members=errand.action.members,
            baseline=baseline,
        )

    @property
    def root(self) -> str:
        """The folder that nothing leaves."""
        return str(self.members["root"])

    @property
    def names(self) -> tuple[str, ...]:
        """The path below it."""
        return parts_of(self.members["path"])

    @property
    def place(self) -> str:
        """The path, for people."""
        return "/".join((self.root, *self.names))

    @property
    def makes(self) -> What:
        """What shall be there."""
        return What.FOLDER if self.members["do"] == "make_directory" else What.FILE

    @property
    def by_name(self) -> bool:
        """Whether what is there counts as done, whatever is in it."""
        return self.members["compare"] == "exists" or self.makes is What.FOLDER

    @property
    def mode(self) -> int | None:
        """The mode of what is new, where it is said."""
        said = self.members.get("mode")
        return int(str(said), 8) if said is not None else None

    def meant(self) -> tuple[str | None, int]:
        """Return SHA-256 and size of what shall be there; for a copy, of its source as it is."""
        if self.makes is What.FOLDER:
            return None, 0
        if self.members["do"] == "write":
            content = str(self.members["content"]).encode()
            return hashlib.sha256(content).hexdigest(), len(content)
        *path, name = parts_of(self.members["from"])
        with folder(self.root, path) as parent:
            source = look_at(parent, name)
        if source.what is not What.FILE:
            raise Refused(f"{'/'.join((self.root, *path, name))}: there is no file to copy")
        return source.sha256, source.size_bytes

    def found(self) -> Found:
        """Say what is at the path now. A folder that is yet to be made has no parents either."""
        *path, name = self.names
        try:
            with folder(self.root, path) as parent:
                return look_at(parent, name, hashed=not self.by_name)
        except FileNotFoundError:
            if self.makes is What.FOLDER:
                return Found(what=What.ABSENT)
            raise

    def is_done(self, found: Found) -> bool:
        """Whether what is there is what shall be."""
        if found.what is not self.makes:
            return False
        return self.by_name or found.sha256 == self.baseline["sha256"]

    def is_as_before(self, found: Found) -> bool:
        """Whether what is there is what the survey saw."""
        return found.what == self.baseline["was"] and (
            self.by_name or found.sha256 == self.baseline["was_sha256"]
        )


class Draft:
    """What will be put in place. Every part of it is undone by `drop`, once it is not."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stack = ExitStack()
        self._parent = -1
        self._file = -1
        *self._path, self._name = job.names

    def write(self) -> None:
        """Write the content aside, in the folder where it shall be, and flush it.

        Raises:
            OSError: It can't be written. Refused: a copy's source is not what it was.
        """
        job = self._job
        if job.makes is What.FOLDER:
            return
        self._parent = self._stack.enter_context(folder(job.root, self._path))
        for attempt in range(1, job.attempt):
            # Its worker, if it only stalled, finds nothing to rename when it wakes up.
            with suppress(FileNotFoundError):
                os.unlink(self._aside(attempt), dir_fd=self._parent)
        if self._is_settled(look_at(self._parent, self._name, hashed=not job.by_name)):
            return
        if job.members["do"] == "write":
            self._file = self._made(self._first_mode(0o666))
            _write(self._file, str(job.members["content"]).encode())
        else:
            self._copy()
        os.fsync(self._file)

    def _aside(self, attempt: int) -> str:
        return f"{OURS}{self._job.ref}-{attempt}"

    def _first_mode(self, usual: int) -> int:
        """Return a mode that shows nobody what the file's own mode would not."""
        return usual if self._job.baseline["was"] == What.ABSENT else 0o600

    def _made(self, mode: int) -> int:
        name = self._aside(self._job.attempt)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(name, flags, mode, dir_fd=self._parent)
        self._stack.callback(os.close, made)
        return made

    def _copy(self) -> None:
        *path, name = parts_of(self._job.members["from"])
        with folder(self._job.root, path) as parent, opened(parent, name) as source:
            self._file = self._made(self._first_mode(os.fstat(source).st_mode & 0o777))
            found, at = hashlib.sha256(), 0
            while chunk := os.pread(source, CHUNK_BYTES, at):
                _write(self._file, chunk)
                found.update(chunk)
                at += len(chunk)
        if found.hexdigest() != self._job.baseline["sha256"]:
            raise Refused(f"{'/'.join((self._job.root, *path, name))} was changed meanwhile")

    def put(self, watch: Watch, boot_s: Callable[[], float], write_by_s: float) -> bool:
        """Put it in place, if all is still as it was. Returns whether anything was changed.

        Raises:
            TooLate: `write_by_s` is past. Held: another process of ours works in the folder.
            Refused: Something else is there than before.
            OSError: The disk refused; `watch` says whether anything had begun.
        """

        def begin() -> None:
            # Compared in the very call that begins. A time that is no number permits nothing.
            if not boot_s() <= write_by_s:
                raise TooLate
            watch.sent_bytes += 1

        if self._job.makes is What.FOLDER:
            return self._make_folders(begin)
        self._lock(boot_s, write_by_s)
        if not is_still(self._parent, self._job.root, self._path):
            raise Refused(f"{self._job.place}: its folder was moved or replaced meanwhile")
        found = look_at(self._parent, self._name, hashed=not self._job.by_name)
        if self._is_settled(found):
            return False
        self._rename(found, begin)
        watch.first_byte_s = boot_s()
        os.fsync(self._parent)
        return True

    def _lock(self, boot_s: Callable[[], float], write_by_s: float) -> None:
        """Keep other processes of ours out of the folder from the comparison to the rename.

        A worker that is stopped in between holds the lock, so that nobody acts in its place.
        """
        until_s = boot_s() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not boot_s() < min(until_s, write_by_s):
                    place = "/".join((self._job.root, *self._path))
                    raise Held(f"{place}: another process is writing there") from None
                time.sleep(LOCK_PAUSE_S)
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    raise
                return
            else:
                return

    def _is_settled(self, found: Found) -> bool:
        """Whether it is done already.

        Raises:
            Refused: It is not, and something else is there than before.
        """
        job = self._job
        if job.is_done(found):
            return True
        if not job.is_as_before(found):
            raise Refused(f"{job.place} was changed meanwhile: it is not written over")
        return False

    def _rename(self, found: Found, begin: Callable[[], None]) -> None:
        aside = self._aside(self._job.attempt)
        if found.what is What.FILE:
            os.fchown(self._file, found.uid, found.gid)
            os.fchmod(self._file, found.mode)  # after it, since a change of owner drops bits
        elif self._job.mode is not None:
            os.fchmod(self._file, self._job.mode)
        os.fsync(self._file)
        begin()
        if found.what is What.FILE:
            os.rename(aside, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
            return
        # A link is refused where something is, which a rename would replace.
        os.link(
            aside,
            self._name,
            src_dir_fd=self._parent,
            dst_dir_fd=self._parent,
            follow_symlinks=False,
        )

    def _make_folders(self, begin: Callable[[], None]) -> bool:
        """Make what is missing of a path, each part flushed in its parent."""
        changed = False
        path = self._job.names
        for depth, name in enumerate(path):
            with folder(self._job.root, path[:depth]) as parent:
                found = look_at(parent, name, hashed=False)
                if found.what is What.FOLDER:
                    continue
                if found.what is not What.ABSENT:
                    place = "/".join((self._job.root, *path[: depth + 1]))
                    raise Refused(f"{place} is no folder")
                begin()
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=parent)
                    changed = True
                os.fsync(parent)
            if changed and self._job.mode is not None:
                with folder(self._job.root, path[: depth + 1]) as made:
                    os.fchmod(made, self._job.mode)
        return changed

    def drop(self) -> None:
        """Remove what was written aside and not put in place, and close what is open."""
        if self._file >= 0:
            with suppress(OSError):
                os.unlink(self._aside(self._job.attempt), dir_fd=self._parent)
        self._stack.close()


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
