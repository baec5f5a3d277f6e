"""The commands for events: what providers told by themselves, and what matches nothing yet."""

import json

import click

from doubtless.cli_settings import ARGUMENTS, Settings, with_settings

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@click.group()
def events() -> None:
    """List, match and add events of providers."""


@events.command("list")
@click.option("--unmatched", is_flag=True, help="Only those that belong to no operation.")
@click.option("--source", metavar="NAME", help="Only this source's.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True)
@as_json
@with_settings("ledger", "tenant")
def list_events(
    settings: Settings, *, unmatched: bool, source: str | None, limit: int, as_json: bool
) -> int:
    """List events, newest first: what became of each, and why nothing did."""
    from doubtless.cli_inbox import found, write_events

    some = found(settings, unmatched=unmatched, source=source, limit=limit)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in some], indent=2, ensure_ascii=False))
    else:
        write_events(some, limit=limit)
    return 0


@events.command("match")
@click.argument("event", metavar="ID")
@click.argument("operation_id", metavar="OPERATION")
@click.option("--note", required=True, help="Why it is this one.")
@as_json
@with_settings("ledger", "tenant", "operator")
def match_event(
    settings: Settings, *, event: str, operation_id: str, note: str, as_json: bool
) -> int:
    """Match the event ID to an OPERATION, and weigh it.

    ID is its number in the list, or the provider's id. The match is yours and is recorded so; what
    the event says stays the provider's word. An event is matched once.
    """
    from doubtless.cli_inbox import match

    if not note.strip():
        raise click.UsageError("--note is empty: say why it is this one.")
    outcome = match(settings, event, operation_id, note=note)
    if as_json:
        click.echo(json.dumps(outcome.to_json(), indent=2, ensure_ascii=False))
    else:
        click.echo(f"{outcome.operation_id}: {outcome.state}. {outcome.message}")
    return 0


@events.command("add")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--json", "event", type=ARGUMENTS, required=True, help="The event; - reads standard input."
)
@click.option("--event-id", metavar="ID", help="Its id, where that isn't in it.")
@click.option("--occurred-at", metavar="INSTANT", help="When it happened: RFC 3339 or seconds.")
@with_settings("ledger", "tenant", "contracts", "principal", "app")
def add_event(
    settings: Settings,
    *,
    source: str,
    event: dict[str, object],
    event_id: str | None,
    occurred_at: str | None,
) -> int:
    """Add an event of SOURCE that came by a queue, and print what became of it.

    Nothing checks where it came from: whoever adds it vouches for it. The same event again changes
    nothing. Neither a provider nor a secret is needed.
    """
    from doubtless.cli_inbox import add

    taken = add(settings, source, event, event_id=event_id, occurred_at=occurred_at)  # type: ignore[arg-type]
    click.echo(json.dumps(taken.to_json(), indent=2, ensure_ascii=False))
    return 0
