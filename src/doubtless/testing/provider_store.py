"""What the simulated provider knows: its objects with their history, and its count of effects.

The count is the ground truth of every test. It is written where an effect is committed and
nowhere else.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from doubtless.testing.provider_http import Answer, Head, Request
from doubtless.testing.provider_rules import Json

EffectKind = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One change that the provider really made."""

    number: int  # 1-based, in the order of commits
    kind: EffectKind
    collection: str
    id: str  # of the object
    key: str | None  # the Idempotency-Key of the request
    operation: str | None  # metadata.operation of the request's body
    amount: int | None
    correlation_id: str | None  # X-Correlation-ID of the request
    request: int  # the arrival's number
    at: float  # seconds since 1970, UTC, the provider's clock


@dataclass(slots=True, kw_only=True)
class Arrival:
    """One request head that reached the provider, and what came of it. Filled in as it goes."""

    number: int  # 1-based
    method: str
    target: str  # with the query
    path: str
    key: str | None
    correlation_id: str | None
    headers: dict[str, str]
    at: float  # seconds since 1970, UTC, the provider's clock
    action: str | None = None  # the fault that was asked for
    body_complete: bool = False
    committed: bool = False  # an effect was committed by this very request
    status: int | None = None  # of the answer that was handed to the socket; None: no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The request by which something happened."""

    number: int = 0  # the arrival's; zero: no request, but the test's own set-up
    key: str | None = None
    operation: str | None = None
    amount: int | None = None
    correlation_id: str | None = None

    @classmethod
    def of(cls, request: Request, fields: Mapping[str, Json]) -> Origin:
        """Take from `request` what an effect is to be recorded with."""
        metadata = fields.get("metadata")
        operation = metadata.get("operation") if isinstance(metadata, dict) else None
        amount = fields.get("amount")
        return cls(
            number=request.number,
            key=request.head.key,
            operation=None if operation is None else str(operation),
            amount=amount if isinstance(amount, int) else None,
            correlation_id=request.head.headers.get("x-correlation-id"),
        )


@dataclass(slots=True, kw_only=True)
class Item:
    """One object with all its versions, so that a lagging read can show an older one."""

    collection: str
    id: str
    content: dict[str, Json]  # what the client sent, for comparing a second PUT
    origin: Origin
    history: list[tuple[float, dict[str, Json] | None]] = field(default_factory=list)

    @property
    def now(self) -> dict[str, Json] | None:
        """The object as it is, or None once it is deleted."""
        return self.history[-1][1]

    @property
    def version(self) -> int:
        """How many versions there were. Never repeats."""
        return len(self.history)

    def seen(self, lag_s: float) -> dict[str, Json] | None:
        """Return the object as a read side shows it that trails by `lag_s` seconds."""
        cutoff = time.monotonic() - lag_s
        past = [snapshot for at, snapshot in self.history if at <= cutoff]
        return past[-1] if past else None

    def write(self, snapshot: dict[str, Json] | None) -> None:
        """Add a version; None deletes."""
        if snapshot is not None:
            snapshot = {**snapshot, "version": self.version + 1}
        self.history.append((time.monotonic(), snapshot))

    def answer(self, status: int = 200) -> Answer:
        """Return the object as it is now, with its ETag, as a response."""
        if self.now is None:
            return Answer.of(status, {"id": self.id, "deleted": True, "status": "deleted"})
        return Answer.of(status, self.now, {"etag": f'"{self.version}"'})


class Store:
    """All objects, effects and arrivals of one provider.

    Args:
        log: Where every effect is appended as one JSON line, on disk before the request goes on.
    """

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._clear()

    def _clear(self) -> None:
        self.items: dict[tuple[str, str], Item] = {}
        self.effects: list[Effect] = []
        self.arrivals: list[Arrival] = []
        self.connections = 0  # accepted on the provider's own port

    def reset(self) -> None:
        """Forget everything but the log, which only grows."""
        self._clear()

    def arrive(self, head: Head) -> Arrival:
        """Record that a request's head was read."""
        arrival = Arrival(
            number=len(self.arrivals) + 1,
            method=head.method,
            target=head.target,
            path=head.path,
            key=head.key,
            correlation_id=head.headers.get("x-correlation-id"),
            headers=dict(head.headers),
            at=time.time(),
        )
        self.arrivals.append(arrival)
        return arrival

    def of(self, collection: str) -> Iterator[Item]:
        """Yield the items of `collection`, oldest first."""
        return (item for item in self.items.values() if item.collection == collection)

    def create(
        self,
        collection: str,
        content: dict[str, Json],
        origin: Origin,
        *,
        status: str,
        client_id: str | None = None,
        counted: bool = True,
    ) -> Item:
        """Add an object. It is an effect, unless it is pending or not `counted`."""
        singular = collection.removesuffix("s")
        number = len(self.items) + 1
        item = Item(
            collection=collection,
            id=client_id or f"{_PREFIXES.get(collection, singular)}_{number:06d}",
            content=content,
            origin=origin,
        )
        item.write(
            {"id": item.id, "object": singular, **content, "status": status, "created": time.time()}
        )
        # A new object under a deleted one's id starts a new item, as in most providers.
        self.items[collection, item.id] = item
        if counted and status != "pending":
            self.record("create", item, origin)
        return item

    def record(self, kind: EffectKind, item: Item, origin: Origin) -> None:
        """Count one effect. With a log, it is on disk when this returns."""
        effect = Effect(
            number=len(self.effects) + 1,
            kind=kind,
            collection=item.collection,
            id=item.id,
            key=origin.key,
            operation=origin.operation,
            amount=origin.amount,
            correlation_id=origin.correlation_id,
            request=origin.number,
            at=time.time(),
        )
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(asdict(effect)) + "\n")
                log.flush()
                os.fsync(log.fileno())
        self.effects.append(effect)
        if origin.number:  # zero: work that was there before any request
            self.arrivals[origin.number - 1].committed = True

    def complete(self, item: Item, status: str) -> None:
        """Finish pending work. Success is the moment at which the effect is made."""
        item.write({**(item.now or {}), "status": status})
        if status == "succeeded":
            self.record("create", item, item.origin)

    def found(self, operation: str | None, collection: str | None, key: str | None) -> list[Effect]:
        """Return the effects, in the order of commits; what is given must be equal."""
        return [
            effect
            for effect in self.effects
            if operation in (None, effect.operation)
            and collection in (None, effect.collection)
            and key in (None, effect.key)
        ]

    def pending(self) -> list[Item]:
        """Return what was accepted and is not finished."""
        items = self.items.values()
        return [item for item in items if item.now and item.now["status"] == "pending"]

    def counts(self) -> dict[str, int]:
        """Return the number of effects by operation; those without one stand under ""."""
        return dict(Counter(effect.operation or "" for effect in self.effects))


_PREFIXES = {"refunds": "re", "charges": "ch", "payments": "pay", "orders": "ord"}
