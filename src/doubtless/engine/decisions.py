"""An operator's decision, carried into the ledger: judged, journalled and followed in one unit."""

from dataclasses import dataclass, replace

from doubtless.core import decisions, settling
from doubtless.core.contract import Contract
from doubtless.core.decisions import Word
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, Json, Principal, Record, Role, Seen, State
from doubtless.core.settling import Change
from doubtless.engine import approvals, intake, steps
from doubtless.engine.book import Begun, Book, Decided
from doubtless.engine.drafting import Ask
from doubtless.errors import DecisionRefused, StaleVersion
from doubtless.ledger import claims
from doubtless.ledger.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What an operator decided about one operation, and on which version of it."""

    operation_id: str
    word: Word
    operator: str
    note: str
    version: int | None = None  # None: whatever it is now
    provider_operation_id: str | None = None
    mark_duplicate: bool = False

    @property
    def principal(self) -> Principal:
        """Who decided."""
        return Principal(name=self.operator, role=Role.OPERATOR)


def resolve(book: Book, tx: Transaction, decision: Decision, again: Ask | None) -> Decided:
    """Carry out a decision.

    Args:
        book: The ledger as the engine sees it.
        tx: The transaction.
        decision: What was decided.
        again: For `again`: the new operation, drafted from the old one's arguments.

    Raises:
        StaleVersion: The operation changed since the operator saw it.
        DecisionRefused: The decision isn't legal as things stand.
        OperationNotFound: There is no such operation.
    """
    record, contract = book.load(tx, decision.operation_id)
    stored, now = record.operation, book.now(tx)
    if decision.version is not None and decision.version != stored.version:
        raise StaleVersion(stored.id, expected=decision.version, version=stored.version)
    ruling = decisions.rule(
        record,
        contract,
        now,
        decision.word,
        operator=decision.operator,
        note=decision.note,
        provider_operation_id=decision.provider_operation_id,
        mark_duplicate=decision.mark_duplicate,
    )
    inputs: dict[str, Json] = {"decision": decision.word.value, "note": decision.note}
    principal = decision.principal
    if ruling.change is not None:
        change = replace(ruling.change, inputs=inputs)
        record = book.store(tx, record, contract, [change], now, principal=principal)
    if ruling.evidence is not None:
        record = steps.weigh(
            book, tx, record, contract, now, [ruling.evidence], principal=principal
        )
    if ruling.sends:
        if not book.registry.can_act(contract):
            why = f"{contract.tool} is not registered in this process: decide where it is"
            raise DecisionRefused(stored.id, why)
        if book.arguments(tx, stored.id) is None:
            why = "what it would send is not kept any more: decide what is known of it"
            raise DecisionRefused(stored.id, why)
        record = approvals.authorise_retry(book, tx, record, contract, principal, decision.note)
        begun = _send_again(book, tx, record, contract, principal)
        return Decided(operation_id=stored.id, begun=begun)
    if ruling.prepares and again is not None:
        return _prepare_again(book, tx, decision, again)
    return Decided(operation_id=stored.id)


def _send_again(
    book: Book, tx: Transaction, record: Record, contract: Contract, principal: Principal
) -> Begun:
    operation = record.operation
    in_review = operation.state is State.MANUAL_REVIEW
    return book.begin(
        tx,
        record,
        contract,
        # What ended as provably not done is tried again; it is no resend after an unknown.
        resend=in_review or operation.cause is Cause.CONFIRMED_ABSENT,
        principal=principal,
        by=Need.OPERATOR if in_review else Need.PERMITTED,
    )


def _prepare_again(book: Book, tx: Transaction, decision: Decision, again: Ask) -> Decided:
    """Hand the object over to a new operation, and link the two."""
    record, contract = book.load(tx, decision.operation_id)
    closed, now = record.operation, book.now(tx)
    if not closed.state.ends:
        why = f"it could not be closed, and is {closed.state}"
        raise DecisionRefused(closed.id, why)
    if closed.claim is not None:
        claims.release_claim(tx, book.tenant, closed.source, closed.claim, closed.id)
    met = intake.prepare(book, tx, again)
    if met.refusal is not None:
        by = met.refusal.by or "another operation"
        raise DecisionRefused(closed.id, f"its object is held by {by}")
    linked = decisions.superseded(closed, met.operation_id)
    inputs: dict[str, Json] = {"decision": decision.word.value, "note": decision.note}
    change = Change(before=closed, after=linked, reason="superseded", inputs=inputs)
    book.store(tx, record, contract, [change], now, principal=decision.principal)
    return Decided(operation_id=met.operation_id, begun=met.begun)


def cancel(book: Book, tx: Transaction, operation_id: str, principal: Principal) -> None:
    """Withdraw an operation of which nothing can have been done.

    Raises:
        DecisionRefused: Something was sent, or it has ended.
    """
    record, contract = book.load(tx, operation_id)
    operation, now = record.operation, book.now(tx)
    state = operation.state
    harmless = record.open_attempt is None and all(
        attempt.seen in (Seen.NOT_SENT, Seen.NOT_PROCESSED) for attempt in record.attempts
    )
    if state not in (State.PREPARED, State.AWAITING_APPROVAL) or not harmless:
        raise DecisionRefused(operation_id, f"it can't be cancelled while it is {state}")
    holds = frozenset({Need.NO_TRACE})
    after = settling.enter(
        operation, State.CANCELLED, now, cause=Cause.CANCELLED, contract=contract, holds=holds
    )
    change = Change(before=operation, after=after, reason="cancel", inputs={})
    book.store(tx, record, contract, [change], now, principal=principal)
