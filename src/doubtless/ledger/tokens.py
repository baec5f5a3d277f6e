"""Bearer tokens: who may use the service, and as what. Only the digest of a token is kept."""

from dataclasses import dataclass
from typing import Final

from doubtless.core.model import Role
from doubtless.ledger.codec import Shape, statement, text_of
from doubtless.ledger.store import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token."""

    id: str  # public: names it in lists, and when it is revoked
    name: str  # the principal's
    role: Role
    created_ms: int
    expires_ms: int | None = None  # None: never
    revoked_ms: int | None = None

    def is_live(self, now_ms: int) -> bool:
        """Whether it may be used now."""
        expired = self.expires_ms is not None and now_ms >= self.expires_ms
        return self.revoked_ms is None and not expired


TOKEN: Final = Shape(Token)
ADD: Final = statement(
    "insert into token (tenant, digest, {columns}) values (:tenant, :digest, {places})", TOKEN
)


def add(tx: Transaction, tenant: str, token: Token, *, digest: str) -> None:
    """Record a new token.

    Raises:
        LedgerError: Its id or its digest is there already.
    """
    tx.run(ADD, tenant=tenant, digest=digest, **TOKEN.params(token))


BY_DIGEST: Final = statement(
    "select digest, {columns} from token where tenant = :tenant and digest = :digest", TOKEN
)


def by_digest(tx: Transaction, tenant: str, digest: str) -> tuple[str, Token] | None:
    """Return the stored digest and the token that it belongs to, whether or not it is live."""
    rows = tx.tuples(BY_DIGEST, tenant=tenant, digest=digest)
    return (text_of(rows[0][0]), TOKEN.from_row(rows[0][1:])) if rows else None


LISTED: Final = statement(
    "select {columns} from token where tenant = :tenant order by created_ms, id", TOKEN
)


def listed(tx: Transaction, tenant: str) -> list[Token]:
    """Return all tokens, oldest first; those too that are revoked or have expired."""
    return [TOKEN.from_row(row) for row in tx.tuples(LISTED, tenant=tenant)]


REVOKE: Final = """
    update token
       set revoked_ms = :now_ms
     where tenant = :tenant and id = :id and revoked_ms is null
"""
IS_THERE: Final = "select 1 from token where tenant = :tenant and id = :id"


def revoke(tx: Transaction, tenant: str, token_id: str) -> bool:
    """Revoke a token for ever; a second time changes nothing. Return whether there is such one."""
    tx.run(REVOKE, tenant=tenant, id=token_id, now_ms=tx.now_ms)
    return bool(tx.tuples(IS_THERE, tenant=tenant, id=token_id))
