"""Blocks: how an action is declared that is no HTTP request, as `[tools.X.file]` or `[….ssh]`.

Each kind has a table of its own, in a file of its own, which says all that is particular to it:
what is stored with an operation, how its transport is asked afterwards, and what can't be meant.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts.boundary import Way
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import Duration, Period
from doubtless.transports.mcp_servers import ServerRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a contract file stands: what relative paths in it are meant from."""

    folder: Path  # absolute: the contract file's own
    files_root: Path  # absolute: `[files] root`, below which file tools write
    servers: Mapping[str, ServerRules] = field(default_factory=dict)  # `[servers.X]`
    definite: frozenset[str] = frozenset()  # those whose errors prove that nothing was done


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What can't be meant in a block, and the mend."""

    key: str  # below the block's table
    wrong: str
    mend: str


class PaceTable(Table):
    """`[tools.X.KIND.pace]`: how its own look-up is asked, where the defaults don't fit."""

    interval: Period | None = None
    interval_max: Period | None = None
    confirmations: Annotated[int, Field(ge=1, le=100)] | None = None
    lag: Duration | None = None
    timeout: Period | None = None


class BlockTable(Table):
    """The table of one kind of action."""

    KIND: ClassVar[Kind]
    EFFECTS: ClassVar[frozenset[Effect]]  # with which it can be declared
    TABLES: ClassVar[frozenset[str]] = frozenset()  # of those for requests, which it may have too

    pace: PaceTable | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is rendered for each call and stored with it: all of it but secrets.

        Whatever depends on where the file stands is made absolute here, so that a stored operation
        means the same for every process of this host.
        """
        said: dict[str, Json] = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude={"pace"}
        )
        return said

    def action_of(self, place: Place, effect: Effect) -> dict[str, Json]:
        """Return `action`, where it depends on what the tool does to the world."""
        return self.action(place)

    @abstractmethod
    def look(self, horizon_ms: int | None) -> LookupRules | None:
        """Return how its transport is asked what became of an operation; None: it can't be.

        Args:
            horizon_ms: `in_flight_horizon`, where the tool says it.
        """

    def asked(self, horizon_ms: int | None) -> LookupRules | None:
        """Return `look`, at the pace that the file says."""
        rules, pace = self.look(horizon_ms), self.pace
        if rules is None or pace is None:
            return rules
        interval_ms = pace.interval or rules.interval_ms
        return replace(
            rules,
            interval_ms=interval_ms,
            interval_max_ms=pace.interval_max or max(rules.interval_max_ms, interval_ms),
            confirmations=pace.confirmations or rules.confirmations,
            lag_ms=rules.lag_ms if pace.lag is None else pace.lag,
            timeout_ms=pace.timeout or rules.timeout_ms,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what can't be meant, the effect apart, which is checked for every kind."""
        yield from ()

    def doubtful(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what loads and should be known."""
        yield from ()

    def business_key(self) -> list[str]:
        """Return the arguments that name the object acted on, where the tool doesn't say it."""
        return []

    @staticmethod
    @abstractmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered action can't be carried out as it is, or None. Touches nothing."""

    @staticmethod
    @abstractmethod
    def target(members: Mapping[str, Json]) -> str:
        """Say in a line what is acted on; the members may still be templates."""

    @staticmethod
    @abstractmethod
    def question(members: Mapping[str, Json]) -> str:
        """Say in a line what a look asks, as a person would do it by hand."""

    @staticmethod
    @abstractmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Say what ties its attempts together, what breaks where, and what proves what."""
