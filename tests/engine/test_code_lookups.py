"""Look-ups in code: their three answers, and all the ways in which they give none."""

import asyncio
import threading
from typing import Any, Literal

import anyio.lowlevel
import pytest
from tests.engine.functions import (
    UNKNOWN,
    WITHIN_S,
    application,
    comes_true,
    ends,
    looked_up,
    looks,
    states,
)

from doubtless import Absent, Call, CouldNotAsk, Operation, Present


def declared(app, find, **changes):
    """Declare `act`, of which nothing is known afterwards but what `find` says."""

    @app.tool(**looked_up(find, **changes))
    async def act(call: Call, what: str) -> None:
        raise OSError


async def begun(app):
    told = await app.call("act", {"what": "x"}, operation_id="o1", session_id="s1")
    assert told.status in (UNKNOWN, "succeeded", "failed", "failed_safe_to_retry", "pending")
    return told


async def sightings(app) -> list[tuple[object, object]]:
    """Return what look-ups showed, in order."""
    told: list[Any] = await app.timeline("o1")
    return [
        (entry["evidence"]["shows"], entry["evidence"]["detail"])
        for entry in told
        if entry["kind"] == "evidence" and entry["evidence"]["source"] == "lookup"
    ]


@pytest.mark.proves("LOOKUP-1")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_is_present_settles_with_its_id_and_its_result(tmp_path, in_thread):
    asked: list[Operation] = []

    def find_in_thread(operation: Operation) -> Present:
        asked.append(operation)
        return Present(provider_operation_id="re_1", result={"id": "re_1"})

    async def find(operation: Operation) -> Present:
        await anyio.lowlevel.checkpoint()
        return find_in_thread(operation)

    async with application(tmp_path) as app:
        declared(app, find_in_thread if in_thread else find)
        told = await begun(app)
        told = await ends(app, "succeeded")
    assert (told.provider_operation_id, told.result, told.attempts) == ("re_1", {"id": "re_1"}, 1)
    (shown,) = asked
    assert (shown.operation_id, shown.ref, shown.session_id) == ("o1", told.ref, "s1")
    assert (shown.tool, shown.arguments) == ("act", {"what": "x"})


@pytest.mark.proves("LOOKUP-1")
async def test_what_is_present_in_failure_is_a_failure(tmp_path):
    async def find(operation: Operation) -> Present:
        return Present(provider_operation_id="re_1", state="failed")

    async with application(tmp_path) as app:
        declared(app, find)
        await begun(app)
        told = await ends(app, "failed")
    assert (told.status, told.error) == ("failed", {"code": "definite_failure"})


@pytest.mark.proves("LOOKUP-1")
async def test_what_is_present_in_progress_is_pending_until_it_ends(tmp_path):
    asked: list[str] = []

    async def find(operation: Operation) -> Present:
        asked.append(operation.operation_id)
        state: Literal["applied", "in_progress"] = "applied" if len(asked) > 2 else "in_progress"
        return Present(provider_operation_id="re_1", state=state)

    async with application(tmp_path) as app:
        declared(app, find)
        await begun(app)
        told = await ends(app, "succeeded")
        reached = await states(app)
    assert told.provider_operation_id == "re_1"
    assert "accepted" in reached


@pytest.mark.proves("LOOKUP-1")
async def test_what_stays_absent_is_safe_to_retry_and_the_repeat_acts(tmp_path):
    acted: list[int] = []

    async def find(operation: Operation) -> Absent:
        return Absent()

    async with application(tmp_path) as app:

        @app.tool(**looked_up(find))
        async def act(call: Call) -> str:
            acted.append(call.attempt)
            if call.attempt == 1:
                raise OSError
            return "done"

        await app.call("act", {}, operation_id="o1")
        told = await ends(app, "failed")
        assert (told.status, told.error) == ("failed_safe_to_retry", {"code": "confirmed_absent"})
        again = await app.call("act", {}, operation_id="o1", wait_s=5)
    assert (again.status, again.result, acted) == ("succeeded", "done", [1, 2])


async def raises(operation):
    raise ConnectionError("hunter2")


async def says_nothing(operation):
    return None


async def says_true(operation):
    return True


async def says_a_class(operation):
    return Present


async def says_another_state(operation):
    return Present(state="done")  # type: ignore[arg-type]


async def says_so(operation):
    return CouldNotAsk(why="closed on Sundays")


async def hangs(operation):
    await asyncio.Event().wait()


def stops(operation):
    raise StopIteration


@pytest.mark.proves("LOOKUP-5")
@pytest.mark.parametrize(
    ("find", "told"),
    [
        (raises, "ConnectionError escaped"),
        (says_nothing, "returned NoneType"),
        (says_true, "returned bool"),
        (says_a_class, "returned type"),
        (says_another_state, "returned Present"),
        (says_so, "closed on Sundays"),
        (hangs, "no answer within 100 ms"),
        (stops, "escaped"),
    ],
    ids=lambda found: getattr(found, "__name__", None),
)
async def test_what_gives_no_answer_could_not_be_asked_and_sends_nothing(tmp_path, find, told):
    look = looks(find, timeout="100ms", interval="20ms")
    async with application(tmp_path) as app:
        declared(app, find, lookup=look, on_absent="resend")
        await begun(app)

        async def asked() -> bool:
            return len(await sightings(app)) > 2

        await comes_true(asked)
        for shows, detail in await sightings(app):
            assert shows == "could_not_ask"
            assert told in str(detail)
            assert "hunter2" not in str(detail)
        found = await app.outcome("o1")
    assert (found.status, found.attempts) == (UNKNOWN, 1)


@pytest.mark.proves("LOOKUP-5")
async def test_a_thread_that_hangs_is_given_up_at_its_time_out(tmp_path):
    go = threading.Event()

    def find(operation) -> Present:
        go.wait(WITHIN_S)
        return Present()

    async with application(tmp_path) as app:
        declared(app, find, lookup=looks(find, timeout="50ms"))
        await begun(app)

        async def asked() -> bool:
            return len(await sightings(app)) > 0

        await comes_true(asked)
        go.set()
        assert (await sightings(app))[0][0] == "could_not_ask"
        await ends(app, "succeeded")  # it is asked again


@pytest.mark.proves("LOOKUP-5")
@pytest.mark.parametrize("result", [object(), b"ab"], ids=["object", "bytes"])
async def test_what_is_present_counts_even_if_its_result_is_no_json(tmp_path, result):
    asked = asyncio.Event()

    async def find(operation) -> Present:
        asked.set()
        return Present(provider_operation_id="re_1", result=result)

    async with application(tmp_path) as app:
        declared(app, find)
        await begun(app)
        await asked.wait()
        told = await app.wait("o1", timeout=1)
    assert (told.status, told.provider_operation_id) == ("succeeded", "re_1")


@pytest.mark.proves("LOOKUP-5")
async def test_a_result_is_json_or_left_out(tmp_path):
    async def find(operation) -> Present:
        return Present(provider_operation_id="re_1", result=float("nan"))

    async with application(tmp_path) as app:
        declared(app, find)
        await begun(app)
        told = await ends(app, "succeeded")
    assert told.result is None


@pytest.mark.proves("LOOKUP-1")
@pytest.mark.parametrize("present", [False, True])
async def test_several_look_ups_are_asked_in_order_up_to_the_first_that_finds_something(
    tmp_path, present
):
    asked: list[str] = []

    async def first(operation) -> CouldNotAsk:
        asked.append("first")
        return CouldNotAsk()

    async def second(operation) -> Present | Absent:
        asked.append("second")
        return Present() if present else Absent()

    async def third(operation) -> Absent:
        asked.append("third")
        return Absent()

    async with application(tmp_path) as app:
        declared(app, first, lookup=[looks(first), looks(second), looks(third)])
        await begun(app)
        await comes_true(lambda: len(asked) > (1 if present else 8))
        told = await ends(app, "succeeded") if present else await app.outcome("o1")
    if present:
        assert asked == ["first", "second"]
    else:  # one of them could not be asked: nothing is proven
        assert asked[:6] == ["first", "second", "third"] * 2
        assert (told.status, told.attempts) == (UNKNOWN, 1)
