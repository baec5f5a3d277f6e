"""What a campaign is played on: contracts, a hostile provider, and services and workers to hurt."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE_ROOT: Final = Path(__file__).parents[2]
START_S: Final = 180.0  # on a busy machine
END_S: Final = 60.0
POLL_S: Final = 0.02
READ_BYTES: Final = 4_096  # of a log, where a process says that it has begun
LEASE_EXTRA_S: Final = 10.0  # a lease is an attempt's time-out and this much
SHOPS: Final = 10  # collections of each kind: the provider searches one from end to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The times in the contracts, and those of the provider, which keeps to them."""

    timeout_ms: int
    horizon_ms: int  # how long the provider may still act on what it has taken in
    lag_ms: int  # how far its read side may trail

    @property
    def lease_s(self) -> float:
        """How long an attempt's lease runs."""
        return self.timeout_ms / 1000 + LEASE_EXTRA_S

    @property
    def late_s(self) -> float:
        """When an answer comes after its caller gave up."""
        return self.timeout_ms * 1.4 / 1000

    @property
    def zombie_s(self) -> float:
        """When a request takes effect after its caller gave up."""
        return (self.timeout_ms + self.horizon_ms / 2) / 1000


LONG: Final = Pace(timeout_ms=1_000, horizon_ms=3_000, lag_ms=1_000)
SHORT: Final = Pace(timeout_ms=500, horizon_ms=1_000, lag_ms=300)

SOURCE: Final = """
[sources.shop]
base_url = "{url}"
"""
TOOL: Final = """
[tools.{tool}]
effect = "{effect}"
source = "shop"
business_key = ["charge"]
timeout = "{timeout_ms}ms"
in_flight_horizon = "{horizon_ms}ms"
recovery_deadline = "30m"
on_absent = "resend"
retry = {{ attempts = 9, backoff = "200ms", resend = 9 }}

[tools.{tool}.arguments]
type = "object"
required = ["charge", "amount", "shop"]
properties.charge = {{ type = "string" }}
properties.amount = {{ type = "integer", minimum = 1 }}
properties.shop = {{ type = "integer" }}

[tools.{tool}.request]
method = "POST"
path = "/v1/{tool}s-{{args.shop}}"
json.charge = "{{args.charge}}"
json.amount = "{{args.amount}}"
json.metadata.operation = "{{operation.ref}}"

[tools.{tool}.response]
provider_operation_id = "id"

[tools.{tool}.lookup]
path = "/v1/{tool}s-{{args.shop}}"
query = {{ charge = "{{args.charge}}" }}
items = "data"
where = {{ "metadata.operation" = "{{operation.ref}}" }}
equal = {{ amount = "{{args.amount}}" }}
complete = "!has_more"
authoritative = true
lag = "{lag_ms}ms"
interval = "250ms"
interval_max = "2s"
"""
KEY: Final = """
[tools.refund.idempotency]
header = "Idempotency-Key"
ttl = "24h"
stores = "all"
in_progress = [409]
"""


def contracts(url: str, pace: Pace) -> str:
    """Return two tools with look-ups: refunds under keys, and tickets without."""
    times = {"timeout_ms": pace.timeout_ms, "horizon_ms": pace.horizon_ms, "lag_ms": pace.lag_ms}
    refund = TOOL.format(tool="refund", effect="money", **times)
    ticket = TOOL.format(tool="ticket", effect="write", **times)
    return SOURCE.format(url=url) + refund + KEY + ticket


def hostile(pace: Pace, seed: int) -> dict[str, object]:
    """Return what the provider does wrong: a third of the sends, and some of the look-ups."""

    def rule(number: int, method: str, share: float, action: str, **said: object) -> object:
        match = {"method": method, "probability": share, "seed": seed * 100 + number}
        return {"match": match, "then": {"action": action, **said}}

    faults: list[tuple[str, float, str, dict[str, object]]] = [
        ("POST", 0.04, "commit_then_rst", {}),
        ("POST", 0.04, "commit_then_fin", {}),
        ("POST", 0.04, "commit_then_status", {"status": 502, "by": "gateway"}),
        ("POST", 0.04, "commit_then_delay", {"delay_s": pace.late_s}),
        ("POST", 0.04, "delay_then_commit", {"delay_s": pace.zombie_s}),
        ("POST", 0.04, "drop_before_commit", {"close": "rst"}),
        ("POST", 0.03, "status", {"status": 503}),
        ("POST", 0.02, "truncate_response", {"byte_count": 60}),
        ("POST", 0.02, "garbage_response", {}),
        ("GET", 0.05, "status", {"status": 500}),
        ("GET", 0.05, "login_page", {}),
    ]
    rules = [
        rule(number, method, share, action, **said)
        for number, (method, share, action, said) in enumerate(faults)
    ]
    unkeyed = {f"tickets-{shop}": {"key_mode": "off"} for shop in range(SHOPS)}
    lag = {"read_lag_s": pace.lag_ms / 2000}
    return {"settings": lag, "collections": unkeyed, "rules": rules}


class Member:
    """One process, a service or a worker, which can be killed, stopped, woken and started again."""

    def __init__(self, name: str, folder: Path, ledger: str, *, serves: bool) -> None:
        self.name, self.serves = name, serves
        self.port = _free_port() if serves else 0
        self.url = f"http://127.0.0.1:{self.port}"
        self.is_frozen = False
        self._folder = folder
        self._log = folder / f"{name}.log"
        paths = [str(SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            # By its name the database knows whose sessions they are.
            "DOUBTLESS_LEDGER": f"{ledger}&application_name={name}",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # where in the log the running process begins

    @property
    def is_up(self) -> bool:
        """Whether it was started, and neither killed nor stopped since."""
        return self._process is not None and not self.is_frozen

    @property
    def has_died(self) -> bool:
        """Whether it ended though nobody ended it."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it, without waiting for it."""
        words = ["serve", "--port", str(self.port)] if self.serves else ["worker"]
        with self._log.open("ab") as told:
            self._began = told.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "doubtless.cli", *words, "--contracts", "contracts.toml"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
            )

    def kill(self) -> None:
        """SIGKILL it: no handler runs, and nothing is flushed."""
        process, self._process, self.is_frozen = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """SIGSTOP it: its connections and leases stay as they are."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.is_frozen = True

    def thaw(self) -> None:
        """SIGCONT it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self.is_frozen = False

    def stop(self) -> int:
        """End it in order, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def log(self) -> str:
        """Return all that it has printed since the beginning."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def is_ready(self) -> bool:
        """Whether it does its work now."""
        if not self.serves:
            with self._log.open("rb") as told:
                told.seek(self._began)
                return b"working" in told.read(READ_BYTES)
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=START_S):
                return True
        except OSError:
            return False


class Fleet:
    """Services and workers on one ledger. Leaving the context manager ends them."""

    def __init__(self, folder: Path, ledger: str, *, services: int, workers: int) -> None:
        self.services = [
            Member(f"service-{number}", folder, ledger, serves=True) for number in range(services)
        ]
        self.workers = [
            Member(f"worker-{number}", folder, ledger, serves=False) for number in range(workers)
        ]
        self.token = _token(folder, ledger)

    @property
    def members(self) -> Sequence[Member]:
        """All of them."""
        return [*self.services, *self.workers]

    def start(self) -> None:
        """Start all that are not up, wake those that sleep, and wait until all do their work.

        Raises:
            RuntimeError: One does not; the text is its log.
        """
        for member in self.members:
            if member.is_frozen:
                member.thaw()
            elif not member.is_up:
                member.start()
        deadline_s = time.monotonic() + START_S
        for member in self.members:
            while not member.is_ready():
                if member.has_died or time.monotonic() > deadline_s:
                    raise RuntimeError(f"{member.name} does not work: {member.log()}")
                time.sleep(POLL_S)

    def stop(self) -> list[str]:
        """End all in order, and return what is wrong with how they ended or what they said."""
        wrong = [f"{member.name} died by itself" for member in self.members if member.has_died]
        for member in self.members:
            if (code := member.stop()) != 0:
                wrong.append(f"{member.name} ended with {code}")
            if "Traceback" in member.log():
                wrong.append(f"{member.name} printed a traceback: {member.log()[-2000:]}")
        return wrong

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()


def _token(folder: Path, ledger: str) -> str:
    words = ("token", "create", "--role", "agent", "--name", "campaign", "--ledger", ledger)
    told = subprocess.run(
        [sys.executable, "-m", "doubtless.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(f"doubtless token create: {told.stderr}")
    return told.stdout.strip()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
