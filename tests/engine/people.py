"""Operations that wait for a person, and what is told of a person's decision."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.engine.functions import UNKNOWN, WRITE, comes_true

from doubtless import Call, Doubtless, Outcome
from doubtless.engine.book import Book
from doubtless.engine.surroundings import Surroundings

QUICK: dict[str, Any] = {**WRITE, "timeout": "300ms"}
ARRIVES = timedelta(milliseconds=400)  # of `QUICK`: its time-out and its horizon
SLOW: dict[str, Any] = {**WRITE, "timeout": "300ms", "in_flight_horizon": "1h"}
"""Of which something may still arrive for as long as a test lasts."""


class Acts:
    """What a tool was called for: each of its attempts, and which of them bring no answer."""

    def __init__(self, lost: int = 1) -> None:
        self.attempts: list[tuple[str, int, str]] = []  # operation, number, key
        self._lost = lost

    def declare(self, app: Doubtless, **changes: Any) -> None:
        """Declare `act`, whose first answers are lost."""

        @app.tool(**{**QUICK, **changes})
        async def act(call: Call, what: str) -> str:
            self.attempts.append((call.operation_id, call.attempt, call.idempotency_key))
            if len(self.attempts) <= self._lost:
                raise OSError
            return f"done {what}"


def book_of(app: Doubtless) -> Book:
    """Return the ledger as the engine of `app` sees it."""
    return Book(app.registry, Surroundings(), app.ledger.id)


async def asked(app: Doubtless, operation_id: str | None = "o1", **options: Any) -> Outcome:
    return await app.call("act", {"what": "x"}, operation_id=operation_id, **options)


async def reviewed(app: Doubtless, operation_id: str = "o1") -> Outcome:
    """Call `act`, and be sure that a person has to decide about it."""
    told = await asked(app, operation_id)
    assert (told.status, told.state) == (UNKNOWN, "manual_review")
    assert (told.recovery, told.acts) == ("needs_operator", {"who": "operator", "by": None})
    return told


async def decides(app: Doubtless, word: str, operation_id: str = "o1", **options: Any) -> Outcome:
    return await app.resolve(operation_id, word, operator="ops", note="looked there", **options)


async def arrived(told: Outcome) -> None:
    """Wait until nothing can arrive any more of what `QUICK` sent, as `told` of."""
    end = datetime.fromisoformat(str(told.sent_at)) + ARRIVES
    await comes_true(lambda: datetime.now(UTC) > end)


async def entries(app: Doubtless, kind: str, operation_id: str = "o1") -> list[dict[str, Any]]:
    """Return the entries of one kind in an operation's timeline."""
    told: list[dict[str, Any]] = await app.timeline(operation_id)
    return [entry for entry in told if entry["kind"] == kind]


async def by_operator(app: Doubtless, operation_id: str = "o1") -> list[dict[str, Any]]:
    """Return what a person did."""
    told: list[dict[str, Any]] = await app.timeline(operation_id)
    return [entry for entry in told if entry["role"] == "operator"]
