"""The units of work after an attempt or a look has begun: gate, end, recovery, look, next step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from doubtless.core import permission, policy, progress, settling
from doubtless.core.contract import Contract
from doubtless.core.model import (
    Attempt,
    Cause,
    Evidence,
    Now,
    Observation,
    Principal,
    Record,
    Role,
    Seen,
    Shows,
    State,
)
from doubtless.core.progress import Liveness
from doubtless.core.steps import LookUp, Send
from doubtless.engine import approvals, counting, early
from doubtless.engine.book import EXHIBIT, WORKER, Begun, Book
from doubtless.ledger import attempts, bodies
from doubtless.ledger.store import Transaction

POLL_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended, and what is kept of it."""

    observation: Observation
    sent_by_ms: int | None
    closes_in_ms: int | None = 0  # until it can't start anything; None: it still runs
    reply: bytes = b""
    result: bytes | None = None  # JSON for the agent
    read: bytes | None = None  # JSON: how far a read may be relied on
    exhibits: Mapping[str, bytes] = field(default_factory=dict)  # for a person to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """The lease for asking the look-ups is held; they may be asked now."""

    record: Record
    contract: Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The gate is open."""

    at_ms: int  # by the ledger's clock
    write_by_ms: int
    sent_by_ms: int  # the last instant at which the first byte can leave


def open_gate(book: Book, tx: Transaction, begun: Begun, *, mark: bool) -> Opened | str:
    """Judge whether the first byte may be written; a text says why not.

    Args:
        book: The ledger as the engine sees it.
        tx: One that may write, if `mark`.
        begun: The attempt that asks.
        mark: Record that the gate opens, in the same transaction.
    """
    operation_id, attempt = begun.record.operation.id, begun.attempt
    record, contract = book.current(tx, begun)
    now = book.now(tx)
    found = permission.gate(record, contract, now, attempt=attempt.number, fence=attempt.fence)
    if isinstance(found, str):
        return found
    if not approvals.is_as_approved(book, tx, record.operation, contract):
        return "what is stored is not what was approved"
    if mark and not attempts.mark_sending(
        tx,
        book.tenant,
        operation_id,
        attempt.number,
        fence=attempt.fence,
        sent_by_ms=found.sent_by_ms,
        principal=WORKER,
    ):
        return "another worker holds the operation now"
    return Opened(at_ms=now.ms, write_by_ms=found.write_by_ms, sent_by_ms=found.sent_by_ms)


def finish(book: Book, tx: Transaction, begun: Begun, ending: Ending) -> Record:
    """Record how an attempt ended, and take the steps that follow.

    Whoever lost the lease meanwhile writes evidence only; it is weighed like any other.
    """
    operation_id, number = begun.record.operation.id, begun.attempt.number
    record, contract = book.current(tx, begun)
    now = book.now(tx)
    digest = _keep(book, tx, operation_id, number, ending)
    attempt = record.attempts[number - 1]
    stored = record.operation
    closed_ms = None if ending.closes_in_ms is None else now.ms + ending.closes_in_ms
    if attempt.ended_ms is not None or stored.fence != begun.attempt.fence:
        return _late(
            book,
            tx,
            record,
            contract,
            ending,
            number=number,
            digest=digest,
            closed_ms=closed_ms,
        )
    record, attempt, item = progress.end(
        record,
        contract,
        now,
        _after_applied(record, number, ending.observation),
        sent_by_ms=ending.sent_by_ms,
        closed_ms=closed_ms,
        digest=digest,
    )
    _write_end(book, tx, operation_id, attempt, item)
    record = early.learnt(book, tx, record, contract, stored, now)
    counting.stopped(tx, record, contract, now, ending.observation)
    changes = settling.settle(record, contract, now)
    return book.store(tx, record, contract, changes, now, stored=stored)


def _after_applied(record: Record, number: int, seen: Observation) -> Observation:
    """Whatever fails after the point of no return is about the rest of the call."""
    applied = any(
        item.attempt == number and item.shows is Shows.APPLIED for item in record.evidence
    )
    if not applied or seen.seen not in (Seen.NOT_SENT, Seen.NOT_PROCESSED, Seen.REJECTED):
        return seen
    detail = f"after the point of no return: {seen.detail}"
    return replace(seen, seen=Seen.UNKNOWN, cause=Cause.TOOL_ERROR, detail=detail)


def _write_end(
    book: Book, tx: Transaction, operation_id: str, attempt: Attempt, item: Evidence
) -> None:
    """Store the end of an attempt, and what it shows."""
    if attempt.observation is None or attempt.ended_ms is None:
        raise ValueError("an attempt without an end has nothing to be stored")
    attempts.end_attempt(
        tx,
        book.tenant,
        operation_id,
        attempt.number,
        observation=attempt.observation,
        sent_by_ms=attempt.sent_by_ms,
        ended_ms=attempt.ended_ms,
        closed_ms=attempt.closed_ms,
        principal=WORKER,
    )
    attempts.add_evidence(tx, book.tenant, operation_id, item, principal=WORKER)


def _keep(
    book: Book, tx: Transaction, operation_id: str, number: int, ending: Ending
) -> str | None:
    """Store bodies apart from the evidence, which holds only their digest."""
    if ending.result is not None:
        bodies.put_body(tx, book.tenant, operation_id, "result", 0, ending.result)
    if ending.read is not None:
        bodies.put_body(tx, book.tenant, operation_id, "read", 0, ending.read)
    for name, content in ending.exhibits.items():
        bodies.put_body(tx, book.tenant, operation_id, f"{EXHIBIT}{name}", number, content)
    if not ending.reply:
        return None
    return bodies.put_body(tx, book.tenant, operation_id, "reply", number, ending.reply)


def _late(
    book: Book,
    tx: Transaction,
    record: Record,
    contract: Contract,
    ending: Ending,
    *,
    number: int,
    digest: str | None,
    closed_ms: int | None,
) -> Record:
    """Add what came after its attempt had ended. It may settle the operation, or contradict it."""
    now = book.now(tx)
    if closed_ms is not None and record.attempts[number - 1].closed_ms is None:
        attempts.close_attempt(
            tx, book.tenant, record.operation.id, number, closed_ms=closed_ms, principal=WORKER
        )
        closed = replace(record.attempts[number - 1], closed_ms=closed_ms)
        kept = (*record.attempts[: number - 1], closed, *record.attempts[number:])
        record = replace(record, attempts=kept)
    if ending.observation.seen is Seen.UNKNOWN and not ending.observation.key_in_progress:
        items: tuple[Evidence, ...] = ()  # it says no more than was known
    else:
        item = progress.witnessed(
            record, contract, now, ending.observation, attempt=number, digest=digest
        )
        items = (replace(item, detail=f"late: {item.detail}"),)
    return weigh(book, tx, record, contract, now, items, observation=ending.observation)


def weigh(
    book: Book,
    tx: Transaction,
    record: Record,
    contract: Contract,
    now: Now,
    items: Sequence[Evidence],
    *,
    observation: Observation | None = None,
    principal: Principal = WORKER,
) -> Record:
    """Append evidence to an operation, wherever it stands, and take the steps that follow."""
    stored = record.operation
    operation = stored
    for item in items:
        attempts.add_evidence(tx, book.tenant, stored.id, item, principal=principal)
        operation = progress.absorb(operation, item, observation)
    counting.contradicted(tx, stored, items)
    record = replace(record, operation=operation, evidence=(*record.evidence, *items))
    record = early.learnt(book, tx, record, contract, stored, now)
    changes = settling.settle(record, contract, now)
    # The word is the operator's; what follows from it is policy's, in the same transaction.
    actor = principal if principal.role is Role.OPERATOR else WORKER
    return book.store(tx, record, contract, changes, now, stored=stored, principal=actor)


def add(
    book: Book, tx: Transaction, operation_id: str, item: Evidence, principal: Principal = WORKER
) -> Record:
    """Append one item of evidence, numbered here, and take the steps that follow."""
    record, contract = book.load(tx, operation_id)
    now = book.now(tx)
    begun_ms = item.begun_ms or now.ms
    numbered = replace(item, number=len(record.evidence) + 1, at_ms=now.ms, begun_ms=begun_ms)
    return weigh(book, tx, record, contract, now, [numbered], principal=principal)


def recover(book: Book, tx: Transaction, operation_id: str) -> Record | None:
    """Close the attempt or the look of a worker that is gone; None where it may go on.

    Nothing is ever sent by recovery.
    """
    record, contract = book.load(tx, operation_id)
    operation, now = record.operation, book.now(tx)
    if operation.state not in (State.EXECUTING, State.RECONCILING) or operation.owner is None:
        return None
    liveness = book.surroundings.liveness(operation.owner)
    lapsed = operation.lease_end_ms is None or operation.lease_end_ms <= now.ms
    if not lapsed and liveness is not Liveness.DEAD:
        return None
    if operation.state is State.RECONCILING:
        lost = replace(record, operation=replace(operation, owner=None, lease_end_ms=None))
        changes = settling.settle(lost, contract, now)
        return book.store(tx, lost, contract, changes, now, stored=operation)
    if record.open_attempt is None:
        return None
    record, attempt, item = progress.recover(record, contract, now, liveness)
    _write_end(book, tx, operation.id, attempt, item)
    changes = settling.settle(record, contract, now)
    return book.store(tx, record, contract, changes, now, stored=operation)


def advance(book: Book, tx: Transaction, operation_id: str) -> Begun | Looking | None:
    """Take the next step of an operation whose time has come, if this process can.

    Returns what is to be carried out now. None: nothing, or somebody else's.
    """
    record, contract = book.load(tx, operation_id)
    now, stored = book.now(tx), record.operation
    if stored.state.ends or stored.due_ms is None or stored.due_ms > now.ms:
        return None
    if stored.state is State.EXECUTING:
        recover(book, tx, operation_id)
        return None
    if stored.version == 1:
        # A transaction of the user's may have prepared it without a turn, and met nobody.
        record = early.heed(book, tx, record, contract, now)
    record = _reclose(book, tx, record, now)
    changes = settling.settle(record, contract, now)
    record = book.store(tx, record, contract, changes, now)
    step = policy.decide(record, contract, now).step
    match step:
        case Send() if book.registry.leaves_to_its_run(record.operation, now.ms):
            return None
        case Send(resend=resend) if book.registry.can_act(contract):
            return book.begin(tx, record, contract, resend=resend)
        case LookUp(at_ms=at_ms) if at_ms <= now.ms and book.registry.can_ask(contract):
            return _look(book, tx, record, contract, now)
        case _:
            return None


def _reclose(book: Book, tx: Transaction, record: Record, now: Now) -> Record:
    """Close attempts whose owner was silent and is known to be dead by now."""
    kept = []
    for attempt in record.attempts:
        if attempt.closed_ms is None and attempt.ended_ms is not None:
            liveness = book.surroundings.liveness(attempt.owner)
            closed = progress.reclosed(attempt, now, liveness)
            if closed.closed_ms is not None:
                attempts.close_attempt(
                    tx,
                    book.tenant,
                    record.operation.id,
                    attempt.number,
                    closed_ms=closed.closed_ms,
                    principal=WORKER,
                )
            kept.append(closed)
        else:
            kept.append(attempt)
    return replace(record, attempts=tuple(kept))


def _look(book: Book, tx: Transaction, record: Record, contract: Contract, now: Now) -> Looking:
    stored = record.operation
    owner = book.surroundings.owner
    if stored.state is State.RECONCILING:  # it is unknown in between
        told = "look: its worker was lost" if stored.lease_end_ms is not None else "look: again"
        lost = settling.enter(stored, State.UNKNOWN, now, cause=stored.cause, contract=contract)
        change = settling.Change(before=stored, after=lost, reason=told, inputs={})
        record = book.store(tx, record, contract, [change], now)
    leased = progress.look(record, contract, now, owner=owner)
    change = settling.Change(before=record.operation, after=leased, reason="look", inputs={})
    return Looking(record=book.store(tx, record, contract, [change], now), contract=contract)


def looked(
    book: Book,
    tx: Transaction,
    looking: Looking,
    items: Sequence[Evidence],
    *,
    result: bytes | None = None,
) -> Record:
    """Record what the look-ups said, and take the steps that follow.

    Whoever lost the lease meanwhile writes evidence only.
    """
    record, contract = book.load(tx, looking.record.operation.id)
    now, stored = book.now(tx), record.operation
    if result is not None:
        bodies.put_body(tx, book.tenant, stored.id, "result", 0, result)
    first = len(record.evidence) + 1
    numbered = tuple(replace(item, number=number) for number, item in enumerate(items, first))
    numbered = tuple(replace(item, at_ms=now.ms) for item in numbered)
    ours = stored.fence == looking.record.operation.fence and stored.state in (
        State.RECONCILING,
        State.MANUAL_REVIEW,
    )
    if not ours:
        return weigh(book, tx, record, contract, now, numbered)
    for item in numbered:
        attempts.add_evidence(tx, book.tenant, stored.id, item, principal=WORKER)
    record = progress.looked(record, numbered)
    record = early.learnt(book, tx, record, contract, stored, now)
    changes = settling.settle(record, contract, now)
    return book.store(tx, record, contract, changes, now, stored=stored)
