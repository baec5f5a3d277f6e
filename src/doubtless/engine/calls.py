"""Calls: one intent carried out at most once, and waited for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from doubtless.core.model import Json, Record, State
from doubtless.core.outcome import Outcome
from doubtless.core.permission import blocking
from doubtless.engine import drafting, intake
from doubtless.engine.drafting import Ask
from doubtless.engine.inside import stay_out
from doubtless.engine.opened import OpenApp
from doubtless.engine.surface import WAIT_EXTRA_S, Surface

RESTING = frozenset(
    {
        State.AWAITING_APPROVAL,
        State.ACCEPTED,
        State.UNKNOWN,
        State.RECONCILING,
        State.MANUAL_REVIEW,
    }
)
"""Where an operation may stay for long: whoever comes after it is told so."""


class Calls(Surface):
    """What an agent does."""

    async def call(  # noqa: PLR0913 - what a caller may say, each by its name
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        after: Sequence[str] = (),
        on_unknown: str = "stop",
        supersedes: str | None = None,
        wait_s: float | None = None,
    ) -> Outcome:
        """Carry out one intent at most once, and say what is known of its effect.

        Unknown is an answer too: the worker goes on looking. A call that means an operation which
        exists already joins it, and sends nothing. Cancelling this call doesn't stop the attempt.

        Args:
            tool: The tool's name.
            arguments: JSON-ready.
            operation_id: The caller's own identity of the intent. Without one, the same call in
                the same session joins the one that is still open, and is a new intent after it.
            request_id: An id made for this one request, for callers that may have to repeat it
                because its answer was lost. It names no intent, but a repeat under it is told of
                the operation that the first one led to; if that was a new one, it has this id.
            session_id: Which session of the principal; without one, its implicit one.
            correlation_id: Travels with the request, for the logs of both sides.
            after: Operations of this principal that must have succeeded first. Until then it waits;
                if one of them ends otherwise, it is rejected. It is valid for 24 h unless its
                contract says how long.
            on_unknown: What an unknown one of `after` means: "stop" waits for it to be settled,
                "continue" goes on.
            supersedes: An operation of this principal that it stands in for. A link, which loosens
                nothing.
            wait_s: Seconds to wait for it to be settled. Without it: until there is something to
                say, at most the tool's time-out and 5 s. Running out of time undoes nothing.

        Raises:
            UnknownTool: No contract is registered under `tool`.
            BadArguments: They don't fit the tool's schema. Nothing was recorded or sent.
            BadOperationId: The id isn't one that may be used.
            BadSequence: `after` or `supersedes` names what isn't there, or isn't this principal's.
            InsideTransaction: It is called within `app.transaction()`.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        """
        stay_out("app.call")
        opened = self._opened
        ask = drafting.draft(
            opened.book,
            self.registry.tool(tool),
            arguments,
            principal=self._principal,
            operation_id=operation_id,
            request_id=request_id,
            session_id=session_id,
            correlation_id=correlation_id,
            after=after,
            on_unknown=on_unknown,
            supersedes=supersedes,
        )
        return await _carried_out(opened, ask, wait_s)

    async def call_in_doubt(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        in_doubt: Sequence[str],
        request_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        wait_s: float | None = None,
    ) -> Outcome:
        """Make a call as `call` does, for whoever was told of operations that they are open.

        Args:
            in_doubt: Operations on the same object, or of the same call. As long as one of them
                has succeeded, the same call joins it, and every other is refused
                (`target_unresolved`), as if it were open still.

        Raises:
            BadRequest: It can't be carried out as it was written. Nothing was recorded or sent.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        """
        stay_out("app.call")
        opened = self._opened
        ask = drafting.draft(
            opened.book,
            self.registry.tool(tool),
            arguments,
            principal=self._principal,
            request_id=request_id,
            session_id=session_id,
            correlation_id=correlation_id,
        )
        return await _carried_out(opened, replace(ask, in_doubt=tuple(in_doubt)), wait_s)

    async def wait(self, operation_id: str, *, timeout: float) -> Outcome:  # noqa: ASYNC109
        """Return the outcome once it is settled, or as it stands after `timeout` seconds.

        Never a guess.

        Raises:
            OperationNotFound: There is no such operation.
        """
        stay_out("app.wait")
        opened = self._opened
        opened.check_owner(operation_id, self._principal)
        found = await opened.waiting.until(operation_id, _has_ended, timeout_s=timeout)
        return opened.outcome(found)

    async def outcome(self, operation_id: str) -> Outcome:
        """Return the outcome as it is. Asks nobody and changes nothing.

        Raises:
            OperationNotFound: There is no such operation.
        """
        return await self.wait(operation_id, timeout=0)


async def _carried_out(opened: OpenApp, ask: Ask, wait_s: float | None) -> Outcome:
    """Make a call durable, wait for what it leads to, and say what is known of it."""
    met = await opened.ledger.commit(
        lambda tx: intake.prepare(opened.book, tx, ask), then=opened.go_on
    )
    if met.refusal is not None:
        return intake.refused(ask, met)
    if not met.joined:
        opened.book.kept.add(ask.tool.digest)  # its snapshot is durable now
    seconds = ask.tool.contract.timeout_ms / 1000 + WAIT_EXTRA_S if wait_s is None else wait_s
    ready = has_news if wait_s is None else _is_settled
    record = met.begun.record if met.begun is not None else None
    found = await opened.waiting.until(met.operation_id, ready, timeout_s=seconds, record=record)
    # The repeat of a request that was carried out is told what the first one would have been.
    repeated = met.operation_id == ask.request_id
    already_done = met.joined and met.begun is None and not repeated
    return opened.outcome(found, already_done=already_done)


def _has_ended(record: Record) -> bool:
    return record.operation.state.ends


def _is_settled(record: Record) -> bool:
    """Whether there is an answer: an end, or that it is not known. Under way is none."""
    waits = (State.PREPARED, State.EXECUTING, State.ACCEPTED, State.AWAITING_APPROVAL)
    going_on = record.operation.state is State.RECONCILING and record.operation.origin is not None
    return record.operation.state not in waits and not going_on


def has_news(record: Record) -> bool:
    """Whether there is something to say: an answer, or that it takes longer."""
    if record.operation.state is State.PREPARED:
        return any(blocker.state in RESTING for blocker in blocking(record))
    return record.operation.state is not State.EXECUTING
