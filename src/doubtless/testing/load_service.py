"""The service as a process of its own, on a ledger and contracts of its own, with a token."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_S: Final = 30.0
END_S: Final = 30.0
URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running service."""

    url: str
    token: str
    process: "subprocess.Popen[str]"

    def memory_mib(self) -> float:
        """Return what it holds in memory now, in MiB. Linux only."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_s(self) -> float:
        """Return the processor time that it has taken, in seconds. Linux only."""
        told = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        user, system = told.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(folder: Path, contracts: str, *, role: str) -> Iterator[Served]:
    """Start the service in `folder`, and end it in order afterwards.

    Raises:
        RuntimeError: It did not start, or did not end with 0; the text says what it printed.
    """
    (folder / "contracts.toml").write_text(contracts, encoding="utf-8")
    ledger = f"sqlite:///{folder / 'doubtless.db'}"
    token = _run(folder, "token", "create", "--role", role, "--name", "load", "--ledger", ledger)
    words = ["serve", "--port", "0", "--ledger", ledger, "--contracts", "contracts.toml"]
    log = folder / "service.log"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "doubtless.cli", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Served(url=_address(process, log), token=token, process=process)
        finally:
            code = _end(process)
    if code != 0:
        raise RuntimeError(f"the service ended with {code}: {log.read_text(encoding='utf-8')}")


def _run(folder: Path, *words: str) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "doubtless.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(f"doubtless {words[0]}: {told.stderr}")
    return told.stdout.strip()


def _address(process: "subprocess.Popen[str]", log: Path) -> str:
    """Read what the service prints when it listens."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := URL.search(line):
            return found.group(0)
    raise RuntimeError(f"the service did not start: {log.read_text(encoding='utf-8')}")


def _end(process: "subprocess.Popen[str]") -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()
