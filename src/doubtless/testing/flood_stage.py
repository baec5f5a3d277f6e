"""What a flood of webhooks runs on: contracts, a service that can be killed, and its ledger."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from doubtless.ledger import inbox, operations
from doubtless.ledger.attempts import evidence_of
from doubtless.ledger.codec import text_of
from doubtless.ledger.store import Transaction, open_ledger

SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of an example, published
URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")
SOURCE_ROOT: Final = Path(__file__).parents[2]

CONTRACT: Final = """
[sources.payments]
base_url = "{url}"
webhook = {{ scheme = "standard", credential = "payments-hook", occurred_at = "created" }}

[tools.refund]
effect = "money"
source = "payments"
business_key = ["charge"]
timeout = "10s"
in_flight_horizon = "2s"
recovery_deadline = "2h"
arguments = {{ type = "object", required = ["charge"], properties.charge = {{ type = "string" }} }}

[tools.refund.request]
method = "POST"
path = "/v1/refunds"
json.charge = "{{args.charge}}"
json.amount = 500
json.metadata.operation = "{{operation.ref}}"

[tools.refund.events]
types = ["refund.updated"]
match = {{ operation_id = "data.name", provider_operation_id = "data.id" }}
object = ["data.id", "data.version"]
applied = "data.status == 'succeeded'"
failed = "data.status == 'failed'"
"""


class Killable:
    """`doubtless serve` on a ledger of its own, which can be killed and started again."""

    def __init__(self, folder: Path, provider_url: str) -> None:
        self._folder = folder
        self.address = f"sqlite:///{folder / 'doubtless.db'}"
        text = CONTRACT.format(url=provider_url)
        (folder / "contracts.toml").write_text(text, encoding="utf-8")
        paths = [str(SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "DOUBTLESS_LEDGER": self.address,
            "DOUBTLESS_SECRET_PAYMENTS_HOOK": SECRET,
        }
        words = ("token", "create", "--role", "agent", "--name", "flood")
        made = subprocess.run(
            self._command(*words), env=self._environment, capture_output=True, text=True, check=True
        )
        self.token = made.stdout.strip()
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "doubtless.cli", *words]

    def start(self) -> None:
        """Start it, and wait until it listens.

        Raises:
            RuntimeError: It did not start; the text is its log.
        """
        log = self._folder / "service.log"
        with log.open("a", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                self._command("serve", "--port", "0", "--contracts", "contracts.toml"),
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := URL.search(line):
                self.url = found.group(0)
                return
        raise RuntimeError(f"the service did not start: {log.read_text(encoding='utf-8')}")

    def kill(self) -> None:
        """SIGKILL it: no handler runs, and nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    # --- what the ledger holds -------------------------------------------------------------------

    def stored(self) -> set[str]:
        """Return the ids of all events that are in the ledger."""

        def unit(tx: Transaction) -> set[str]:
            return {text_of(row[0]) for row in tx.tuples("select event_id from event")}

        with open_ledger(self.address) as ledger:
            return ledger.read(unit)

    def unmatched(self) -> int:
        """Return how many events belong to no operation."""
        with open_ledger(self.address) as ledger:
            return sum(ledger.read(lambda tx: inbox.unmatched_counts(tx, "main")).values())

    def counted(self, names: list[str]) -> dict[str, tuple[str, list[str]]]:
        """Return the state of each operation, and the events that count as its evidence."""

        def unit(tx: Transaction) -> dict[str, tuple[str, list[str]]]:
            found = {}
            for name in names:
                operation = operations.get(tx, "main", name)
                items = evidence_of(tx, "main", name)
                told = [item.detail for item in items if item.source == "webhook"]
                found[name] = (operation.state.value if operation else "absent", told)
            return found

        with open_ledger(self.address) as ledger:
            return ledger.read(unit)
