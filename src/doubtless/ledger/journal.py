"""The journal: what happened to an operation, in order, by whom and why. Appended, never edited.

Replaying it gives the stored state exactly; payloads and bodies stand elsewhere, by digest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from doubtless.core.model import (
    Approval,
    Attempt,
    Cause,
    Evidence,
    Json,
    Operation,
    Principal,
    Role,
)
from doubtless.ledger.codec import Shape, decode, encode, integer_of, text_of
from doubtless.ledger.store import Transaction

OPERATION: Final = Shape(Operation)
ATTEMPT: Final = Shape(Attempt)
EVIDENCE: Final = Shape(Evidence)
APPROVAL: Final = Shape(Approval)


class Kind(StrEnum):
    """What a row of the journal tells."""

    PREPARED = "prepared"
    TRANSITION = "transition"  # the state changed
    ATTEMPT = "attempt"  # opened, about to send, or closed
    OBSERVATION = "observation"  # an attempt ended
    EVIDENCE = "evidence"
    DECISION = "decision"  # something else than the state changed
    REFUSAL = "refusal"  # nothing changed
    APPROVAL = "approval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the journal."""

    seq: int  # grows over the whole ledger
    operation_id: str
    at_ms: int
    kind: Kind
    principal: Principal
    data: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the journal of one operation adds up to."""

    operation: Operation
    attempts: tuple[Attempt, ...]
    evidence: tuple[Evidence, ...]
    approvals: tuple[Approval, ...]
    after: tuple[str, ...]


APPEND: Final = """
    insert into journal (tenant, operation_id, at_ms, kind, principal, role, data) values
"""


def append(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    kind: Kind,
    principal: Principal,
    data: Mapping[str, Json],
) -> None:
    """Write one row at the ledger's clock. Only the modules of the ledger call this."""
    role, name = principal.role.value, principal.name
    tx.defer(APPEND, (tenant, operation_id, tx.now_ms, kind.value, name, role, encode(data)))


def refuse(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    code: Cause,
    *,
    principal: Principal,
    data: Mapping[str, Json],
) -> None:
    """Record a refusal about `operation_id`, which need not exist. Changes nothing else."""
    append(tx, tenant, operation_id, Kind.REFUSAL, principal, {"code": code, "inputs": data})


JOURNAL_OF: Final = """
    select seq, operation_id, at_ms, kind, principal, role, data
      from journal
     where tenant = :tenant and operation_id = :operation_id
  order by seq
"""


def journal_of(tx: Transaction, tenant: str, operation_id: str) -> list[Entry]:
    """Return the whole journal of one operation, oldest first. Empty if it was never heard of."""
    tx.flush()
    return [
        Entry(
            seq=integer_of(seq),
            operation_id=text_of(operation),
            at_ms=integer_of(at_ms),
            kind=Kind(text_of(kind)),
            principal=Principal(name=text_of(name), role=Role(text_of(role))),
            data=decode(text_of(data)),
        )
        for seq, operation, at_ms, kind, name, role, data in tx.tuples(
            JOURNAL_OF, tenant=tenant, operation_id=operation_id
        )
    ]


def replay(entries: Iterable[Entry]) -> Replayed:
    """Add up the journal of one operation: equal to what is stored, bodies aside.

    Raises:
        ValueError: the journal doesn't begin with the operation's preparation.
    """
    operation: dict[str, Json] = {}
    attempts: dict[Json, dict[str, Json]] = {}
    evidence: list[Evidence] = []
    approvals: list[Approval] = []
    after: tuple[str, ...] = ()
    for entry in entries:
        data = cast("Mapping[str, Mapping[str, Json]]", entry.data)
        operation.update(data.get("operation", {}))
        if entry.kind is Kind.PREPARED:
            after = tuple(cast("Iterable[str]", data.get("after", ())))
        if "attempt" in data:
            attempts.setdefault(data["attempt"]["number"], {}).update(data["attempt"])
        if "evidence" in data:
            evidence.append(EVIDENCE.from_json(data["evidence"]))
        if "approval" in data:
            approvals.append(APPROVAL.from_json(data["approval"]))
    if "id" not in operation:
        raise ValueError("this journal doesn't begin with the preparation of an operation")
    return Replayed(
        operation=OPERATION.from_json(operation),
        attempts=tuple(ATTEMPT.from_json(found) for found in attempts.values()),
        evidence=tuple(evidence),
        approvals=tuple(approvals),
        after=after,
    )


SETTLED: Final = """
    insert into settlement (tenant, operation_id, state, version, at_ms)
    values (:tenant, :operation_id, :state, :version, :at_ms)
"""


def settled(tx: Transaction, operation: Operation) -> None:
    """Give the settlement of `operation` its place in the stream. Part of saving it."""
    tx.run(
        SETTLED,
        tenant=operation.tenant,
        operation_id=operation.id,
        state=operation.state,
        version=operation.version,
        at_ms=tx.now_ms,
    )
