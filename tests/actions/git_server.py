"""Repositories that git's own daemon serves for real, and a proxy that cuts the link to it."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from tests.scenarios.fronts import linked, listening

WITHIN_S = 40
POLL_S = 0.01
WHO = {
    "GIT_AUTHOR_NAME": "author",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_COMMITTER_NAME": "author",
    "GIT_COMMITTER_EMAIL": "author@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(folder: Path, *argv: str) -> str:
    ran = subprocess.run(
        ["git", "-C", str(folder), *argv],
        env={**os.environ, **WHO},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


async def eventually(state, *states: str) -> None:
    """Wait until `state()` is one of these."""
    with anyio.fail_after(WITHIN_S):
        while True:
            if (await state()).state in states:
                return
            await anyio.sleep(POLL_S)


def until(condition, within_s: float = WITHIN_S) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(POLL_S)


@dataclass
class Server:
    """A bare repository that counts each change of a ref, and what it is called from outside."""

    folder: Path
    url: str

    @property
    def bare(self) -> Path:
        return self.folder / "api.git"

    def value(self, ref: str = "refs/heads/main") -> str:
        """Return the commit of a ref, or "" where there is none."""
        with suppress(subprocess.CalledProcessError):
            return git(self.bare, "rev-parse", "--verify", "--quiet", ref)
        return ""

    def changes(self) -> list[str]:
        """Return each change of a ref that was made, in order: `old new ref`."""
        log = self.folder / "changes"
        return log.read_text(encoding="ascii").splitlines() if log.exists() else []

    def hook(self, name: str, script: str) -> None:
        file = self.bare / "hooks" / name
        file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        file.chmod(0o755)

    def hold(self, name: str = "pre-receive") -> "Held":
        """Let pushes wait in a hook until they are let go."""
        held = Held(self.folder)
        self.hook(name, f'touch "{held.reached}"\nwhile [ ! -e "{held.go}" ]; do sleep 0.02; done')
        return held


@dataclass
class Held:
    """A push that waits in a hook of the server."""

    folder: Path

    @property
    def reached(self) -> Path:
        return self.folder / "reached"

    @property
    def go(self) -> Path:
        return self.folder / "go"

    def wait(self) -> None:
        until(self.reached.exists)


def bare(folder: Path) -> Path:
    """Make the repository of a server, which logs what becomes of its refs."""
    made = folder / "api.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", str(made)], check=True)
    hook = made / "hooks" / "post-receive"
    hook.write_text(f'#!/bin/sh\ncat >> "{folder}/changes"\n', encoding="utf-8")
    hook.chmod(0o755)
    git(made, "config", "http.receivepack", "true")
    return made


def clone(server: Server, folder: Path) -> Path:
    """Make a working repository with one commit, and the server as its `origin`."""
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(folder)], check=True)
    git(folder, "remote", "add", "origin", server.url)
    commit(folder, "one")
    return folder


def commit(folder: Path, text: str) -> str:
    (folder / "text").write_text(text, encoding="utf-8")
    git(folder, "add", "text")
    git(folder, "commit", "--quiet", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@contextmanager
def daemon(folder: Path) -> Iterator[Server]:
    """Serve a repository by git's own daemon, on a free port of loopback."""
    bare(folder)
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    process = subprocess.Popen(
        [
            *("git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}"),
            *(f"--base-path={folder}", "--export-all", "--enable=receive-pack"),
        ],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: _answers(port))
        yield Server(folder, f"git://127.0.0.1:{port}/api.git")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@dataclass
class Cut:
    """A proxy between git and its server that breaks each push at a place, the first `times`."""

    port: int  # the server's
    at: str  # "connect", "advertised", "commands" or "report"
    times: int = 1
    cuts: int = 0

    def serving(self) -> AbstractAsyncContextManager[int]:
        return listening(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with linked(self.port) as (there, back):
            await self._carry(reader, writer, there, back)

    async def _carry(self, reader, writer, there, back) -> None:
        size = await reader.readexactly(4)  # a pkt-line: gitprotocol-common(5)
        request = size + await reader.readexactly(int(size, 16) - 4)
        cutting = b"git-receive-pack" in request and self.cuts < self.times
        if cutting:
            self.cuts += 1
        if cutting and self.at == "connect":
            writer.transport.abort()
            back.transport.abort()
            return
        back.write(request)
        tasks = [
            asyncio.create_task(
                self._pass(reader, back, writer, cutting and self.at == "commands")
            ),
            asyncio.create_task(self._answer(there, writer, back, cutting)),
        ]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()

    async def _pass(self, reader, back, writer, cuts: bool) -> None:
        """Hand on what git sends; `cuts` drops its commands, before the server sees any of them."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while chunk := await reader.read(65536):
                if cuts:
                    back.transport.abort()
                    writer.transport.abort()
                    return
                back.write(chunk)
                await back.drain()
            back.write_eof()

    async def _answer(self, there, writer, back, cutting: bool) -> None:
        """Hand on what the server says; the first answer is its refs, the second its report."""
        advertised = False
        with suppress(OSError):
            while chunk := await there.read(65536):
                if cutting and self.at == "report" and advertised:
                    await there.read()  # the server is done with it
                    writer.transport.abort()
                    return
                writer.write(chunk)
                await writer.drain()
                advertised = advertised or chunk.endswith(b"0000")
                if cutting and self.at == "advertised" and advertised:
                    writer.transport.abort()
                    back.transport.abort()
                    return
