"""Callers that give up, and functions that are cancelled or run out of time."""

import asyncio
import sys
import threading

import anyio
import anyio.lowlevel
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

from doubtless import Absent, Call, Present


def cancelled_future():
    """Return what a library's own cancelled work looks like to whoever awaits it."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


# --- the caller ----------------------------------------------------------------------------------


@pytest.mark.proves("TOOL-8")
async def test_a_caller_cancelled_while_its_call_is_being_recorded_does_not_stop_the_attempt(
    tmp_path,
):
    acted: list[int] = []
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call, number: int) -> None:
            acted.append(number)

        for number in range(10):
            calling = asyncio.create_task(
                app.call("act", {"number": number}, operation_id=f"o{number}")
            )
            await anyio.lowlevel.checkpoint()  # it has begun, and waits for the ledger
            calling.cancel()
            await asyncio.wait({calling})
        for number in range(10):
            told = await app.call("act", {"number": number}, operation_id=f"o{number}", wait_s=0.2)
            assert told.status == "succeeded"
    assert sorted(acted) == list(range(10))


@pytest.mark.proves("TOOL-8")
@pytest.mark.parametrize("by", ["task", "patience"])
async def test_a_caller_that_gives_up_does_not_stop_its_function_and_a_repeat_joins(tmp_path, by):
    started, go, runs = asyncio.Event(), asyncio.Event(), []
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call) -> str:
            runs.append(call.attempt)
            started.set()
            await go.wait()
            return "done"

        if by == "task":
            calling = asyncio.create_task(app.call("act", {}, operation_id="o1"))
            await started.wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        else:
            patience_s = 0.2
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(app.call("act", {}, operation_id="o1"), patience_s)
        assert (await app.outcome("o1")).state == "executing"
        repeat = asyncio.create_task(app.call("act", {}, operation_id="o1"))
        go.set()
        joined = await repeat
    assert (joined.status, joined.result, joined.attempts) == ("succeeded", "done", 1)
    assert runs == [1]


# --- the function --------------------------------------------------------------------------------


@pytest.mark.proves("TOOL-9")
async def test_a_cancellation_that_escapes_from_a_function_concerns_its_operation_alone(tmp_path):
    async def story() -> None:
        async with application(tmp_path) as app:

            @app.tool(**WRITE)
            async def act(call: Call) -> None:
                await cancelled_future()

            assert (await app.call("act", {}, operation_id="o1")).status == UNKNOWN
            await another_is_carried_out(app)

    told = await apart(story())
    assert not told.cancelled()
    assert told.exception() is None


@pytest.mark.proves("TOOL-9")
async def test_a_cancellation_that_escapes_from_a_thread_concerns_its_operation_alone(tmp_path):
    async def story() -> None:
        async with application(tmp_path) as app:

            @app.tool(**WRITE)
            def act(call: Call) -> None:
                raise asyncio.CancelledError

            assert (await app.call("act", {}, operation_id="o1")).status == UNKNOWN
            await another_is_carried_out(app)

    told = await apart(story())
    assert not told.cancelled()
    assert told.exception() is None


@pytest.mark.proves("LOOKUP-5")
async def test_a_cancellation_that_escapes_from_a_look_up_could_not_ask(tmp_path):
    asked = asyncio.Event()

    async def find(operation) -> None:
        asked.set()
        await cancelled_future()

    async def story() -> None:
        async with application(tmp_path) as app:

            @app.tool(**looked_up(find, recovery_deadline="5s"))
            async def act(call: Call) -> None:
                raise OSError

            assert (await app.call("act", {}, operation_id="o1")).status == UNKNOWN
            await asked.wait()
            await another_is_carried_out(app)

    told = await apart(story())
    assert not told.cancelled()
    assert told.exception() is None


@pytest.mark.proves("TOOL-9", "LOOKUP-5")
@pytest.mark.parametrize("blocking", [False, True])
async def test_code_that_exits_ends_no_application(tmp_path, blocking):
    """An argument parser does so, for one: it is another's way to fail."""
    asked = asyncio.Event()
    here = asyncio.get_running_loop()

    def leave() -> None:
        sys.exit(2)

    async def find(operation) -> None:
        asked.set()
        leave()

    def find_in_a_thread(operation) -> None:
        here.call_soon_threadsafe(asked.set)
        leave()

    async def act(call: Call) -> None:
        leave()

    def act_in_a_thread(call: Call) -> None:
        leave()

    async with application(tmp_path) as app:
        look = find_in_a_thread if blocking else find
        declare = app.tool(name="act", **looked_up(look, recovery_deadline="5s"))
        declare(act_in_a_thread if blocking else act)
        told = await app.call("act", {}, operation_id="o1")
        assert told.status == UNKNOWN
        assert "SystemExit escaped" in str(told.transport_observation)
        await asked.wait()
        await another_is_carried_out(app)


@pytest.mark.proves("TOOL-5")
async def test_a_function_that_runs_out_of_time_is_cancelled_and_unknown(tmp_path):
    cancelled = asyncio.Event()
    async with application(tmp_path) as app:

        @app.tool(**{**WRITE, "timeout": "100ms"})
        async def act(call: Call) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        told = await app.call("act", {}, operation_id="o1")
    assert cancelled.is_set()
    assert told.status == UNKNOWN
    assert told.observation is not None
    assert told.observation["cause"] == "timeout"
    assert told.state == "manual_review"


@pytest.mark.proves("TOOL-6")
async def test_a_thread_that_outlives_its_time_out_keeps_absence_from_being_proven(tmp_path):
    go = threading.Event()
    effects: list[int] = []
    asked: list[int] = []

    def find(operation) -> Present | Absent:
        asked.append(len(effects))
        return Absent()

    async with application(tmp_path) as app:

        @app.tool(**looked_up(find, on_absent="resend", recovery_deadline="20s"))
        def act(call: Call) -> str:
            go.wait(WITHIN_S)
            effects.append(call.attempt)
            return "late"

        told = await app.call("act", {}, operation_id="o1")
        assert told.status == UNKNOWN
        await comes_true(lambda: len(asked) > 6)  # two would do, if nothing could arrive any more
        assert (await app.outcome("o1")).attempts == 1
        go.set()
        late = await ends(app, "succeeded")
    assert (late.result, late.attempts, effects) == ("late", 1, [1])


@pytest.mark.proves("TOOL-6")
async def test_a_function_is_never_started_after_its_attempt_was_recorded_as_over(tmp_path):
    go, started, number = threading.Event(), [], 44  # anyio has 40 threads
    async with application(tmp_path) as app:

        @app.tool(**{**WRITE, "timeout": "400ms", "retry": {"attempts": 1}})
        def act(call: Call, number: int) -> None:
            started.append(number)
            go.wait(WITHIN_S)

        async with asyncio.TaskGroup() as tasks:
            calls = [
                tasks.create_task(app.call("act", {"number": n}, operation_id=f"o{n}"))
                for n in range(number)
            ]
        over = {call.result().operation_id for call in calls}
        assert len(over) == number
        before = len(started)
        go.set()

        async def all_told() -> bool:
            states = [(await app.outcome(f"o{n}")).state for n in range(number)]
            return states.count("succeeded") >= before

        await comes_true(all_told)
        with anyio.move_on_after(0.5):
            await comes_true(lambda: len(started) > before)
    assert len(started) == before
