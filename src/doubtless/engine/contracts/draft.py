"""One tool under judgement: what was said about it, and the contract that this gives."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.effects import RULES, EffectRule
from doubtless.engine.contracts.defaults import Default
from doubtless.engine.contracts.file import LookupTable, ToolTable
from doubtless.engine.contracts.problems import numbered
from doubtless.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A table that is well-formed by itself, before its parts are held against one another."""

    file: str  # or "module:function", for a tool in code
    said: ToolTable
    contract: Contract
    defaults: tuple[Default, ...] = ()
    sources: tuple[str, ...] = ()  # the declared ones
    webhook: bool = True  # whether events can reach its source
    whole: bool = True  # nothing of the table was left out because it was malformed
    arguments_whole: bool = True

    @property
    def rule(self) -> EffectRule:
        """The row of its effect."""
        return RULES[self.contract.effect]

    @property
    def is_http(self) -> bool:
        """Whether a file declares how its request looks."""
        return self.contract.kind is Kind.HTTP

    @property
    def is_code(self) -> bool:
        """Whether it is a Python function, declared beside its code."""
        return self.contract.kind is Kind.FUNCTION

    def lookups(self) -> Iterator[tuple[str, LookupTable]]:
        """Yield every look-up with the name of its table."""
        many = len(self.said.lookup) > 1
        for index, look in enumerate(self.said.lookup):
            yield numbered("lookup", index) if many else "lookup", look

    def looks(self) -> Iterator[tuple[str, LookupRules]]:
        """Yield the rules of every look-up with its table; a block brings its own, first."""
        own = len(self.contract.lookups) - len(self.said.lookup)
        tables = [f"{self.contract.kind.value}.pace"] * own + [table for table, _ in self.lookups()]
        yield from zip(tables, self.contract.lookups, strict=True)

    def properties(self) -> Mapping[str, object]:
        """Return the declared arguments."""
        found = self.contract.arguments.get("properties")
        return found if isinstance(found, Mapping) else {}

    def required(self) -> frozenset[str]:
        """Return the arguments without which no call is valid."""
        found = self.contract.arguments.get("required")
        return (
            frozenset(name for name in found if isinstance(name, str))
            if isinstance(found, list | tuple)
            else frozenset()
        )

    def problem(self, table: str, key: str, wrong: str, mend: str) -> Problem:
        """Make a problem; `table` is below the tool's own, or empty."""
        place = ".".join(part for part in ("tools", self.contract.tool, table) if part)
        return Problem(file=self.file, table=place, key=key, wrong=wrong, mend=mend)


Check: TypeAlias = Callable[[Draft], Iterator[Problem]]


def touch_arguments(tool: str, problems: Iterable[Problem]) -> bool:
    """Whether a problem lies in the tool's arguments, so that what they declare is not known."""
    place = f"tools.{tool}.arguments"
    return any(f"{each.table}.{each.key}".startswith(place) for each in problems)
