"""Contracts of tools that are written in code: the file's keys as keywords, the same checks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, Required, TypeAlias, TypedDict, Unpack

from doubtless.core.contract import Contract, KeyFormat, Kind, OnAbsent, SourceRules, Stores
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts.build import build
from doubtless.engine.contracts.draft import Draft, touch_arguments
from doubtless.engine.contracts.file import ToolTable
from doubtless.engine.contracts.problems import read_table, unknown_keys
from doubtless.engine.contracts.rules import untold_errors
from doubtless.engine.contracts.sources import TOLERANCE_MS
from doubtless.errors import ContractError

_Function: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """How the provider ties repeats together, as `[….idempotency]` says it.

    Without a place the function hands `call.idempotency_key` on by itself.
    """

    ttl: str | None = None  # "24h"; None: unknown, so no keyed resend
    stores: Stores | str | None = None
    format: KeyFormat | str = KeyFormat.UUID
    header: str | None = None
    field: str | None = None
    query: str | None = None
    in_progress: Sequence[int] = ()
    mismatch: Sequence[int] = ()
    replayed: str | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """A function that asks the provider whether the effect exists, as `[….lookup]` says it."""

    function: _Function | str  # or "module:function"
    authoritative: bool = False  # its absence proves something; then `lag` must be said
    lag: str | None = None
    confirmations: int | None = None
    in_flight_horizon: str | None = None
    interval: str | None = None
    interval_max: str | None = None
    timeout: str | None = None
    boundary: Literal["ingress", "application", "worker", "object", "provider"] | None = None
    name: str | None = None


class ToolKeys(TypedDict, total=False):
    """The keys of `[tools.X]` that a tool in code may say; durations are text, as in the file."""

    effect: Required[Effect | str]
    description: str
    source: SourceRules | str | None
    business_key: Sequence[str]
    idempotency: Key | None
    lookup: Lookup | Sequence[Lookup] | None
    on_absent: OnAbsent | str | None
    review: Literal["people", "none"]
    timeout: str
    in_flight_horizon: str
    recovery_deadline: str
    completes_within: str
    record_sending: bool
    valid_for: str
    dedupe_window: str
    ordering: Literal["free", "latest_wins"]
    volatile: Sequence[str]
    duplicates: Literal["never", "acceptable"]
    correlation: Mapping[str, str] | Literal[False]
    events: Mapping[str, Json] | None
    approval: Mapping[str, Json] | None
    retry: Mapping[str, Json] | None
    condition: Mapping[str, Json] | None
    read: Mapping[str, Json] | None


_CODE_KEYS: Final = tuple(ToolKeys.__annotations__)


def function_name(function: _Function | str) -> str:
    """Name a function as `module:function`."""
    if isinstance(function, str):
        return function
    module = getattr(function, "__module__", "")
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def build_contract(
    tool: str,
    *,
    arguments_schema: Mapping[str, Json] | None = None,
    declared_in: str = "(code)",
    **keys: Unpack[ToolKeys],
) -> Contract:
    """Build the contract of a tool in code. It has the defaults and the checks of a file's.

    Args:
        arguments_schema: JSON Schema 2020-12 of the arguments; None takes none.
        declared_in: What problems name as the file, as in "shop.refunds:create_refund".

    Raises:
        ContractError: Something is wrong: all of it at once.
    """
    source = keys.get("source")
    rules = source if isinstance(source, SourceRules) else SourceRules(name=source or tool)
    place = f"tools.{tool}"
    problems = unknown_keys(keys, _CODE_KEYS, file=declared_in, table=place)
    table = _table({name: value for name, value in keys.items() if name in _CODE_KEYS})
    table["source"] = rules.name
    if arguments_schema is not None:
        table["arguments"] = _plain(arguments_schema)
    reading = read_table(ToolTable, table, file=declared_in, table=place)
    problems += reading.problems
    if reading.table is None:
        raise ContractError(problems)
    contract, defaults = build(
        tool, reading.table, rules, kind=Kind.FUNCTION, tolerance_ms=TOLERANCE_MS
    )
    draft = Draft(
        file=declared_in,
        said=reading.table,
        contract=contract,
        defaults=defaults,
        whole=reading.whole,
        arguments_whole=not touch_arguments(tool, problems),
    )
    problems += untold_errors(draft, problems)
    if problems:
        raise ContractError(problems)
    return contract


def _table(keys: Mapping[str, object]) -> dict[str, object]:
    """Write keywords as the file would have them."""
    found = {name: _plain(value) for name, value in keys.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> object:
    """Write a value as TOML would have it; what says nothing is left out."""
    if isinstance(value, Lookup):
        said = {each.name: getattr(value, each.name) for each in fields(value)}
        return _table(
            {**said, "function": None, "python": function_name(value.function)}
            | {"authoritative": value.authoritative or None}
        )
    if isinstance(value, Key):
        return _table({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(member) for member in value]
    return value
