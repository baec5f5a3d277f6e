"""What reaches the simulated world, what it answers, and what it keeps of it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from doubtless.core.contract import Contract
from doubtless.core.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What comes back. Without a status nothing came, but the end of the connection."""

    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True

    @classmethod
    def of(cls, status: int, body: Json, **headers: str) -> "Answer":
        """Answer in JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(
            status=status,
            body=json.dumps(body).encode(),
            headers={"content-type": "application/json", **named},
        )


LOST = Answer()
LOGIN_PAGE = Answer(
    status=200, body=b"<html>Please log in</html>", headers={"content-type": "text/html"}
)


@dataclass(eq=False, slots=True, kw_only=True)
class Order:
    """One request for an action, from its first byte on."""

    contract: Contract
    ref: str  # of the operation
    attempt: int
    arguments: Mapping[str, Json]
    key: str | None
    content: bytes  # what must be the same for every attempt
    written_s: float = 0.0
    latest_s: float = 0.0  # it can take effect until then
    is_over: bool = False  # nothing of it can take effect any more
    took_effect: bool = False
    answer: "asyncio.Future[Answer]"

    @property
    def name(self) -> str:
        """How traces call it."""
        return f"{self.ref[:6]}/{self.attempt}"


@dataclass(eq=False, slots=True, kw_only=True)
class Thing:
    """One object of the provider's, with its history, so that a lagging read shows an older one."""

    id: str
    tool: str
    ref: str | None  # None: somebody else's
    key: str | None
    target: str
    amount: int
    history: list[tuple[float, str]] = field(default_factory=list)

    def status(self, at_s: float) -> str | None:
        """Return its status as it was at an instant; None before it existed."""
        past = [status for since_s, status in self.history if since_s <= at_s]
        return past[-1] if past else None

    def shown(self, at_s: float) -> dict[str, Json]:
        """Return it as the provider's interface shows it."""
        return {
            "id": self.id,
            "status": self.status(at_s),
            "target": self.target,
            "amount": self.amount,
            "key": self.key,
            "metadata": {"operation": self.ref},
        }


@dataclass(eq=False, slots=True, kw_only=True)
class KeyRecord:
    """What the provider remembers of one key."""

    content: bytes
    first_s: float
    is_running: bool = True
    answer: Answer | None = None
    thing: Thing | None = None
    waiting: list[Order] = field(default_factory=list)
