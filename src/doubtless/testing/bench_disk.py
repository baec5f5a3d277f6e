"""The limits of a disk: fsync, and SQLite by its bare driver with the same settings as a ledger."""

import os
import statistics
import time
from pathlib import Path

import apsw


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


def _commits(path: Path, seconds: float, *, rows: int) -> float:
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
            cursor.execute("commit")
            done += 1
        return done / (time.perf_counter() - begun_s)
    finally:
        connection.close()
