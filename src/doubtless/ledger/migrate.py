"""Migrations: numbered files, applied forwards only, each recorded with its checksum.

An absent or empty ledger is created by whoever opens it first. An existing one is only verified
when it is opened; `migrate` is what changes it.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from os import urandom
from typing import Final

from doubtless.errors import LedgerError, LedgerOutdated
from doubtless.ledger.codec import Value, integer_of, text_of
from doubtless.ledger.sqlite import APPLICATION_ID, Connection, Place, parse

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


@lru_cache(maxsize=1)
def known() -> tuple[Migration, ...]:
    """Return the migrations of this release, in order."""
    found = []
    for file in files("doubtless.ledger").joinpath("migrations", "sqlite").iterdir():
        if match := _NAME.fullmatch(file.name):
            text = file.read_text(encoding="utf-8")
            found.append(Migration(number=int(match[1]), name=file.name, text=text))
    return tuple(sorted(found, key=lambda migration: migration.number))


@lru_cache(maxsize=1)
def own_names() -> frozenset[str]:
    """Return the names of all tables, indexes and triggers of the ledger, in lower case."""
    connection = Connection(Place(path=""))
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


def migrate(url: str) -> list[str]:
    """Bring a ledger's schema up to date and return the names of what was applied.

    Each migration is one transaction. An absent or empty ledger is created.

    Raises:
        LedgerOutdated: the ledger is newer than this release.
        LedgerError: the file is something else, or a migration was changed after it was applied.
    """
    connection = Connection(parse(url))
    try:
        if _is_empty(connection):
            connection.assert_durable()
            _create(connection, _wall_ms(), urandom)
            return [migration.name for migration in known()]
        connection.assert_durable()
        applied = []
        while missing := _missing(connection):
            connection.begin(write=True)
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
    connection = Connection(parse(url))
    try:
        missing = known() if _is_empty(connection) else _missing(connection)
        return [migration.name for migration in missing]
    finally:
        connection.close()


def _is_empty(connection: Connection) -> bool:
    """Whether nothing was ever stored in the file.

    Raises:
        LedgerError: something was, and it is no ledger.
    """
    kind, count = connection.content()
    if kind == APPLICATION_ID:
        return False
    if kind or count:
        raise LedgerError(f"{_place(connection)} is a SQLite database, but not a ledger")
    return True


META: Final = """
    insert into meta (tenant, ledger_id, created_ms, clock_floor_ms)
    values ('main', :ledger_id, :now_ms, :now_ms)
"""


def _create(connection: Connection, now_ms: int, entropy: Callable[[int], bytes]) -> None:
    connection.begin(write=True)
    try:
        if _is_empty(connection):
            connection.script(f"pragma application_id = {APPLICATION_ID}")
            for migration in known():
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
    todo = {migration.number: migration for migration in known()}
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
    return connection.place.path or "in memory"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
