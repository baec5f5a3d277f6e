"""What a decision was made from, as it is journalled: enough to explain the step by itself."""

from collections.abc import Mapping

from doubtless.core.contract import Contract
from doubtless.core.evidence import FOREVER_MS, Finding, unproven
from doubtless.core.model import Json, Now, Record
from doubtless.core.permission import key_last_send_ms, resends_left


def explain(record: Record, contract: Contract, now: Now, finding: Finding) -> Mapping[str, Json]:
    """Collect what `operations show` needs to explain the step."""
    operation = record.operation
    key_last_ms = key_last_send_ms(record, contract, now)
    last = record.attempts[-1] if record.attempts else None
    deadline_ms = operation.completes_by_ms if operation.accepted_ms else operation.deadline_ms
    return {
        "effect": contract.effect.value,
        "stage": last.observation.stage.value if last and last.observation else None,
        "verdict": finding.verdict.value,
        "basis": finding.basis.value if finding.basis else None,
        "evidence": list(finding.numbers[-8:]),
        "attempts": len(record.attempts),
        "unproven_attempts": len(unproven(record, contract)),
        "key": contract.key.stores.value if contract.key else None,
        "key_life_left_ms": None if key_last_ms >= FOREVER_MS else key_last_ms - now.ms,
        "resends_left": resends_left(record, contract),
        "absences": finding.absence.seen,
        "absence_provable": finding.absence.provable,
        "absence_from_ms": (
            _known(finding.absence.settled_from_ms + contract.lag_ms)
            if finding.absence.provable
            else None
        ),
        "time_left_ms": None if deadline_ms is None else deadline_ms - now.ms,
        "review_allowed": contract.review,
    }


def _known(instant_ms: int) -> int | None:
    return instant_ms if 0 < instant_ms < FOREVER_MS else None
