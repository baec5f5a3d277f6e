"""Browsing many operations: pages of them, and sessions, as far as a principal may see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubtless.core.model import Role, State
from doubtless.core.outcome import Outcome
from doubtless.engine import reports
from doubtless.engine.reports import SessionRecord
from doubtless.engine.surface import Surface
from doubtless.engine.waiting import Known
from doubtless.errors import BadCursor, OperationNotFound
from doubtless.ledger import listing
from doubtless.ledger.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomePage:
    """Some outcomes, newest first. `cursor` continues the list; None at its end."""

    outcomes: tuple[Outcome, ...]
    cursor: str | None


class Browsing(Surface):
    """What a principal sees of many operations: an operator all of them, others their own."""

    async def page(
        self,
        *,
        states: Sequence[State] = (),
        filters: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> OutcomePage:
        """Return operations, newest first.

        Args:
            states: Only these; none given means all.
            filters: Equal values, by the names of `listing.CONDITIONS`.
            limit: How many at most.
            cursor: That of the page before: the id of its last operation, so that it tells nothing
                about how many others there are.

        Raises:
            BadCursor: There is no such page.
        """
        opened, whose = self._opened, self._whose
        said = dict(filters or {}) | ({} if whose is None else {"principal": whose})

        def unit(tx: Transaction) -> OutcomePage:
            tenant = opened.book.tenant
            after = None
            if cursor is not None:
                after = listing.position(tx, tenant, cursor, principal=whose)
                if after is None:
                    raise BadCursor(cursor)
            # One more than asked for shows whether there is another page.
            found = listing.find(
                tx, tenant, states=states, filters=said, limit=limit + 1, cursor=after
            ).operations
            shown = found[:limit]
            more = len(found) > limit
            return OutcomePage(
                outcomes=tuple(opened.outcome_in(tx, operation.id) for operation in shown),
                cursor=shown[-1].id if more else None,
            )

        return opened.ledger.read(unit)

    async def session_of(self, session_id: str, *, principal: str | None) -> SessionRecord | None:
        """Return what a principal did in a session, for an operator; else one's own.

        Args:
            session_id: Which session.
            principal: Whose; None is the one who has a session of that id.

        Returns:
            The record; None where several principals have such a session, or nobody has.
        """
        opened = self._opened
        whose = self._whose or principal

        def unit(tx: Transaction) -> SessionRecord | None:
            name = whose
            if name is None:
                names = listing.session_principals(tx, opened.book.tenant, session_id)
                if len(names) != 1:
                    return None
                name = names.pop()
            return reports.session(opened.book, tx, session_id, name)

        return opened.ledger.read(unit)

    async def outcome_in_session(self, operation_id: str, session_id: str) -> Outcome:
        """Return the outcome as it is, of one's own operation in a session.

        Raises:
            OperationNotFound: There is none such in it; whether there is one elsewhere isn't told.
        """
        opened = self._opened
        opened.check_owner(operation_id, self._principal)
        record = opened.load(operation_id)
        if record.operation.session_id != session_id:
            raise OperationNotFound(operation_id)
        return opened.outcome(Known(record))

    @property
    def _whose(self) -> str | None:
        """Whose operations are seen; None means everybody's."""
        return None if self._principal.role is Role.OPERATOR else self._principal.name
