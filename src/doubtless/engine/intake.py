"""From a call to a durable operation: join what it means, refuse it, or create it."""

import json
from dataclasses import dataclass

from doubtless.core import identity, permission, policy, progress, settling
from doubtless.core.effects import NO_EFFECT
from doubtless.core.identity import Asked, Join, Known, Refuse
from doubtless.core.model import Cause, Json, Now, Operation, Record, State
from doubtless.core.outcome import Outcome
from doubtless.core.refusals import refusal
from doubtless.core.steps import Send
from doubtless.engine import counting, early
from doubtless.engine.book import Begun, Book, dump_request
from doubtless.engine.drafting import Ask
from doubtless.errors import BadSequence
from doubtless.ledger import (
    attempts,
    claims,
    journal,
    listing,
    operations,
    requests,
    sequences,
)
from doubtless.ledger.store import Transaction
from doubtless.ledger.transaction import LedgerConflict


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
    same_id = _same_id(book, tx, ask)
    holder = _holder(book, tx, ask, claim, now) if same_id is None else None
    holder = holder or _believed_open(book, tx, ask)
    meeting = identity.meet(
        asked,
        same_id=_known(same_id),
        holder=_known(holder),
        twin=_known(_twin(book, tx, ask, claim, now)),
    )
    match meeting:
        case Refuse() if not tx.has_turn:
            return Met(operation_id=ask.operation_id, refusal=meeting)
        case Refuse():
            about = meeting.by or ask.operation_id
            data: dict[str, Json] = {"payload_hash": ask.payload_hash, "tool": contract.tool}
            journal.refuse(tx, book.tenant, about, meeting.code, principal=ask.principal, data=data)
            counting.prevented(tx, book.tenant, contract, meeting.code.value)
            return Met(operation_id=ask.operation_id, refusal=meeting)
        case Join(operation_id=operation_id):
            repeats = ask.said_id and not ask.queued
            begun = _again(book, tx, operation_id, ask, now) if repeats else None
            if begun is None and tx.has_turn:
                counting.joined(tx, *book.load(tx, operation_id), now)
            if ask.request_id is not None and same_id is None:
                requests.remember(tx, book.tenant, ask.request_id, operation_id)
            return Met(operation_id=operation_id, begun=begun, joined=True)
        case _:
            return _create(book, tx, ask, claim, now)


def _same_id(book: Book, tx: Transaction, ask: Ask) -> Operation | None:
    """Return the operation that the same intent, or the very same request, led to before."""
    if not ask.said_id and ask.request_id is None:
        return None
    found = operations.get(tx, book.tenant, ask.operation_id)
    if found is None and ask.request_id is not None:
        before = requests.joined(tx, book.tenant, ask.request_id)
        found = operations.get(tx, book.tenant, before) if before is not None else None
    return found


def _claim(ask: Ask) -> str | None:
    if ask.tool.contract.effect in NO_EFFECT:
        return None
    return identity.claim_of(
        ask.business_key,
        principal=ask.principal.name,
        session_id=ask.session_id,
        payload=ask.payload_hash,
    )


def _holder(book: Book, tx: Transaction, ask: Ask, claim: str | None, now: Now) -> Operation | None:
    """Return who stands in the way on the object: not what the call is to come after."""
    contract = ask.tool.contract
    if claim is None or contract.latest_wins:
        return None
    held = claims.claim_holder(tx, book.tenant, contract.source.name, claim, now.ms)
    if held == ask.operation_id:
        raise LedgerConflict(f"{held} has appeared just now")
    if held is not None and sequences.comes_after(tx, book.tenant, ask.after, held):
        return None
    return operations.get(tx, book.tenant, held) if held else None


def _believed_open(book: Book, tx: Transaction, ask: Ask) -> Operation | None:
    """Return what has taken effect, and stands in the way because its caller doesn't know."""
    found = (operations.get(tx, book.tenant, each) for each in ask.in_doubt)
    mine = (each for each in found if each is not None and each.principal == ask.principal.name)
    return next((each for each in mine if each.state is State.SUCCEEDED), None)


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
    _check_named(book, tx, ask)
    contract, operation = ask.tool.contract, _prepared(book, ask, claim, now)
    record = Record(operation=operation)
    waits = contract.latest_wins or ask.queued or bool(ask.after)
    if waits or not isinstance(policy.decide(record, contract, now).step, Send):
        _insert(book, tx, ask, operation)
        _take_claim(book, tx, ask, operation, now)
        return _settle_new(book, tx, ask, now) if tx.has_turn else _leave_new(book, tx, ask, now)
    owner = book.surroundings.owner
    correlation_id = ask.correlation_id or f"{ask.ref}-1"
    moved, attempt = progress.begin(
        record, contract, now, owner=owner, correlation_id=correlation_id, resend=False
    )
    stored = _insert(book, tx, ask, operation, moved_to=moved)
    _take_claim(book, tx, ask, operation, now)
    attempts.open_attempt(tx, book.tenant, stored.id, attempt, principal=ask.principal)
    opened = Record(operation=stored, attempts=(attempt,))
    if contract.events is not None:
        opened = early.appeared(book, tx, opened, contract, now)
    begun = Begun(
        record=opened,
        contract=contract,
        attempt=attempt,
        payload=ask.payload,
        request=ask.request,
    )
    return Met(operation_id=stored.id, begun=begun)


def _check_named(book: Book, tx: Transaction, ask: Ask) -> None:
    """Be sure that the operations which a call names are there, and its principal's own."""
    named = [("after", each) for each in ask.after]
    if ask.supersedes is not None:
        named.append(("supersedes", ask.supersedes))
    for word, name in named:
        found = operations.get(tx, book.tenant, name)
        if found is None or found.principal != ask.principal.name:
            wrong = f"{word}: you have no operation {name!r} in this ledger"
            raise BadSequence(wrong, operation_id=name)


def _prepared(book: Book, ask: Ask, claim: str | None, now: Now) -> Operation:
    contract = ask.tool.contract
    waits = ask.queued or bool(ask.after)
    valid_for_ms = contract.queued_valid_for_ms if waits else contract.valid_for_ms
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
        valid_until_ms=now.ms + valid_for_ms,
        business_key=ask.business_key,
        claim=claim,
        supersedes=ask.supersedes,
        duplicate_of=ask.duplicate_of,
        needs_approval=ask.needs_approval,
        on_unknown=ask.on_unknown,
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
        after=ask.after,
        moved_to=moved_to,
    )


def _take_claim(book: Book, tx: Transaction, ask: Ask, operation: Operation, now: Now) -> None:
    """Take the object. An older one that this is to come after, or to overtake, may have it still.

    Raises:
        LedgerConflict: A transaction that takes no turns has just got it: look again.
    """
    if operation.claim is None:
        return
    source, claim = operation.source, operation.claim
    held = claims.take_claim(tx, book.tenant, source, claim, operation.id, now.ms)
    if held is None or ask.tool.contract.latest_wins:
        return
    if not sequences.comes_after(tx, book.tenant, ask.after, held):
        raise LedgerConflict(f"{held} has just taken the object")


def _leave_new(book: Book, tx: Transaction, ask: Ask, now: Now) -> Met:
    """Leave a new operation to the first who looks at it after its commit, in a turn.

    What others do until then may change what follows for it, so it is due at once. Only if it would
    end here and now, it does.
    """
    record, contract = book.load(tx, ask.operation_id)
    changes = settling.settle(record, contract, now)
    if changes and changes[-1].after.state.ends:
        book.store(tx, record, contract, changes, now)
    return Met(operation_id=ask.operation_id)


def _settle_new(book: Book, tx: Transaction, ask: Ask, now: Now) -> Met:
    """Take what follows for an operation that may not be sent at once, or has siblings to heed."""
    record, contract = book.load(tx, ask.operation_id)
    record = early.heed(book, tx, record, contract, now)
    step = policy.decide(record, contract, now).step
    if isinstance(step, Send) and not ask.queued:
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
