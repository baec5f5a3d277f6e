"""Reading the ledger: asks no provider and changes nothing."""

from collections.abc import Sequence

from doubtless.core.model import Json, State
from doubtless.core.outcome import Outcome
from doubtless.engine import reports
from doubtless.engine.reports import SessionRecord
from doubtless.engine.surface import Surface
from doubtless.ledger import listing
from doubtless.ledger.store import Transaction


class Reads(Surface):
    """What the ledger tells."""

    async def session(self, session_id: str | None = None) -> SessionRecord:
        """Return what this principal did in a session: the first thing for a restarted agent."""
        opened, name = self._opened, self._principal.name
        return opened.ledger.read(
            lambda tx: reports.session(opened.book, tx, session_id or "", name)
        )

    async def timeline(self, operation_id: str) -> list[dict[str, Json]]:
        """Return everything that happened to an operation, in order.

        Raises:
            OperationNotFound: There is no such operation.
        """
        opened = self._opened
        return opened.ledger.read(lambda tx: reports.timeline(opened.book, tx, operation_id))

    async def operations(
        self,
        *,
        states: Sequence[State] = (),
        tool: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
    ) -> list[Outcome]:
        """Return operations of all principals, newest first."""
        opened = self._opened
        filters = {"tool": tool, "session_id": session_id}
        said = {name: value for name, value in filters.items() if value is not None}

        def unit(tx: Transaction) -> list[Outcome]:
            page = listing.find(tx, opened.book.tenant, states=states, filters=said, limit=limit)
            return [opened.outcome_in(tx, found.id) for found in page.operations]

        return opened.ledger.read(unit)
