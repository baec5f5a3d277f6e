"""Decisions of people, and what an agent may take back."""

from doubtless.core.decisions import Word
from doubtless.core.outcome import Outcome
from doubtless.engine import decisions
from doubtless.engine.calls import has_news
from doubtless.engine.decisions import Decision
from doubtless.engine.inside import stay_out
from doubtless.engine.surface import WAIT_EXTRA_S, Surface
from doubtless.engine.waiting import Known
from doubtless.errors import SettingsError


class People(Surface):
    """What a person decides about an operation."""

    async def resolve(
        self,
        operation_id: str,
        decision: str,
        *,
        operator: str,
        note: str,
        version: int | None = None,
        provider_operation_id: str | None = None,
        mark_duplicate: bool = False,
    ) -> Outcome:
        """Record an operator's decision and carry it out.

        Args:
            operation_id: Which operation.
            decision: done, not_done, unsure, retry, look_again or again (`-` for `_` too).
            operator: Who decides.
            note: What was seen, and where.
            version: The version that the operator saw; a newer one is refused.
            provider_operation_id: The provider's id of what was found.
            mark_duplicate: With `again`: the new operation may be a duplicate, and says so.

        Returns:
            The outcome of the operation; for `again` that of the new one.

        Raises:
            StaleVersion: It changed since the operator saw it.
            DecisionRefused: The decision is not legal as things stand.
            OperationNotFound: There is no such operation.
        """
        stay_out("app.resolve")
        opened = self._opened
        made = Decision(
            operation_id=operation_id,
            word=word_of(decision),
            operator=operator,
            note=note,
            version=version,
            provider_operation_id=provider_operation_id,
            mark_duplicate=mark_duplicate,
        )
        again = opened.draft_again(made) if made.word is Word.AGAIN else None
        decided = await opened.ledger.commit(
            lambda tx: decisions.resolve(opened.book, tx, made, again), then=opened.go_on
        )
        known = Known(opened.load(decided.operation_id))
        opened.changed(known.record)
        if decided.begun is not None:
            seconds = decided.begun.contract.timeout_ms / 1000 + WAIT_EXTRA_S
            known = await opened.waiting.until(decided.operation_id, has_news, timeout_s=seconds)
        return opened.outcome(known)

    async def stop(self, operation_id: str, *, operator: str, note: str) -> Outcome:
        """End the processes that run for an operation, and make sure that they have ended.

        It says nothing about the effect, and settles nothing: what was done until then is done. To
        be asked on the host where they run.

        Args:
            operation_id: Which operation.
            operator: Who ends them.
            note: Why.

        Raises:
            DecisionRefused: There is nothing to end, or not from here; it says why.
            OperationNotFound: There is no such operation.
        """
        stay_out("app.stop")
        opened = self._opened
        record = await opened.stopper.stop(operation_id, operator=operator, note=note)
        opened.changed(record)
        return opened.outcome(Known(opened.load(operation_id)))

    async def cancel(self, operation_id: str) -> Outcome:
        """Withdraw an operation of which nothing was sent.

        Raises:
            DecisionRefused: Something was sent, or it has ended.
            OperationNotFound: There is no such operation.
        """
        stay_out("app.cancel")
        opened, principal = self._opened, self._principal
        opened.check_owner(operation_id, principal)
        await opened.ledger.commit(
            lambda tx: decisions.cancel(opened.book, tx, operation_id, principal)
        )
        opened.changed(opened.load(operation_id))
        return opened.outcome(Known(opened.load(operation_id)))


def word_of(decision: str) -> Word:
    """Read a decision, with - for _ too.

    Raises:
        SettingsError: It is none.
    """
    try:
        return Word(decision.replace("-", "_"))
    except ValueError:
        words = ", ".join(Word)
        raise SettingsError(f"no decision {decision!r}: it is one of {words}") from None
