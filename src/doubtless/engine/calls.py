"""Calls: one intent carried out at most once, and waited for."""

from collections.abc import Mapping

from doubtless.core.model import Json, Record, State
from doubtless.core.outcome import Outcome
from doubtless.engine import intake
from doubtless.engine.surface import WAIT_EXTRA_S, Surface


class Calls(Surface):
    """What an agent does."""

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
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
            session_id: Which session of the principal; without one, its implicit one.
            correlation_id: Travels with the request, for the logs of both sides.
            wait_s: Seconds to wait for it to be settled. Without it: until there is something to
                say, at most the tool's time-out and 5 s. Running out of time undoes nothing.

        Raises:
            UnknownTool: No contract is registered under `tool`.
            BadArguments: They don't fit the tool's schema. Nothing was recorded or sent.
            BadOperationId: The id isn't one that may be used.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        """
        opened = self._opened
        ask = intake.draft(
            opened.book,
            self.registry.tool(tool),
            arguments,
            principal=self._principal,
            operation_id=operation_id,
            session_id=session_id,
            correlation_id=correlation_id,
        )
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
        found = await opened.waiting.until(
            met.operation_id, ready, timeout_s=seconds, record=record
        )
        return opened.outcome(found, already_done=met.joined and met.begun is None)

    async def wait(self, operation_id: str, *, timeout: float) -> Outcome:  # noqa: ASYNC109
        """Return the outcome once it is settled, or as it stands after `timeout` seconds.

        Never a guess.

        Raises:
            OperationNotFound: There is no such operation.
        """
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


def _has_ended(record: Record) -> bool:
    return record.operation.state.ends


def _is_settled(record: Record) -> bool:
    """Whether there is an answer: an end, or that it is not known. Under way is none."""
    waits = (State.PREPARED, State.EXECUTING, State.ACCEPTED, State.AWAITING_APPROVAL)
    going_on = record.operation.state is State.RECONCILING and record.operation.origin is not None
    return record.operation.state not in waits and not going_on


def has_news(record: Record) -> bool:
    """Whether there is something to say: an answer, or that it takes longer."""
    return record.operation.state not in (State.PREPARED, State.EXECUTING)
