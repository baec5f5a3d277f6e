"""Apply one migration: as a whole, or going on where it was interrupted; beside those who work."""

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from doubtless.errors import LedgerUnavailable
from doubtless.ledger import at_work, sqlite
from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import Value
from doubtless.ledger.steps import Migration, Step
from doubtless.ledger.transaction import LedgerBusy, LedgerConflict

if TYPE_CHECKING:
    from doubtless.ledger import postgres

Connection: TypeAlias = "sqlite.Connection | postgres.Connection"

PATIENCE_S: Final = 60.0  # how long a migration tries to get its turn and its locks
PAUSE_S: Final = 0.02
LOCK_WAIT_MS: Final = 1_000  # how long others may queue behind one that waits for a lock
BREATH_S: Final = 1.0  # how long they then have to themselves
ALONG_WAIT_MS: Final = 600_000  # how long an index waits for transactions older than itself


def begin(connection: Connection) -> None:
    """Open a transaction that changes the schema; wait for others who do.

    Raises:
        LedgerUnavailable: another process kept its lock for too long.
    """
    if isinstance(connection, sqlite.Connection):
        connection.begin(write=True)
        return
    names: dict[str, Value] = {"schema": connection.place.schema}
    end_s = time.monotonic() + PATIENCE_S
    while True:
        connection.script("begin")
        try:
            if connection.execute(text.MIGRATING, names) == [(1,)]:
                if connection.execute(text.HAS_SCHEMA, names) == [(0,)]:
                    connection.script(f'create schema "{connection.place.schema}"')
                return
        except BaseException:
            connection.rollback()
            raise
        connection.rollback()
        _wait(end_s)


def _wait(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise LedgerBusy("another process is migrating the ledger")
    time.sleep(PAUSE_S)


def apply(connection: Connection, migration: Migration, *, force: bool) -> bool:
    """Apply a migration, again and again where its locks can't be had; False if others have.

    Raises:
        OlderAtWork: it is a post step, and processes that don't know it are at work.
        LedgerUnavailable: its locks could not be had for too long.
        LedgerError: the database refused a statement; nothing of it was applied.
    """
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            if migration.stands_outside and not isinstance(connection, sqlite.Connection):
                return _apply_along(connection, migration)
            return _apply_whole(connection, migration, force=force)
        except (LedgerBusy, LedgerConflict) as error:
            if time.monotonic() > end_s:
                raise LedgerUnavailable(
                    f"{migration.name} was not applied: others kept what it needs for"
                    f" {PATIENCE_S:.0f} s. Run the command again: {error}"
                ) from error
        time.sleep(BREATH_S)


def _apply_whole(connection: Connection, migration: Migration, *, force: bool) -> bool:
    alone = migration.step is Step.POST and not force
    begin(connection)
    try:
        if _is_applied(connection, migration):
            return False
        if not isinstance(connection, sqlite.Connection):
            # Taken first: a group that is under way has locks that we need, and would need ours.
            connection.execute(text.TURN, {})
            connection.script(f"set local lock_timeout = {LOCK_WAIT_MS}")
        number = migration.number
        with at_work.shut_out_older(connection, number) if alone else nullcontext():
            connection.script(migration.within)
            record(connection, migration, wall_ms())
            connection.commit()
        return True
    except at_work.OlderAtWork as older:
        told = OLDER.format(name=migration.name, older=older)
        raise at_work.OlderAtWork(told) from older
    finally:
        connection.rollback()


OLDER: Final = (
    "{name} was not applied: processes that don't know it are at work on the ledger ({older})."
    " Replace them and run `doubtless migrate --post` again. With --force it is applied all the"
    " same: what they do from then on fails, and what they have sent meanwhile becomes unknown"
)


IS_APPLIED: Final = "select 1 from migration where tenant = 'main' and number = :number"


def _is_applied(connection: Connection, migration: Migration) -> bool:
    return bool(connection.execute(IS_APPLIED, {"number": migration.number}))


def _apply_along(connection: "postgres.Connection", migration: Migration) -> bool:
    """Build indexes beside those who write. One that was interrupted is begun again."""
    names: dict[str, Value] = {"schema": connection.place.schema}
    end_s = time.monotonic() + PATIENCE_S
    while connection.execute(text.MIGRATING_ALONG, names) != [(1,)]:
        _wait(end_s)
    try:
        if _is_applied(connection, migration):
            return False
        connection.script(f"set lock_timeout = {ALONG_WAIT_MS}")
        for name, statement in migration.indexes():
            found = connection.execute(text.IS_VALID, {**names, "name": name})
            if found == [(0,)]:
                connection.script(f'drop index concurrently "{name}"')
            if found != [(1,)]:
                connection.script(statement)
        connection.script("begin")
        record(connection, migration, wall_ms())
        connection.commit()
        return True
    finally:
        with suppress(LedgerUnavailable):  # a session that is lost has neither any more
            connection.rollback()
            connection.script(f"set lock_timeout = '{text.TURN_TIMEOUT_S}s'")
            connection.execute(text.MIGRATED, names)


RECORD: Final = """
    insert into migration (tenant, number, name, checksum, applied_ms)
    values ('main', :number, :name, :checksum, :applied_ms)
"""


def record(connection: Connection, migration: Migration, now_ms: int) -> None:
    """Record that a migration was applied."""
    params: dict[str, Value] = {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "applied_ms": now_ms,
    }
    connection.execute(RECORD, params)


def wall_ms() -> int:
    """Return the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
