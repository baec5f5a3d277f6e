"""An application that ends in mid-flight, and one that lacks the function of an operation."""

import asyncio
import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.engine.functions import (
    UNKNOWN,
    WITHIN_S,
    WRITE,
    another_is_carried_out,
    apart,
    application,
    comes_true,
    ends,
    looked_up,
)

from doubtless import Absent, Call, Doubtless, Effect, NotSent, Present


@pytest.mark.proves("TOOL-6", "ENGINE-6")
async def test_a_thread_that_outlives_its_application_is_not_taken_for_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("doubtless.engine.app.GRACE_S", 0.05)
    started, go, over = threading.Event(), threading.Event(), threading.Event()
    effects: list[int] = []
    asked: list[int] = []

    def find(operation) -> Present | Absent:
        asked.append(1)
        return Present() if effects else Absent()

    def declare(app: Doubtless) -> None:
        keys = looked_up(find, on_absent="resend", recovery_deadline="20s", timeout="1s")

        @app.tool(**keys)
        def act(call: Call) -> None:
            started.set()
            if call.attempt == 1:
                go.wait(WITHIN_S)
            effects.append(call.attempt)
            if call.attempt == 1:
                over.set()

    async with application(tmp_path, worker=False) as app:
        declare(app)
        await app.call("act", {}, operation_id="o1", wait_s=0)
        await anyio.to_thread.run_sync(started.wait)
    try:
        async with application(tmp_path) as app:
            declare(app)
            with anyio.move_on_after(1.5):
                await comes_true(lambda: len(effects) > 0)
    finally:
        go.set()
        await anyio.to_thread.run_sync(over.wait)
    assert effects == [1]


@pytest.mark.proves("ENGINE-6")
async def test_an_attempt_that_an_ending_application_cuts_off_is_recorded_as_unknown(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("doubtless.engine.app.GRACE_S", 0.05)
    started = asyncio.Event()
    async with application(tmp_path) as app:

        @app.tool(**{**WRITE, "timeout": "20s"})
        async def act(call: Call) -> None:
            started.set()
            await asyncio.Event().wait()

        await app.call("act", {}, operation_id="o1", wait_s=0)
        await started.wait()
    async with application(tmp_path, worker=False) as app:
        told = await app.outcome("o1")
    assert told.status == UNKNOWN
    assert told.observation is not None
    assert (told.observation["class"], told.observation["cause"]) == ("unknown", "cancelled")


@pytest.mark.proves("ENGINE-7")
async def test_an_application_whose_surrounding_scope_is_cancelled_closes_in_order(tmp_path):
    async def story() -> None:
        patience_s = 0.3
        with anyio.move_on_after(patience_s) as scope:
            async with application(tmp_path) as app:

                @app.tool(**{**WRITE, "timeout": "1s"})
                async def act(call: Call) -> None:
                    await asyncio.Event().wait()

                await app.call("act", {}, operation_id="o1")
        assert scope.cancelled_caught

    told = await apart(story())
    assert not told.cancelled()
    assert told.exception() is None
    async with application(tmp_path, worker=False) as app:
        assert (await app.outcome("o1")).status == UNKNOWN


@pytest.mark.proves("ENGINE-7")
async def test_what_is_raised_inside_an_open_application_comes_out_as_it_is(tmp_path):
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with application(tmp_path):
            raise Mine


@pytest.mark.proves("ENGINE-7")
async def test_an_application_whose_task_is_cancelled_lets_its_attempt_end(tmp_path):
    started = asyncio.Event()

    async def story() -> None:
        async with application(tmp_path) as app:

            @app.tool(**WRITE)
            async def act(call: Call) -> str:
                started.set()
                later_s = 0.1
                await anyio.sleep(later_s)
                return "done"

            await app.call("act", {}, operation_id="o1")

    task = asyncio.create_task(story())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with application(tmp_path, worker=False) as app:
        assert (await app.outcome("o1")).result == "done"


@pytest.mark.proves("ENGINE-4")
async def test_an_operation_is_not_touched_by_a_process_that_lacks_its_function(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("doubtless.engine.dispatcher.SOMEWHERE_ELSE_S", 0.05)
    async with application(tmp_path, worker=False) as app:

        @app.tool(**WRITE)
        async def act(call: Call) -> None:
            raise NotSent("there was no route")

        await app.call("act", {}, operation_id="o1", wait_s=0)
        before = await ends(app, "prepared")
    async with application(tmp_path) as other:
        await another_is_carried_out(other)  # its worker is at work
        with anyio.move_on_after(0.6):
            await comes_true(lambda: False)
        after = await other.outcome("o1")
    assert (after.state, after.version) == ("prepared", before.version)


@pytest.mark.proves("ENGINE-7")
async def test_what_a_cancelled_caller_left_in_the_ledger_s_queue_is_carried_out(tmp_path, caplog):
    done: list[int] = []
    address = f"sqlite:///{tmp_path / 'd.db'}"
    async with Doubtless(address) as app:

        @app.tool(effect=Effect.WRITE)
        async def note(call, number: int) -> None:
            done.append(number)

        asking = [
            asyncio.create_task(app.call("note", {"number": number}, operation_id=f"op-{number}"))
            for number in range(5)
        ]
        await anyio.lowlevel.checkpoint()
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
    async with Doubtless(address) as app:
        states = [(await app.outcome(f"op-{number}")).state for number in range(5)]
    assert (sorted(done), set(states)) == (list(range(5)), {"succeeded"})
    assert "was closed before" not in caplog.text
