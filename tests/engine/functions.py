"""Applications with function tools on a ledger of their own, and short times for them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from doubtless import Call, Doubtless, Lookup, Outcome

WITHIN_S = 8.0  # what takes longer is stuck
POLL_S = 0.01

UNKNOWN = "unknown_reconciliation_required"
WRITE: dict[str, Any] = {
    "effect": "write",
    "timeout": "2s",
    "in_flight_horizon": "100ms",
    "retry": {"backoff": "20ms"},
}
"""A plain write of which nobody can be asked."""


def application(folder: Path, **options: Any) -> Doubtless:
    return Doubtless(f"sqlite:///{folder / 'ledger.db'}", **options)


def looks(function: Callable[..., object] | str, **changes: Any) -> Lookup:
    """Declare a look-up in code whose absence is proven within a second."""
    said: dict[str, Any] = {
        "authoritative": True,
        "lag": "0s",
        "confirmations": 2,
        "in_flight_horizon": "100ms",
        "interval": "50ms",
        "interval_max": "100ms",
        "timeout": "500ms",
    }
    return Lookup(function, **{**said, **changes})


def looked_up(function: Callable[..., object], **changes: Any) -> dict[str, Any]:
    """Return the keys of a write that `function` is asked about."""
    return {**WRITE, "timeout": "300ms", "lookup": looks(function), **changes}


async def comes_true(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait for something that nobody announces."""
    with anyio.fail_after(WITHIN_S):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await anyio.sleep(POLL_S)


async def ends(app: Doubtless, state: str, operation_id: str = "o1") -> Outcome:
    """Wait for an operation to come to `state`."""
    found = await app.outcome(operation_id)
    with anyio.move_on_after(WITHIN_S):
        while found.state != state:
            await anyio.sleep(POLL_S)
            found = await app.outcome(operation_id)
    assert found.state == state, (found.state, found.message)
    return found


async def kinds(app: Doubtless, operation_id: str = "o1") -> list[str]:
    return [str(entry["kind"]) for entry in await app.timeline(operation_id)]


async def states(app: Doubtless, operation_id: str = "o1") -> list[str]:
    """Return the states that an operation came to, one after another."""
    told: list[Any] = await app.timeline(operation_id)
    return [entry["operation"]["state"] for entry in told if "state" in entry.get("operation", {})]


async def apart(work) -> asyncio.Task[None]:
    """Run `work` in a task of its own, and return that once it has ended."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=WITHIN_S)
    assert task.done(), "it hangs"
    return task


async def another_is_carried_out(app: Doubtless) -> None:
    @app.tool(name="another", **WRITE)
    async def another(call: Call) -> str:
        await anyio.lowlevel.checkpoint()
        return "done"

    told = await app.call("another", {}, operation_id="after")
    assert told.status == "succeeded"
