"""The commands for tokens of the service."""

import json

import click

from doubtless.cli_settings import DURATION, Settings, with_settings

ROLES = ("agent", "operator", "auditor", "worker")


@click.group()
def token() -> None:
    """Make, list and revoke the tokens that the service asks for."""


@token.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do.")
@click.option("--name", required=True, help="The principal's name: who has it, is that principal.")
@click.option("--expires", "expires_ms", type=DURATION, help="After so long it is refused.")
@with_settings("ledger", "tenant")
def create_token(settings: Settings, *, role: str, name: str, expires_ms: int | None) -> int:
    """Make a token and print it, once, alone on standard output.

    The ledger keeps only its SHA-256, so nobody can show it again.
    """
    from doubtless.cli_tokens import create

    create(settings, name=name, role=role, expires_ms=expires_ms)
    return 0


@token.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@with_settings("ledger", "tenant")
def list_tokens(settings: Settings, *, as_json: bool) -> int:
    """List the tokens, oldest first; never the tokens themselves."""
    from doubtless.cli_read import be_there
    from doubtless.cli_tokens import data, found, write_list

    be_there(settings.ledger)
    tokens, now_ms = found(settings)
    if as_json:
        click.echo(json.dumps(data(tokens, now_ms), indent=2))
    else:
        write_list(tokens, now_ms)
    return 0


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@with_settings("ledger", "tenant")
def revoke_token(settings: Settings, *, token_id: str) -> int:
    """Revoke the token ID, at once and for ever."""
    from doubtless.cli_read import be_there
    from doubtless.cli_tokens import revoke

    be_there(settings.ledger)
    revoke(settings, token_id)
    return 0
