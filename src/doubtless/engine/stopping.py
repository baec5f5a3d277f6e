"""Ending the processes of an operation: asked for by a person, proven, and recorded as it went.

It says nothing about the effect: what was done until then is done. What it leads to is found by the
next look, as after any other end.
"""

from typing import Protocol, runtime_checkable

from doubtless.core.model import Evidence, Principal, Record, Role, Shows, Source, Strength
from doubtless.engine import steps
from doubtless.engine.actions import Actions, Errands
from doubtless.engine.book import Book
from doubtless.errors import DecisionRefused, NotSent
from doubtless.ledger.store import Ledger
from doubtless.transports.base import Errand, Halt


@runtime_checkable
class Stoppable(Protocol):
    """A transport whose actions go on by themselves, and can be ended."""

    async def stop(self, errand: Errand) -> Halt:
        """End what runs of an operation, and make sure of it.

        Raises:
            NotSent: It can't be ended from here, or there is nothing to end.
        """
        ...


class Stopper:
    """Ends the processes of operations. One for each open application."""

    def __init__(self, ledger: Ledger, book: Book, actions: Actions) -> None:
        self._ledger, self._book, self._actions = ledger, book, actions
        self._errands = Errands(ledger, book)

    async def stop(self, operation_id: str, *, operator: str, note: str) -> Record:
        """End whatever runs of an operation, and record what came of that.

        Raises:
            DecisionRefused: There is nothing to end, or not from here; it says why.
            OperationNotFound: There is no such operation.
        """
        record, contract = self._ledger.read(lambda tx: self._book.load(tx, operation_id))
        if contract.action is None or not record.attempts:
            raise DecisionRefused(operation_id, "nothing of it runs by itself")
        transport = self._actions.transport(contract.kind)
        if not isinstance(transport, Stoppable):
            why = f"what {contract.kind.value} has begun can't be ended from here"
            raise DecisionRefused(operation_id, why)
        errand = self._errands.errand(operation_id, contract, len(record.attempts))
        try:
            halt = await transport.stop(errand)
        except NotSent as error:
            raise DecisionRefused(operation_id, str(error)) from error
        item = _evidence(halt, operator, note)
        principal = Principal(name=operator, role=Role.OPERATOR)
        return await self._ledger.commit(
            lambda tx: steps.add(self._book, tx, operation_id, item, principal)
        )


def _evidence(halt: Halt, operator: str, note: str) -> Evidence:
    """Return what was seen. It is advisory: an end of processes says nothing about an effect."""
    whom = ", ".join(map(str, halt.signalled)) or "none"
    left = f"processes {', '.join(map(str, halt.left))} are left" if halt.left else "none is left"
    return Evidence(
        number=0,
        source=Source.MARKER,
        shows=Shows.NOTHING,
        strength=Strength.ADVISORY,
        at_ms=0,
        begun_ms=0,
        by="stop",
        detail=f"it was stopped by {operator}: {note}; processes signalled: {whom}; {left}",
    )
