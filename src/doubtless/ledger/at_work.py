"""Who is at work on a ledger, by what each knows of its schema.

A process that may write holds a shared lock on the number of the last migration that it knows, for
as long as its connection is open; a crash ends it too. A post step takes the locks of all lower
numbers for itself: it gets them only if nobody older is at work, and who comes meanwhile waits and
then reads what was applied.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from doubtless.errors import LedgerError, LedgerUnavailable
from doubtless.ledger import postgres_text as text
from doubtless.ledger import sqlite
from doubtless.ledger.codec import text_of
from doubtless.ledger.transaction import LedgerBusy

if TYPE_CHECKING:
    from doubtless.ledger import postgres

Connection: TypeAlias = "sqlite.Connection | postgres.Connection"

JOIN_S: Final = 10.0  # how long a post step is waited for
PAUSE_S: Final = 0.02


class OlderAtWork(LedgerError):
    """Processes that don't know a post step are at work. The text says which, where it can."""


def join(connection: Connection, known: int) -> None:
    """Be at work, until the connection is closed, as one who knows migrations up to `known`.

    Join first and read what was applied then: no post step comes in between.

    Raises:
        LedgerUnavailable: a post step took too long, or the lock can't be had.
    """
    if not isinstance(connection, sqlite.Connection):
        connection.execute(text.JOIN, _names(connection, known))
    elif not connection.place.in_memory:
        held = _Held.wait_for(connection.place, known)
        connection.on_close = held.leave


@contextmanager
def shut_out_older(connection: Connection, number: int) -> Iterator[None]:
    """Keep everybody out who doesn't know migration `number`. Within a transaction, on PostgreSQL.

    Raises:
        OlderAtWork: some are at work.
        LedgerUnavailable: the locks can't be had.
    """
    if not isinstance(connection, sqlite.Connection):
        if connection.execute(text.SHUT_OUT, _names(connection, number)) != [(1,)]:
            raise OlderAtWork(", ".join(_older(connection, number)) or "one that has just begun")
        yield
        return
    with ExitStack() as stack:
        for older in range(1, number):
            held = _Held.alone(connection.place, older)
            if held is None:
                raise OlderAtWork(f"`fuser {_path(connection.place, older)}` names them")
            stack.callback(held.leave)
        yield


def _names(connection: "postgres.Connection", number: int) -> dict[str, str | int | bytes | None]:
    return {"schema": connection.place.schema, "number": number}


def _older(connection: "postgres.Connection", number: int) -> Iterator[str]:
    for (told,) in connection.execute(text.OLDER, _names(connection, number)):
        yield text_of(told)


# --- on a file -----------------------------------------------------------------------------------


def _path(place: sqlite.Place, number: int) -> Path:
    return Path(f"{place.path}-schema{number}")


class _Held:
    """A locked file beside the ledger's. Whoever leaves it last removes it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def wait_for(cls, place: sqlite.Place, number: int) -> "_Held":
        """Share the lock of a number. Raises: LedgerUnavailable, after a while."""
        end_s = time.monotonic() + JOIN_S
        while (held := cls._lock(_path(place, number), fcntl.LOCK_SH)) is None:
            if time.monotonic() > end_s:
                raise LedgerBusy("the ledger is locked by another process: it is being migrated")
            time.sleep(PAUSE_S)
        return held

    @classmethod
    def alone(cls, place: sqlite.Place, number: int) -> "_Held | None":
        """Take the lock of a number for oneself; None if others share it."""
        return cls._lock(_path(place, number), fcntl.LOCK_EX)

    @classmethod
    def _lock(cls, path: Path, kind: int) -> "_Held | None":
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
            except OSError as error:
                raise LedgerUnavailable(f"the ledger can't be locked: {error}") from error
            held = cls(path, descriptor)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            if held._is_there():
                return held
            os.close(descriptor)  # whoever had it last has just removed it

    def _is_there(self) -> bool:
        try:
            found, ours = self._path.stat(), os.fstat(self._descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def leave(self) -> None:
        """Give it up."""
        with suppress(OSError):  # others are there, or it can't be removed: it does no harm
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_there():
                self._path.unlink()
        os.close(self._descriptor)
