"""What an answer proves about the attempt that got it. A table of statuses, and few exceptions.

Only the side that owns the effect can say that a sent request did nothing. What it says is believed
by class (RFC 9110), unless the contract knows better about this provider.
"""

from dataclasses import dataclass

from doubtless.core.contract import Contract, ResponseRules, Stores
from doubtless.core.model import Cause, Effect, Observation, Seen, Shows, Source, Stage

NOT_PROCESSED = frozenset({307, 308, 421, 425, 429})
"""Statuses that say that nothing was done with the request."""

DOUBTFUL = frozenset({408, 409, 421, 423, 424, 425, 429, 499})
"""The 4xx that are no definite refusal."""

REJECTED = frozenset({*range(400, 500)} - DOUBTFUL | {501, 505})
"""Definite refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a transport saw, and what the contract's expressions found in the body."""

    stage: Stage
    proof: Seen | None = None  # where the transport itself proves `not_sent` or `not_processed`
    cause: Cause | None = None  # why no complete answer came
    detail: str = ""
    status: int | None = None
    complete: bool = False
    unreadable: str | None = None  # why the body can't be read as the contract expects
    accepted: bool = False
    failed: bool = False
    replayed: bool = False
    provider_operation_id: str | None = None
    status_url: str | None = None
    retry_after_ms: int | None = None


def classify(answer: Answer, contract: Contract) -> Observation:
    """Say what one attempt's end proves about that attempt, and about no other."""
    seen, cause, detail = _class(answer, contract)
    numbered = answer.provider_operation_id is not None
    if numbered and seen is Seen.UNKNOWN and contract.effect is Effect.TIME_SENSITIVE:
        # The provider gave it a number: it is done.
        seen, cause, detail = Seen.SUCCEEDED, None, f"{detail}; it has a transaction id"
    key_in_progress = cause is Cause.KEY_IN_PROGRESS
    return Observation(
        seen=seen,
        stage=answer.stage,
        cause=cause,
        detail=detail or answer.detail,
        status=answer.status,
        provider_operation_id=answer.provider_operation_id,
        status_url=answer.status_url,
        retry_after_ms=answer.retry_after_ms if seen is Seen.NOT_PROCESSED else None,
        replayed=answer.replayed,
        key_in_progress=key_in_progress,
    )


def _class(answer: Answer, contract: Contract) -> tuple[Seen, Cause | None, str]:
    """Return the class, why it is unknown, and words for people."""
    status = answer.status
    if answer.proof is not None:
        return answer.proof, None, answer.detail
    if status is None:
        return Seen.UNKNOWN, answer.cause or Cause.UNREADABLE, answer.detail
    if not answer.complete:
        detail = answer.detail or "the answer broke off"
        return Seen.UNKNOWN, answer.cause or Cause.TRUNCATED, f"status {status}, but {detail}"
    declared = _declared(status, contract)
    if declared is not None:
        return declared
    if status == 303 or 200 <= status < 300:
        return _success(answer, status)
    cause = Cause.GATEWAY_ERROR if status >= 500 else Cause.UNPROVEN_STATUS
    return Seen.UNKNOWN, cause, f"status {status} proves nothing about the effect"


def _declared(status: int, contract: Contract) -> tuple[Seen, Cause | None, str] | None:
    """Look a status up where the contract says something of it, strictest first."""
    rules = contract.response
    if status in rules.unproven:
        return (
            Seen.UNKNOWN,
            Cause.UNPROVEN_STATUS,
            f"status {status} is known to prove nothing here",
        )
    if contract.key is not None and status in contract.key.in_progress:
        return Seen.UNKNOWN, Cause.KEY_IN_PROGRESS, "the first request under this key still runs"
    if contract.key is not None and status in contract.key.mismatch:
        return Seen.UNKNOWN, Cause.KEY_MISMATCH, "the key was used with another payload"
    if status in rules.not_processed:
        return Seen.NOT_PROCESSED, None, f"status {status}: the request was not processed"
    if status in rules.rejected:
        return Seen.REJECTED, None, f"status {status}: refused"
    return None


def _success(answer: Answer, status: int) -> tuple[Seen, Cause | None, str]:
    if answer.unreadable is not None:
        return Seen.UNKNOWN, Cause.UNREADABLE, f"status {status}, but {answer.unreadable}"
    if answer.failed:
        return Seen.REJECTED, None, f"status {status}, and the body says that it did not happen"
    if status == 202 or answer.accepted:
        return Seen.ACCEPTED, None, f"status {status}: accepted, not finished"
    return Seen.SUCCEEDED, None, f"status {status}"


SHOWS = {
    Seen.NOT_SENT: Shows.NOT_SENT,
    Seen.NOT_PROCESSED: Shows.NOT_PROCESSED,
    Seen.REJECTED: Shows.REFUSED,
    Seen.ACCEPTED: Shows.IN_PROGRESS,
    Seen.SUCCEEDED: Shows.APPLIED,
    Seen.UNKNOWN: Shows.NOTHING,
}
"""What an attempt's own end says, as evidence."""


def shows(observation: Observation) -> Shows:
    """Return what an observation says, as evidence."""
    return Shows.SIGHTED if observation.key_in_progress else SHOWS[observation.seen]


def source_of(observation: Observation, contract: Contract) -> Source:
    """Say who speaks: the transport alone, the answer, or a stored first answer.

    A replay speaks for the first attempt too only where the provider stores every answer.
    """
    if observation.status is None and observation.seen in (Seen.NOT_SENT, Seen.UNKNOWN):
        return Source.TRANSPORT
    stored = contract.key is not None and contract.key.stores is Stores.ALL
    return Source.KEY_REPLAY if observation.replayed and stored else Source.RESPONSE


def default_rules() -> ResponseRules:
    """Return plain HTTP semantics."""
    return ResponseRules(
        rejected=tuple(sorted(REJECTED)), not_processed=tuple(sorted(NOT_PROCESSED))
    )
