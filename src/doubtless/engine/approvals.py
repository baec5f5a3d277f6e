"""Approvals, carried into the ledger: who may give one, what it is bound to, and what follows.

An approval is permission, and proves nothing about a result: it is stored and shown apart from
evidence. Who asked for an operation never approves it.
"""

from dataclasses import dataclass, replace

from doubtless.core import approvals, identity, settling
from doubtless.core.contract import Contract
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Approval,
    Cause,
    Grant,
    Json,
    Now,
    Operation,
    Principal,
    Record,
    Role,
    Seen,
    State,
)
from doubtless.core.settling import Change
from doubtless.engine.book import Book
from doubtless.engine.registry import Tool
from doubtless.engine.templates import request_digest
from doubtless.errors import ApprovalNotFound, DecisionRefused, GrantRefused, PayloadNotShown
from doubtless.ledger import attempts, grants
from doubtless.ledger.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What a person says about carrying one operation out."""

    operation_id: str
    operator: str
    note: str
    payload_hash: str | None  # of what was shown; None: the caller showed what is stored

    @property
    def principal(self) -> Principal:
        """Who says it."""
        return Principal(name=self.operator, role=Role.OPERATOR)


def approve(book: Book, tx: Transaction, vote: Vote) -> Record:
    """Store a person's approval, and go on with the operation if that is enough.

    Raises:
        OperationNotFound: There is no such operation.
        PayloadNotShown: The payload that was shown is not the one that would be executed.
        DecisionRefused: It doesn't wait for an approval, its time is over, the operator asked for
            it or has approved it already.
    """
    record, contract = _loaded(book, tx, vote)
    operation, now = record.operation, book.now(tx)
    if operation.state is not State.AWAITING_APPROVAL:
        raise DecisionRefused(operation.id, f"it is {operation.state}, and waits for no approval")
    expires_ms = operation.not_before_ms or operation.valid_until_ms
    if now.ms >= min(expires_ms, operation.valid_until_ms):
        raise DecisionRefused(operation.id, "nobody approved it in time")
    _check_person(record, contract, now, vote.operator)
    approval = _approval(operation, contract, now, vote.operator)
    attempts.add_approval(
        tx, book.tenant, operation.id, approval, principal=vote.principal, note=vote.note
    )
    record = replace(record, approvals=(*record.approvals, approval))
    return _go_on(book, tx, record, contract, now, vote.principal)


def _loaded(book: Book, tx: Transaction, vote: Vote) -> tuple[Record, Contract]:
    record, contract = book.load(tx, vote.operation_id)
    stored = record.operation.payload_hash
    if vote.payload_hash is not None and vote.payload_hash != stored:
        raise PayloadNotShown(vote.operation_id, shown=vote.payload_hash, stored=stored)
    return record, contract


def _check_person(record: Record, contract: Contract, now: Now, operator: str) -> None:
    operation = record.operation
    if approvals.is_same_person(operator, operation.principal):
        raise DecisionRefused(operation.id, f"{operator} asked for it: somebody else has to decide")
    for given in record.approvals:
        stands = given.expires_ms > now.ms and not given.retry
        if stands and approvals.is_same_person(given.by, operator):
            needed = approvals.people_needed(contract)
            why = f"{operator} has approved it already; {needed} different people are needed"
            raise DecisionRefused(operation.id, why)


def _approval(operation: Operation, contract: Contract, now: Now, operator: str) -> Approval:
    lasts_ms = contract.approval.expires_ms if contract.approval is not None else 0
    expires_ms = min(now.ms + lasts_ms, operation.valid_until_ms)
    digest = approvals.digest_of(operation, expires_ms)
    return Approval(by=operator, at_ms=now.ms, expires_ms=expires_ms, digest=digest)


def _go_on(
    book: Book, tx: Transaction, record: Record, contract: Contract, now: Now, by: Principal
) -> Record:
    """Take what follows once enough people have said so. A worker carries it out."""
    changes = settling.settle(record, contract, now)
    return book.store(tx, record, contract, changes, now, principal=by)


def deny(book: Book, tx: Transaction, vote: Vote) -> None:
    """Refuse what waits for an approval, or was approved and not tried yet.

    Raises:
        OperationNotFound: There is no such operation.
        PayloadNotShown: The payload that was shown is not the one that would be executed.
        DecisionRefused: It needs no approval, or it can't be stopped any more.
    """
    record, contract = _loaded(book, tx, vote)
    operation, now = record.operation, book.now(tx)
    waits = operation.state in (State.AWAITING_APPROVAL, State.PREPARED)
    harmless = all(
        attempt.seen in (Seen.NOT_SENT, Seen.NOT_PROCESSED) for attempt in record.attempts
    )
    if not (operation.needs_approval and waits and harmless):
        why = f"it is {operation.state}, and waits for no approval"
        raise DecisionRefused(operation.id, why)
    holds = frozenset({Need.NO_TRACE})
    after = settling.enter(
        operation, State.REJECTED, now, cause=Cause.DENIED, contract=contract, holds=holds
    )
    inputs: dict[str, Json] = {"decision": "deny", "note": vote.note}
    change = Change(before=operation, after=after, reason="denied", inputs=inputs)
    book.store(tx, record, contract, [change], now, principal=vote.principal)


def is_as_approved(book: Book, tx: Transaction, operation: Operation, contract: Contract) -> bool:
    """Whether what is stored, and would be executed, has the hashes that an approval is bound to.

    True where nobody has to approve anything.
    """
    if not operation.needs_approval:
        return True
    arguments = book.arguments(tx, operation.id)
    if arguments is None:
        return False
    stored = identity.payload_hash(contract.tool, arguments, contract.volatile)
    if stored != operation.payload_hash:
        return False
    request = book.request(tx, operation.id)
    if request is None:
        return contract.request is None and contract.action is None
    return request_digest(request) == operation.request_digest


def authorise_retry(
    book: Book, tx: Transaction, record: Record, contract: Contract, by: Principal, note: str
) -> Record:
    """Store that an operator's retry is its own authorisation, where the tool needs one."""
    operation = record.operation
    if not operation.needs_approval or approvals.is_same_person(by.name, operation.principal):
        return record
    given = replace(_approval(operation, contract, book.now(tx), by.name), retry=True)
    attempts.add_approval(tx, book.tenant, operation.id, given, principal=by, note=note)
    return replace(record, approvals=(*record.approvals, given))


# --- for a whole session -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Granting:
    """A session-wide approval, as a person asks for it."""

    id: str
    session_id: str
    tool: Tool
    principal: str
    expires_ms: int  # a length of time
    operator: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The approval, and what goes on because of it."""

    grant: Grant
    freed: tuple[Record, ...]


def grant(book: Book, tx: Transaction, asked: Granting) -> Granted:
    """Store an approval for all calls of a tool by a principal in a session, until it expires.

    What waits for one there already goes on.

    Raises:
        GrantRefused: The tool needs no approval or two people's, the operator is the principal, or
            it would never stand.
    """
    contract, now = asked.tool.contract, book.now(tx)
    _check_grant(asked, contract)
    made = Grant(
        id=asked.id,
        session_id=asked.session_id,
        tool=contract.tool,
        contract_digest=asked.tool.digest,
        principal=asked.principal,
        by=asked.operator,
        at_ms=now.ms,
        expires_ms=now.ms + asked.expires_ms,
        digest="",
        note=asked.note,
    )
    made = replace(made, digest=approvals.grant_digest(made))
    grants.add(tx, book.tenant, made)
    waiting = grants.waiting(
        tx,
        book.tenant,
        session_id=made.session_id,
        principal=made.principal,
        tool=made.tool,
    )
    return Granted(grant=made, freed=tuple(_freed(book, tx, each, now) for each in waiting))


def _check_grant(asked: Granting, contract: Contract) -> None:
    tool = contract.tool
    if contract.approval is None:
        raise GrantRefused(f"{tool} needs no approval: there is nothing to grant")
    if contract.approval.people > 1:
        raise GrantRefused(
            f"{tool} needs {contract.approval.people} people for each call: it is never approved"
            " for a whole session"
        )
    if approvals.is_same_person(asked.operator, asked.principal):
        raise GrantRefused(f"{asked.operator} can't approve calls of their own")
    if asked.expires_ms <= 0:
        raise GrantRefused("it would expire at once: say for how long it is to stand")


def _freed(book: Book, tx: Transaction, operation_id: str, now: Now) -> Record:
    record, contract = book.load(tx, operation_id)
    by = Principal(name="worker", role=Role.WORKER)
    return _go_on(book, tx, record, contract, now, by)


def revoke(book: Book, tx: Transaction, session_id: str, grant_id: str, operator: str) -> Grant:
    """Take a session-wide approval back. What has passed its gate already is not called back.

    Raises:
        ApprovalNotFound: There is none of that id in that session.
    """
    found = grants.get(tx, book.tenant, session_id, grant_id)
    if found is None:
        raise ApprovalNotFound(session_id, grant_id)
    grants.revoke(tx, book.tenant, session_id, grant_id, by=operator)
    return grants.get(tx, book.tenant, session_id, grant_id) or found
