"""What is told of a ledger's schema."""

import json
from collections.abc import Iterator

import click

from doubtless.cli_text import Line, columns, wrapped, write
from doubtless.core.model import Json
from doubtless.core.outcome import instant
from doubtless.ledger import migrate
from doubtless.ledger.address import masked
from doubtless.ledger.migrate import Entry, Status


def show(address: str, *, as_json: bool) -> int:
    """Say what is applied, and whether this release can run on it; 1 if something is missing."""
    found = migrate.status(address)
    is_behind = bool(found.missing) or found.why_not is not None
    if as_json:
        _print_json(
            {
                "ledger": masked(address),
                "pending": [entry.name for entry in found.missing],
                "runs": found.why_not is None,
                "why_not": found.why_not,
                "migrations": [_data(entry) for entry in found.entries],
            }
        )
    else:
        write(_lines(masked(address), found))
    return int(is_behind)


def apply(address: str, *, post: bool, force: bool, as_json: bool) -> int:
    """Apply migrations, and say which, and what is left."""
    applied = migrate.migrate(address, post=post, force=force)
    left = [entry.name for entry in migrate.status(address).missing]
    shown = masked(address)
    if as_json:
        _print_json({"ledger": shown, "applied": list(applied), "pending": list(left)})
        return 0
    if applied:
        click.echo(f"{shown} now has {', '.join(applied)}.")
    elif not left:
        click.echo(f"{shown} is up to date.")
    if left:
        click.echo(LEFT.format(names=", ".join(left)))
    return 0


LEFT = (
    "Replace all processes of older releases. Then `doubtless migrate --post` applies what is left:"
    " {names}."
)


def _data(entry: Entry) -> Json:
    return {
        "number": entry.number,
        "name": entry.name,
        "step": entry.step.value,
        "applied_at": instant(entry.applied_ms),
        "known": entry.is_known,
    }


def _lines(shown: str, found: Status) -> Iterator[Line]:
    if found.missing:
        yield Line(f"{shown} lacks {', '.join(entry.name for entry in found.missing)}.")
    elif found.too_new is None:
        yield Line(f"{shown} is up to date.")
    wide = max(len(entry.name) for entry in found.entries)
    for entry in found.entries:
        yield Line(f"  {entry.name:<{wide}}  {entry.step.value:<4}  {_standing(entry)}")
    if found.why_not is not None:
        yield from wrapped(f"This release can't run on it: {found.why_not}.", width=columns())
        return
    yield Line("This release can run on it.", "good")
    if found.missing:
        yield from wrapped(LEFT.format(names="the post steps"), width=columns())


def _standing(entry: Entry) -> str:
    if entry.applied_ms is None:
        return "missing"
    newer = "" if entry.is_known else ", of a newer release"
    return f"applied {instant(entry.applied_ms)}{newer}"


def _print_json(value: Json) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
