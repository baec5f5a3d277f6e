"""What people say before anything is sent: approvals, of one operation or of a whole session."""

from doubtless.core.model import Grant, Json
from doubtless.core.outcome import Outcome, instant
from doubtless.engine import approvals
from doubtless.engine.approvals import Granting, Vote
from doubtless.engine.inside import stay_out
from doubtless.engine.surface import Surface
from doubtless.engine.waiting import Known
from doubtless.errors import GrantRefused
from doubtless.ledger import grants

SESSION_MAX_S = 30 * 86_400


class Approving(Surface):
    """What a person permits. It is no evidence, and settles nothing but a denial."""

    async def approve(
        self, operation_id: str, *, operator: str, note: str, payload_hash: str | None
    ) -> Outcome:
        """Approve what waits for it. A worker carries it out as soon as enough people did.

        The approval is bound to a digest of what is executed, which is computed again before it is
        sent, and covers the attempts of this one operation until it expires.

        Args:
            operation_id: Which operation.
            operator: Who approves. Whoever asked for the operation can't.
            note: Why. It is shown, and binds nothing.
            payload_hash: Of what the operator was shown. None says that it was read just now.

        Raises:
            PayloadNotShown: Something else would be executed than what was shown.
            DecisionRefused: It doesn't wait for approval, or not for this person's.
            OperationNotFound: There is no such operation.
        """
        stay_out("app.approve")
        opened = self._opened
        vote = Vote(
            operation_id=operation_id, operator=operator, note=note, payload_hash=payload_hash
        )
        await opened.ledger.commit(lambda tx: approvals.approve(opened.book, tx, vote))
        record = opened.load(operation_id)
        opened.changed(record)
        return opened.outcome(Known(record))

    async def deny(
        self, operation_id: str, *, operator: str, note: str, payload_hash: str | None
    ) -> Outcome:
        """Deny what waits for approval: it is rejected, and nothing was done outside.

        Also what was approved and not tried yet.

        Raises: what `approve` raises.
        """
        stay_out("app.deny")
        opened = self._opened
        vote = Vote(
            operation_id=operation_id, operator=operator, note=note, payload_hash=payload_hash
        )
        await opened.ledger.commit(lambda tx: approvals.deny(opened.book, tx, vote))
        record = opened.load(operation_id)
        opened.changed(record)
        return opened.outcome(Known(record))

    async def grant(
        self,
        session_id: str,
        *,
        tool: str,
        principal: str,
        expires_s: float,
        operator: str,
        note: str,
    ) -> Grant:
        """Approve all calls of a tool by a principal in a session, until it expires.

        It binds the tool, its contract as it is now, the principal, the session and the expiry. It
        leaves payload and target out. Calls under it don't wait, and those that wait go on.

        Args:
            session_id: Which session; "" is the principal's implicit one.
            tool: The tool's name.
            principal: Whose calls.
            expires_s: For how many seconds; 30 days at most.
            operator: Who approves; never the principal.
            note: Why.

        Raises:
            GrantRefused: The tool needs no approval, or two people's for each call; the operator
                is the principal; or the time is none.
            UnknownTool: No contract is registered under `tool`.
        """
        stay_out("app.grant")
        opened = self._opened
        if not 0 < expires_s <= SESSION_MAX_S:
            raise GrantRefused(f"expires: {expires_s} s is not within 30 days from now")
        asked = Granting(
            id=opened.book.surroundings.new_id(),
            session_id=session_id,
            tool=self.registry.tool(tool),
            principal=principal,
            expires_ms=int(expires_s * 1000),
            operator=operator,
            note=note,
        )
        granted = await opened.ledger.commit(lambda tx: approvals.grant(opened.book, tx, asked))
        for record in granted.freed:
            opened.changed(record)
        return granted.grant

    async def revoke_grant(self, session_id: str, approval_id: str, *, operator: str) -> Grant:
        """Take a session-wide approval back, for all that has not passed its gate.

        Raises:
            ApprovalNotFound: There is none of that id in that session.
        """
        stay_out("app.revoke_grant")
        opened = self._opened
        return await opened.ledger.commit(
            lambda tx: approvals.revoke(opened.book, tx, session_id, approval_id, operator)
        )

    async def grants(self, session_id: str) -> list[Grant]:
        """Return all approvals of a session, expired and revoked ones too, oldest first."""
        opened = self._opened
        return opened.ledger.read(lambda tx: grants.of_session(tx, opened.book.tenant, session_id))


def grant_data(grant: Grant) -> dict[str, Json]:
    """Return a session-wide approval as it goes over every wire."""
    return {
        "id": grant.id,
        "session_id": grant.session_id,
        "tool": grant.tool,
        "contract_digest": grant.contract_digest,
        "principal": grant.principal,
        "by": grant.by,
        "at": instant(grant.at_ms),
        "expires_at": instant(grant.expires_ms),
        "revoked_at": instant(grant.revoked_ms),
        "revoked_by": grant.revoked_by,
        "note": grant.note,
        "binds": "tool, contract, principal, session and expiry; neither payload nor target",
    }
