"""The journal of one operation, added up as it grows: what is stored must always equal it."""

from collections.abc import Mapping
from typing import cast

from doubtless.core.model import Attempt, Evidence, Json, Operation, Record
from doubtless.ledger import attempts, operations
from doubtless.ledger.journal import ATTEMPT, EVIDENCE, OPERATION, Entry, Kind
from doubtless.ledger.store import Transaction

TENANT = "main"


class Story:
    """What the journal of one operation says so far. Each row is read only once."""

    def __init__(self) -> None:
        self._operation: dict[str, Json] = {}
        self._attempts: dict[Json, dict[str, Json]] = {}
        self._built: dict[Json, Attempt] = {}
        self._evidence: list[Evidence] = []

    def add(self, entry: Entry) -> None:
        """Take the next row."""
        if entry.kind is Kind.REFUSAL:
            return
        data = cast("Mapping[str, Mapping[str, Json]]", entry.data)
        self._operation.update(data.get("operation", {}))
        if "attempt" in data:
            number = data["attempt"]["number"]
            known = self._attempts.setdefault(number, {})
            known.update(data["attempt"])
            self._built[number] = ATTEMPT.from_json(known)
        if "evidence" in data:
            self._evidence.append(EVIDENCE.from_json(data["evidence"]))

    def differs_from(self, record: Record) -> str | None:
        """Say in what the stored operation is not what its journal says; None where it is."""
        told: tuple[object, ...] = (
            OPERATION.from_json(self._operation),
            tuple(self._built.values()),
            tuple(self._evidence),
        )
        stored = record.operation, record.attempts, record.evidence
        return None if told == stored else f"{told} is not {stored}"


def load(tx: Transaction, operation_id: str) -> Record | None:
    """Return an operation with its attempts and evidence, and nothing of what others hold."""
    operation: Operation | None = operations.get(tx, TENANT, operation_id)
    if operation is None:
        return None
    return Record(
        operation=operation,
        attempts=attempts.attempts_of(tx, TENANT, operation_id),
        evidence=attempts.evidence_of(tx, TENANT, operation_id),
    )
