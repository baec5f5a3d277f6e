"""Functions behind the gate: when they are started, and what is reported of their end."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from doubtless.core.model import Cause, Seen, Stage
from doubtless.errors import GateClosed, NotSent, Rejected
from doubtless.transports.base import Reply, Watch
from doubtless.transports.function import Body, FunctionTransport

NOW_S = 100.0
WITHIN_S = 8.0


class Run:
    """One performance of a function, and what it is made under."""

    def __init__(self, function: Callable[..., Any], **proofs: Any) -> None:
        self.body = Body(function=function, **proofs)
        self.watch = Watch()
        self.over = False
        self.left = True  # whether nothing left

    async def __call__(self, write_by_s: float | Exception = NOW_S, **arguments: Any) -> Reply:
        async def gate() -> float:
            await anyio.lowlevel.checkpoint()
            assert self.watch.stage is Stage.GATE
            if isinstance(write_by_s, Exception):
                raise write_by_s
            return write_by_s

        return await FunctionTransport(lambda: NOW_S).perform(
            self.body,
            arguments,
            "the call",
            gate=gate,
            watch=self.watch,
            nothing_left=lambda: self.left,
            is_over=lambda: self.over,
        )


class Recorded:
    """A function that only notes how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, dict[str, Any]]] = []

    def in_thread(self, call: object, **arguments: Any) -> str:
        self.calls.append((call, arguments))
        return "done"

    async def on_loop(self, call: object, **arguments: Any) -> str:
        await anyio.lowlevel.checkpoint()
        return self.in_thread(call, **arguments)

    def of(self, kind: str) -> Callable[..., Any]:
        return self.in_thread if kind == "in a thread" else self.on_loop


KINDS = pytest.mark.parametrize("kind", ["in a thread", "on the loop"])


def raising(error: BaseException, kind: str) -> Callable[..., Any]:
    def in_thread(call: object) -> None:
        raise error

    async def on_loop(call: object) -> None:
        raise error

    return in_thread if kind == "in a thread" else on_loop


# --- the gate ------------------------------------------------------------------------------------


@KINDS
@pytest.mark.proves("TOOL-12")
async def test_a_function_is_called_once_behind_its_gate_with_the_call_and_its_arguments(kind):
    function = Recorded()
    run = Run(function.of(kind))
    assert run.body.is_async is (kind == "on the loop")
    reply = await run(charge="ch_1", amount=5)
    assert function.calls == [("the call", {"charge": "ch_1", "amount": 5})]
    assert (reply.proof, reply.stage, reply.body) == (Seen.SUCCEEDED, Stage.READ, b'"done"')
    assert reply.complete
    assert run.watch.stage is Stage.READ


@KINDS
@pytest.mark.proves("TOOL-12")
@pytest.mark.parametrize(
    "write_by_s",
    [NOW_S - 0.001, float("-inf"), float("nan"), GateClosed("its lease has run out")],
    ids=["just past", "long past", "no number", "closed"],
)
async def test_behind_a_closed_gate_nothing_is_started(kind, write_by_s):
    function = Recorded()
    run = Run(function.of(kind))
    reply = await run(write_by_s)
    assert function.calls == []
    assert (reply.proof, reply.stage, run.watch.stage) == (Seen.NOT_SENT, Stage.GATE, Stage.GATE)
    assert reply.detail


@KINDS
@pytest.mark.proves("TOOL-12")
async def test_an_attempt_that_is_over_starts_nothing(kind):
    function = Recorded()
    run = Run(function.of(kind))
    run.over = True
    reply = await run()
    assert (function.calls, reply.proof) == ([], Seen.NOT_SENT)
    assert "before it was started" in reply.detail


# --- what escapes --------------------------------------------------------------------------------


@KINDS
@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("secret"), Cause.TOOL_ERROR),
        (TimeoutError("secret"), Cause.TIMEOUT),
        (GateClosed("secret"), Cause.TOOL_ERROR),
        (StopAsyncIteration("secret"), Cause.TOOL_ERROR),
        (asyncio.CancelledError("secret"), Cause.CANCELLED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_what_escapes_proves_nothing_and_its_words_are_not_kept(kind, error, cause):
    run = Run(raising(error, kind))
    reply = await run()
    assert (reply.proof, reply.cause) == (None, cause)
    assert (reply.stage, run.watch.stage) == (Stage.SENT, Stage.SENT)
    assert "secret" not in reply.detail


@KINDS
@pytest.mark.proves("TOOL-2")
@pytest.mark.parametrize(
    ("error", "proof", "words"),
    [
        (NotSent("no route"), Seen.NOT_SENT, "NotSent: no route"),
        (KeyError("secret"), Seen.NOT_SENT, "KeyError"),
        (Rejected("no such order"), Seen.REJECTED, "Rejected: no such order"),
        (LookupError("secret"), Seen.REJECTED, "LookupError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_its_author_names_is_proof_in_her_words_alone(kind, error, proof, words):
    reply = await Run(raising(error, kind), not_sent=(KeyError,), rejected=(LookupError,))()
    assert (reply.proof, reply.detail) == (proof, words)


@pytest.mark.proves("TOOL-2")
@pytest.mark.parametrize("error", [NotSent("no route"), KeyError("secret")], ids=range(2))
async def test_not_sent_is_not_believed_once_something_left(error):
    run = Run(raising(error, "on the loop"), not_sent=(KeyError,), rejected=(LookupError,))
    run.left = False
    reply = await run()
    assert (reply.proof, reply.cause) == (None, Cause.TOOL_ERROR)
    assert "had sent something" in reply.detail


# --- what is returned ----------------------------------------------------------------------------


@pytest.mark.proves("TOOL-1")
async def test_what_a_plain_function_returns_to_be_awaited_is_awaited():
    async def later() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    def function(call: object) -> Awaitable[int]:
        return later()

    assert (await Run(function)()).body == b"7"


@KINDS
@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize(
    "value", [float("nan"), {1, 2}, 2**60, b"bytes", "\ud800", object()], ids=range(6)
)
async def test_a_value_that_can_not_be_kept_is_success_all_the_same(kind, value):
    async def on_loop(call: object) -> Any:
        await anyio.lowlevel.checkpoint()
        return value

    reply = await Run(on_loop if kind == "on the loop" else lambda call: value)()
    assert (reply.proof, reply.body, reply.complete) == (Seen.SUCCEEDED, b"", True)
    assert "was not kept" in reply.detail


# --- who is cancelled ----------------------------------------------------------------------------


@pytest.mark.proves("TOOL-5")
async def test_cancelling_the_performance_cancels_the_function_and_is_raised():
    started, ended = asyncio.Event(), []

    async def function(call: object) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    run = Run(function)
    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, run.watch.stage) == ([True], Stage.SENT)


@pytest.mark.proves("TOOL-6")
async def test_a_thread_is_left_behind_when_its_performance_is_cancelled():
    started, go, ended = threading.Event(), threading.Event(), threading.Event()

    def function(call: object) -> None:
        started.set()
        go.wait(WITHIN_S)
        ended.set()

    run = Run(function)
    task = asyncio.create_task(run())
    await anyio.to_thread.run_sync(started.wait, WITHIN_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    go.set()
    assert await anyio.to_thread.run_sync(ended.wait, WITHIN_S)


@pytest.mark.proves("TOOL-12")
async def test_cancelled_at_its_gate_nothing_is_started():
    function = Recorded()
    run = Run(function.on_loop)
    task = asyncio.create_task(run())
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (function.calls, run.watch.stage) == ([], Stage.GATE)
