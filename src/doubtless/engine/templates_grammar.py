"""The grammar of templates: which names there are, and where they stand in a text."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from doubtless.core.model import Json
from doubtless.errors import BadRequest

OPERATION_NAMES: Final = (
    "id",
    "ref",
    "idempotency_key",
    "session_id",
    "provider_operation_id",
    "status_url",
    "duplicate_of",
)
OPTIONAL_NAMES: Final = frozenset({"page", "operation.duplicate_of"})
STATUS_URL_PATH: Final = "{operation.status_url}"

_PLACE: Final = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_NAME: Final = re.compile(r"page|operation\.[a-z_]+|args(\.[^.{}\s]+)+")


class TemplateError(BadRequest):
    """A template is malformed, or the values at hand don't fit it. Nothing was sent."""

    def __init__(self, template: str, wrong: str) -> None:
        super().__init__(f"template {template!r}: {wrong}")
        self.template, self.wrong = template, wrong


@dataclass(frozen=True, slots=True)
class Place:
    """One `{name}` within a string."""

    name: str


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[str | Place, ...]:
    """Split a template string into literal text and places.

    Raises:
        TemplateError: A brace without a partner, or a name of no known form.
    """
    parts: list[str | Place] = []
    end = 0
    for found in _PLACE.finditer(text):
        parts.append(text[end : found.start()])
        parts.append(_part(text, found))
        end = found.end()
    parts.append(text[end:])
    return tuple(_joined(parts))


def _part(text: str, found: re.Match[str]) -> str | Place:
    if found["name"] is None:
        if len(found[0]) == 2:
            return found[0][0]
        raise TemplateError(text, f"a single {found[0]!r}: write it twice to mean the brace itself")
    name = found["name"].strip()
    if not _NAME.fullmatch(name):
        raise TemplateError(text, f"{{{name}}} is neither args.NAME, operation.NAME nor page")
    if name.startswith("operation.") and name.removeprefix("operation.") not in OPERATION_NAMES:
        raise TemplateError(text, f"{{{name}}} is none of operation.{'|'.join(OPERATION_NAMES)}")
    return Place(name)


def _joined(parts: Sequence[str | Place]) -> Iterator[str | Place]:
    """Yield the parts with neighbouring text in one piece and without empty text."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text


def strings_in(template: Json) -> Iterator[str]:
    """Yield every template string within a template, keys aside."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from strings_in(value)
    elif isinstance(template, Sequence):
        for value in template:
            yield from strings_in(value)


def names_in(template: Json) -> frozenset[str]:
    """Return the names that a template speaks of: `args.charge`, `operation.ref`, `page`.

    Raises:
        TemplateError: It is malformed.
    """
    parts = (part for text in strings_in(template) for part in parse(text))
    return frozenset(part.name for part in parts if isinstance(part, Place))
