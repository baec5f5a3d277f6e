"""Where the gateway's local service is found, and what it is started with.

One service belongs to one ledger and scope. Only the standard library is imported here, so that
the command that a client starts is there at once.
"""

import fcntl
import hashlib
import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from doubtless.errors import SettingsError

FOLDER: Final = "DOUBTLESS_RUNTIME_DIR"
"""The variable that may name the folder of sockets, locks and logs."""
NAME_CHARS: Final = 16  # a socket's whole path may have 107 bytes
PATH_BYTES_MAX: Final = 107
LOG_BYTES_MAX: Final = 5_000_000  # a longer one is put aside when a service starts


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway serves, for whom, and on which ledger. Paths are absolute."""

    ledger: str
    scope: str | None  # the session of all calls; None over HTTP: that of whoever calls
    folder: str  # the working folder of the service and of what it starts
    tenant: str = "main"
    principal: str = "local"
    contracts: str | None = None
    config: str | None = None  # the gateway's own file
    secrets: str | None = None
    command: tuple[str, ...] = ()  # one upstream that speaks over its standard streams
    errors_definitive: bool = False  # whether `isError` of its tools proves that nothing was done
    idle_ms: int = 600_000
    approve_at: str | None = None  # a URL with {id}, where a person approves

    def to_text(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | bytes) -> "GatewaySettings":
        """Read what `to_text` wrote."""
        said = json.loads(text)
        said["command"] = tuple(said["command"])
        return cls(**{item.name: said[item.name] for item in fields(cls)})

    def digest(self) -> str:
        """Return what tells these settings from others, with what stands in the files they name."""
        parts = [self.to_text()]
        for path in (self.config, self.contracts):
            if path is not None:
                with suppress(OSError):
                    parts.append(Path(path).read_text(encoding="utf-8", errors="replace"))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one service, in a folder that is its user's alone."""

    folder: Path
    name: str

    @classmethod
    def of(cls, settings: GatewaySettings) -> "Place":
        """Return where the service of a ledger, tenant, principal and scope is.

        Raises:
            SettingsError: The folder can't be had, or isn't this user's alone.
        """
        of = [settings.ledger, settings.tenant, settings.principal, settings.scope]
        name = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:NAME_CHARS]
        return cls(runtime_folder(), name)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / f"{self.name}.sock"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / f"{self.name}.log"

    @property
    def state(self) -> Path:
        """Which process it is."""
        return self.folder / f"{self.name}.json"

    def lock(self) -> int | None:
        """Take the place for as long as this process lives; None if another one has it.

        The system gives it back when the process dies, however it dies.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        found = os.open(self.folder / f"{self.name}.lock", flags, 0o600)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(found)
            return None
        return found

    def open_log(self) -> int:
        """Open the log to append to it; what is too long already is put aside first."""
        with suppress(OSError):
            if self.log.stat().st_size > LOG_BYTES_MAX:
                self.log.replace(self.log.with_suffix(".log.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.log, flags, 0o600)


def runtime_folder() -> Path:
    """Return the folder for sockets, locks and logs, made if it isn't there.

    Raises:
        SettingsError: It can't be had, isn't this user's alone, or its path is too long.
    """
    said = os.environ.get(FOLDER)
    system = os.environ.get("XDG_RUNTIME_DIR")
    if said:
        folder = Path(said)
    elif system:
        folder = Path(system) / "doubtless"
    else:
        folder = Path(tempfile.gettempdir()) / f"doubtless-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SettingsError(f"{folder} can't be used: {error}. Name another in {FOLDER}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SettingsError(
            f"{folder} must be a folder of yours that nobody else can enter: chmod 700 {folder},"
            f" or name another in {FOLDER}"
        )
    if len(os.fsencode(folder)) + NAME_CHARS + len("/.sock") > PATH_BYTES_MAX:
        raise SettingsError(f"{folder} is too long for a socket's path: name another in {FOLDER}")
    return folder
