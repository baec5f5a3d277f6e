"""Python functions as actions: called once, behind the gate, and whatever escapes is reported.

An exception proves nothing about the effect, except those that the tool's author names as proof.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TypeAlias

import anyio
import anyio.to_thread

from doubtless.core.identity import NotCanonical, canonical
from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.errors import DoubtlessError, GateClosed, NotSent, Rejected
from doubtless.transports.base import Gate, Reply, Watch

Function: TypeAlias = Callable[..., "Awaitable[Json] | Json"]
Errors: TypeAlias = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A function, and the exceptions by which it proves what did not happen.

    Where `has_run` is said, others leave an operation for a while to the process that has its run.
    """

    function: Function
    not_sent: Errors = ()
    rejected: Errors = ()
    has_run: Callable[[str], bool] | None = None  # whether this process has an operation's own run

    @property
    def is_async(self) -> bool:
        """Whether it runs on the event loop; otherwise it has a thread of its own."""
        return iscoroutinefunction(self.function)


class _TooLate(Exception):
    """The time in which the function might be started had passed before it was."""


class FunctionTransport:
    """Calls functions. One instance serves any number of concurrent calls.

    Args:
        boot_clock: Seconds; the clock of what the gate returns.
    """

    def __init__(self, boot_clock: Callable[[], float]) -> None:
        self._boot_clock = boot_clock

    async def perform(
        self,
        body: Body,
        arguments: dict[str, Json],
        call: object,
        *,
        gate: Gate,
        watch: Watch,
        nothing_left: Callable[[], bool],
        is_over: Callable[[], bool],
    ) -> Reply:
        """Call the function once, after the gate, and say what came of it.

        Args:
            body: The function and its proofs.
            arguments: By name.
            call: Its first argument, by position.
            gate: Asked before the function starts; after that it may do anything at any time.
            watch: Moved to `sent` when the function starts.
            nothing_left: Whether all that was sent through `call.http` provably never left. An
                exception that is declared as `not_sent` is believed only then.
            is_over: Whether the attempt has ended; then the function is not started any more.

        Raises:
            CancelledError: This call was cancelled; `watch` says whether the function had started.
        """
        watch.stage = Stage.GATE
        try:
            write_by_s = await gate()
        except GateClosed as error:
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=str(error))

        def start() -> None:
            # Compared in the very call that starts it: a thread, too, may begin late.
            # Written so that a `write_by_s` that is no number permits nothing.
            if is_over() or not self._boot_clock() <= write_by_s:
                raise _TooLate
            watch.stage = Stage.SENT

        try:
            value = await _run(body, start, call, arguments)
        except _TooLate:
            told = "the time for its start had passed before it was started"
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=told)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            told = "the function was cancelled from within"
            return Reply(stage=Stage.SENT, cause=Cause.CANCELLED, detail=told)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is an unknown outcome
            # `sys.exit` is another's way to fail: it must not end the application.
            return _escaped(error, body, nothing_left)
        watch.stage = Stage.READ
        return _returned(value)


def is_cancelled() -> bool:
    """Whether somebody asked this very task to stop; else a `CancelledError` is code's own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _run(
    body: Body, start: Callable[[], None], call: object, arguments: dict[str, Json]
) -> object:
    if body.is_async:
        start()
        return await body.function(call, **arguments)  # type: ignore[misc]

    def work() -> object:
        start()
        return body.function(call, **arguments)

    found = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    if isinstance(found, Awaitable):
        return await found
    return found


def _escaped(error: Exception | SystemExit, body: Body, nothing_left: Callable[[], bool]) -> Reply:
    told = f"{type(error).__name__} escaped from the function"
    if isinstance(error, (NotSent, *body.not_sent)):
        if nothing_left():
            return Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=_words(error))
        told = f"{type(error).__name__}, but call.http had sent something"
    elif isinstance(error, (Rejected, *body.rejected)):
        return Reply(stage=Stage.READ, proof=Seen.REJECTED, detail=_words(error))
    cause = Cause.TIMEOUT if isinstance(error, TimeoutError) else Cause.TOOL_ERROR
    return Reply(stage=Stage.SENT, cause=cause, detail=told)


def _words(error: BaseException) -> str:
    """Return an author's own words for proof; of any other exception only its type is kept.

    The text of a foreign exception may hold a secret.
    """
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, DoubtlessError) else name


def _returned(value: object) -> Reply:
    """A returned value is success, also where it can't be kept."""
    try:
        content = canonical(value)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - a value may raise when it is looked at
        why = str(error) if isinstance(error, NotCanonical) else type(error).__name__
        note = f"returned, but its value is no JSON and was not kept ({why})"
        return Reply(stage=Stage.READ, proof=Seen.SUCCEEDED, detail=note, complete=True)
    return Reply(
        stage=Stage.READ, proof=Seen.SUCCEEDED, detail="returned", body=content, complete=True
    )
