"""A host with a real sshd on loopback, programs whose effects are counted there, and a bad link."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from tests.actions.agent import until
from tests.scenarios.fronts import let_go, listening

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
WITHIN_S = 20

CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PermitRootLogin prohibit-password
MaxStartups 100
SetEnv HOME={folder}/home PATH={folder}/bin:/usr/bin:/bin{env}
"""

RELEASE = """#!/bin/sh
# Reaches a phase, and counts that it did. What it does beside that, files beside it say.
cd "{folder}" || exit 70
echo "$DOUBTLESS_OPERATION_ID $*" >>effects
echo "out of $1"
echo "err of $1" >&2
if [ -e "hold.$1" ]; then
  touch "reached.$1"
  while [ ! -e "go" ]; do sleep 0.02; done
fi
[ ! -e "child.$1" ] || sleep 20 &
[ ! -e "fail.$1" ] || exit "$(cat "fail.$1")"
printf '{{"release_id":"%s","phase":"%s","active_revision":"%s"}}\\n' "$2" "$1" "$2" >state.new
mv state.new state
"""

STATUS = """#!/bin/sh
cat "{folder}/state" 2>/dev/null || echo '{{}}'
[ ! -e "{folder}/status.fails" ]
"""


@dataclass(kw_only=True)
class Sshd:
    """A server that runs, and the keys to it."""

    folder: Path
    port: int
    key: str  # private, of the user
    host_key: str  # public

    @property
    def host(self) -> str:
        return f"{os.environ.get('USER') or 'root'}@127.0.0.1:{self.port}"


@contextmanager
def sshd(folder: Path, *, port: int | None = None, env: str = "") -> Iterator[Sshd]:
    """Run an sshd of our own; it ends with the block, and takes nothing from this machine."""
    assert SSHD is not None
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for each in ("home", "bin"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    host_key = _key(folder / "host_key")
    user_key = _key(folder / "user_key")
    (folder / "authorized_keys").write_text(_public(user_key), encoding="ascii")
    port = port or _free_port()
    config = folder / "sshd_config"
    config.write_text(CONFIG.format(port=port, folder=folder, env=env), encoding="ascii")
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
    try:
        until(lambda: process.poll() is not None or _answers(port), WITHIN_S)
        assert process.poll() is None, (folder / "sshd.log").read_text(encoding="utf-8")
        yield Sshd(
            folder=folder,
            port=port,
            key=user_key.export_private_key().decode(),
            host_key=_public(host_key),
        )
    finally:
        process.terminate()
        process.wait()


def _key(file: Path) -> asyncssh.SSHKey:
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    return asyncssh.read_private_key(file)


def _public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        return link.recv(4) == b"SSH-"
    return False


@dataclass(kw_only=True)
class Host:
    """What one test has on the host: programs, markers, and the count of effects."""

    server: Sshd
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name, text in (("release", RELEASE), ("release-status", STATUS)):
            file = self.folder / name
            file.write_text(text.format(folder=self.folder), encoding="ascii")
            file.chmod(0o755)

    @property
    def markers(self) -> Path:
        return self.folder / "markers"

    def marker(self, ref: str) -> Path:
        return self.markers / ref

    def status(self, ref: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.marker(ref) / "status").read_text("utf-8"))
        return found

    def effects(self) -> list[str]:
        """Return what was done, in order: operation and arguments."""
        log = self.folder / "effects"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def say(self, **state: str) -> None:
        """Let the host's own status say this."""
        (self.folder / "state").write_text(json.dumps(state), encoding="ascii")

    def set(self, name: str, content: str = "") -> None:
        (self.folder / name).write_text(content, encoding="ascii")

    def reached(self, name: str) -> None:
        """Wait until a program that is held has come to where it waits."""
        until((self.folder / f"reached.{name}").exists, WITHIN_S)

    def ended(self, ref: str) -> None:
        """Wait until a run is over and written down."""
        until(lambda: any(self.marker(ref).glob("run.*/end")), WITHIN_S)

    def claims(self, ref: str) -> list[str]:
        found = sorted(self.marker(ref).glob("claim.*"))
        return [":".join(str(each.readlink()).split(":")[:2]) for each in found]

    def leader(self, ref: str) -> int:
        """Return the process that leads the run."""
        run = max(self.marker(ref).glob("claim.*"))
        return int(str(run.readlink()).split(":")[2])


class Link:
    """A proxy before the server, which can swallow what the host says, and be cut."""

    def __init__(self, port: int) -> None:
        self._leads_to = port
        self.refuses, self.mute, self.connections = 0, False, 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def serving(self, port: int = 0):
        async with listening(self._serve, port=port) as found:
            yield found

    def cut(self) -> None:
        """Break everything that is open, as a router that lost its power does."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses >= self.connections:
            writer.transport.abort()
            return
        tasks: list[asyncio.Task[None]] = []
        ends = [writer]
        self._writers.append(writer)
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._leads_to)
            ends.append(there)
            self._writers.append(there)
            tasks.append(asyncio.create_task(self._copy(reader, there, is_host=False)))
            tasks.append(asyncio.create_task(self._copy(there_reader, writer, is_host=True)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await let_go(*ends)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_host: bool
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if not (is_host and self.mute):
                    sink.write(data)
                    await sink.drain()


def processes_of(group: int) -> list[int]:
    """Return the living processes of a group."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = each.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(each.parent.name))
    return found
