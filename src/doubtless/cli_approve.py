"""The commands for approving: what would be executed is shown before anything is said about it."""

import json
import sys

import click

from doubtless.cli_settings import Settings, with_settings

note = click.option("--note", required=True, help="Why. It is kept, and binds nothing.")
payload_hash = click.option(
    "--payload-hash", metavar="HASH", help="Of what you were shown; another one is refused."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.command(short_help="Approve what waits for it.")
@click.argument("operation_id", metavar="ID")
@note
@payload_hash
@as_json
@with_settings("ledger", "tenant", "operator")
def approve(settings: Settings, *, operation_id: str, as_json: bool, **said: str | None) -> int:
    """Show what the operation ID would execute, and approve it.

    On a terminal you are asked first, unless you give the hash of what you have seen. Whoever asked
    for the operation can't approve it. A worker carries it out once enough people have approved.
    """
    return _vote("approve", settings, operation_id, as_json=as_json, **said)


@click.command(short_help="Deny what waits for approval.")
@click.argument("operation_id", metavar="ID")
@note
@payload_hash
@as_json
@with_settings("ledger", "tenant", "operator")
def deny(settings: Settings, *, operation_id: str, as_json: bool, **said: str | None) -> int:
    """Show what the operation ID would execute, and deny it: it is rejected, and nothing is sent.

    Also what was approved and not tried yet.
    """
    return _vote("deny", settings, operation_id, as_json=as_json, **said)


def _vote(
    word: str,
    settings: Settings,
    operation_id: str,
    *,
    as_json: bool,
    note: str | None,
    payload_hash: str | None,
) -> int:
    from doubtless.cli_approvals import seen, vote, write_executed, write_result

    if not (note or "").strip():
        raise click.UsageError("--note is empty: say why.")
    shown = seen(settings, operation_id)
    if not as_json:
        write_executed(shown)
        asks = sys.stdin.isatty() and payload_hash is None
        if asks and not click.confirm(f"{word.capitalize()} this?", default=False):
            return 1
    outcome = vote(word, settings, shown, note=note or "", payload_hash=payload_hash)
    if as_json:
        click.echo(json.dumps(outcome.to_json(), indent=2))
    else:
        write_result(word, outcome)
    return 0
