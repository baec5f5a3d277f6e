"""Whether a ledger's database keeps what it acknowledges: judged from what was seen of it."""

from collections.abc import Iterator
from typing import Final

from doubtless.engine.findings import Finding, error, ok, warning
from doubtless.errors import LedgerError
from doubtless.ledger import checkup, migrate, sqlite
from doubtless.ledger.address import masked
from doubtless.ledger.checkup import FileFacts, ServerFacts
from doubtless.ledger.mounts import NETWORK

CLOCKS_APART_MS: Final = 2_000
MEMORY: Final = frozenset({"tmpfs", "ramfs"})
LAYERS: Final = frozenset({"overlay", "aufs"})
FREE_BYTES_MIN: Final = 64 * 2**20
FREE_BYTES_WELL: Final = 2**30
LIBRARY_MIN: Final = (3, 51, 3)  # up to 3.51.2 resetting the log could corrupt the file
VERSION_MIN: Final = 140_000
CONNECTIONS_EACH: Final = 10  # of one process: a writer, a listener, up to 8 readers
CONNECTIONS_FREE_WELL: Final = 2 * CONNECTIONS_EACH


def examine(address: str, *, wall_ms: int) -> Iterator[Finding]:
    """Look at a ledger and judge it, one finding after another.

    Args:
        address: Of a ledger, which need not exist, nor be in reach.
        wall_ms: This machine's clock.
    """
    shown = masked(address)
    try:
        place = migrate.parse(address)
        if isinstance(place, sqlite.Place):
            if place.in_memory:
                found = "the ledger is in memory: it is gone with its process"
                yield error("ledger.opens", found, "name a file: --ledger sqlite:///doubtless.db")
                return
            file = checkup.file_facts(place)
            yield _opens(file)
            yield from judge_file(file, wall_ms)
            is_there = file.is_there
        else:
            server = checkup.server_facts(migrate.parse(address + _any(address)))  # type: ignore[arg-type]
            yield ok("ledger.opens", f"{shown} answers")
            yield from judge_server(server, wall_ms)
            is_there = server.floor_ms is not None
    except (LedgerError, OSError) as failure:
        mend = "see that the address is right (--ledger), and what is there can be reached and read"
        yield error("ledger.opens", str(failure).replace(_any(address), ""), mend)
        return
    yield _schema(address, is_there=is_there)


def _any(address: str) -> str:
    """Return what lets an address lead to a standby too: then it is called one."""
    if "target_session_attrs" in address:
        return ""
    return f"{'&' if '?' in address else '?'}target_session_attrs=any"


def _opens(file: FileFacts) -> Finding:
    if not file.writable:
        mend = "let the user of this process write the file and its folder"
        return error("ledger.opens", f"{file.path} can't be written", mend)
    if not file.is_there:
        return ok(
            "ledger.opens", f"{file.path} is not there yet: the first one to open it makes it"
        )
    return ok("ledger.opens", f"{file.path} can be opened")


def _schema(address: str, *, is_there: bool) -> Finding:
    if not is_there:
        return ok("ledger.schema", "there is no schema yet: it will be this release's")
    try:
        found = migrate.status(address)
    except LedgerError as failure:
        return error("ledger.schema", str(failure), "name another ledger with --ledger")
    if found.why_not is not None:
        return error("ledger.schema", found.why_not, "do what it says: `doubtless migrate --check`")
    if found.missing:
        names = ", ".join(entry.name for entry in found.missing)
        told = f"this release runs, but the schema lacks {names}"
        return warning("ledger.schema", told, "run `doubtless migrate`, then with --post")
    return ok("ledger.schema", "the schema is this release's")


# --- clocks --------------------------------------------------------------------------------------


def judge_clock(floor_ms: int | None, theirs_ms: int, ours_ms: int) -> Finding:
    """Compare the ledger's clock, the clock that it is set by, and this machine's."""
    apart_ms = theirs_ms - ours_ms
    if floor_ms is not None and floor_ms - theirs_ms > CLOCKS_APART_MS:
        told = f"the ledger has times from {(floor_ms - theirs_ms) / 1000:.1f} s ahead of its clock"
        return warning(
            "ledger.clock", told, "set the clock (NTP); until then its time stands still"
        )
    if abs(apart_ms) > CLOCKS_APART_MS:
        told = f"the server's clock and this machine's are {abs(apart_ms) / 1000:.1f} s apart"
        return warning("ledger.clock", told, "let NTP set both: stored times are the server's")
    return ok("ledger.clock", "the ledger's clock and this machine's agree")


# --- files ---------------------------------------------------------------------------------------


def judge_file(file: FileFacts, wall_ms: int) -> Iterator[Finding]:
    """Judge a ledger in a file."""
    yield judge_clock(file.floor_ms, wall_ms, wall_ms)
    yield _library(file.library)
    yield _durable(file)
    yield _file_system(file)
    free = f"{file.free_bytes / 2**30:.1f} GiB are free beside the ledger"
    if file.free_bytes < FREE_BYTES_MIN:
        yield error("sqlite.space", free, "make room: when none is left, nothing can be recorded")
    elif file.free_bytes < FREE_BYTES_WELL:
        yield warning("sqlite.space", free, "make room before it is full")
    else:
        yield ok("sqlite.space", free)


def _library(version: str) -> Finding:
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if numbers < LIBRARY_MIN:
        told = f"SQLite {version} can corrupt a file when it resets its log"
        return error("sqlite.library", told, "pip install 'apsw>=3.54', which brings its own")
    return ok("sqlite.library", f"SQLite {version}, without the bug of resetting the log")


def _durable(file: FileFacts) -> Finding:
    if not file.is_there:
        return ok("sqlite.durable", "WAL with synchronous = FULL will be set when it is made")
    if file.synchronous < 2:
        told = "synchronous is not FULL, so acknowledged commits could be lost"
        return error("sqlite.durable", told, "use the SQLite that comes with apsw")
    if file.journal_mode != "wal":
        told = f"the journal is {file.journal_mode!r}, not a write-ahead log"
        return warning("sqlite.durable", told, "open it once with this release, which turns it on")
    return ok("sqlite.durable", "WAL with synchronous = FULL: what is acknowledged is on disk")


def _file_system(file: FileFacts) -> Finding:
    kind, check = file.file_system, "sqlite.file_system"
    if kind in NETWORK:
        told = f"{kind} is a network file system, where SQLite's locks and syncs do not hold"
        return error(check, told, "move the file to a local disk, or the ledger to PostgreSQL")
    if kind in MEMORY:
        return warning(check, f"{kind} is memory: a restart loses all", "move it to a disk")
    if kind in LAYERS:
        told = f"{kind} is a container's own layer, which is gone with it"
        return warning(check, told, "put the ledger on a volume")
    if not kind:
        return ok(check, "this system doesn't tell the type of its file systems")
    return ok(check, f"{kind} is local")


# --- servers -------------------------------------------------------------------------------------


def judge_server(server: ServerFacts, wall_ms: int) -> Iterator[Finding]:
    """Judge a PostgreSQL server."""
    yield judge_clock(server.floor_ms, server.wall_ms, wall_ms)
    yield _version(server)
    if server.is_standby:
        told = "it is a standby, which can't be written and may lag"
        yield error("postgres.primary", told, "name the primary, or all hosts, in the address")
    else:
        yield ok("postgres.primary", "it is a primary")
    yield _keeps(server)
    yield _commits(server.settings.get("synchronous_commit", ""))
    yield _standbys(server)
    yield _time_outs(server)
    yield _connections(server)
    if server.is_pooled:
        told = "a pooler hands connections on between transactions: settings and news get lost"
        yield error("postgres.pooler", told, "connect directly, or pool by session")
    else:
        yield ok("postgres.pooler", "a session keeps its connection")


def _version(server: ServerFacts) -> Finding:
    named = f"PostgreSQL {server.version // 10_000}.{server.version % 10_000}"
    if server.version < VERSION_MIN:
        return error("postgres.version", named, "use PostgreSQL 14 or later")
    if server.encoding != "UTF8":
        told = f"the database is in {server.encoding}"
        return error("postgres.version", told, "create a database with encoding 'UTF8'")
    return ok("postgres.version", f"{named}, in UTF8")


def _keeps(server: ServerFacts) -> Finding:
    off = [
        name for name in ("fsync", "full_page_writes") if server.settings.get(name, "on") == "off"
    ]
    if off:
        told = f"{' and '.join(off)} off: a power failure loses or corrupts what was acknowledged"
        return error("postgres.durable", told, "turn on in postgresql.conf, and reload")
    return ok("postgres.durable", "fsync and full_page_writes are on")


COMMITS: Final = {
    "on": "a commit is on disk here, and on the standbys it waits for",
    "remote_apply": "a commit is on disk, and can be read on the standbys it waits for",
    "remote_write": "set to remote_write (standbys may lose it); our sessions use on",
    "local": "set to local (standbys may lack it); our sessions use on",
}
"""What `synchronous_commit` means for a ledger."""


def _commits(value: str) -> Finding:
    if value not in COMMITS:
        told = f"synchronous_commit is {value}: acknowledged commits could be lost"
        return error("postgres.commits", told, "set it to on, for the role, the database or all")
    return ok("postgres.commits", COMMITS[value])


def _standbys(server: ServerFacts) -> Finding:
    check, names = "postgres.standbys", server.settings.get("synchronous_standby_names", "")
    if server.is_standby:
        return ok(check, "only a primary can tell")
    if names and not server.waited_for:
        told = f"synchronous_standby_names is {names!r}, and none of them is attached"
        return error(check, told, "attach one: until then no commit is ever answered")
    if names:
        return ok(check, f"commits wait for standbys ({server.waited_for} attached)")
    if server.standbys:
        told = f"{server.standbys} attached, and no commit waits for any: a fail-over loses some"
        return warning(check, told, "set synchronous_standby_names on the server")
    return ok(check, "there are none: what is on this server's disk is all there is")


def _time_outs(server: ServerFacts) -> Finding:
    names = ("statement_timeout", "transaction_timeout")
    found = [f"{name} = {server.settings[name]}" for name in names if _is_set(server, name)]
    if found:
        told = f"{' and '.join(found)} in our own session: it could break off a COMMIT"
        return error("postgres.time_outs", told, "let no pooler or hook override a session's SET")
    return ok("postgres.time_outs", "none ends a COMMIT of our sessions")


def _is_set(server: ServerFacts, name: str) -> bool:
    return server.settings.get(name, "0") != "0"


def _connections(server: ServerFacts) -> Finding:
    left = server.connections_max - server.connections
    told = f"{left} of {server.connections_max} connections are free; a process takes up to"
    told = f"{told} {CONNECTIONS_EACH}"
    if left < CONNECTIONS_EACH:
        return error("postgres.connections", told, "raise max_connections or the role's limit")
    if left < CONNECTIONS_FREE_WELL:
        return warning("postgres.connections", told, "raise it before another process comes")
    return ok("postgres.connections", told)
