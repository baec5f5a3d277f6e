"""Tokens of the service from the command line."""

from collections.abc import Iterator

import click

from doubtless.cli_settings import Settings, length
from doubtless.cli_text import Line, write
from doubtless.core.model import Json, Role
from doubtless.core.outcome import instant
from doubtless.ledger.store import open_ledger
from doubtless.ledger.tokens import Token
from doubtless.service import auth


def create(settings: Settings, *, name: str, role: str, expires_ms: int | None) -> None:
    """Make a token and print it, alone, so that it can be piped."""
    with open_ledger(settings.ledger) as ledger:
        issued = auth.issue(
            ledger, name, Role(role), tenant=settings.tenant, lifetime_ms=expires_ms
        )
    token = issued.token
    until = f", until {instant(token.expires_ms)}" if token.expires_ms is not None else ""
    told = f"doubtless: {token.id}: {token.role} {token.name}{until}. It is shown this once."
    click.echo(told, err=True)
    click.echo(issued.secret)


def found(settings: Settings) -> tuple[list[Token], int]:
    """Return all tokens of the tenant, and the ledger's time."""
    with open_ledger(settings.ledger, inline=True) as ledger:
        return auth.all_tokens(ledger, tenant=settings.tenant), ledger.read(lambda tx: tx.now_ms)


def data(tokens: list[Token], now_ms: int) -> list[Json]:
    """Return tokens for programs."""
    return [
        {
            "id": token.id,
            "name": token.name,
            "role": token.role.value,
            "live": token.is_live(now_ms),
            "created_at": instant(token.created_ms),
            "expires_at": instant(token.expires_ms),
            "revoked_at": instant(token.revoked_ms),
        }
        for token in tokens
    ]


def write_list(tokens: list[Token], now_ms: int) -> None:
    """Print tokens, one a line."""
    write(_lines(tokens, now_ms))


def _lines(tokens: list[Token], now_ms: int) -> Iterator[Line]:
    if not tokens:
        yield Line("There is no token. `doubtless token create` makes one.")
    for token in tokens:
        live = token.is_live(now_ms)
        text = f"{token.id}  {token.role.value:<8}  {token.name}  {_standing(token, now_ms)}"
        yield Line(text, "" if live else "quiet")


def _standing(token: Token, now_ms: int) -> str:
    if token.revoked_ms is not None:
        return f"revoked {length(max(0, now_ms - token.revoked_ms))} ago"
    if token.expires_ms is None:
        return "does not expire"
    left_ms = token.expires_ms - now_ms
    return f"expires in {length(left_ms)}" if left_ms > 0 else f"expired {length(-left_ms)} ago"


def revoke(settings: Settings, token_id: str) -> None:
    """Revoke a token, at once and for ever."""
    with open_ledger(settings.ledger) as ledger:
        auth.revoke(ledger, token_id, tenant=settings.tenant)
    click.echo(f"{token_id} is revoked: from now on it is refused everywhere.")
