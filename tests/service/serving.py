"""A real `doubtless serve` on a free port, and a plain client for it."""

import contextlib
import http.client
import json
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.cli.shell import Shell, environment
from tests.service import nursery

from doubtless.core.model import Role
from doubtless.ledger.store import open_ledger
from doubtless.service import auth

LIFETIME_S = 60.0
JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the service said."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """The problem's code; every error is a problem document."""
        assert self.headers["content-type"] == "application/problem+json", self.text
        found = self.json
        assert {"type", "title", "status", "code", "detail"} <= found.keys()
        assert found["status"] == self.status
        return str(found["code"])


class Serving:
    """A running process. Leaving the context kills it."""

    def __init__(self, shell: Shell, *words: str, command: str = "serve") -> None:
        self.shell = shell
        self.log = shell.folder / f"{command}-{time.monotonic_ns()}.log"
        port = ["--port", "0"] if command == "serve" else []
        with self.log.open("wb") as log:
            self.process = nursery.fork(
                [command, *port, *words], cwd=shell.folder, env=environment(), stderr=log
            )
        try:
            self.first_line = self._line(20)
        except BaseException:
            self.kill()
            raise
        found = re.search(r"http://([0-9.]+):(\d+)", self.first_line)
        self.port = int(found[2]) if found else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _line(self, timeout_s: float) -> str:
        readable, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline().decode() if readable else ""
        assert line, self.log.read_text(encoding="utf-8")
        return line

    def more_lines(self) -> str:
        """What else it wrote to standard output; it must have ended."""
        return self.process.stdout.read().decode()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 20,
    ) -> Answer:
        """Make one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        said = dict(headers or {})
        if token is not None:
            said.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            content = json.dumps(body).encode()
        if content is not None:
            said.setdefault("Content-Type", JSON)
        with contextlib.closing(connection):
            connection.request(method, path, content, said)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")  # a picture has none
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=named, text=text)

    def raw(self, sent: bytes, *, timeout_s: float = 10) -> bytes:
        """Send bytes, and return everything that comes until the service closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as link:
            with contextlib.suppress(ConnectionError):
                link.sendall(sent)
            return read_all(link)

    def log_lines(self) -> list[dict[str, Any]]:
        """The log; each line of it is JSON."""
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]

    def stop(self, timeout_s: float = 30) -> int:
        """End it in order, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def read_all(link: socket.socket) -> bytes:
    """Read until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := link.recv(65_536):
            found += part
    return found


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A service, and a token for each role."""

    serving: Serving
    tokens: Mapping[str, str]
    shell: Shell = field(repr=False)

    def agent(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        return self.serving.ask(method, path, body, token=self.tokens["agent"], **more)

    def other(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        return self.serving.ask(method, path, body, token=self.tokens["other"], **more)

    def operator(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        return self.serving.ask(method, path, body, token=self.tokens["operator"], **more)

    def call(self, tool: str, operation_id: str, *, wait: str | None = None, **args: Any) -> Answer:
        body = {"tool": tool, "arguments": args, "operation_id": operation_id}
        return self.agent("POST", "/v1/operations", body | ({"wait": wait} if wait else {}))


ROLES = {
    "agent": ("agent-1", Role.AGENT),
    "other": ("agent-2", Role.AGENT),
    "operator": ("night-shift", Role.OPERATOR),
    "auditor": ("audit-office", Role.AUDITOR),
    "worker": ("queue", Role.WORKER),
}


def make_tokens(address: str) -> dict[str, str]:
    with open_ledger(address) as ledger:
        return {
            short: auth.issue(ledger, name, role).secret for short, (name, role) in ROLES.items()
        }


@contextlib.contextmanager
def staged(folder: Path, contracts: str, *words: str) -> Iterator[Stage]:
    """Start a service in a folder, with the tokens of `ROLES`."""
    shell = Shell(folder)
    (folder / "contracts.toml").write_text(contracts, encoding="utf-8")
    tokens = make_tokens(shell.ledger)
    with Serving(shell, *words) as serving:
        yield Stage(serving=serving, tokens=tokens, shell=shell)


def until(condition: Callable[[], Any], *, timeout_s: float = 20.0) -> Any:
    """Return what `condition` says as soon as it is true."""
    end_s = time.monotonic() + timeout_s
    pause_s = 0.02
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not true within {timeout_s} s"
        time.sleep(pause_s)
    return found
