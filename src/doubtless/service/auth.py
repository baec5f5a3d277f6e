"""Bearer tokens (RFC 6750): 256 random bits, of which the ledger keeps the SHA-256 alone."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from doubtless.core.model import Principal, Role
from doubtless.engine.book import TENANT
from doubtless.errors import SettingsError, TokenNotFound
from doubtless.ledger import tokens
from doubtless.ledger.store import Ledger, Transaction
from doubtless.ledger.tokens import Token

ROLES: Final = (Role.AGENT, Role.OPERATOR, Role.AUDITOR, Role.WORKER)
"""The roles that a token may have."""
TOKEN_BYTES: Final = 32
PREFIX: Final = "dbt_"  # so that whoever finds one in a log or a file knows what it is
TOKEN_CHARS_MAX: Final = 200

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,63}")
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new token. `secret` is shown once and never again."""

    secret: str
    token: Token

    def __repr__(self) -> str:
        return f"Issued(secret=…, token={self.token!r})"


def digest_of(secret: str) -> str:
    """Return what the ledger keeps of a token. It has 256 random bits, so it needs no salt."""
    return hashlib.sha256(secret.encode()).hexdigest()


def issue(
    ledger: Ledger,
    name: str,
    role: Role,
    *,
    tenant: str = TENANT,
    lifetime_ms: int | None = None,
) -> Issued:
    """Make a token.

    Args:
        ledger: Where it is recorded.
        name: The principal's: whoever has the same name is the same principal.
        role: What it may do.
        tenant: Whose services it opens; to those of any other it is none.
        lifetime_ms: None: it never expires.

    Raises:
        SettingsError: The name can't be one, or no token has that role.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name[:80]!r} can't be a principal's name: use up to 64 of A-Z a-z 0-9 . _ @ : + -,"
            " beginning with a letter or a digit"
        )
    if role not in ROLES:
        raise SettingsError(f"no token has the role {role}: it is one of {', '.join(ROLES)}")
    secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)

    def unit(tx: Transaction) -> Token:
        token = Token(
            id=f"tok-{secrets.token_hex(6)}",
            name=name,
            role=role,
            created_ms=tx.now_ms,
            expires_ms=None if lifetime_ms is None else tx.now_ms + lifetime_ms,
        )
        tokens.add(tx, tenant, token, digest=digest_of(secret))
        return token

    return Issued(secret=secret, token=ledger.write(unit))


def all_tokens(ledger: Ledger, *, tenant: str = TENANT) -> list[Token]:
    """Return all tokens of a tenant, oldest first."""
    return ledger.read(lambda tx: tokens.listed(tx, tenant))


def revoke(ledger: Ledger, token_id: str, *, tenant: str = TENANT) -> None:
    """Revoke a token at once and for ever; again is allowed.

    Raises:
        TokenNotFound: The tenant has no such token.
    """
    if not ledger.write(lambda tx: tokens.revoke(tx, tenant, token_id)):
        raise TokenNotFound(token_id)


def principal_of(
    ledger: Ledger, authorization: str | None, *, tenant: str = TENANT
) -> Principal | None:
    """Return whom an Authorization header speaks for; None if it shows no live token of the tenant.

    The ledger is asked every time, so that an expiry or a revocation counts at once, in every
    process. It is found by the digest, which tells nothing about the token by its time either.
    """
    if authorization is None or len(authorization) > TOKEN_CHARS_MAX:
        return None
    said = _BEARER.fullmatch(authorization)
    if said is None:
        return None
    digest = digest_of(said[1])

    def unit(tx: Transaction) -> Principal | None:
        found = tokens.by_digest(tx, tenant, digest)
        if found is None:
            return None
        stored, token = found
        same = hmac.compare_digest(stored, digest)
        # The wall clock may have been set back; the ledger's never is.
        live = same and token.is_live(max(tx.now_ms, tx.wall_ms))
        return Principal(name=token.name, role=token.role) if live else None

    return ledger.read(unit)
