"""The migrations of this release, and what each asks of those who are at work.

The name of a file says its step, and it is what older releases read in the ledger: they go on
where what they don't know are pre steps alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from doubtless.errors import LedgerError

BASE_LAST: Final = 5  # migrations up to this one come from before there were steps
_NAME: Final = re.compile(r"(\d{4})_\w+(?:\.(?:pre|post))?\.sql")
_OUTSIDE: Final = "-- outside a transaction\n"
_COMMENT: Final = re.compile(r"--[^\n]*")
_INDEX: Final = re.compile(
    r"create (?:unique )?index concurrently (?P<name>[a-z_][a-z0-9_]*) on\s", re.IGNORECASE
)

OUTGROWN: Final = """
    select name
      from migration
     where tenant = 'main' and number > :known and name not like '%.pre.sql'
     order by number
     limit 1
"""
"""Finds what a process can't live with, of what was applied since its release."""


class Step(StrEnum):
    """When a migration may be applied."""

    BASE = "base"  # from before there were steps: while nobody is at work
    PRE = "pre"  # while processes of older releases are at work
    POST = "post"  # once none is any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int  # from 1, without gaps
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 in hexadecimal; the line endings of a checkout don't matter."""
        return sha256(self.text.replace("\r\n", "\n").encode()).hexdigest()

    @property
    def step(self) -> Step:
        """What its name says."""
        return step_of(self.name)

    @property
    def stands_outside(self) -> bool:
        """Whether its indexes are built outside a transaction, beside those who write."""
        return self.text.replace("\r\n", "\n").startswith(_OUTSIDE)

    @property
    def within(self) -> str:
        """Its text as it can be run in a transaction: where nobody is at work yet."""
        if not self.stands_outside:
            return self.text
        return re.sub(r"\bindex concurrently\b", "index", self.text, flags=re.IGNORECASE)

    def indexes(self) -> Iterator[tuple[str, str]]:
        """Yield name and statement of each index that is built outside a transaction.

        Raises:
            LedgerError: something else stands there, or it isn't a pre step.
        """
        for statement in _COMMENT.sub("", self.text).split(";"):
            stripped = statement.strip()
            if not stripped:
                continue
            found = _INDEX.match(stripped)
            if found is None or self.step is not Step.PRE:
                raise LedgerError(
                    f"{self.name}: only `create index concurrently name on …`, in a pre step, may"
                    f" stand outside a transaction, and not: {stripped[:80]}"
                )
            yield found["name"].lower(), stripped


def step_of(name: str) -> Step:
    """Return the step that the name of a migration says, of this release or another one."""
    for step in (Step.PRE, Step.POST):
        if name.endswith(f".{step}.sql"):
            return step
    return Step.BASE


@lru_cache(maxsize=2)
def known(kind: str = "sqlite") -> tuple[Migration, ...]:
    """Return the migrations of this release for one database, in order."""
    found = []
    for file in files("doubtless.ledger").joinpath("migrations", kind).iterdir():
        if match := _NAME.fullmatch(file.name):
            text = file.read_text(encoding="utf-8")
            found.append(Migration(number=int(match[1]), name=file.name, text=text))
    return tuple(sorted(found, key=lambda migration: migration.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One migration, of this release or in the ledger."""

    number: int
    name: str
    applied_ms: int | None  # None: not yet
    is_known: bool  # to this release

    @property
    def step(self) -> Step:
        """What its name says."""
        return step_of(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What was applied to a ledger, and what this release makes of it."""

    place: str
    entries: tuple[Entry, ...]  # in order

    @property
    def missing(self) -> tuple[Entry, ...]:
        """What is still to be applied."""
        return tuple(entry for entry in self.entries if entry.applied_ms is None)

    @property
    def due(self) -> tuple[Entry, ...]:
        """What of it this release needs: all but the post steps at the end."""
        missing = self.missing
        last = max(
            (at for at, entry in enumerate(missing) if entry.step is not Step.POST), default=-1
        )
        return missing[: last + 1]

    @property
    def too_new(self) -> Entry | None:
        """What was applied and is not for this release; None if it can live with all of it."""
        for entry in self.entries:
            if not entry.is_known and entry.step is not Step.PRE:
                return entry
        return None

    @property
    def why_not(self) -> str | None:
        """Why this release can't run on the ledger, and the mend; None if it can."""
        if (newer := self.too_new) is not None:
            return (
                f"the ledger {self.place} has {newer.name}, which is newer than this release:"
                " upgrade doubtless"
            )
        if due := self.due:
            stop = "stop what uses it, and " if any(one.step is Step.BASE for one in due) else ""
            return (
                f"the ledger {self.place} lacks {len(due)} migration(s), from {due[0].name} on:"
                f" {stop}run `doubtless migrate`"
            )
        return None
