"""What one process tells the others of a commit: that it is worth looking at the ledger again.

It is a hint and no more. Nothing depends on its arrival, since everybody looks from time to time.
It names no operation: any user of the same database may listen.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias

Told: TypeAlias = tuple[str, bool, bool]
"""The id of an operation, whether it is due now, and whether it has ended."""

TAG_DIGITS: Final = 8
TAGS_MAX: Final = 200  # a payload has room for 8000 bytes
_NEWS: Final = re.compile(r"(?P<voice>[0-9a-f]*) (?P<due>d?)(?P<ended>e?) (?P<tags>\*|[0-9a-f]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What was told in one commit."""

    due: bool  # something is due now
    ended: bool  # something was settled
    tags: frozenset[str] | None  # of the operations that came to another state; None: of any
    voice: str = ""  # whose commit it was; "": nobody's that is known

    def concerns(self, operation_id: str) -> bool:
        """Whether it may be about that operation."""
        return self.tags is None or tag(operation_id) in self.tags


ANYTHING: Final = News(due=True, ended=True, tags=None)
"""What may have happened while nobody listened."""


@lru_cache(maxsize=4096)
def tag(operation_id: str) -> str:
    """Return what stands for an operation. Two may have the same: then one looks in vain."""
    return sha256(operation_id.encode()).hexdigest()[:TAG_DIGITS]


def written(voice: str, told: Sequence[Told]) -> str:
    """Write what was told in a commit: at most 1.7 kB."""
    tags = {tag(operation_id) for operation_id, _, _ in told}
    due = "d" if any(each[1] for each in told) else ""
    ended = "e" if any(each[2] for each in told) else ""
    named = "*" if len(tags) > TAGS_MAX else "".join(sorted(tags))
    return f"{voice} {due}{ended} {named}"


def read(payload: str) -> News:
    """Read it. What nobody of ours wrote may mean anything."""
    found = _NEWS.fullmatch(payload)
    if found is None:
        return ANYTHING
    text = found["tags"]
    places = range(0, len(text), TAG_DIGITS)
    tags = None if text == "*" else frozenset(text[at : at + TAG_DIGITS] for at in places)
    return News(due=bool(found["due"]), ended=bool(found["ended"]), tags=tags, voice=found["voice"])
