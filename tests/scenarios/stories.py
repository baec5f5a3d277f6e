"""A story: applications on one ledger, a hostile provider, and what has to hold in all of them.

Whatever an application says goes through `Story.heard`, which holds it against the provider's own
count: no word may be said that is not proven.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from tests.scenarios.contracts import Changes, write_file

from doubtless import Doubtless, Outcome
from doubtless.core.model import Json
from doubtless.errors import OperationNotFound
from doubtless.ledger import attempts, journal, operations
from doubtless.ledger.store import open_ledger
from doubtless.testing.provider import Arrival, Effect, ProviderProcess

REFUND: dict[str, Json] = {"charge": "ch_1", "amount": 500}
WITHIN_S = 15.0  # a story that takes longer is stuck

POLL_S = 0.03

UNKNOWN = "unknown_reconciliation_required"
NOTHING_DONE = ("failed", "failed_safe_to_retry", "rejected_by_policy")
VERDICTS = ("fail", "succe", "done", "error", "refus", "reject", "complet", "did not", "not sent")
"""Words of which none may be said about what is not known."""


class Nursery(Protocol):
    """What starts child processes."""

    def bear(self, line: str) -> None:
        """Start one that does what `line` says."""


class Story:
    """Applications that share a ledger and a contract file."""

    def __init__(
        self,
        provider: ProviderProcess,
        folder: Path,
        nursery: Callable[[], Nursery],
        *,
        ledger: str | None = None,
    ) -> None:
        self.provider, self.folder, self.nursery = provider, folder, nursery
        self.path = folder / "ledger.db"
        self.ledger = ledger or f"sqlite:///{self.path}"
        self.contracts = folder / "contracts.toml"
        self.told: list[str] = []  # every status that was heard, in order

    def declare(self, changes: Changes | None = None, *, url: str | None = None) -> None:
        """Write the contract: the usual one with `changes`, for the provider or for `url`."""
        write_file(self.folder, url or self.provider.url, changes)

    @asynccontextmanager
    async def app(self, *, worker: bool = True) -> AsyncIterator[Doubtless]:
        if not self.contracts.exists():
            self.declare()
        async with Doubtless(self.ledger, contracts=self.contracts, worker=worker) as app:
            yield app

    # --- asking ----------------------------------------------------------------------------------

    async def call(
        self,
        app: Doubtless,
        operation_id: str | None = "r1",
        *,
        wait_s: float | None = None,
        **arguments: Json,
    ) -> Outcome:
        """Call the tool as an agent does."""
        asked = {**REFUND, **arguments}
        return self.heard(await app.call("refund", asked, operation_id=operation_id, wait_s=wait_s))

    async def ends(self, app: Doubtless, state: str, operation_id: str = "r1") -> Outcome:
        """Wait for the operation to come to `state`, and listen to all that is said meanwhile."""

        def there(found: Outcome) -> bool:
            return found.state == state

        return await self.until(app, there, operation_id)

    async def until(
        self, app: Doubtless, ready: Callable[[Outcome], bool], operation_id: str = "r1"
    ) -> Outcome:
        """Wait for an outcome that is `ready`, and listen to all that is said meanwhile."""
        found = self.heard(await app.outcome(operation_id))
        with anyio.move_on_after(WITHIN_S):
            while not ready(found):
                await anyio.sleep(POLL_S)
                found = self.heard(await app.outcome(operation_id))
        if not ready(found):
            trace = "\n".join(map(_line, await app.timeline(operation_id)))
            raise AssertionError(f"it came to {found.state}, {found.message}\n{trace}")
        return found

    async def knows(self, app: Doubtless, operation_id: str) -> bool:
        """Say whether the ledger holds the operation."""
        try:
            self.heard(await app.outcome(operation_id))
        except OperationNotFound:
            return False
        return True

    async def begun(self, app: Doubtless, operation_id: str = "r1") -> None:
        """Wait until there is such an operation, whoever called it."""
        await comes_true(lambda: self.knows(app, operation_id))

    async def until_told(self, app: Doubtless, words: str, operation_id: str = "r1") -> None:
        """Wait until the timeline holds an entry with `words`."""

        async def told() -> bool:
            return words in str(await app.timeline(operation_id))

        await comes_true(told)

    async def seen(self, condition: Callable[[ProviderProcess], bool]) -> None:
        """Wait for something to be true of the provider."""
        await anyio.to_thread.run_sync(lambda: self.provider.wait_for(condition))

    # --- what was said ---------------------------------------------------------------------------

    def heard(self, outcome: Outcome) -> Outcome:
        """Hold what was said against what is true."""
        self.told.append(outcome.status)
        if outcome.status == UNKNOWN:
            self._says_nothing_about_the_effect(outcome)
            assert outcome.message.startswith("It is not known whether refund took effect.")
            assert outcome.acts["who"] in ("worker", "operator")
        elif outcome.status == "pending":
            self._says_nothing_about_the_effect(outcome)
        elif outcome.ref is not None:
            effects = self.effects(outcome)
            assert len(effects) <= 1, effects
            assert outcome.status in ("succeeded", *NOTHING_DONE)
            if "it may still arrive until" not in outcome.message:
                assert bool(effects) == (outcome.status == "succeeded"), (outcome, effects)
        return outcome

    def hear(self, told: dict[str, Any]) -> Outcome:
        """Hold what a child process was told against what is true."""
        return self.heard(Outcome(**told))

    def _says_nothing_about_the_effect(self, outcome: Outcome) -> None:
        said = outcome.message.lower()
        assert [word for word in VERDICTS if word in said] == []
        assert "Do not repeat it and do not try a variant" in outcome.message
        assert outcome.outcome in ("unknown", "pending")
        assert not outcome.retry_allowed
        assert not outcome.already_done
        assert outcome.result is None
        assert outcome.error is None

    # --- what happened ---------------------------------------------------------------------------

    def effects(self, outcome: Outcome) -> list[Effect]:
        """Return the operation's effects, as the provider counted them."""
        return self.provider.effects(operation=outcome.ref)

    def sends(self) -> list[Arrival]:
        """Return the requests that could have had an effect."""
        return [arrival for arrival in self.provider.arrivals() if arrival.method == "POST"]

    def looks(self) -> list[Arrival]:
        return [arrival for arrival in self.provider.arrivals() if arrival.method == "GET"]

    def happened(self, outcome: Outcome, *, effects: int, sends: int) -> None:
        """Check the provider's count, and that all that it got was under one key."""
        assert len(self.effects(outcome)) == effects
        arrived = self.sends()
        assert len(arrived) == sends, arrived
        assert {arrival.key for arrival in arrived} <= {outcome.idempotency_key}
        numbers = [arrival.correlation_id for arrival in arrived]
        assert len(set(numbers)) == len(numbers), "each attempt has an id of its own"

    def check_the_ledger(self) -> None:
        """Check that the journal tells how each operation came to stand where it stands."""
        if self.ledger.startswith("sqlite:") and not self.path.exists():
            return
        with open_ledger(self.ledger, inline=True) as ledger:
            ids = ledger.read(lambda tx: tx.tuples("select id from operation"))
            for (operation_id,) in ids:

                def whole(tx, operation_id=operation_id) -> None:
                    told = journal.replay(journal.journal_of(tx, "main", operation_id))
                    assert told.operation == operations.get(tx, "main", operation_id)
                    assert told.attempts == attempts.attempts_of(tx, "main", operation_id)

                ledger.read(whole)


async def comes_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that nobody announces."""
    with anyio.fail_after(WITHIN_S):
        while not await condition():  # noqa: ASYNC110
            await anyio.sleep(POLL_S)


def _line(entry: Mapping[str, Json]) -> str:
    """Write one entry of the timeline in short, for whoever reads that a story went wrong."""
    short = {"operation": ("state", "cause", "due_ms"), "attempt": ("number", "observation")}
    short["evidence"] = ("source", "shows", "detail")
    told = [str(entry["at"]), str(entry["kind"]), str(entry.get("reason", ""))]
    for name, keys in short.items():
        part = entry.get(name)
        if isinstance(part, Mapping):
            told.append(str({key: part[key] for key in keys if key in part}))
    return " ".join(told)
