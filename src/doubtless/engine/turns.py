"""Whose turn it is: what one operation's step means for those that wait for it.

Whoever moves an operation on makes those due that wait for it, in the same transaction: nobody has
to ask, and no step is lost between two processes.
"""

from dataclasses import replace
from typing import Final

from doubtless.core.model import Now, Operation, Principal, Role, State
from doubtless.core.permission import CONTINUES_ON
from doubtless.ledger import claims, operations, sequences
from doubtless.ledger.store import Transaction

BY: Final = Principal(name="worker", role=Role.WORKER)


def pass_on(
    tx: Transaction, before: Operation, after: Operation, now: Now, *, latest_wins: bool
) -> bool:
    """Make those due that waited for this step. Returns whether there were any.

    An object that was let go goes straight to the first one that waits for it, so that no other
    call can come between the two.
    """
    if before.state is after.state:
        return False
    freed: list[Operation] = []
    if after.state.ends and sequences.is_awaited(tx, after):
        freed = sequences.dependents(tx, after.tenant, after.id)
        freed += _heirs(tx, after, now, latest_wins=latest_wins)
    elif after.state in CONTINUES_ON and before.state not in CONTINUES_ON:
        found = sequences.dependents(tx, after.tenant, after.id)
        freed = [each for each in found if each.on_unknown == "continue"]
    for operation in {each.id: each for each in freed}.values():
        wake(tx, operation, now)
    return bool(freed)


def _heirs(tx: Transaction, ended: Operation, now: Now, *, latest_wins: bool) -> list[Operation]:
    """Hand the object of an operation over to whoever waits for it, if it is free by now.

    What came after an operation that did not succeed will be rejected, and inherits nothing.
    """
    waiting = sequences.waiting_for(tx, ended)
    if latest_wins or ended.claim is None:
        return waiting  # where the latest wins, policy says who is next
    if ended.state is not State.SUCCEEDED:
        waiting = [
            each
            for each in waiting
            if not sequences.comes_after(tx, ended.tenant, [each.id], ended.id)
        ]
    if not waiting:
        return []
    heir = waiting[0]
    held_by = claims.take_claim(tx, ended.tenant, ended.source, ended.claim, heir.id, now.ms)
    return [heir] if held_by is None else []


def overtake(tx: Transaction, newer: Operation, now: Now) -> None:
    """Make older siblings due that were not sent yet: a newer one replaces them."""
    for older in sequences.waiting_for(tx, newer):
        wake(tx, older, now)


def wake(tx: Transaction, operation: Operation, now: Now) -> None:
    """Make an open operation due now."""
    if operation.state in (State.PREPARED, State.AWAITING_APPROVAL) and (
        operation.due_ms is None or operation.due_ms > now.ms
    ):
        due = replace(operation, due_ms=now.ms)
        operations.save(
            tx, operation, due, reason="its turn may have come", principal=BY, inputs={}
        )
