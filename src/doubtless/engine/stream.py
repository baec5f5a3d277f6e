"""What the stream of settlements consists of, as it goes over every wire."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import cast

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome

_KNOWN = frozenset(each.name for each in fields(Outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One end of an operation. One that was opened again and settled anew has several."""

    id: int  # unique in its ledger, and in the order of commits
    state: str  # the end that this is about
    version: int  # of the operation, as it ended
    at: str  # RFC 3339
    outcome: Outcome  # as it is now: it may have been opened again since

    def to_json(self) -> dict[str, Json]:
        """Return it as it goes over every wire."""
        return {
            "id": self.id,
            "state": self.state,
            "version": self.version,
            "at": self.at,
            "outcome": self.outcome.to_json(),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Json]) -> "Settlement":
        """Read what `to_json` wrote."""
        return cls(
            id=cast("int", told["id"]),
            state=str(told["state"]),
            version=cast("int", told["version"]),
            at=str(told["at"]),
            outcome=read_outcome(told["outcome"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementPage:
    """Some settlements, the oldest first. `after` is what to ask for next."""

    settlements: tuple[Settlement, ...]
    after: int

    def to_json(self) -> dict[str, Json]:
        """Return it as it goes over every wire."""
        return {
            "settlements": [each.to_json() for each in self.settlements],
            "after": self.after,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Json]) -> "SettlementPage":
        """Read what `to_json` wrote."""
        found = cast("list[Mapping[str, Json]]", told["settlements"])
        return cls(
            settlements=tuple(Settlement.from_json(each) for each in found),
            after=cast("int", told["after"]),
        )


def read_outcome(told: Json) -> Outcome:
    """Read an outcome; what a newer release adds to it is left out."""
    found = cast("Mapping[str, object]", told)
    return Outcome(**{name: value for name, value in found.items() if name in _KNOWN})  # type: ignore[arg-type]
