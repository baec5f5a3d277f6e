"""Defaults: filled in where nothing was said, and remembered, so that they can be printed."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeVar

from doubtless.engine.contracts.values import duration_text

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """One default in force: the key below the tool's table, and the value as a file writes it."""

    key: str
    value: str


@dataclass(slots=True)
class Defaults:
    """Fills in what was not said, and remembers that it did."""

    found: list[Default] = field(default_factory=list)

    def fill(self, key: str, said: _T | None, default: _T, text: str = "") -> _T:
        """Return what was said, or the default, which is noted."""
        if said is not None:
            return said
        self.found.append(Default(key=key, value=text or _text(default)))
        return default

    def time(self, key: str, said_ms: int | None, default_ms: int) -> int:
        """Do as `fill` does, with a duration in milliseconds."""
        return self.fill(key, said_ms, default_ms, f'"{duration_text(default_ms)}"')


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Collection):
        return f"[{', '.join(_text(each) for each in value)}]"
    return str(value)
