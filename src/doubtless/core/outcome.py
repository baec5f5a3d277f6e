"""What the agent is told: one object, the same from Python, HTTP, MCP and the command line.

It never implies that an unknown action failed or succeeded. What may be repeated is policy's word.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum

from doubtless.core.contract import Contract
from doubtless.core.evidence import FOREVER_MS
from doubtless.core.model import Cause, Json, Now, Observation, Record, Seen, State
from doubtless.core.permission import blocked, blocking, failed_blocker, may_repeat


class Status(StrEnum):
    """What a caller has to tell apart."""

    SUCCEEDED = "succeeded"
    FAILED_SAFE_TO_RETRY = "failed_safe_to_retry"
    FAILED = "failed"
    PENDING = "pending"
    UNKNOWN = "unknown_reconciliation_required"
    REJECTED = "rejected_by_policy"


OUTCOMES = {
    Status.SUCCEEDED: "success",
    Status.FAILED_SAFE_TO_RETRY: "failure",
    Status.FAILED: "failure",
    Status.PENDING: "pending",
    Status.UNKNOWN: "unknown",
    Status.REJECTED: "rejected",
}

_STATUS = {
    State.SUCCEEDED: Status.SUCCEEDED,
    State.FAILED: Status.FAILED,
    State.PREPARED: Status.PENDING,
    State.AWAITING_APPROVAL: Status.PENDING,
    State.EXECUTING: Status.PENDING,
    State.ACCEPTED: Status.PENDING,
    State.UNKNOWN: Status.UNKNOWN,
    State.RECONCILING: Status.UNKNOWN,
    State.MANUAL_REVIEW: Status.UNKNOWN,
    State.REJECTED: Status.REJECTED,
    State.CANCELLED: Status.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known of one operation. Every field but `result` and `message` is computed."""

    operation_id: str
    tool: str
    status: str  # a `Status`
    outcome: str  # success | failure | unknown | pending | rejected
    state: str
    retry_allowed: bool  # whether a repeat with the same id may act now
    already_done: bool  # it had succeeded before this call, which sent nothing
    result: Json
    error: Mapping[str, Json] | None
    transport_observation: str | None
    recovery: str | None  # already_done | safe_retry | needs_operator
    correlation_id: str | None
    last_confirmed: Mapping[str, Json]
    acts: Mapping[str, Json]  # who is expected to act, and by when
    sent_at: str | None  # RFC 3339, as all instants here
    observed_at: str | None
    observation: Mapping[str, Json] | None
    target: Mapping[str, Json]
    attempts: int
    idempotency_key: str | None
    ref: str | None
    payload_hash: str | None
    provider_operation_id: str | None
    reconcile: Mapping[str, Json] | None
    superseded_by: str | None
    version: int
    created_at: str | None
    updated_at: str | None
    message: str
    read: Mapping[str, Json] | None = None  # for reads: how far the answer may be relied on

    def to_json(self) -> dict[str, Json]:
        """Return the object as it goes over every wire. `read` appears only for reads."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if values["read"] is None:
            del values["read"]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What stands outside the record: bodies, and texts that only the engine can render."""

    result: Json = None
    already_done: bool = False
    lookup_request: str | None = None  # "GET /v1/refunds?charge=ch_1", without the host
    read: Mapping[str, Json] | None = None
    business_key: Mapping[str, Json] | None = None
    note: str = ""  # what is not kept any more, for the message
    overtaken_by: str | None = None  # only where its principal may see it


def status_of(record: Record, contract: Contract, now: Now) -> Status:
    """Return the status, as it is when read."""
    operation = record.operation
    if operation.state is State.RECONCILING and operation.origin is State.ACCEPTED:
        return Status.PENDING
    if may_repeat(record, contract, now).allowed:
        return Status.FAILED_SAFE_TO_RETRY
    return _STATUS[operation.state]


def outcome_of(record: Record, contract: Contract, now: Now, extras: Extras) -> Outcome:
    """Say what is known of an operation, in the form that every caller gets."""
    operation = record.operation
    status = status_of(record, contract, now)
    last = record.attempts[-1] if record.attempts else None
    seen = telling(record)
    done = extras.already_done and status is Status.SUCCEEDED
    return Outcome(
        operation_id=operation.id,
        tool=operation.tool,
        status=status.value,
        outcome=OUTCOMES[status],
        state=operation.state.value,
        retry_allowed=status is Status.FAILED_SAFE_TO_RETRY,
        already_done=done,
        result=extras.result if status is Status.SUCCEEDED else None,
        error=_error(record, status, extras.overtaken_by),
        transport_observation=seen.detail if seen else None,
        recovery=_recovery(record, status, done=done),
        correlation_id=operation.correlation_id or (last.correlation_id if last else None),
        last_confirmed=_last_confirmed(record),
        acts=_acts(record, contract, now, status),
        sent_at=instant(last.sent_by_ms) if last else None,
        observed_at=instant(last.ended_ms) if last else None,
        observation=_observed(seen) if seen else None,
        target={"source": operation.source, "business_key": extras.business_key},
        attempts=len(record.attempts),
        idempotency_key=operation.key if contract.key is not None else None,
        ref=operation.ref,
        payload_hash=operation.payload_hash,
        provider_operation_id=operation.provider_operation_id,
        reconcile=_reconcile(record, contract, status, extras),
        superseded_by=operation.superseded_by,
        version=operation.version,
        created_at=instant(operation.created_ms),
        updated_at=instant(operation.updated_ms),
        message=message(record, contract, now, status, done=done) + extras.note,
        read=extras.read,
    )


def telling(record: Record) -> Observation | None:
    """Return the observation that explains where it stands: an unproven attempt before any other.

    A refusal of attempt 2 would explain nothing while attempt 1 is not known.
    """
    seen = [attempt.observation for attempt in record.attempts if attempt.observation]
    doubtful = [item for item in seen if item.seen is Seen.UNKNOWN]
    open_states = (State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW)
    if record.operation.state in open_states and doubtful:
        return doubtful[-1]
    return seen[-1] if seen else None


def instant(ms: int | None) -> str | None:
    """Write an instant as RFC 3339 in UTC, to the millisecond."""
    if ms is None or ms >= FOREVER_MS:
        return None
    moment = datetime.fromtimestamp(ms / 1000, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _observed(seen: Observation) -> Mapping[str, Json]:
    return {
        "class": seen.seen.value,
        "cause": seen.cause.value if seen.cause else None,
        "stage": seen.stage.value,
        "detail": seen.detail,
    }


def _error(record: Record, status: Status, overtaken_by: str | None) -> Mapping[str, Json] | None:
    operation = record.operation
    if status in (Status.SUCCEEDED, Status.PENDING, Status.UNKNOWN):
        return None
    cause = operation.cause or Cause.POLICY
    code = "cancelled" if operation.state is State.CANCELLED else cause.value
    by = {Cause.AFTER_FAILED: failed_blocker(record), Cause.OVERTAKEN: overtaken_by}.get(cause)
    return {"code": code} if by is None else {"code": code, "by": by}


def _recovery(record: Record, status: Status, *, done: bool) -> str | None:
    if done or status is Status.FAILED_SAFE_TO_RETRY:
        return "already_done" if done else "safe_retry"
    return "needs_operator" if record.operation.state is State.MANUAL_REVIEW else None


def _last_confirmed(record: Record) -> Mapping[str, Json]:
    operation = record.operation
    if operation.confirmed_state is None:
        return {"state": "prepared", "at": instant(operation.created_ms), "source": "ledger"}
    return {
        "state": operation.confirmed_state,
        "at": instant(operation.confirmed_ms),
        "source": operation.confirmed_source,
    }


def _acts(record: Record, contract: Contract, now: Now, status: Status) -> Mapping[str, Json]:
    operation = record.operation
    if operation.state is State.MANUAL_REVIEW:
        return {"who": "operator", "by": None}  # it waits as long as it takes
    if operation.state is State.AWAITING_APPROVAL:
        expires_ms = operation.not_before_ms or operation.valid_until_ms
        return {"who": "operator", "by": instant(min(expires_ms, operation.valid_until_ms))}
    if status in (Status.UNKNOWN, Status.PENDING):
        accepted = status is Status.PENDING and operation.accepted_ms is not None
        by_ms = operation.completes_by_ms if accepted else operation.deadline_ms
        return {"who": "worker", "by": instant(by_ms or operation.due_ms)}
    later = may_repeat(record, contract, now).from_ms
    return {"who": "caller", "by": instant(later)}


def _reconcile(
    record: Record, contract: Contract, status: Status, extras: Extras
) -> Mapping[str, Json] | None:
    """Say what would settle it, by whom, and when it is tried next."""
    operation = record.operation
    if status not in (Status.UNKNOWN, Status.PENDING):
        return None
    by = "lookup" if contract.lookups else "event" if contract.events else "operator"
    found: dict[str, Json] = {
        "automatic": operation.state is not State.MANUAL_REVIEW and by != "operator",
        "method": "GET",
        "path": f"/operations/by-id/{operation.id}",
        "by": "operator" if operation.state is State.MANUAL_REVIEW else by,
        "request": extras.lookup_request,
        "next_check_at": instant(operation.due_ms),
        "deadline": instant(operation.completes_by_ms or operation.deadline_ms),
    }
    if extras.lookup_request is None:
        found["none"] = (
            "The look-up is code of yours, not a request."
            if contract.lookups
            else "No look-up is declared for this tool: nobody can ask the provider by itself."
        )
    return found


# --- words for a model ---------------------------------------------------------------------------

_DO_NOT = "Do not repeat it and do not try a variant"


def message(
    record: Record, contract: Contract, now: Now, status: Status, *, done: bool = False
) -> str:
    """Say in plain words what is known, and what to do about it."""
    operation = record.operation
    tool, name = operation.tool, operation.id
    match status:
        case Status.SUCCEEDED if done:
            return f"{tool} had already been done as operation {name}; nothing was sent now."
        case Status.SUCCEEDED:
            return f"{tool} took effect, as operation {name}."
        case Status.FAILED_SAFE_TO_RETRY:
            return (
                f"{tool} did not take effect, which is proven ({operation.cause}). It may be "
                f"carried out by calling it again with operation_id {name}."
            )
        case Status.FAILED:
            return _failed(record, contract, now)
        case Status.PENDING:
            return _pending(record)
        case Status.UNKNOWN:
            return _unknown(record, contract)
        case Status.REJECTED:
            return (
                f"{tool} was not carried out: {operation.cause or 'withdrawn'}. Nothing was done "
                f"outside for operation {name}."
            )


def _failed(record: Record, contract: Contract, now: Now) -> str:
    operation = record.operation
    repeat = may_repeat(record, contract, now)
    if operation.cause is Cause.OPERATOR_UNSURE:
        return (
            f"Operation {operation.id} of {operation.tool} was closed by an operator without "
            "certainty; a new operation stands in its place. Do not repeat this one."
        )
    if repeat.may_arrive:
        until = instant(repeat.from_ms)
        end = f"until {until}" if until else "for as long as its worker may be alive"
        return (
            f"{operation.tool} was decided to be not done, but something of it may still arrive "
            f"{end}. {_DO_NOT} before then."
        )
    last = telling(record)
    why = f" ({last.detail})" if last and last.detail else ""
    return (
        f"{operation.tool} did not take effect and will not{why}: {operation.cause}. "
        f"Operation {operation.id} is closed."
    )


def _pending(record: Record) -> str:
    operation = record.operation
    state, tool, name = operation.state, operation.tool, operation.id
    if state is State.PREPARED and (turn := _awaited(record)) is not None:
        return (
            f"{tool} is recorded and waits for {turn}. {_DO_NOT}: ask for operation {name} instead."
        )
    words = {
        State.AWAITING_APPROVAL: "waits for a person's approval",
        State.PREPARED: "is recorded and waits for its turn",
        State.EXECUTING: "is being carried out",
    }
    how = words.get(state, "was accepted by the provider and is still going on")
    return f"{tool} {how}. {_DO_NOT}: ask for operation {name} instead."


def _awaited(record: Record) -> str | None:
    """Say what a prepared operation waits for, where that is another one."""
    if not blocked(record):
        return None
    waiting = [
        f"its turn after operation {each.operation_id}, which is {each.state}"
        for each in blocking(record)
    ]
    # What else is under way on the object may be another principal's, and is not named.
    return "; ".join(waiting) or "what is still under way on the same object"


def _unknown(record: Record, contract: Contract) -> str:
    operation = record.operation
    if operation.state is State.MANUAL_REVIEW:
        how = "A person has been asked to decide it"
    elif contract.lookups:
        how = "It is being looked up"
    elif contract.events is not None:
        late = operation.cause is Cause.WEBHOOK_MISSING
        how = "The provider's own message about it " + ("is overdue" if late else "is awaited")
    else:
        how = "A person will be asked to decide it"
    return (
        f"It is not known whether {operation.tool} took effect. {_DO_NOT}. {how}; ask for "
        f"operation {operation.id} to learn the result. Other work that does not depend on it "
        "may go on."
    )
