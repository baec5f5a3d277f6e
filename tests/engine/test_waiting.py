"""Who waits for an operation: woken at once where it is carried out, by polling elsewhere."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.functions import WITHIN_S, WRITE, application

from doubtless import Call
from doubtless.core.model import Effect, Operation, Record, State
from doubtless.engine.waiting import Waiting
from doubtless.errors import OperationNotFound

LONG_S = 3_600.0


def record(state: State = State.EXECUTING, name: str = "o1") -> Record:
    """Return an operation that came to `state`."""
    return Record(
        operation=Operation(
            id=name,
            tenant="main",
            tool="act",
            effect=Effect.WRITE,
            source="act",
            principal="local",
            session_id="",
            correlation_id=None,
            contract_digest="",
            payload_hash="",
            request_digest="",
            ref=name,
            key=name,
            state=state,
            version=1,
            fence=0,
            created_ms=0,
            updated_ms=0,
            due_ms=None if state.ends else 0,
            valid_until_ms=0,
        )
    )


def ended(found: Record) -> bool:
    return found.operation.state.ends


class Stored:
    """A ledger that counts how often it is read."""

    def __init__(self) -> None:
        self.record, self.reads = record(), 0

    def load(self, operation_id: str) -> Record:
        self.reads += 1
        if operation_id != self.record.operation.id:
            raise OperationNotFound(operation_id)
        return self.record


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def waiting(stored) -> Waiting:
    return Waiting(stored.load)


@pytest.fixture
def patient(monkeypatch) -> None:
    """Poll so rarely that nothing is found that way."""
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MIN_S", LONG_S)
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MAX_S", LONG_S)


def wait(waiting: Waiting, **options: Any) -> asyncio.Task[Any]:
    said: dict[str, Any] = {"timeout_s": LONG_S, **options}
    return asyncio.create_task(waiting.until("o1", ended, **said))


def waiters(waiting: Waiting) -> int:
    """Return how many are waiting, for whatever operation."""
    return sum(len(each) for each in waiting._waiters.values())  # noqa: SLF001 - seen nowhere else


async def listening(waiting: Waiting, count: int = 1) -> None:
    with anyio.fail_after(WITHIN_S):
        while waiters(waiting) < count:
            await anyio.lowlevel.checkpoint()


@pytest.mark.proves("ENGINE-22")
async def test_all_who_wait_are_woken_at_once_with_what_is_known(waiting, stored, patient):
    tasks = [wait(waiting) for _ in range(3)]
    await listening(waiting, 3)
    reads = stored.reads
    waiting.changed(record(State.SUCCEEDED, "another"))
    waiting.changed(record(State.SUCCEEDED), b'"done"')
    with anyio.fail_after(WITHIN_S):
        found = await asyncio.gather(*tasks)
    assert [known.result for known in found] == [b'"done"'] * 3
    assert stored.reads == reads
    assert waiters(waiting) == 0


@pytest.mark.proves("ENGINE-22")
async def test_news_that_is_not_waited_for_is_waited_past(waiting, stored, patient):
    task = wait(waiting)
    await listening(waiting)
    for state in (State.UNKNOWN, State.RECONCILING):
        waiting.changed(record(state))
        await anyio.lowlevel.checkpoint()
    assert not task.done()
    waiting.changed(record(State.FAILED))
    with anyio.fail_after(WITHIN_S):
        found = await task
    assert (found.record.operation.state, found.result) == (State.FAILED, None)


@pytest.mark.proves("ENGINE-22")
async def test_news_that_comes_before_the_last_was_heard_is_not_lost(waiting, stored, patient):
    task = wait(waiting)
    await listening(waiting)
    waiting.changed(record(State.UNKNOWN))
    waiting.changed(record(State.SUCCEEDED), b"1")
    with anyio.fail_after(WITHIN_S):
        assert (await task).result == b"1"


@pytest.mark.proves("ENGINE-22")
async def test_what_nobody_tells_is_found_by_asking_the_ledger(waiting, stored, monkeypatch):
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MIN_S", 0.001)
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MAX_S", 0.004)
    task = wait(waiting)
    await listening(waiting)
    stored.record = record(State.SUCCEEDED)
    with anyio.fail_after(WITHIN_S):
        found = await task
    assert found.record is stored.record


@pytest.mark.proves("ENGINE-22")
async def test_who_has_no_time_reads_once_and_is_told_how_it_stands(waiting, stored):
    found = await waiting.until("o1", ended, timeout_s=0)
    assert (found.record, stored.reads) == (stored.record, 1)
    stored.record = record(State.SUCCEEDED)
    assert (await waiting.until("o1", ended, timeout_s=LONG_S)).record is stored.record
    assert stored.reads == 2


@pytest.mark.proves("ENGINE-22")
async def test_when_time_is_up_it_is_told_as_it_stands(waiting, stored):
    patience_s = 0.05
    found = await waiting.until("o1", ended, timeout_s=patience_s)
    assert found.record is stored.record
    assert waiters(waiting) == 0


@pytest.mark.proves("ENGINE-22")
async def test_what_is_known_already_is_not_read_again(waiting, stored, patient):
    known = record(State.SUCCEEDED)
    found = await waiting.until("o1", ended, timeout_s=LONG_S, record=known)
    assert (found.record, stored.reads) == (known, 0)


@pytest.mark.proves("ENGINE-22")
async def test_who_gives_up_or_asks_for_nothing_that_is_there_leaves_no_trace(
    waiting, stored, patient
):
    task = wait(waiting)
    await listening(waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(OperationNotFound):
        await waiting.until("nothing", ended, timeout_s=LONG_S)
    assert waiters(waiting) == 0


@pytest.mark.proves("ENGINE-22")
async def test_a_caller_in_the_same_process_is_woken_and_one_elsewhere_polls(tmp_path, patient):
    go = asyncio.Event()

    async with application(tmp_path, worker=False) as app:

        @app.tool(**WRITE)
        async def act(call: Call) -> str:
            await go.wait()
            return "done"

        await app.call("act", {}, operation_id="o1", wait_s=0)
        async with application(tmp_path, worker=False) as other:
            here = asyncio.create_task(app.wait("o1", timeout=LONG_S))
            there = asyncio.create_task(other.wait("o1", timeout=LONG_S))
            await anyio.lowlevel.checkpoint()
            go.set()
            with anyio.fail_after(WITHIN_S):
                assert (await here).result == "done"
            assert not there.done()  # nobody tells it, and it asks rarely here
            there.cancel()
            await asyncio.wait({there})
            assert (await other.wait("o1", timeout=LONG_S)).result == "done"


@pytest.mark.proves("ENGINE-22")
async def test_a_caller_on_another_application_is_told_by_the_ledger(tmp_path):
    go = asyncio.Event()
    async with application(tmp_path, worker=False) as app:

        @app.tool(**WRITE)
        async def act(call: Call) -> str:
            await go.wait()
            return "done"

        await app.call("act", {}, operation_id="o1", wait_s=0)
        async with application(tmp_path, worker=False) as other:
            there = asyncio.create_task(other.wait("o1", timeout=WITHIN_S))
            await anyio.lowlevel.checkpoint()
            assert not there.done()
            go.set()
            assert (await there).result == "done"
