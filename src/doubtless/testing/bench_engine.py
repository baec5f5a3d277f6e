"""The engine with a tool that does nothing, and the ledger alone with two units an operation."""

import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio

from doubtless.core.model import Effect, Operation, Principal, Role, State
from doubtless.engine.app import Doubtless
from doubtless.engine.tools import Call
from doubtless.ledger import operations
from doubtless.ledger.store import Ledger, Stats, Transaction, open_ledger

WARM_UP = 20  # calls before the clock starts
AGENT = Principal(name="agent", role=Role.AGENT)


async def rate_of(
    work: Callable[[int], Awaitable[None]], callers: int, seconds: float, stats: Stats
) -> tuple[float, float]:
    """Return operations a second of so many callers at once, and units in a batch on average."""
    numbers = itertools.count()
    for _ in range(WARM_UP):
        await work(next(numbers))
    batches, units, done = stats.batches, stats.units, 0
    begun_s = time.perf_counter()
    end_s = begun_s + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await work(next(numbers))
            done += 1

    async with anyio.create_task_group() as group:
        for _ in range(callers):
            group.start_soon(caller)
    taken_s = time.perf_counter() - begun_s
    return done / taken_s, (stats.units - units) / max(1, stats.batches - batches)


async def engine(folder: Path, callers: int, seconds: float) -> tuple[float, float]:
    """Measure whole operations: prepared, gated, carried out, settled, all durable."""
    stats: list[Stats] = []
    ledger = open_ledger(f"sqlite:///{folder / f'engine-{callers}.db'}")
    with ledger:
        stats.append(ledger.stats)
        app = Doubtless(ledger)

        @app.tool(effect=Effect.WRITE)
        async def nothing(_call: Call, number: int) -> dict[str, int]:
            return {"number": number}

        async def work(number: int) -> None:
            outcome = await app.call("nothing", {"number": number})
            assert outcome.status == "succeeded", outcome.message

        async with app:
            return await rate_of(work, callers, seconds, ledger.stats)


async def ledger_alone(folder: Path, callers: int, seconds: float) -> tuple[float, float]:
    """Measure two durable units an operation, its intent and its end, without an engine."""
    with open_ledger(f"sqlite:///{folder / f'ledger-{callers}.db'}") as ledger:

        async def work(number: int) -> None:
            await _two_units(ledger, number)

        return await rate_of(work, callers, seconds, ledger.stats)


async def _two_units(ledger: Ledger, number: int) -> None:
    def intend(tx: Transaction) -> Operation:
        return operations.insert(
            tx,
            operation(f"op-{number:09}", tx.now_ms),
            bodies={},
            contract_json=None,
            principal=AGENT,
            inputs={},
        )

    intended = await ledger.commit(intend)

    def end(tx: Transaction) -> None:
        done = replace(intended, state=State.SUCCEEDED, due_ms=None)
        operations.save(tx, intended, done, reason="end", principal=AGENT, inputs={})

    await ledger.commit(end)


def operation(operation_id: str, now_ms: int) -> Operation:
    """Return an operation such as the engine would prepare."""
    return Operation(
        id=operation_id,
        tenant="main",
        tool="nothing",
        effect=Effect.WRITE,
        source="nothing",
        principal="agent",
        session_id="",
        correlation_id=None,
        contract_digest="sha256:0",
        payload_hash=f"sha256:{operation_id}",
        request_digest=f"sha256:{operation_id}",
        ref=operation_id,
        key=operation_id,
        state=State.PREPARED,
        version=1,
        fence=0,
        created_ms=now_ms,
        updated_ms=now_ms,
        due_ms=now_ms,
        valid_until_ms=now_ms + 3_600_000,
        claim=operation_id,
    )
