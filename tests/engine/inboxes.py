"""Tools whose provider tells by events what became of them."""

from typing import Any

import anyio
from tests.engine.functions import WRITE

from doubtless import Call, Doubtless, Outcome
from doubtless.engine.events import InboxEvent, Ingested

MATCH = {"ref": "data.ref", "provider_operation_id": "data.id", "operation_id": "data.name"}
EVENTS: dict[str, Any] = {
    "types": ["paid", "refused", "moved"],
    "match": MATCH,
    "object": ["data.id", "data.version"],
    "applied": "data.status == 'done'",
    "failed": "data.status == 'failed'",
}
SOURCE = "payments"


class Acts:
    """What a tool was called for, and when its answers are given or lost."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.goes_on = anyio.Event()
        self.answer: Any = None  # None: it is lost
        self.names: str | None = None  # the provider's id, told before the answer is lost

    def declare(self, app: Doubtless, name: str = "act", **changes: Any) -> None:
        """Declare a write of which only events tell."""

        @app.tool(name=name, **{**WRITE, "source": SOURCE, "events": EVENTS, **changes})
        async def act(call: Call, what: str) -> Any:
            self.calls.append(call)
            await self.goes_on.wait()
            if self.names is not None:
                call.applied(self.names)
            if self.answer is None:
                raise OSError
            return self.answer


def said(status: str = "done", *, kind: str = "paid", event_id: str = "e1", **data: Any) -> Any:
    """Write an event; `at` is when it happened, in Unix seconds."""
    at = data.pop("at", None)
    body = {"id": event_id, "type": kind, "data": {"status": status, **data}}
    return body if at is None else {**body, "at": at}


async def tells(app: Doubtless, event: Any, **options: Any) -> Ingested:
    """Hand an event over, with its own time."""
    return await app.ingest(SOURCE, event, occurred_at=event.get("at"), **options)


async def unknown(app: Doubtless, acts: Acts, operation_id: str = "o1") -> Outcome:
    """Call, lose the answer, and return what is told."""
    acts.goes_on.set()
    told = await app.call("act", {"what": operation_id}, operation_id=operation_id)
    assert told.state == "unknown", told
    return told


async def evidence(app: Doubtless, operation_id: str = "o1") -> list[dict[str, Any]]:
    """Return what events showed of an operation, in order."""
    told: list[dict[str, Any]] = await app.timeline(operation_id)
    found = [entry["evidence"] for entry in told if "evidence" in entry]
    return [item for item in found if item["source"] == "webhook"]


async def inbox(app: Doubtless, **options: Any) -> list[InboxEvent]:
    return list((await app.events(**options)).events)
