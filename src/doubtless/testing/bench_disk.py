"""The limits of a disk: fsync, and SQLite by its bare driver with the same settings as a ledger."""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import apsw

from doubtless.ledger import sqlite


def limits(folder: Path, seconds: float) -> dict[str, float]:
    """Measure fsync in milliseconds, one-row commits a second, and rows a second by 64."""
    return {
        "fsync_ms": _fsync_ms(folder / "fsync", seconds / 4),
        "commits_1": _commits(folder / "one.db", seconds / 2, rows=1),
        "rows_64": 64 * _commits(folder / "many.db", seconds / 2, rows=64),
    }


def _fsync_ms(path: Path, seconds: float) -> float:
    """Return the median time of a 4 KiB write and its fsync."""
    block = b"\0" * 4096
    taken: list[float] = []
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end_s = time.perf_counter() + seconds
        while (begun_s := time.perf_counter()) < end_s:
            os.pwrite(handle, block, (len(taken) % 64) * 4096)
            os.fsync(handle)
            taken.append(time.perf_counter() - begun_s)
    finally:
        os.close(handle)
    return statistics.median(taken) * 1000


def slowed_commits(folder: Path, seconds: float, flush_s: float) -> float:
    """Return one-row commits a second as if every flush took `flush_s` longer."""
    return _commits(folder / f"slow-{flush_s}.db", seconds, rows=1, flush_s=flush_s)


@contextlib.contextmanager
def slowed(flush_s: float) -> Iterator[None]:
    """Make every commit of a ledger take `flush_s` longer: it flushes the disk once."""
    commit = sqlite.Connection.commit

    def later(connection: sqlite.Connection) -> None:
        time.sleep(flush_s)
        commit(connection)

    with mock.patch.object(sqlite.Connection, "commit", later):
        yield


def _commits(path: Path, seconds: float, *, rows: int, flush_s: float = 0.0) -> float:
    """Return transactions a second, of that many small rows each."""
    connection = apsw.Connection(str(path))
    try:
        for setting in ("journal_mode = wal", "synchronous = full"):
            connection.execute(f"pragma {setting}")
        connection.execute("create table t (id integer primary key, text text)")
        cursor, done = connection.cursor(), 0
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < seconds:
            cursor.execute("begin immediate")
            for _ in range(rows):
                cursor.execute("insert into t (text) values ('a small row')")
            if flush_s:
                time.sleep(flush_s)
            cursor.execute("commit")
            done += 1
        return done / (time.perf_counter() - begun_s)
    finally:
        connection.close()
