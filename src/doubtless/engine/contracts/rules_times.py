"""Checks of durations against one another."""

from collections.abc import Iterator
from typing import Final

from doubtless.core.contract import STALL_MARGIN_MS, Contract, OnAbsent
from doubtless.core.effects import NO_EFFECT
from doubtless.engine.contracts.build import least_recovery_ms
from doubtless.engine.contracts.draft import Check, Draft
from doubtless.engine.contracts.values import duration_text
from doubtless.errors import Problem


def _said(ms: int) -> str:
    return f'"{duration_text(ms)}"'


def _recovery(draft: Draft) -> Iterator[Problem]:
    least_ms, contract = least_recovery_ms(draft.contract), draft.contract
    if contract.recovery_deadline_ms < least_ms:
        yield draft.problem(
            "",
            "recovery_deadline",
            f"{_said(contract.recovery_deadline_ms)} is too short to prove an absence: timeout + "
            "in_flight_horizon + lag + confirmations × (interval + look-up timeout) is "
            f"{_said(least_ms)}.",
            f"say at least {_said(least_ms)}, or leave it out for {_said(3 * least_ms)}.",
        )


def resends_by_key(contract: Contract) -> bool:
    """Whether the contract asks for a second send under a key that can die."""
    asked = contract.on_absent is OnAbsent.RESEND and contract.retry.resend > 0
    return asked and contract.key is not None and contract.effect not in NO_EFFECT


def _key_life(draft: Draft) -> Iterator[Problem]:
    contract, key = draft.contract, draft.contract.key
    if key is None or key.ttl_ms is None or not resends_by_key(contract):
        return
    waits_ms = STALL_MARGIN_MS + contract.timeout_ms + contract.horizon_ms
    if key.ttl_ms < waits_ms + key.margin_ms:
        yield draft.problem(
            "idempotency",
            "ttl",
            f"{_said(key.ttl_ms)} ends before a resend would be safe: stall margin + timeout + "
            f"in_flight_horizon + ttl margin is {_said(waits_ms + key.margin_ms)}.",
            'say the true ttl if it is longer, shorten timeout, or say on_absent = "report".',
        )


def _validity(draft: Draft) -> Iterator[Problem]:
    contract = draft.contract
    if contract.valid_for_ms <= contract.timeout_ms:
        yield draft.problem(
            "",
            "valid_for",
            f"the intent is void after {_said(contract.valid_for_ms)}, within the timeout of "
            f"{_said(contract.timeout_ms)}.",
            f"say more than {_said(contract.timeout_ms)}, or shorten timeout.",
        )
    approval = draft.said.approval
    if approval and approval.expires is not None and approval.expires > contract.valid_for_ms:
        yield draft.problem(
            "approval",
            "expires",
            "an approval can't outlive the intent.",
            f"say at most valid_for, {_said(contract.valid_for_ms)}.",
        )


def _pace(draft: Draft) -> Iterator[Problem]:
    quarter_ms = draft.contract.recovery_deadline_ms // 4
    for table, look in draft.looks():
        if look.interval_ms > quarter_ms:
            yield draft.problem(
                table,
                "interval",
                f"{_said(look.interval_ms)} is more than a quarter of recovery_deadline, "
                f"{_said(draft.contract.recovery_deadline_ms)}.",
                f"say at most {_said(quarter_ms)}, or a longer recovery_deadline.",
            )
        if look.interval_ms > look.interval_max_ms:
            yield draft.problem(
                table,
                "interval_max",
                f"the first pause, {_said(look.interval_ms)}, is longer already.",
                f"say at least {_said(look.interval_ms)}.",
            )


TIME_ERRORS: Final[tuple[Check, ...]] = (_recovery, _key_life, _validity, _pace)
