"""The keeper of one command: a process of its own that outlives whoever started it.

It is run as a file, by itself, and imports nothing but the standard library. It is told its job on
standard input, keeps a marker in a folder that is held open for it, starts the command, and stays
until the command and all that it left behind have ended. What it records, in this order:

    begun    who keeps it: host, boot, pid, start. Made at most once, before anything is started
    running  the command's pid and start
    ended    exit code, and size and SHA-256 of the output; or why nothing was started

Each is written aside, flushed and renamed. The room for the last is taken before the command is
started, so that a disk that fills up meanwhile doesn't lose it.
"""

import ctypes
import hashlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

RECORD_BYTES = 4096
CHUNK_BYTES = 65536
PR_SET_CHILD_SUBREAPER = 36  # from <sys/prctl.h>
RETRY_S = 1.0
RETRIES = 600

Told = dict[str, object]


def started(pid: int | str) -> str:
    """Return the start time of a process in clock ticks since boot; "" where it can't be told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def identity(pid: int) -> Told:
    """Return what tells a process from every other one, as the engine's owners are told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = ""
    host = socket.gethostname()
    return {
        "host": host,
        "boot": boot,
        "namespace": namespace,
        "pid": pid,
        "start": started(pid),
    }


class Marker:
    """The folder that tells what became of one operation."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._room = -1

    def begin(self, told: Told) -> bool:
        """Record that it begins. False: it was declared void before, or had begun already."""
        self._write("begun.new", told)
        try:
            # Unlike a rename, a link is refused where the name is there: whoever is first counts.
            os.link("begun.new", "begun", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileExistsError:
            return False
        os.fsync(self._folder)
        return True

    def record(self, name: str, told: Told) -> None:
        """Record a step on the way."""
        self._write(f"{name}.new", told)
        self._rename(name)

    def take_room(self) -> None:
        """Take the room for the last record on the disk."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._room = os.open("ended.new", flags, 0o600, dir_fd=self._folder)
        os.posix_fallocate(self._room, 0, RECORD_BYTES)
        os.fsync(self._room)

    def end(self, told: Told) -> None:
        """Record the end, whatever it takes: it is tried again for minutes."""
        content = json.dumps(told).encode().ljust(RECORD_BYTES)
        for _ in range(RETRIES):
            if not os.fstat(self._folder).st_nlink:
                return  # the marker was deleted: nobody asks any more
            with suppress(OSError):
                if self._room < 0:
                    self.take_room()
                os.pwrite(self._room, content, 0)
                os.fsync(self._room)
                self._rename("ended")
                return
            time.sleep(RETRY_S)

    def keep(self, name: str, content: bytes) -> None:
        """Keep output for people. Where there is no room for it, it is done without."""
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            kept = os.open(name, flags, 0o600, dir_fd=self._folder)
            try:
                os.write(kept, content)
                os.fsync(kept)
            finally:
                os.close(kept)

    def _write(self, name: str, told: Told) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        written = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            os.write(written, json.dumps(told).encode())
            os.fsync(written)
        finally:
            os.close(written)

    def _rename(self, name: str) -> None:
        os.rename(f"{name}.new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)


class Output:
    """What a command prints on one stream: the digest of all of it, and its beginning."""

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self.kept = b""

    def take(self, chunk: bytes) -> None:
        """Add what was read."""
        self._digest.update(chunk)
        self._size_bytes += len(chunk)
        self.kept += chunk[: self._kept_bytes - len(self.kept)]

    def told(self) -> Told:
        """Return size and digest of all of it."""
        return {"bytes": self._size_bytes, "sha256": self._digest.hexdigest()}


class Reading:
    """Reads what the command prints, and notices its end by its pidfd."""

    def __init__(self, process: "subprocess.Popen[bytes]", job: Told) -> None:
        kept_bytes = int(str(job["output_bytes"]))
        self.outputs = {"stdout": Output(kept_bytes), "stderr": Output(kept_bytes)}
        self._selector = selectors.DefaultSelector()
        for name in self.outputs:
            pipe = getattr(process, name)
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, name)
        self._process, self._pidfd = process, os.pidfd_open(process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ, "")

    def to_its_end(self) -> None:
        """Read until the command itself has ended, and then what is in the pipes by then."""
        while True:
            for key, _ in self._selector.select():
                if not key.data:
                    self._selector.unregister(self._pidfd)
                    os.close(self._pidfd)
                    self._drain()
                    return
                self._read(key.fd, key.data)

    def let_go(self) -> None:
        """Go on reading for those that the command left behind, and keep nothing of it."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self._read(key.fd, "")

    def _drain(self) -> None:
        for key in list(self._selector.get_map().values()):
            while self._read(key.fd, key.data):
                pass

    def _read(self, descriptor: int, name: str) -> bool:
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(descriptor)
            return False
        if name:
            self.outputs[name].take(chunk)
        return True


def children() -> list[int]:
    """Return whoever has this process for a parent: orphans of the command's come to be ours."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return [int(pid) for pid in text.split()]
    except (OSError, ValueError):
        return []


def start(job: Told) -> "subprocess.Popen[bytes]":
    """Start the command in a process group of its own.

    Raises:
        OSError: It was not started.
    """
    said = cast("dict[str, dict[str, str]]", job)
    return subprocess.Popen(
        cast("list[str]", job["argv"]),
        env=said["env"],
        cwd=str(job["cwd"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )


def feed(process: "subprocess.Popen[bytes]", text: str) -> None:
    """Give the command its input. It may not read it for long, or ever."""

    def write() -> None:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(OSError):
            process.stdin.write(text.encode())
            process.stdin.flush()
        with suppress(OSError):
            process.stdin.close()

    threading.Thread(target=write, daemon=True).start()


def say(word: str) -> None:
    """Tell whoever started us, if it is still there."""
    with suppress(OSError):
        os.write(1, f"{word}\n".encode())


def late(job: Told) -> bool:
    """Whether the time to begin is over. A time that is no number permits nothing."""
    return not time.clock_gettime(time.CLOCK_BOOTTIME) <= float(str(job["begin_by_s"]))


def keep(job: Told, marker: Marker) -> None:
    """Start the command, if it may still begin, and record what becomes of it."""
    try:
        marker.take_room()
    except OSError as error:
        say(f"room {os.strerror(error.errno or 0)}")
        return
    if late(job) or not marker.begin({"keeper": identity(os.getpid())}):
        say("void")
        return
    try:
        process = start(job)
    except (OSError, ValueError) as error:
        marker.end({"not_started": str(error)})
        say("ended")
        return
    reading = Reading(process, job)
    with suppress(OSError):
        marker.record("running", identity(process.pid))
    say("running")
    feed(process, str(job["stdin"]))
    reading.to_its_end()
    code = process.wait()
    for name, output in reading.outputs.items():
        marker.keep(name, output.kept)
    told: Told = {name: output.told() for name, output in reading.outputs.items()}
    left = [pid for pid in children() if not reap(pid)]
    at_ms = time.time_ns() // 1_000_000
    marker.end({"exit": code, **told, "left": len(left), "at_ms": at_ms})
    say("ended")
    os.close(1)
    reading.let_go()
    while True:  # whoever is left is ours to bury, and to be found by until then
        try:
            os.wait()
        except ChildProcessError:
            return


def reap(pid: int) -> bool:
    """Bury a child that has ended; False where it lives on."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def main() -> None:
    """Become a process of its own, and keep the command that standard input tells."""
    job = json.load(sys.stdin)
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keep(job, Marker(int(sys.argv[1])))


if __name__ == "__main__":
    main()
