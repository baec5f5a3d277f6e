"""Operations: created, loaded, and changed by compare-and-set alone.

Every function names its tenant, directly or by the operation that it is given.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, cast

from doubtless.core.model import Blocker, Json, Operation, Principal, Record, State
from doubtless.errors import IllegalTransition, OperationNotFound, StaleVersion
from doubtless.ledger import archive, attempts, claims
from doubtless.ledger.bodies import put_body, put_contract
from doubtless.ledger.codec import Value, integer_of, statement, text_of
from doubtless.ledger.journal import APPROVAL, ATTEMPT, EVIDENCE, OPERATION, Kind, append, settled
from doubtless.ledger.store import Transaction

INSERT: Final = statement(
    "insert into operation ({columns}, open) values ({places}, :open)", OPERATION
)
DEPEND: Final = """
    insert into dependency (tenant, operation_id, number, after_id)
    values (:tenant, :operation_id, :number, :after_id)
"""


def insert(
    tx: Transaction,
    operation: Operation,
    *,
    bodies: Mapping[str, bytes],
    contract_json: str | None,
    principal: Principal,
    inputs: Mapping[str, Json],
    after: Sequence[str] = (),
    moved_to: Operation | None = None,
) -> Operation:
    """Create an operation, journal the whole of it, and return it as it is stored.

    Args:
        operation: As it was prepared.
        moved_to: Where it went on to at once, in the same transaction. Both are journalled.
        bodies: By kind ("payload", "request", …); stored under number 0, journalled by digest.
        contract_json: The snapshot behind `operation.contract_digest`; kept once per digest. None
            where that is known to be kept already.
        inputs: What the decision to create it was made from.
        after: Ids of operations that must have succeeded first.

    Raises:
        LedgerError: its id, or one of `after`, is already taken or missing.
        ValueError: a value that neither JSON nor the database carries exactly.
    """
    tenant = operation.tenant
    stored = operation
    if moved_to is not None:
        _check(operation, moved_to)
        stored = OPERATION.replace(moved_to, version=operation.version + 1, updated_ms=tx.now_ms)
    tx.run(INSERT, open=int(not stored.state.ends), **OPERATION.params(stored))
    if contract_json is not None:
        put_contract(tx, tenant, operation.contract_digest, contract_json)
    digests = {
        kind: put_body(tx, tenant, operation.id, kind, 0, content)
        for kind, content in bodies.items()
    }
    for number, after_id in enumerate(after, 1):
        tx.run(DEPEND, tenant=tenant, operation_id=operation.id, number=number, after_id=after_id)
    data: dict[str, Json] = {
        "operation": OPERATION.to_json(operation),
        "bodies": digests,
        "inputs": inputs,
    }
    if after:
        data["after"] = list(after)
    append(tx, tenant, operation.id, Kind.PREPARED, principal, data)
    if stored is not operation:
        delta = _delta(operation, stored)
        _journal(tx, operation, stored, delta, reason="send", principal=principal, inputs={})
    if stored.state.ends:
        settled(tx, stored)
    _tell(tx, stored, moved=stored.state.ends)
    return stored


GET: Final = statement(
    "select {columns} from operation where tenant = :tenant and id = :id", OPERATION
)


def get(tx: Transaction, tenant: str, operation_id: str) -> Operation | None:
    """Return an operation as it stands, or None."""
    rows = tx.tuples(GET, tenant=tenant, id=operation_id)
    return OPERATION.from_row(rows[0]) if rows else None


BLOCKERS: Final = """
    select operation.id,
           case when operation.state = 'reconciling' and operation.origin = 'accepted'
                then 'accepted' else operation.state end
      from dependency
      join operation on operation.tenant = dependency.tenant and operation.id = dependency.after_id
     where dependency.tenant = :tenant and dependency.operation_id = :operation_id
  order by dependency.number
"""


def load(
    tx: Transaction, tenant: str, operation_id: str, *, latest_wins: bool = False
) -> Record | None:
    """Return an operation with all that was ever seen of it, or None.

    `object_taken_by` is who holds its claim now, if not itself. With `latest_wins` its siblings on
    the same object are looked up too: `overtaken_by` is the newest created after it, `waits_for`
    the oldest before it that is still open or still holds the claim. `newer_twin` matters to a
    failed operation alone, and is None for others.
    """
    of = {"tenant": tenant, "operation_id": operation_id}
    found, blockers, tried, learnt, approved = tx.together(
        (GET, {"tenant": tenant, "id": operation_id}),
        (BLOCKERS, of),
        (attempts.ATTEMPTS_OF, of),
        (attempts.EVIDENCE_OF, of),
        (attempts.APPROVALS_OF, of),
    )
    if not found:
        return None
    operation = OPERATION.from_row(found[0])
    holder = None
    if operation.claim is not None:
        holder = claims.claim_holder(tx, tenant, operation.source, operation.claim, tx.now_ms)
    taken_by = holder if holder != operation_id else None
    older, newer = siblings(tx, operation) if latest_wins else (None, None)
    twin = later_twin(tx, operation) if operation.state is State.FAILED else None
    if latest_wins and older is None and taken_by is not None and taken_by != newer:
        older = taken_by
    tries = tuple(ATTEMPT.from_row(row) for row in tried)
    facts = tuple(EVIDENCE.from_row(row) for row in learnt)
    if not tries and operation.state.ends:
        tries, facts = archive.with_archived(tx, operation, facts)
    return Record(
        operation=operation,
        attempts=tries,
        evidence=facts,
        approvals=tuple(APPROVAL.from_row(row) for row in approved),
        blockers=tuple(
            Blocker(operation_id=text_of(blocker), state=State(text_of(state)))
            for blocker, state in blockers
        ),
        newer_twin=twin,
        overtaken_by=newer,
        waits_for=older,
        object_taken_by=taken_by,
    )


OLDER_OPEN: Final = """
    select id
      from operation
     where tenant = :tenant and source = :source and claim = :claim
       and open = 1
       and position < (select position from operation where tenant = :tenant and id = :id)
  order by position
     limit 1
"""
NEWEST: Final = """
    select id
      from operation
     where tenant = :tenant and source = :source and claim = :claim
       and position > (select position from operation where tenant = :tenant and id = :id)
  order by position desc
     limit 1
"""


def siblings(tx: Transaction, operation: Operation) -> tuple[str | None, str | None]:
    """Return the oldest open operation before this one on its object, and the newest after it."""
    if operation.claim is None:
        return None, None
    where = {
        "tenant": operation.tenant,
        "source": operation.source,
        "claim": operation.claim,
        "id": operation.id,
    }
    older = tx.tuples(OLDER_OPEN, **where)
    newer = tx.tuples(NEWEST, **where)
    return text_of(older[0][0]) if older else None, text_of(newer[0][0]) if newer else None


LATER_TWIN: Final = """
    select id
      from operation
     where tenant = :tenant and source = :source and claim = :claim
       and payload_hash = :payload_hash
       and position > (select position from operation where tenant = :tenant and id = :id)
  order by position
     limit 1
"""


def later_twin(tx: Transaction, operation: Operation) -> str | None:
    """Return the first operation created after this one with the same object and payload."""
    if operation.claim is None:
        return None
    found = tx.tuples(
        LATER_TWIN,
        tenant=operation.tenant,
        source=operation.source,
        claim=operation.claim,
        payload_hash=operation.payload_hash,
        id=operation.id,
    )
    return text_of(found[0][0]) if found else None


FIXED: Final = (
    "id",
    "tenant",
    "tool",
    "effect",
    "source",
    "principal",
    "session_id",
    "correlation_id",
    "contract_digest",
    "payload_hash",
    "request_digest",
    "ref",
    "key",
    "created_ms",
    "business_key",
    "claim",
)
"""What an operation is: never changed once it was prepared."""

_identity = attrgetter(*FIXED)
_MUTABLE: Final = tuple(name for name in OPERATION.names if name not in FIXED)
_mutable = attrgetter(*_MUTABLE)


@lru_cache(maxsize=512)
def _update(changed: tuple[str, ...]) -> str:
    """Write the statement for one set of changed columns: indexes on the others stay untouched."""
    columns = ", ".join(f"{name} = :{name}" for name in changed)
    return UPDATE.replace("{changed}", columns)


UPDATE: Final = """
    update operation
       set {changed}
     where tenant = :tenant and id = :id and version = :expected
"""
VERSION: Final = "select version from operation where tenant = :tenant and id = :id"


def save(
    tx: Transaction,
    before: Operation,
    after: Operation,
    *,
    reason: str,
    principal: Principal,
    inputs: Mapping[str, Json],
) -> Operation:
    """Change an operation from `before` to `after`: the only way. Of two writers exactly one wins.

    `version` and `updated_ms` are set here, whatever `after` says, and returned with the rest. One
    row of the journal tells what changed, why, from which inputs and by whom. An operation that
    comes to its end gets its place in the stream of settlements. Whether the step is a legal one is
    the caller's to have checked.

    Raises:
        StaleVersion: it was changed since `before` was read. Nothing was written.
        OperationNotFound: there is no such operation.
        IllegalTransition: identity, fence or due time would break the rules of every step.
    """
    _check(before, after)
    if before.state.ends:
        archive.recall(tx, before)
    saved = OPERATION.replace(after, version=before.version + 1, updated_ms=tx.now_ms)
    delta = _delta(before, saved)
    params: dict[str, Value] = {name: _bound(value) for name, value in delta.items()}
    if before.state.ends is not saved.state.ends:
        params["open"] = int(not saved.state.ends)
    columns = tuple(params)
    params.update(tenant=before.tenant, id=before.id, expected=before.version)
    if not tx.run(_update(columns), **params):
        raise _lost(tx, before)
    _journal(tx, before, saved, delta, reason=reason, principal=principal, inputs=inputs)
    if before.state is not saved.state and saved.state.ends:
        settled(tx, saved)
    _tell(tx, saved, moved=before.state is not saved.state)
    return saved


UNDER_WAY: Final = frozenset({State.EXECUTING, State.RECONCILING})


def _tell(tx: Transaction, operation: Operation, *, moved: bool) -> None:
    """Have other processes told, where one may wait for this step or for this work."""
    if operation.state in UNDER_WAY:
        return
    ended, due_ms = operation.state.ends, operation.due_ms
    is_due = not ended and due_ms is not None and due_ms <= tx.now_ms
    if moved or is_due:
        tx.tell(operation.id, due=is_due, ended=ended)


def _delta(before: Operation, after: Operation) -> dict[str, Json]:
    return {
        name: now
        for name, then, now in zip(_MUTABLE, _mutable(before), _mutable(after), strict=True)
        if then != now
    }


def _journal(
    tx: Transaction,
    before: Operation,
    after: Operation,
    delta: Mapping[str, Json],
    *,
    reason: str,
    principal: Principal,
    inputs: Mapping[str, Json],
) -> None:
    moved = before.state is not after.state
    data: dict[str, Json] = {"operation": delta, "reason": reason, "inputs": inputs}
    if moved:
        data["from"] = before.state
    kind = Kind.TRANSITION if moved else Kind.DECISION
    append(tx, before.tenant, before.id, kind, principal, data)


def _check(before: Operation, after: Operation) -> None:
    if _identity(before) != _identity(after):
        raise IllegalTransition(before.state, after.state, "an operation's identity never changes")
    if after.fence < before.fence:
        raise IllegalTransition(before.state, after.state, "a fence only grows")
    if after.due_ms is None and not after.state.ends:
        raise IllegalTransition(before.state, after.state, "an open operation has a due time")


def _bound(value: Json) -> Value:
    """Turn a field of an operation into what is bound: it holds text, integers and booleans."""
    return int(value) if isinstance(value, bool) else cast("Value", value)


def version_of(tx: Transaction, tenant: str, operation_id: str) -> int | None:
    """Return the version of an operation, or None: whether anything was learnt about it."""
    found = tx.tuples(VERSION, tenant=tenant, id=operation_id)
    return integer_of(found[0][0]) if found else None


def _lost(tx: Transaction, before: Operation) -> StaleVersion | OperationNotFound:
    found = tx.tuples(VERSION, tenant=before.tenant, id=before.id)
    if not found:
        return OperationNotFound(before.id)
    return StaleVersion(before.id, expected=before.version, version=integer_of(found[0][0]))


DUE: Final = statement(
    """
    select {columns}
      from operation
     where tenant = :tenant and due_ms <= :now_ms
       and open = 1
       and state in ({states})
  order by due_ms
     limit :limit
    """,
    OPERATION,
)


def due(
    tx: Transaction, tenant: str, now_ms: int, limit: int, states: Sequence[State]
) -> list[Operation]:
    """Return operations in one of `states` whose time has come, the longest overdue first."""
    rows = tx.tuples(_in_states(DUE, tuple(states)), tenant=tenant, now_ms=now_ms, limit=limit)
    return [OPERATION.from_row(row) for row in rows]


@lru_cache(maxsize=256)
def _in_states(template: str, states: tuple[State, ...]) -> str:
    return template.replace("{states}", ", ".join(f"'{State(state).value}'" for state in states))
