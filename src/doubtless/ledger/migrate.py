"""Migrations: numbered files, applied forwards only, each recorded with its checksum.

An absent or empty ledger is created by whoever opens it first. An existing one is only verified
when it is opened; `migrate` is what changes it.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from os import urandom
from typing import TYPE_CHECKING, Final, TypeAlias

from doubtless.errors import LedgerError, LedgerOutdated
from doubtless.ledger import sqlite
from doubtless.ledger.address import is_postgres, masked, scheme_of
from doubtless.ledger.codec import Value, integer_of, text_of

if TYPE_CHECKING:
    from doubtless.ledger import postgres

Place: TypeAlias = "sqlite.Place | postgres.Place"
Connection: TypeAlias = "sqlite.Connection | postgres.Connection"

_log: Final = logging.getLogger("doubtless.ledger")
_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int  # from 1, without gaps
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 in hexadecimal; the line endings of a checkout don't matter."""
        return sha256(self.text.replace("\r\n", "\n").encode()).hexdigest()


def parse(url: str) -> Place:
    """Read the address of a ledger.

    Raises:
        LedgerError: it is none, or the driver of its database is not installed.
        LedgerUnsafe: the file is on a network file system, where SQLite's locks don't hold.
    """
    if scheme_of(url) == "sqlite":
        return sqlite.parse(url)
    if not is_postgres(url):
        raise LedgerError(f"{masked(url)!r} is no address of a ledger: write sqlite:///path.db")
    try:
        from doubtless.ledger import postgres  # noqa: PLC0415 - its driver is an extra
    except ImportError as error:
        raise LedgerError(
            f"a PostgreSQL ledger needs its driver: pip install 'doubtless[postgres]' ({error})"
        ) from error
    return postgres.parse(url)


def open_connection(place: Place) -> Connection:
    """Open a connection, of whatever it turns out to be to. Raises: what its kind raises."""
    if isinstance(place, sqlite.Place):
        return sqlite.Connection(place)
    from doubtless.ledger import postgres  # noqa: PLC0415 - its driver is an extra

    return postgres.Connection(place)


def _kind(connection: Connection) -> str:
    return "sqlite" if isinstance(connection, sqlite.Connection) else "postgres"


@lru_cache(maxsize=2)
def known(kind: str = "sqlite") -> tuple[Migration, ...]:
    """Return the migrations of this release for one database, in order."""
    found = []
    for file in files("doubtless.ledger").joinpath("migrations", kind).iterdir():
        if match := _NAME.fullmatch(file.name):
            text = file.read_text(encoding="utf-8")
            found.append(Migration(number=int(match[1]), name=file.name, text=text))
    return tuple(sorted(found, key=lambda migration: migration.number))


@lru_cache(maxsize=1)
def own_names() -> frozenset[str]:
    """Return the names of all tables, indexes and triggers of the ledger, in lower case."""
    connection = sqlite.Connection(sqlite.Place(path=""))
    try:
        for migration in known():
            connection.script(migration.text)
        rows = connection.execute("select lower(name) from sqlite_schema", {})
        return frozenset(text_of(row[0]) for row in rows)
    finally:
        connection.close()


def prepare(
    connection: Connection, *, now_ms: int, entropy: Callable[[int], bytes] = urandom
) -> None:
    """Create the ledger if there is nothing yet; else check that it is one of this release.

    Safe when several processes do it at once: one creates, the others find it.

    Raises:
        LedgerOutdated: its schema is older or newer than this release.
        LedgerError: the file is something else, or a migration was changed after it was applied.
        LedgerUnsafe: the database doesn't take the settings that make commits durable.
    """
    if _is_empty(connection):
        connection.assert_durable()
        _create(connection, now_ms, entropy)
    connection.assert_durable()
    if missing := _missing(connection):
        raise LedgerOutdated(
            f"the ledger {_place(connection)} lacks {len(missing)} migration(s), from"
            f" {missing[0].name} on: stop what uses it, and run `doubtless migrate`"
        )
    if not isinstance(connection, sqlite.Connection):
        connection.forget_writers()
        if connection.loses_on_failover():
            _log.warning("%s", FAILOVER.format(place=_place(connection)))


FAILOVER: Final = (
    "{place} has standbys, but commits don't wait for any of them: acknowledged operations may be"
    " gone after a fail-over. Set synchronous_standby_names on the server"
)


def migrate(url: str) -> list[str]:
    """Bring a ledger's schema up to date and return the names of what was applied.

    Each migration is one transaction. An absent or empty ledger is created.

    Raises:
        LedgerOutdated: the ledger is newer than this release.
        LedgerError: the file is something else, or a migration was changed after it was applied.
    """
    connection = open_connection(parse(url))
    try:
        if _is_empty(connection):
            connection.assert_durable()
            _create(connection, _wall_ms(), urandom)
            return [migration.name for migration in known(_kind(connection))]
        connection.assert_durable()
        applied = []
        while missing := _missing(connection):
            connection.begin_migration()
            try:
                if (missing := _missing(connection)) and _apply(connection, missing[0], _wall_ms()):
                    applied.append(missing[0].name)
                connection.commit()
            finally:
                connection.rollback()
        return applied
    finally:
        connection.close()


def pending(url: str) -> list[str]:
    """Return the names of the migrations that a ledger lacks: all of them if it is empty.

    Raises: what `migrate` raises.
    """
    connection = open_connection(parse(url))
    try:
        every = known(_kind(connection))
        missing = every if _is_empty(connection) else _missing(connection)
        return [migration.name for migration in missing]
    finally:
        connection.close()


def is_there(place: Place) -> bool:
    """Whether there is a ledger, of whatever release. Raises: what `migrate` raises."""
    connection = open_connection(place)
    try:
        return not _is_empty(connection)
    finally:
        connection.close()


def _is_empty(connection: Connection) -> bool:
    """Whether nothing was ever stored there.

    Raises:
        LedgerError: something was, and it is no ledger.
    """
    is_ledger, count = connection.content()
    if is_ledger:
        return False
    if count:
        raise LedgerError(NOT_A_LEDGER[_kind(connection)].format(place=_place(connection)))
    return True


NOT_A_LEDGER: Final[Mapping[str, str]] = {
    "sqlite": "{place} is a SQLite database, but not a ledger",
    "postgres": "{place} has a schema of that name with other tables in it, so it is not a ledger:"
    " give the ledger one of its own with ?schema=name",
}


META: Final = """
    insert into meta (tenant, ledger_id, created_ms, clock_floor_ms)
    values ('main', :ledger_id, :now_ms, :now_ms)
"""


def _create(connection: Connection, now_ms: int, entropy: Callable[[int], bytes]) -> None:
    connection.begin_migration()
    try:
        if _is_empty(connection):
            connection.mark()
            for migration in known(_kind(connection)):
                _apply(connection, migration, now_ms)
            connection.execute(META, {"ledger_id": entropy(16).hex(), "now_ms": now_ms})
        connection.commit()
    finally:
        connection.rollback()


RECORD: Final = """
    insert into migration (tenant, number, name, checksum, applied_ms)
    values ('main', :number, :name, :checksum, :applied_ms)
"""


def _apply(connection: Connection, migration: Migration, now_ms: int) -> bool:
    connection.script(migration.text)
    params: dict[str, Value] = {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "applied_ms": now_ms,
    }
    connection.execute(RECORD, params)
    return True


APPLIED: Final = """
    select number, name, checksum from migration where tenant = 'main' order by number
"""


def _missing(connection: Connection) -> list[Migration]:
    """Compare what was applied with what this release knows, and return what is still to do."""
    todo = {migration.number: migration for migration in known(_kind(connection))}
    for number, name, checksum in connection.execute(APPLIED, {}):
        migration = todo.pop(integer_of(number), None)
        if migration is None:
            raise LedgerOutdated(
                f"the ledger {_place(connection)} has {text_of(name)}, which is newer than this"
                " release: upgrade doubtless"
            )
        if migration.checksum != checksum:
            raise LedgerError(
                f"{migration.name} was changed after the ledger {_place(connection)} had applied it"
            )
    return list(todo.values())


def _place(connection: Connection) -> str:
    return connection.place.shown


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
