"""Refusals, which create no operation: what the caller is told, in the form of an outcome."""

from collections.abc import Mapping

from doubtless.core.model import Cause, Json, State
from doubtless.core.outcome import OUTCOMES, Outcome, Status

_REFUSALS = {
    Cause.PAYLOAD_MISMATCH: (
        "operation {id} was asked for before with another payload. Nothing was sent. A different "
        "intent needs an id of its own."
    ),
    Cause.OPERATION_ID_TAKEN: (
        "the operation id {id} is taken. Nothing was sent. Choose another id."
    ),
    Cause.TARGET_UNRESOLVED: (
        "another operation on the same object is not settled yet ({by}). Nothing was sent. Wait "
        "for it; do not try a variant."
    ),
}


def refusal(
    *,
    operation_id: str | None,
    tool: str,
    code: Cause,
    by: str | None,
    payload_hash: str,
    target: Mapping[str, Json],
    correlation_id: str | None = None,
) -> Outcome:
    """Return the outcome of a call that policy refused before there was any operation."""
    words = _REFUSALS[code].format(id=operation_id, by=by or "held by another")
    error: dict[str, Json] = {"code": code.value, "operation_id": by}
    if code is Cause.TARGET_UNRESOLVED and by is None:
        error["held_by"] = "another"
    return Outcome(
        operation_id=operation_id or "",
        tool=tool,
        status=Status.REJECTED.value,
        outcome=OUTCOMES[Status.REJECTED],
        state=State.REJECTED.value,
        retry_allowed=False,
        already_done=False,
        result=None,
        error=error,
        transport_observation=None,
        recovery=None,
        correlation_id=correlation_id,
        last_confirmed={"state": None, "at": None, "source": None},
        acts={"who": "caller", "by": None},
        sent_at=None,
        observed_at=None,
        observation=None,
        target=target,
        attempts=0,
        idempotency_key=None,
        ref=None,
        payload_hash=payload_hash,
        provider_operation_id=None,
        reconcile=None,
        superseded_by=None,
        version=0,
        created_at=None,
        updated_at=None,
        message=f"{tool} was refused: {words}",
    )
