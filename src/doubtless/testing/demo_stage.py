"""What the scenes of the demonstration stand on: a provider, a ledger, contracts and commands."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from doubtless.testing.provider import ProviderProcess
from doubtless.testing.refund_contract import refund_contract

TIMEOUT_S: Final = 1.0  # how long both agents wait for an answer
ANSWER_S: Final = 2.0  # when the provider gives it
COMMAND_S: Final = 60.0  # no command takes longer
SOURCE_ROOT: Final = Path(__file__).resolve().parents[2]

LOST_ANSWER: Final = [
    {
        "match": {"method": "POST", "nth": 1},
        "then": {"action": "commit_then_delay", "delay_s": ANSWER_S},
    }
]
BID: Final = """
[tools.place_bid]
description = "Bid in an auction that shows nobody's bids."
effect = "time_sensitive"
source = "payments"
business_key = ["lot"]
timeout = "{timeout_ms}ms"
valid_for = "1h"

[tools.place_bid.arguments]
type = "object"
required = ["lot", "amount"]
properties.lot = {{ type = "string" }}
properties.amount = {{ type = "integer", minimum = 1 }}

[tools.place_bid.request]
method = "POST"
path = "/v1/bids"
json.lot = "{{args.lot}}"
json.amount = "{{args.amount}}"
json.metadata.operation = "{{operation.ref}}"
"""


def contracts(url: str, *, timeout_ms: int) -> str:
    """Return a contract file with refunds, which can be looked up, and bids, which can't."""
    refund = refund_contract(url, timeout_ms=timeout_ms, horizon="1s", interval="200ms")
    return refund + BID.format(timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that the demonstration says, and what was found when it was asked."""

    scene: str
    what: str
    claimed: int | str
    found: int | str

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return self.claimed == self.found


@dataclass(slots=True, kw_only=True)
class Stage:
    """A provider, and a folder with everything else. Each scene finds the provider as new."""

    provider: ProviderProcess
    folder: Path
    width: int = 100
    claims: list[Claim] = field(default_factory=list)

    @property
    def ledger(self) -> str:
        """The address of the ledger that all scenes share."""
        return f"sqlite:///{self.folder / 'doubtless.db'}"

    @property
    def contracts(self) -> Path:
        """The contract file."""
        return self.folder / "contracts.toml"

    def set(self, *, timeout_s: float = TIMEOUT_S) -> None:
        """Begin a scene: the provider forgets everything, and loses the answer to come."""
        self.provider.configure(LOST_ANSWER)
        self.provider.reset()
        text = contracts(self.provider.url, timeout_ms=int(timeout_s * 1000))
        self.contracts.write_text(text, encoding="utf-8")

    def claim(self, scene: str, what: str, claimed: int | str, found: int | str) -> Claim:
        """Hold what is claimed against what was found."""
        self.claims.append(Claim(scene=scene, what=what, claimed=claimed, found=found))
        return self.claims[-1]

    def counted(self, scene: str, what: str, *, effects: int, requests: int) -> str:
        """Ask the provider how often it acted, and how often it was asked to."""
        found = len(self.provider.effects())
        posts = sum(arrival.method == "POST" for arrival in self.provider.arrivals())
        claims = (
            self.claim(scene, f"{what}s", effects, found),
            self.claim(scene, "requests", requests, posts),
        )
        text = f"the provider counts {_counted(found, what)}, from {_counted(posts, 'request')}"
        if all(claim.holds for claim in claims):
            return text
        return (
            f"{text}: NOT AS CLAIMED ({_counted(effects, what)}, {_counted(requests, 'request')})"
        )

    # --- commands --------------------------------------------------------------------------------

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a `doubtless` command as a process of its own."""
        paths = [str(SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("DOUBTLESS_")
        }
        environment = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "COLUMNS": str(self.width),
            "PYTHONIOENCODING": "utf-8",
            "DOUBTLESS_LEDGER": self.ledger,
            "DOUBTLESS_CONTRACTS": str(self.contracts),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "doubtless.cli", *words],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Run a `doubtless` command, and return its exit code and what it printed."""
        with self.start(*words) as process:
            try:
                printed, _ = process.communicate(timeout=COMMAND_S)
            finally:
                process.kill()  # does nothing to one that has ended
        return process.returncode, printed


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def shown(words: Sequence[str]) -> str:
    """Write a command as a person types it."""
    return "$ doubtless " + " ".join(f"'{word}'" if word[:1] == "{" else word for word in words)
