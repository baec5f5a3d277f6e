"""What can be seen of a ledger's database, for whoever judges whether it keeps what it says.

It is looked at as it is: nothing is created, and no setting is mended on the way.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from doubtless.errors import LedgerError
from doubtless.ledger import migrate, sqlite
from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.mounts import file_system

if TYPE_CHECKING:
    from doubtless.ledger import postgres

HOLDERS: Final = 3  # connections that keep a pooler from handing out the same one again


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A ledger in a file, or where one would be made."""

    path: str
    is_there: bool
    writable: bool
    file_system: str  # its type; "" where the system doesn't tell
    free_bytes: int
    library: str  # SQLite's version
    journal_mode: str = ""
    synchronous: int = 0  # as our connections have it: 2 is FULL
    floor_ms: int | None = None  # the highest instant that was ever committed


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A PostgreSQL server, as a session of ours sees it."""

    version: int  # 160004 is 16.4
    encoding: str
    is_standby: bool
    settings: Mapping[str, str]
    standbys: int  # that are attached
    waited_for: int  # of them, whose answer a commit waits for
    connections_max: int  # for this role
    connections: int  # that are open now
    is_pooled: bool  # a session doesn't keep its connection from one transaction to the next
    wall_ms: int
    floor_ms: int | None = None


def file_facts(place: sqlite.Place) -> FileFacts:
    """Look at a file, and at the folder and the library. Raises: LedgerError if it fails."""
    path = Path(place.path)
    folder = path.parent
    room = os.statvfs(folder)
    memory = sqlite.Connection(sqlite.Place(path=""))
    try:
        library = text_of(memory.execute("select sqlite_version()", {})[0][0])
    finally:
        memory.close()
    found = path.exists()
    facts: dict[str, object] = {}
    if found:
        connection = sqlite.Connection(place, reads_only=True)
        try:
            facts["journal_mode"] = connection.execute("pragma journal_mode", {})[0][0]
            facts["synchronous"] = connection.execute("pragma synchronous", {})[0][0]
            facts["floor_ms"] = _floor_ms(connection)
        finally:
            connection.close()
    return FileFacts(
        path=str(path),
        is_there=found,
        writable=os.access(path if found else folder, os.W_OK) and os.access(folder, os.W_OK),
        file_system=file_system(folder),
        free_bytes=room.f_bavail * room.f_frsize,
        library=library,
        **facts,  # type: ignore[arg-type]
    )


FLOOR: Final = "select clock_floor_ms from meta where tenant = 'main'"


def _floor_ms(connection: migrate.Connection) -> int | None:
    is_ledger, _ = connection.content()
    if not is_ledger:
        return None
    asked = FLOOR
    if not isinstance(connection, sqlite.Connection):
        asked = FLOOR.replace("meta", f'"{connection.place.schema}".meta')  # a checked name
    return integer_of(connection.execute(asked, {})[0][0])


def server_facts(place: "postgres.Place") -> ServerFacts:
    """Look at a server, be it a standby or not. Raises: LedgerError if it can't be reached."""
    connection = migrate.open_connection(place)
    if isinstance(connection, sqlite.Connection):
        raise LedgerError("a server was expected")
    try:
        rows = connection.execute(text.SETTINGS_SEEN, {})
        settings = {text_of(name): text_of(value) for name, value in rows}
        counts = connection.execute(text.SERVER_SEEN, {})[0]
        encoding, standby, standbys, waited_for, most, now, wall_ms, version = counts
        return ServerFacts(
            version=integer_of(version),
            encoding=text_of(encoding),
            is_standby=bool(standby),
            settings=settings,
            standbys=integer_of(standbys),
            waited_for=integer_of(waited_for),
            connections_max=integer_of(most),
            connections=integer_of(now),
            is_pooled=_is_pooled(place, connection),
            wall_ms=integer_of(wall_ms),
            floor_ms=_floor_ms(connection),
        )
    finally:
        connection.close()


def _is_pooled(place: "postgres.Place", connection: "postgres.Connection") -> bool:
    """Whether a session is given another connection once others have open transactions."""
    asked = "select pg_backend_pid()"
    first = connection.execute(asked, {})
    holders: list[migrate.Connection] = []
    try:
        for _ in range(HOLDERS):
            holders.append(migrate.open_connection(place))
            holders[-1].script("begin")
            holders[-1].execute(asked, {})
        return connection.execute(asked, {}) != first
    except LedgerError:
        return False  # too few connections: that is told elsewhere
    finally:
        for holder in holders:
            holder.close()
