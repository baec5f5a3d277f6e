"""The command that shows what attempts left to look at, and what `operations show` says of it."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from doubtless.cli_settings import Settings, with_settings

if TYPE_CHECKING:
    from doubtless.cli_read import Shown
    from doubtless.cli_text import Line


@click.command(short_help="Save a picture, a text or output that an attempt left.")
@click.argument("operation_id", metavar="ID")
@click.argument("name", metavar="NAME")
@click.option("--attempt", type=click.IntRange(1, 1000), help="Of which; else the latest.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; an existing one is not replaced. Without it: to stdout.",
)
@with_settings("ledger", "tenant")
def exhibit(
    settings: Settings, *, operation_id: str, name: str, attempt: int | None, output: Path | None
) -> int:
    """Save the exhibit NAME of the operation ID, as an attempt of it left it.

    What a page showed, what a program wrote: `doubtless operations show ID` names them. It comes
    from elsewhere: look at it, and run nothing of it.
    """
    from doubtless.cli_read import open_reader
    from doubtless.cli_text import clean

    with open_reader(settings.ledger, tenant=settings.tenant) as reader:
        content = reader.exhibit(operation_id, name, attempt)
    if output is None:
        sys.stdout.buffer.write(content)
        return 0
    try:
        with output.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise click.UsageError(f"--output: {error.strerror}: {clean(str(output))}") from error
    click.echo(f"{clean(str(output))}: {len(content)} bytes")
    return 0


def write_exhibits(shown: "Shown", settings: Settings) -> None:
    """Print what there is to look at, and how it is saved."""
    from doubtless.cli_text import write

    write(_lines(shown, settings))


def _lines(shown: "Shown", settings: Settings) -> Iterator["Line"]:
    from doubtless.cli_text import Line, clean, columns, command, where

    if not shown.exhibits:
        return
    yield Line("")
    yield Line("What there is to look at", "strong")
    attempts = {each.attempt for each in shown.exhibits}
    for each in shown.exhibits:
        which = f"  attempt {each.attempt}" if len(attempts) > 1 else ""
        yield Line(f"  {clean(each.name):<16} {each.size:>9} bytes  {each.at}{which}")
    pictures = [each for each in shown.exhibits if each.media_type == "image/jpeg"]
    last = (pictures or shown.exhibits)[-1]
    operation_id = shown.record.operation.id
    words = ["doubtless", "operations", "exhibit", operation_id, shlex.quote(last.name)]
    if attempts != {last.attempt}:
        words.append(f"--attempt {last.attempt}")
    words.append(f"--output {shlex.quote(last.name)}")
    yield from command([*words, *where(settings)], width=columns(), indent="  ")
