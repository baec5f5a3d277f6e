"""Child processes that run an engine, to be killed: `python -m tests.integrations.children`.

The process reads lines of `[module, options]`, imports the module, forks, and calls its `run`
with the options in the child. It answers with the child's pid. All of them end with it.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LIFE_S = 150
WITHIN_S = 30.0
POLL_S = 0.02
PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
ROOT = Path(__file__).parents[2]


class Child:
    """A process that runs an engine."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone. May be repeated."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{self.pid}").exists())


class Nursery:
    """Forks children from a process that has imported their engine once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def bear(self, module: str, **options: object) -> Child:
        """Start a child: `tests.integrations.<module>.run(options)`."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integrations.children"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([module, options])}\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()))

    def close(self) -> None:
        """End it, and with it all of its children that are still there."""
        if self._process is not None:
            self._process.communicate()


def eventually(condition: Any) -> Any:
    """Return what `condition()` returns once that is true."""
    end_s = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < end_s, "it did not come true in time"
        time.sleep(POLL_S)
    return found


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end are gone at once
    for line in sys.stdin:
        name, options = json.loads(line)
        module = importlib.import_module(f"tests.integrations.{name}")
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.alarm(LIFE_S)
            os.dup2(2, 1)  # standard output is the nursery's own
            module.run(options)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
