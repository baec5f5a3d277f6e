"""A disk that fails on command: a VFS under SQLite that lets the n-th write or sync go wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import apsw

_names = count(1)


class Disk:
    """Counts the writes and syncs of all files opened through it, and fails those it is told to."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.log: list[str] = []
        self._fails: Callable[[int], bool] = lambda _: False
        self._error: type[apsw.Error] = apsw.IOError
        self.after_writing = False  # a failing write still reaches the file

    def fail(self, which: Callable[[int], bool], *, error: type[apsw.Error] = apsw.IOError) -> None:
        """From now on count from 1, and fail the operations whose number `which` accepts."""
        self.done = self.failed = 0
        self.log.clear()
        self._fails, self._error = which, error

    def heal(self) -> None:
        self._fails = lambda _: False

    def count(self, what: str) -> None:
        self.done += 1
        self.log.append(what)
        if self._fails(self.done):
            self.failed += 1
            raise self._error(f"{what} {self.done} failed on purpose")


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name, flags) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data, offset) -> None:  # noqa: N802
        self._disk.count("write")
        super().xWrite(data, offset)

    def xSync(self, flags) -> None:  # noqa: N802
        self._disk.count("sync")
        super().xSync(flags)

    def xTruncate(self, size) -> None:  # noqa: N802
        self._disk.count("truncate")
        super().xTruncate(size)


class _Files(apsw.VFS):
    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        super().__init__(name, "")

    def xOpen(self, name, flags):  # noqa: N802
        return _File(self._disk, name, flags)


@contextmanager
def failing_disk() -> Iterator[tuple[Disk, str]]:
    """Yield a disk, and the name of its VFS for the address of a ledger (`?vfs=`)."""
    disk = Disk()
    name = f"failing-{next(_names)}"
    files = _Files(name, disk)
    try:
        yield disk, name
    finally:
        files.unregister()
