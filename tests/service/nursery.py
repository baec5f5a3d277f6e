"""Processes of the command line that start without importing anything: they are forked.

Importing the service takes a second of processor time, and the tests start it some hundred times.
The nursery is a process that has imported it and done nothing else. What it forks is a process as
any other: with its own signals, descriptors, folder and environment. That the command also starts
from nothing is seen by the tests of the command line.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

MODULES: Final = ("doubtless.cli", "doubtless.cli_running", "doubtless.service.app", "uvicorn")
REQUEST_MAX: Final = 1 << 20
STATUS: Final = struct.Struct("i")


class Forked:
    """A process of the nursery, in the manner of `subprocess.Popen`."""

    def __init__(self, pid: int, status: BinaryIO, stdout: BinaryIO) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, as `Popen.wait` does."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("doubtless", timeout or 0)
            (found,) = STATUS.unpack(self._status.read(STATUS.size))
            self.returncode = os.waitstatus_to_exitcode(found)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def fork(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], stderr: BinaryIO) -> Forked:
    """Start `doubtless WORDS…`, with its standard output in a pipe."""
    control = _nursery()
    out, out_there = os.pipe()
    status, status_there = os.pipe()
    try:
        asked = json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode()
        assert len(asked) < REQUEST_MAX
        descriptors = [out_there, stderr.fileno(), status_there]
        # One message is one request: the socket keeps its bounds.
        socket.send_fds(control, [asked], descriptors)
    finally:
        os.close(out_there)
        os.close(status_there)
    (pid,) = STATUS.unpack(control.recv(STATUS.size))
    return Forked(pid, os.fdopen(status, "rb"), os.fdopen(out, "rb"))


@functools.cache
def _nursery() -> socket.socket:
    """Start the nursery of this process; it ends with it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_MAX)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.nursery", str(there.fileno())],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
    )
    there.close()

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


# --- in the nursery ------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork what is asked for and tell how each ended, until whoever asks has gone."""
    children: dict[int, int] = {}  # where to tell the end, by process id
    ended, wakes = os.pipe()
    for each in (ended, wakes):
        os.set_blocking(each, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(children)
        if control.fileno() in ready:
            asked, descriptors, _, _ = socket.recv_fds(control, REQUEST_MAX, 3)
            if not asked:
                break
            pid = os.fork()
            if pid == 0:
                kept = [control.detach(), ended, wakes, *children.values()]
                _be(json.loads(asked), descriptors, closes=kept)
            children[pid] = descriptors[2]
            for each in descriptors[:2]:
                os.close(each)
            control.send(STATUS.pack(pid))
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            told = children.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(told, STATUS.pack(status))
            os.close(told)


def _be(asked: dict[str, object], descriptors: list[int], *, closes: list[int]) -> NoReturn:
    """Become the command. Nothing of the nursery goes on in this process."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        out, err, told = descriptors
        os.dup2(out, 1)
        os.dup2(err, 2)
        for each in (out, err, told, *closes):
            os.close(each)
        code = _run(asked)
    except BaseException:  # noqa: BLE001 - whatever it is, it must not reach the nursery's loop
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(asked: dict[str, object]) -> int:
    words, env = asked["words"], asked["env"]
    assert isinstance(words, list)
    assert isinstance(env, dict)
    os.chdir(str(asked["cwd"]))
    sys.path[0] = str(asked["cwd"])  # as `python -m` does
    os.environ.clear()
    os.environ.update(env)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb"), encoding="utf-8", line_buffering=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb"), encoding="utf-8", line_buffering=True)
    sys.argv = ["doubtless", *words]
    from doubtless.cli import main  # noqa: PLC0415 - imported before, outside of the tests

    try:
        return main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
