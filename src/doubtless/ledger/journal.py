"""The journal: what happened to an operation, in order, by whom and why. Appended, never edited.

Replaying it gives the stored state exactly; payloads and bodies stand elsewhere, by digest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, cast

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
from doubtless.ledger.codec import Row, Shape, decode_list, encode, integer_of, text_of
from doubtless.ledger.store import Transaction

OPERATION: Final = Shape(Operation)
ATTEMPT: Final = Shape(Attempt)
EVIDENCE: Final = Shape(Evidence)
APPROVAL: Final = Shape(Approval)


_Item: TypeAlias = tuple[str, str, str, Mapping[str, Json]]  # as it is written


class Kind(StrEnum):
    """What an entry of the journal tells."""

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
    """One thing that happened to an operation."""

    seq: int  # of the unit of work that it is part of; grows over the whole ledger
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
    insert into journal (tenant, operation_id, at_ms, entries) values (?, ?, ?, ?)
"""


def append(
    tx: Transaction,
    tenant: str,
    operation_id: str,
    kind: Kind,
    principal: Principal,
    data: Mapping[str, Json],
) -> None:
    """Add one entry at the ledger's clock. Only the modules of the ledger call this."""
    item = (kind.value, principal.name, principal.role.value, data)
    tx.gather(_write, (tenant, operation_id), item)


def _write(tx: Transaction, key: tuple[str, str], items: list[Json]) -> None:
    tx.put(APPEND, (*key, tx.now_ms, encode(items)))


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
    select seq, operation_id, at_ms, entries
      from journal
     where tenant = :tenant and operation_id = :operation_id
 union all
    select kept.seq, kept.operation_id, kept.at_ms, kept.entries
      from archived
      join archived_journal as kept on kept.month = archived.month
                                   and kept.tenant = archived.tenant
                                   and kept.operation_id = archived.operation_id
     where archived.tenant = :tenant and archived.operation_id = :operation_id
  order by 1
"""


def journal_of(tx: Transaction, tenant: str, operation_id: str) -> list[Entry]:
    """Return the whole journal of one operation, oldest first. Empty if it was never heard of."""
    tx.flush()
    rows = tx.tuples(JOURNAL_OF, tenant=tenant, operation_id=operation_id)
    return [entry for row in rows for entry in entries_of(row)]


def entries_of(row: Row) -> list[Entry]:
    """Read one row of the journal: what one unit of work did to one operation, in order."""
    seq, operation_id, at_ms, entries = row
    items = cast("list[_Item]", decode_list(text_of(entries)))
    return [
        Entry(
            seq=integer_of(seq),
            operation_id=text_of(operation_id),
            at_ms=integer_of(at_ms),
            kind=Kind(kind),
            principal=Principal(name=name, role=Role(role)),
            data=data,
        )
        for kind, name, role, data in items
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
