"""Migrations: numbered files, applied forwards only, each recorded with its checksum.

An absent or empty ledger is created by whoever opens it first. An existing one is only verified
when it is opened; `migrate` is what changes it, in two steps: what older processes can live with,
and, once none is at work any more, what they can't.
"""

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from os import urandom
from typing import TYPE_CHECKING, Final, TypeAlias

from doubtless.errors import LedgerError, LedgerOutdated
from doubtless.ledger import at_work, sqlite
from doubtless.ledger.address import is_postgres, masked, scheme_of
from doubtless.ledger.applying import apply, begin, record, wall_ms
from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.steps import Entry, Migration, Status, Step, known

if TYPE_CHECKING:
    from doubtless.ledger import postgres

__all__ = ["Entry", "Migration", "Status", "Step", "begin", "known"]

Place: TypeAlias = "sqlite.Place | postgres.Place"
Connection: TypeAlias = "sqlite.Connection | postgres.Connection"

_log: Final = logging.getLogger("doubtless.ledger")


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


@lru_cache(maxsize=1)
def own_names() -> frozenset[str]:
    """Return the names of all tables, indexes and triggers of the ledger, in lower case."""
    connection = sqlite.Connection(sqlite.Place(path=""))
    try:
        for migration in known():
            connection.script(migration.within)
        rows = connection.execute("select lower(name) from sqlite_schema", {})
        return frozenset(text_of(row[0]) for row in rows)
    finally:
        connection.close()


def prepare(
    connection: Connection, *, now_ms: int, entropy: Callable[[int], bytes] = urandom
) -> None:
    """Create the ledger if there is nothing yet; else check that this release can run on it.

    Then its process is at work on it, until the connection is closed. Safe when several processes
    do it at once: one creates, the others find it.

    Raises:
        LedgerOutdated: its schema is older than this release needs, or newer than it can live with.
        LedgerError: the file is something else, or a migration was changed after it was applied.
        LedgerUnsafe: the database doesn't take the settings that make commits durable.
    """
    if _is_empty(connection):
        connection.assert_durable()
        _create(connection, now_ms, entropy)
    connection.assert_durable()
    admit(connection)
    if not isinstance(connection, sqlite.Connection):
        connection.forget_writers()
        if connection.loses_on_failover():
            _log.warning("%s", FAILOVER.format(place=_place(connection)))


def watch(connection: Connection) -> None:
    """Have each transaction fail as soon as the schema is not for this process any more."""
    connection.known = known(_kind(connection))[-1].number


def admit(connection: Connection) -> None:
    """Be at work on a ledger until the connection is closed: no post step comes unawares.

    Raises:
        LedgerOutdated: this release can't run on it.
        LedgerUnavailable: a post step took too long.
    """
    watch(connection)
    at_work.join(connection, known(_kind(connection))[-1].number)
    if (why_not := _status(connection).why_not) is not None:
        raise LedgerOutdated(why_not)


FAILOVER: Final = (
    "{place} has standbys, but commits don't wait for any of them: acknowledged operations may be"
    " gone after a fail-over. Set synchronous_standby_names on the server"
)


def migrate(url: str, *, post: bool = False, force: bool = False) -> list[str]:
    """Bring a ledger's schema up to date and return the names of what was applied.

    Each migration is one transaction, or goes on where it was interrupted. An absent or empty
    ledger is created, complete.

    Args:
        url: The ledger's address.
        post: Apply the last post steps too. Without it only those are applied that come before a
            pre step: they are of an earlier release.
        force: Apply a post step while processes are at work that don't know it. Whatever they do
            from then on fails, and what they have sent meanwhile becomes unknown.

    Raises:
        LedgerOutdated: the ledger is newer than this release.
        OlderAtWork: without `force`, for a post step: processes that don't know it are at work.
            What came before it is applied.
        LedgerError: the file is something else, or a migration was changed after it was applied.
        LedgerUnavailable: others kept their locks for too long. What came before is applied.
    """
    connection = open_connection(parse(url))
    try:
        if _is_empty(connection):
            connection.assert_durable()
            _create(connection, wall_ms(), urandom)
            return [migration.name for migration in known(_kind(connection))]
        connection.assert_durable()
        applied = []
        while (todo := _next(connection, post=post)) is not None:
            if apply(connection, todo, force=force):
                applied.append(todo.name)
        return applied
    finally:
        connection.close()


def status(url: str) -> Status:
    """Compare a ledger with this release. Nothing is changed or created.

    Raises:
        LedgerError: the file is something else, or a migration was changed after it was applied.
        LedgerUnavailable: it can't be read.
    """
    connection = open_connection(parse(url))
    try:
        return _status(connection, is_empty=_is_empty(connection))
    finally:
        connection.close()


def pending(url: str) -> list[str]:
    """Return the names of the migrations that a ledger lacks: all of them if it is empty.

    Raises:
        LedgerOutdated: the ledger is newer than this release.
        LedgerError: what `status` raises.
    """
    found = status(url)
    if found.too_new is not None:
        raise LedgerOutdated(found.why_not)
    return [entry.name for entry in found.missing]


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
    begin(connection)
    try:
        if _is_empty(connection):
            connection.mark()
            for migration in known(_kind(connection)):
                connection.script(migration.within)
                record(connection, migration, now_ms)
            connection.execute(META, {"ledger_id": entropy(16).hex(), "now_ms": now_ms})
        connection.commit()
    finally:
        connection.rollback()


def _next(connection: Connection, *, post: bool) -> Migration | None:
    found = _status(connection)
    if found.too_new is not None:
        raise LedgerOutdated(found.why_not)
    wanted = found.missing if post else found.due
    if not wanted:
        return None
    return next(one for one in known(_kind(connection)) if one.number == wanted[0].number)


APPLIED: Final = """
    select number, name, checksum, applied_ms
      from migration
     where tenant = 'main'
     order by number
"""


def _status(connection: Connection, *, is_empty: bool = False) -> Status:
    """Compare what was applied with what this release knows."""
    todo = {migration.number: migration for migration in known(_kind(connection))}
    found = []
    for row in [] if is_empty else connection.execute(APPLIED, {}):
        number, name, applied_ms = integer_of(row[0]), text_of(row[1]), integer_of(row[3])
        migration = todo.pop(number, None)
        if migration is not None and migration.checksum != row[2]:
            raise LedgerError(
                f"{migration.name} was changed after the ledger {_place(connection)} had applied it"
            )
        is_known = migration is not None
        found.append(Entry(number=number, name=name, applied_ms=applied_ms, is_known=is_known))
    found += [
        Entry(number=one.number, name=one.name, applied_ms=None, is_known=True)
        for one in todo.values()
    ]
    ordered = sorted(found, key=lambda entry: entry.number)
    return Status(place=_place(connection), entries=tuple(ordered))


def _place(connection: Connection) -> str:
    return connection.place.shown
