"""Retention from the command line: a run of its own, beside whoever works on the ledger."""

import anyio
import click

from doubtless.cli_read import be_there
from doubtless.cli_settings import Settings
from doubtless.core.model import Json
from doubtless.engine.book import Book
from doubtless.engine.registry import Registry
from doubtless.engine.retention import Keep, Upkeep, kept
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import SettingsError
from doubtless.ledger.retention import Task
from doubtless.ledger.store import Ledger, open_ledger

WORDS = {Task.RETENTION: "emptied", Task.ARCHIVE: "archived"}


def upkeep(
    settings: Settings, *, retention: str | None, archive_after: str | None, dry_run: bool
) -> None:
    """Do what is ripe, or count it.

    Raises:
        SettingsError: No time is said, or one that can't be meant.
        LedgerError: There is no ledger, or it can't be opened.
    """
    keep = kept(retention, archive_after)
    if keep == Keep():
        raise SettingsError("nothing to do: say --retention 90d, --archive-after 30d, or both")
    be_there(settings.ledger)
    with open_ledger(settings.ledger) as ledger:
        work = _upkeep(ledger, settings.tenant, keep)
        for task in work.tasks:
            count = work.preview(task) if dry_run else anyio.run(work.all_of, task)
            would = "would be " if dry_run else ""
            click.echo(f"{count} operations {would}{WORDS[task]}")


def standing(settings: Settings) -> dict[str, Json]:
    """Return how far it has come. Raises: what `upkeep` raises of the ledger."""
    be_there(settings.ledger)
    with open_ledger(settings.ledger, inline=True) as ledger:
        return _upkeep(ledger, settings.tenant, Keep()).standing()


def _upkeep(ledger: Ledger, tenant: str, keep: Keep) -> Upkeep:
    return Upkeep(ledger, Book(Registry(), Surroundings(), ledger.id, tenant=tenant), keep)
