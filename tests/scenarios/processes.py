"""Child processes of a story: applications that are raced, killed, stopped and woken."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.scenarios.stories import WITHIN_S, Story

ROOT = Path(__file__).parents[2]
POLL_S = 0.01


class Nursery:
    """Forks the children of one test run from a process that has imported everything already."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenarios.program"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
        )

    def bear(self, line: str) -> None:
        """Fork a child; `line` says where it calls back, and what it shall do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it, and with it all of its children that are still there."""
        self._process.communicate()


class Child:
    """A process that runs `tests.scenarios.program` and tells what happens in lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")
        self.pid = int(self.line()["pid"])

    def tell(self, line: str) -> None:
        self._lines.write(f"{line}\n")
        self._lines.flush()

    def line(self) -> dict[str, Any]:
        """Return the next thing that it says; a child that died says nothing."""
        line = self._lines.readline()
        assert line, "the child ended, and says why on standard error"
        said: dict[str, Any] = json.loads(line)
        return said

    def expect(self, event: str) -> None:
        said = self.line()
        assert said["event"] == event, said

    def outcome(self) -> dict[str, Any]:
        said = self.line()
        assert said["event"] == "outcome", said
        outcome: dict[str, Any] = said["outcome"]
        return outcome

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone. May be repeated."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._wait_for("")

    def stopped(self) -> None:
        """Wait until it was stopped, by itself or by a signal."""
        self._wait_for("T")

    def wake(self) -> None:
        self.signal(signal.SIGCONT)

    def _wait_for(self, state: str) -> None:
        end = time.monotonic() + WITHIN_S
        while (found := self._state()) != state:
            assert time.monotonic() < end, f"the child is {found!r}, and not {state!r}"
            time.sleep(POLL_S)

    def _state(self) -> str:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return stat.rpartition(")")[2].split()[0]


@contextmanager
def acting(story: Story, role: str, *arguments: object, **options: object) -> Iterator[Child]:
    """Run a child on the ledger and the contracts of `story`, and kill it in the end."""
    told = {"ledger": story.ledger, "contracts": str(story.contracts), **options}
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(WITHIN_S)
        port = door.getsockname()[1]
        story.nursery().bear(json.dumps([port, role, told, *map(str, arguments)]))
        connection, _ = door.accept()
    with connection:
        connection.settimeout(2 * WITHIN_S)
        child = Child(connection)
        try:
            yield child
        finally:
            child.kill()
