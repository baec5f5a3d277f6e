"""The `git` program: run without a terminal, with a secret that only it gets, and ended whole."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.abc

from doubtless.errors import NotSent

KEPT_BYTES: Final = 65_536  # of what it prints
SAID_CHARS: Final = 200  # of it, in words for people
HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" '
    '"$DOUBTLESS_GIT_USER" "$DOUBTLESS_GIT_PASSWORD"; }; f'
)
"""A credential helper (gitcredentials(7)) that hands on what only git's own process was given."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How one run ended."""

    code: int
    out: str
    err: str


def told(ran: Ran) -> str:
    """Say in a line why git failed: the last thing that it printed, without colours or progress."""
    lines = [line.strip() for line in ran.err.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    last = (fatal or lines or [f"git ended with {ran.code}"])[0]
    shown = "".join(char if char.isprintable() else " " for char in last)
    return shown[:SAID_CHARS]


@dataclass(slots=True, kw_only=True)
class Repository:
    """A local repository and one of its remotes. Open it to have the secret at hand.

    Args:
        remote: A name in the repository's configuration, or a URL.
        user: For a password or a token over HTTPS.
        credential: The secret's name: a password, or a private key where `host_key` is given.
        host_key: Of an SSH server, as in a known_hosts file: nothing else is trusted then.
        secret: Finds secrets by name.

    Raises, when it is opened:
        NotSent: There is no such folder, or no `git` on this host.
    """

    folder: Path
    remote: str
    user: str | None
    credential: str | None
    host_key: str | None
    secret: Callable[[str], str]
    _environment: dict[str, str] = field(default_factory=dict)
    _keys: tempfile.TemporaryDirectory[str] | None = None

    async def __aenter__(self) -> Self:
        if shutil.which("git") is None:
            raise NotSent("there is no git on this host: install it")
        if not self.folder.is_dir():
            raise NotSent(f"{self.folder} is no folder on this host")
        self._environment = self._settings()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._keys is not None:
            self._keys.cleanup()

    def _settings(self) -> dict[str, str]:
        """Return git's environment: no prompt, no pager, English, and what it may know."""
        mine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GIT_", "DOUBTLESS_", "SSH_ASKPASS"))
        }
        mine |= {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "LC_ALL": "C",
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        }
        if self.host_key is not None:
            mine["GIT_SSH_COMMAND"] = self._pinned(self.host_key)
        elif self.credential is not None:
            mine["DOUBTLESS_GIT_USER"] = self.user or "git"
            mine["DOUBTLESS_GIT_PASSWORD"] = self.secret(self.credential)
        return mine

    def _pinned(self, host_key: str) -> str:
        """Return how to call ssh so that it trusts one key and shows one, and asks nothing else.

        It reads both from files: they are this user's alone, and gone when the repository is left.
        """
        self._keys = tempfile.TemporaryDirectory(prefix="doubtless-git-")
        folder = Path(self._keys.name)
        known = folder / "known_hosts"
        known.write_text(f"* {host_key}\n", encoding="utf-8")
        options = [
            "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes",
            f"-o UserKnownHostsFile={known} -o GlobalKnownHostsFile=/dev/null",
        ]
        if self.credential is not None:
            key = folder / "key"
            key.touch(mode=0o600)
            key.write_text(self.secret(self.credential).rstrip("\n") + "\n", encoding="utf-8")
            options.append(f"-o IdentitiesOnly=yes -o IdentityAgent=none -i {key}")
        return " ".join(options)

    async def git(self, *argv: str, more: Mapping[str, str] | None = None) -> Ran:
        """Run one command of git in the repository, to its end; if cancelled, end all of it."""
        command = ["git", "-C", str(self.folder), "-c", "core.askPass="]
        if "DOUBTLESS_GIT_PASSWORD" in self._environment:
            command += ["-c", "credential.helper=", "-c", f"credential.helper={HELPER}"]
        environment = {**self._environment, **(more or {})}
        process = await anyio.open_process(
            [*command, *argv], env=environment, stdin=DEVNULL, start_new_session=True
        )
        try:
            return await _to_its_end(process)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with anyio.CancelScope(shield=True):
                    await process.aclose()

    async def commit(self, name: str) -> str | None:
        """Return the commit that a name means here, or None."""
        found = await self.git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        )
        return found.out.strip() if found.code == 0 else None

    async def push(self, commit: str, ref: str, lease: str, trace: Path) -> Ran:
        """Push one commit to one ref, under a lease; `trace` gets what git says that it writes."""
        return await self.git(
            "push",
            "--porcelain",
            "--atomic",
            "--no-follow-tags",
            "--recurse-submodules=no",
            lease,
            "--",
            self.remote,
            f"{commit}:{ref}",
            more={"GIT_TRACE": str(trace), "GIT_TRACE_PACKET": str(trace)},
        )

    async def holds(self, ref: str, tip: str, commit: str) -> bool:
        """Whether what the remote has now contains `commit`. This repository stays as it is."""
        if (await self.git("merge-base", "--is-ancestor", commit, tip)).code == 0:
            return True
        objects = await self.git("rev-parse", "--git-path", "objects")
        address = await self.git("ls-remote", "--get-url", self.remote)
        with tempfile.TemporaryDirectory(prefix="doubtless-git-") as name:
            aside = Path(name)
            await self.git("init", "--quiet", "--bare", name)
            ours = (self.folder / objects.out.strip()).absolute()
            (aside / "objects/info/alternates").write_text(f"{ours}\n", encoding="utf-8")
            there = ("--git-dir", name)
            got = await self.git(*there, "fetch", "--quiet", "--no-tags", address.out.strip(), ref)
            if got.code != 0:
                return False
            return (await self.git(*there, "merge-base", "--is-ancestor", commit, tip)).code == 0


async def _to_its_end(process: anyio.abc.Process) -> Ran:
    kept: dict[str, bytes] = {"out": b"", "err": b""}

    async def read(name: str, stream: anyio.abc.ByteReceiveStream) -> None:
        async for chunk in stream:
            kept[name] = (kept[name] + chunk)[:KEPT_BYTES]

    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - both are pipes
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, "out", process.stdout)
        tasks.start_soon(read, "err", process.stderr)
    code = await process.wait()
    text = {name: content.decode(errors="replace") for name, content in kept.items()}
    return Ran(code, text["out"], text["err"])
