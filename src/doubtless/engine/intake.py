"""From a call to a durable operation: join what it means, refuse it, or create it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from doubtless.core import identity, permission, policy, progress, settling
from doubtless.core.contract import Contract, KeyFormat
from doubtless.core.effects import NO_EFFECT
from doubtless.core.identity import Asked, Join, Known, Refuse
from doubtless.core.model import Cause, Json, Now, Operation, Principal, Record, State
from doubtless.core.outcome import Outcome, refusal
from doubtless.core.steps import Send
from doubtless.engine.book import Begun, Book, dump_request
from doubtless.engine.expressions import ExpressionError, holds
from doubtless.engine.registry import Tool
from doubtless.engine.templates import (
    TemplateError,
    TemplateValues,
    render_request,
    request_digest,
)
from doubtless.errors import BadArguments, BadOperationId
from doubtless.ledger import attempts, claims, journal, listing, operations
from doubtless.ledger.store import Transaction
from doubtless.transports.base import HttpRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller wants, with all that follows from it already computed."""

    tool: Tool
    principal: Principal
    operation_id: str  # the caller's, or a fresh one
    said_id: bool  # whether it is the caller's
    session_id: str
    correlation_id: str | None
    payload: bytes  # canonical JSON of the arguments
    payload_hash: str
    business_key: str | None
    ref: str
    key: str
    request: HttpRequest | None
    request_digest: str
    needs_approval: bool = False
    supersedes: str | None = None
    duplicate_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What a call turned out to mean."""

    operation_id: str
    begun: Begun | None = None
    joined: bool = False
    refusal: Refuse | None = None


def prepare(book: Book, tx: Transaction, ask: Ask) -> Met:
    """Make a call durable: join what it means, refuse it, or create it and open its attempt."""
    now = book.now(tx)
    contract = ask.tool.contract
    asked = Asked(
        tool=contract.tool,
        principal=ask.principal.name,
        payload_hash=ask.payload_hash,
        operation_id=ask.operation_id if ask.said_id else None,
    )
    claim = _claim(ask)
    same_id = operations.get(tx, book.tenant, ask.operation_id) if ask.said_id else None
    holder = _holder(book, tx, contract, claim, now) if same_id is None else None
    meeting = identity.meet(
        asked,
        same_id=_known(same_id),
        holder=_known(holder),
        twin=_known(_twin(book, tx, ask, claim, now)),
    )
    match meeting:
        case Refuse():
            about = meeting.by or ask.operation_id
            data: dict[str, Json] = {"payload_hash": ask.payload_hash, "tool": contract.tool}
            journal.refuse(tx, book.tenant, about, meeting.code, principal=ask.principal, data=data)
            return Met(operation_id=ask.operation_id, refusal=meeting)
        case Join(operation_id=operation_id):
            begun = _again(book, tx, operation_id, ask, now) if ask.said_id else None
            return Met(operation_id=operation_id, begun=begun, joined=True)
        case _:
            return _create(book, tx, ask, claim, now)


def _claim(ask: Ask) -> str | None:
    if ask.tool.contract.effect in NO_EFFECT:
        return None
    return identity.claim_of(
        ask.business_key,
        principal=ask.principal.name,
        session_id=ask.session_id,
        payload=ask.payload_hash,
    )


def _holder(
    book: Book, tx: Transaction, contract: Contract, claim: str | None, now: Now
) -> Operation | None:
    if claim is None or contract.latest_wins:
        return None
    held = claims.claim_holder(tx, book.tenant, contract.source.name, claim, now.ms)
    return operations.get(tx, book.tenant, held) if held else None


def _twin(book: Book, tx: Transaction, ask: Ask, claim: str | None, now: Now) -> Operation | None:
    window_ms = ask.tool.contract.dedupe_window_ms
    if window_ms == 0 or ask.said_id or claim is None:
        return None
    return listing.latest_succeeded_twin(
        tx,
        book.tenant,
        source=ask.tool.contract.source.name,
        claim=claim,
        principal=ask.principal.name,
        session_id=ask.session_id,
        tool=ask.tool.contract.tool,
        payload_hash=ask.payload_hash,
        since_ms=now.ms - window_ms,
    )


def _again(book: Book, tx: Transaction, operation_id: str, ask: Ask, now: Now) -> Begun | None:
    """Go on with a closed operation that provably did nothing, when its caller repeats it."""
    record, contract = book.load(tx, operation_id)
    repeat = permission.may_repeat(record, contract, now)
    if not repeat.allowed or not book.registry.can_act(contract):
        return None
    resend = record.operation.cause is Cause.CONFIRMED_ABSENT
    return book.begin(
        tx,
        record,
        contract,
        resend=resend,
        principal=ask.principal,
        correlation_id=ask.correlation_id,
    )


def _create(book: Book, tx: Transaction, ask: Ask, claim: str | None, now: Now) -> Met:
    contract, operation = ask.tool.contract, _prepared(book, ask, claim, now)
    record = Record(operation=operation)
    if contract.latest_wins or not isinstance(policy.decide(record, contract, now).step, Send):
        _insert(book, tx, ask, operation)
        _take_claim(book, tx, operation, now)
        return _settle_new(book, tx, ask, now)
    owner = book.surroundings.owner
    correlation_id = ask.correlation_id or f"{ask.ref}-1"
    moved, attempt = progress.begin(
        record, contract, now, owner=owner, correlation_id=correlation_id, resend=False
    )
    stored = _insert(book, tx, ask, operation, moved_to=moved)
    _take_claim(book, tx, operation, now)
    attempts.open_attempt(tx, book.tenant, stored.id, attempt, principal=ask.principal)
    opened = Record(operation=stored, attempts=(attempt,))
    begun = Begun(
        record=opened,
        contract=contract,
        attempt=attempt,
        payload=ask.payload,
        request=ask.request,
    )
    return Met(operation_id=stored.id, begun=begun)


def _prepared(book: Book, ask: Ask, claim: str | None, now: Now) -> Operation:
    contract = ask.tool.contract
    return Operation(
        id=ask.operation_id,
        tenant=book.tenant,
        tool=contract.tool,
        effect=contract.effect,
        source=contract.source.name,
        principal=ask.principal.name,
        session_id=ask.session_id,
        correlation_id=ask.correlation_id,
        contract_digest=ask.tool.digest,
        payload_hash=ask.payload_hash,
        request_digest=ask.request_digest,
        ref=ask.ref,
        key=ask.key,
        state=State.PREPARED,
        version=1,
        fence=0,
        created_ms=now.ms,
        updated_ms=now.ms,
        due_ms=now.ms,
        valid_until_ms=now.ms + contract.valid_for_ms,
        business_key=ask.business_key,
        claim=claim,
        supersedes=ask.supersedes,
        duplicate_of=ask.duplicate_of,
        needs_approval=ask.needs_approval,
    )


def _insert(
    book: Book,
    tx: Transaction,
    ask: Ask,
    operation: Operation,
    *,
    moved_to: Operation | None = None,
) -> Operation:
    kept = {"payload": ask.payload}
    if ask.request is not None:
        kept["request"] = dump_request(ask.request)
    return operations.insert(
        tx,
        operation,
        bodies=kept,
        contract_json=None if ask.tool.digest in book.kept else ask.tool.snapshot,
        principal=ask.principal,
        inputs={"effect": operation.effect.value, "said_id": ask.said_id},
        moved_to=moved_to,
    )


def _take_claim(book: Book, tx: Transaction, operation: Operation, now: Now) -> None:
    if operation.claim is not None:  # where the latest wins, an older one may hold it still
        claims.take_claim(tx, book.tenant, operation.source, operation.claim, operation.id, now.ms)


def _settle_new(book: Book, tx: Transaction, ask: Ask, now: Now) -> Met:
    """Take what follows for an operation that may not be sent at once, or has siblings to heed."""
    record, contract = book.load(tx, ask.operation_id)
    step = policy.decide(record, contract, now).step
    if isinstance(step, Send):
        begun = book.begin(tx, record, contract, resend=False, principal=ask.principal)
        return Met(operation_id=ask.operation_id, begun=begun)
    book.store(tx, record, contract, settling.settle(record, contract, now), now)
    return Met(operation_id=ask.operation_id)


def _known(operation: Operation | None) -> Known | None:
    if operation is None:
        return None
    return Known(
        id=operation.id,
        tool=operation.tool,
        principal=operation.principal,
        payload_hash=operation.payload_hash,
        state=operation.state,
    )


def draft(  # noqa: PLR0913 - what a caller may say, each by its name
    book: Book,
    tool: Tool,
    arguments: Mapping[str, Json],
    *,
    principal: Principal,
    operation_id: str | None = None,
    session_id: str | None = None,
    correlation_id: str | None = None,
    supersedes: str | None = None,
    duplicate_of: str | None = None,
) -> Ask:
    """Work out all that follows from a call, before anything is recorded.

    Raises:
        BadOperationId: The id has other characters than it may, or too many.
        BadArguments: They don't fit the schema, can't be canonical JSON, or don't fit the request.
    """
    contract = tool.contract
    if operation_id is not None and not identity.is_operation_id(operation_id):
        raise BadOperationId(operation_id)
    payload = _canonical(tool, arguments)
    chosen = operation_id or book.surroundings.new_id()
    bits = identity.derive(book.ledger_id, chosen)
    form = contract.key.format if contract.key is not None else KeyFormat.UUID
    ref, key = identity.reference(bits), identity.encode_key(bits, form)
    values = TemplateValues(
        args=arguments,
        id=chosen,
        ref=ref,
        idempotency_key=key,
        session_id=session_id or "",
        duplicate_of=duplicate_of,
    )
    payload_hash = _hashed(contract, arguments, payload)
    request = _rendered(contract, values)
    return Ask(
        tool=tool,
        principal=principal,
        operation_id=chosen,
        said_id=operation_id is not None,
        session_id=session_id or "",
        correlation_id=correlation_id,
        payload=payload,
        payload_hash=payload_hash,
        business_key=identity.business_key(arguments, contract.business_key),
        ref=ref,
        key=key,
        request=request,
        request_digest=request_digest(request) if request is not None else payload_hash,
        needs_approval=_needs_approval(contract, arguments, principal, session_id),
        supersedes=supersedes,
        duplicate_of=duplicate_of,
    )


def _canonical(tool: Tool, arguments: Mapping[str, Json]) -> bytes:
    """Return arguments as canonical JSON, once they are known to fit the tool."""
    try:
        payload = identity.canonical(arguments)
    except identity.NotCanonical as error:
        raise BadArguments(tool.contract.tool, "", str(error)) from error
    tool.check(arguments)
    return payload


def _hashed(contract: Contract, arguments: Mapping[str, Json], payload: bytes) -> str:
    if contract.volatile:
        return identity.payload_hash(contract.tool, arguments, contract.volatile)
    return identity.hash_of(contract.tool, payload)


def _rendered(contract: Contract, values: TemplateValues) -> HttpRequest | None:
    if contract.request is None:
        return None
    try:
        return render_request(
            contract.request,
            contract.source.base_url,
            values,
            key=contract.key,
            condition=contract.condition,
        )
    except TemplateError as error:
        raise BadArguments(contract.tool, "request", str(error)) from error


def _needs_approval(
    contract: Contract, arguments: Mapping[str, Json], principal: Principal, session_id: str | None
) -> bool:
    """Whether a person must authorise it first; an expression that can't be evaluated says yes."""
    if contract.approval is None:
        return False
    if contract.approval.when is None:
        return True
    facts: Json = {"args": arguments, "session_id": session_id, "principal": principal.name}
    try:
        return holds(contract.approval.when, facts)
    except ExpressionError:
        return True


def refused(ask: Ask, met: Met) -> Outcome:
    """Return what a refused call is told: no operation was created."""
    refused = met.refusal
    assert refused is not None  # noqa: S101 - the caller has seen it
    said = ask.operation_id if ask.said_id else None
    contract = ask.tool.contract
    key: Json = None if ask.business_key is None else json.loads(ask.business_key)
    return refusal(
        operation_id=said,
        tool=contract.tool,
        code=refused.code,
        by=refused.by,
        payload_hash=ask.payload_hash,
        target={"source": contract.source.name, "business_key": key},
        correlation_id=ask.correlation_id,
    )
