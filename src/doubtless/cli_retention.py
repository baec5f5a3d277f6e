"""The commands for retention: emptying and archiving what settled operations carried."""

import json

import click

from doubtless.cli_settings import KEEP_TIME, Settings, with_settings


@click.group()
def retention() -> None:
    """Empty and archive what settled operations carried."""


@retention.command("run")
@click.option("--retention", type=KEEP_TIME, help="Empty what ended so long ago, such as 90d.")
@click.option("--archive-after", type=KEEP_TIME, help="Archive what ended so long ago.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@with_settings("ledger", "tenant")
def run_retention(
    settings: Settings, *, retention: str | None, archive_after: str | None, dry_run: bool
) -> int:
    """Empty and archive what is ripe, a little at a time, beside whoever works.

    What may still be needed is left: docs/scaling.md says what that is. Without a time nothing is
    done.
    """
    from doubtless.cli_upkeep import upkeep

    upkeep(settings, retention=retention, archive_after=archive_after, dry_run=dry_run)
    return 0


@retention.command("show")
@with_settings("ledger", "tenant")
def show_retention(settings: Settings) -> int:
    """Print, as JSON, how far it has come, what holds it up, and the months of the archive."""
    from doubtless.cli_upkeep import standing

    click.echo(json.dumps(standing(settings), indent=2))
    return 0
