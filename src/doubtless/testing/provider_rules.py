"""What the simulated provider is told to do: settings, collections and fault rules, as data.

A configuration is one JSON document. It is read strictly, because a misspelt fault that never
happens would make every test of it pass.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Document: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]]

KeyMode = Literal["off", "all", "success_only", "reexecutes_failed", "current_state"]
Mismatch = Literal["error", "replay", "execute"]
Concurrency = Literal["conflict", "wait"]
PutExisting = Literal["replay_same", "conflict", "overwrite"]
Close = Literal["rst", "fin"]
AnsweredBy = Literal["application", "gateway"]
Ending = Literal["succeeded", "failed"]

_T = TypeVar("_T")
_Check: TypeAlias = Callable[[object], object]


class ConfigError(ValueError):
    """A configuration document says something that the simulator does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one collection behaves when no fault is asked for. Durations are seconds, real time."""

    key_mode: KeyMode = "all"  # what a repeat under the same Idempotency-Key gets
    key_ttl_s: float | None = None  # from the first request with the key; None: for ever
    key_required: bool = False  # 400 without the header
    key_mismatch: Mismatch = "error"  # the same key with other content
    key_mismatch_status: int = 422
    key_concurrency: Concurrency = "conflict"  # the first request under the key still runs
    key_in_progress_status: int = 409
    reexecute_repeats_effects: bool = False  # reexecutes_failed: do committed effects happen again?
    replay_header: bool = True  # mark replays with `idempotent-replayed: true`
    work_s: float = 0.0  # between taking the key and committing
    read_lag_s: float = 0.0  # how long a list trails the writes
    get_lag_s: float = 0.0  # the same for a get by id
    page_size: int = 10  # default and greatest page
    newest_first: bool = True
    ignore_filters: bool = False  # a list answers everything, whatever was asked
    required: tuple[str, ...] = ()  # fields without which a create is refused with 400
    unique_by: tuple[str, ...] = ()  # at most one live object with these fields equal
    unique_status: int = 409
    unique_code: str = "already_exists"
    unique_shows_object: bool = True  # does the refusal carry the existing object?
    put_existing: PutExisting = "replay_same"  # a second PUT to the same id
    if_match_required: bool = False  # 428 for PATCH and DELETE without If-Match


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Which requests a rule is for. What is not said matches everything."""

    method: str | None = None
    path_prefix: str | None = None
    key: str | None = None  # the Idempotency-Key
    nth: int | None = None  # 1-based, among the requests that match the three above
    from_nth: int | None = None  # that one and all later ones
    probability: float | None = None  # one draw per matching request, from `seed`
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One fault. `ACTIONS` says which fields each name takes. Durations are seconds."""

    name: str
    status: int = 200
    body: Json = None  # text is sent as it is, anything else as JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: int | None = None
    delay_s: float | None = None
    interval_s: float = 0.05
    byte_count: int | None = None
    close: Close = "rst"
    by: AnsweredBy | None = None  # a gateway's answer is not what the key layer stores
    stored: bool = False
    key_in_progress: bool | None = None
    ignore_key: bool = False
    completes_in_s: float | None = None  # None: never by itself
    status_then: Ending = "succeeded"
    keep: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The first rule that matches a request decides what happens to it."""

    match: Match
    then: Action
    times: int | None = None  # None: without limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration: settings for all, settings per collection, rules in order."""

    settings: Settings = field(default_factory=Settings)
    collections: Mapping[str, Settings] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def of(self, collection: str) -> Settings:
        """Return the settings in force for `collection`."""
        return self.collections.get(collection, self.settings)


# name -> (options that must be given, options that may be given)
ACTIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "commit_then_fin": ((), ()),
    "commit_then_rst": ((), ()),
    "drop_before_commit": ((), ("close",)),
    "commit_then_status": (("status",), ("body", "headers", "retry_after_s", "by")),
    "commit_then_delay": (("delay_s",), ("key_in_progress",)),
    "delay_then_commit": (("delay_s",), ("ignore_key", "key_in_progress")),
    "status": (("status",), ("body", "headers", "retry_after_s", "stored")),
    "rst_on_accept": ((), ()),
    "never_read": ((), ("delay_s",)),
    "half_body_read_then_rst": ((), ("byte_count",)),
    "truncate_response": ((), ("byte_count",)),
    "garbage_response": ((), ("body",)),
    "accept_pending": ((), ("completes_in_s", "status_then")),
    "ok_with_error_inside": ((), ("body",)),
    "not_found_lie": ((), ()),
    "close_listener": (("delay_s",), ()),
    "slow_drip": ((), ("interval_s", "byte_count")),
    "hang": ((), ("delay_s",)),
    "login_page": ((), ()),
    "empty_page": ((), ()),
    "incomplete_page": ((), ("keep",)),
}

# These happen before a byte is read, so they can match nothing but the number of the connection.
ON_ACCEPT: Final = frozenset({"rst_on_accept", "never_read"})


def parse_config(document: object, base: Config | None = None) -> Config:
    """Read a configuration document.

    Args:
        document: An object replaces everything; a bare list replaces the rules of `base` alone.
        base: The configuration in force.

    Raises:
        ConfigError: The document says something unknown, or gives a value of the wrong kind.
    """
    if isinstance(document, list | tuple):
        return replace(base or Config(), rules=_rules(document))
    parts = _mapping(document, "configuration", ("settings", "collections", "rules"))
    settings = _fill(Settings(), parts.get("settings", {}), _SETTINGS, "settings")
    collections = {
        name: _fill(settings, part, _SETTINGS, f"collections.{name}")
        for name, part in _mapping(parts.get("collections", {}), "collections").items()
    }
    return Config(settings=settings, collections=collections, rules=_rules(parts.get("rules", [])))


@dataclass(slots=True)
class _Armed:
    rule: Rule
    draw: random.Random
    seen: int = 0
    fired: int = 0

    def takes(self) -> bool:
        """Count one matching request, and say whether the rule is for this one."""
        self.seen += 1
        match = self.rule.match
        # Drawn for every matching request, so that other conditions don't shift the sequence.
        lucky = match.probability is None or self.draw.random() < match.probability
        return (
            lucky
            and match.nth in (None, self.seen)
            and self.seen >= (match.from_nth or 1)
            and (self.rule.times is None or self.fired < self.rule.times)
        )


class RuleBook:
    """The rules with their counters. Every rule counts every request that it matches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._armed = [_Armed(rule, random.Random(rule.match.seed)) for rule in rules]

    def on_accept(self) -> Action | None:
        """Return what to do to a connection that was just accepted."""
        return self._first([a for a in self._armed if a.rule.then.name in ON_ACCEPT])

    def on_head(self, method: str, path: str, key: str | None) -> Action | None:
        """Return what to do to a request of which the head was read."""
        armed = [a for a in self._armed if a.rule.then.name not in ON_ACCEPT]
        return self._first([a for a in armed if _matches(a.rule.match, method, path, key)])

    def report(self) -> list[Json]:
        """Return, per rule in order, how many requests it matched and how often it acted."""
        return [
            {"action": armed.rule.then.name, "seen": armed.seen, "fired": armed.fired}
            for armed in self._armed
        ]

    def fired(self) -> dict[str, int]:
        """Return how often each action happened."""
        fired: Counter[str] = Counter()
        for armed in self._armed:
            fired[armed.rule.then.name] += armed.fired
        return dict(fired)

    @staticmethod
    def _first(candidates: Sequence[_Armed]) -> Action | None:
        takers = [armed for armed in candidates if armed.takes()]
        if not takers:
            return None
        takers[0].fired += 1
        return takers[0].rule.then


def _matches(match: Match, method: str, path: str, key: str | None) -> bool:
    return (
        match.method in (None, method)
        and (match.path_prefix is None or path.startswith(match.path_prefix))
        and match.key in (None, key)
    )


def _rules(document: object) -> tuple[Rule, ...]:
    if not isinstance(document, list | tuple):
        raise ConfigError("rules: a list is expected")
    return tuple(_rule(part, f"rules[{index}]") for index, part in enumerate(document))


def _rule(document: object, where: str) -> Rule:
    parts = _mapping(document, where, ("match", "then", "times"))
    match = _fill(Match(), parts.get("match", {}), _MATCH, f"{where}.match")
    if match.nth is not None and match.from_nth is not None:
        raise ConfigError(f"{where}.match: nth and from_nth exclude each other")
    then = _action(parts.get("then"), f"{where}.then")
    if then.name in ON_ACCEPT and (match.method or match.path_prefix or match.key):
        raise ConfigError(f"{where}: {then.name} happens before anything of the request is read")
    times = parts.get("times")
    if times is not None:
        _check(_count, times, f"{where}.times")
    return Rule(match=match, then=then, times=cast("int | None", times))


def _action(document: object, where: str) -> Action:
    parts = _mapping(document, where)
    name = parts.pop("action", None)
    if not isinstance(name, str) or name not in ACTIONS:
        raise ConfigError(f"{where}.action: {name!r} is none of {', '.join(ACTIONS)}")
    needed, optional = ACTIONS[name]
    if missing := set(needed) - parts.keys():
        raise ConfigError(f"{where}: {name} needs {', '.join(sorted(missing))}")
    if unknown := parts.keys() - {*needed, *optional}:
        raise ConfigError(f"{where}: {name} does not take {', '.join(sorted(unknown))}")
    return _fill(Action(name=name), parts, _ACTION, where)


def _fill(base: _T, document: object, checks: Mapping[str, _Check], where: str) -> _T:
    parts = _mapping(document, where, tuple(checks))
    values = {name: _check(checks[name], part, f"{where}.{name}") for name, part in parts.items()}
    return cast("_T", replace(cast("Any", base), **values))


def _mapping(document: object, where: str, known: Sequence[str] = ()) -> dict[str, object]:
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where}: an object is expected")
    if known and (unknown := document.keys() - set(known)):
        raise ConfigError(f"{where}: unknown {', '.join(sorted(map(str, unknown)))}")
    return {str(name): part for name, part in document.items()}


def _check(check: _Check, value: object, where: str) -> object:
    try:
        return check(value)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError("seconds are expected, zero or more")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError("a whole number is expected, zero or more")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("true or false is expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError("text is expected")
    return value


def _share(value: object) -> float:
    if (share := _seconds(value)) > 1:
        raise ConfigError("a probability is at most 1")
    return share


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError("a list of names is expected")
    return tuple(map(_text, value))


def _headers(value: object) -> dict[str, str]:
    return {name: _text(part) for name, part in _mapping(value, "headers").items()}


def _anything(value: object) -> object:
    return value


def _or_null(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _one_of(choices: object) -> _Check:
    def check(value: object) -> object:
        if value not in get_args(choices):
            raise ConfigError(f"{value!r} is none of {', '.join(get_args(choices))}")
        return value

    return check


_MATCH: Final[Mapping[str, _Check]] = {
    "method": _text,
    "path_prefix": _text,
    "key": _text,
    "nth": _count,
    "from_nth": _count,
    "probability": _share,
    "seed": _count,
}
_ACTION: Final[Mapping[str, _Check]] = {
    "status": _count,
    "body": _anything,
    "headers": _headers,
    "retry_after_s": _count,
    "delay_s": _or_null(_seconds),
    "interval_s": _seconds,
    "byte_count": _count,
    "close": _one_of(Close),
    "by": _one_of(AnsweredBy),
    "stored": _flag,
    "key_in_progress": _flag,
    "ignore_key": _flag,
    "completes_in_s": _or_null(_seconds),
    "status_then": _one_of(Ending),
    "keep": _count,
}
_BY_TYPE: Final[Mapping[str, _Check]] = {
    "bool": _flag,
    "int": _count,
    "float": _seconds,
    "float | None": _or_null(_seconds),
    "str": _text,
    "tuple[str, ...]": _names,
    "KeyMode": _one_of(KeyMode),
    "Mismatch": _one_of(Mismatch),
    "Concurrency": _one_of(Concurrency),
    "PutExisting": _one_of(PutExisting),
}
_SETTINGS: Final[Mapping[str, _Check]] = {
    part.name: _BY_TYPE[str(part.type)] for part in fields(Settings)
}
