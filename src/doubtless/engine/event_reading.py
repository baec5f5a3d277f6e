"""What an event says: which one it is, of which type and when, and what it tells about a tool.

Events are signed, yet what they say is somebody else's text: whatever in it can't be read names
nothing and proves nothing.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from doubtless.core.contract import Contract, EventRules
from doubtless.core.model import Json, Shows
from doubtless.engine.contracts import WebhookRules
from doubtless.engine.expressions import HEADERS_PREFIX, ExpressionError, evaluate, holds
from doubtless.engine.registry import Registry
from doubtless.errors import BadEvent

MATCHES: Final = ("ref", "idempotency_key", "operation_id", "provider_operation_id")
"""By what an event can be tied to an operation; where it carries several, the first decides.

The first two are ours and unique everywhere; the last is the provider's, and several operations on
one object may share it.
"""
TEXT_CHARS_MAX: Final = 255
MS_MAX: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where an event says which one it is. JMESPath, over the body or over `headers.`."""

    event_id: str
    type: str
    occurred_at: str | None = None


PLACES: Final[Mapping[str, Places]] = {
    "standard": Places(event_id='headers."webhook-id"', type="type", occurred_at="timestamp"),
    "stripe": Places(event_id="id", type="type", occurred_at="created"),
    "github": Places(event_id='headers."x-github-delivery"', type='headers."x-github-event"'),
    "slack": Places(event_id="event_id", type="event.type || type", occurred_at="event_time"),
    "shopify": Places(
        event_id='headers."x-shopify-webhook-id"',
        type='headers."x-shopify-topic"',
        occurred_at='headers."x-shopify-triggered-at"',
    ),
    "hmac-sha256": Places(event_id="id", type="type"),
}
"""The defaults of each signature scheme."""

BARE: Final = Places(event_id="id || event_id", type="type")
"""Of an event that came without headers, from a queue or an application's own handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an event tells about one tool."""

    tool: str
    values: Mapping[str, str]  # by which names its operation can be found
    news: str | None  # the object and version it speaks of, digested; None: it names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """An event as it arrived, with all that follows from its text."""

    source: str
    event_id: str
    type: str | None
    occurred_ms: int | None
    content: bytes
    digest: str
    readings: tuple[Reading, ...]  # one for each tool that speaks of it
    unreadable: bool = False  # some tool's expressions could not be evaluated
    unsigned_id: bool = False  # no signature covers its id: the same bytes are the same event


def arrival(
    registry: Registry,
    source: str,
    content: bytes,
    body: Json,
    *,
    headers: Mapping[str, str] | None = None,
    event_id: str | None = None,
    occurred_ms: int | None = None,
) -> Arrival:
    """Work out all that an event says, before anything of it is stored.

    Args:
        registry: The tools, and how sources shape their events.
        source: Which one it came from.
        content: As it came, byte for byte.
        body: The same, parsed.
        headers: By lower-case names; None where it came without.
        event_id: Its id, where that isn't in it.
        occurred_ms: The same for when it happened, by the provider's clock.
    """
    digest = sha256(content).hexdigest()
    rules = registry.webhooks.get(source)
    told = _text(body, event_id, *_places(rules, "event_id", headers), headers=headers)
    kind = _text(body, None, *_places(rules, "type", headers), headers=headers)
    if occurred_ms is None:
        for place in _places(rules, "occurred_at", headers):
            occurred_ms = instant_ms(_value(place, body, headers))
    readings, unreadable = readings_of(registry, source, kind, body)
    return Arrival(
        source=source,
        # Without an id of its own, it is known by what it says.
        event_id=told or f"sha256:{digest}",
        type=kind,
        occurred_ms=occurred_ms,
        content=content,
        digest=digest,
        readings=readings,
        unreadable=unreadable,
        unsigned_id=_is_unsigned(rules, headers),
    )


def _is_unsigned(rules: WebhookRules | None, headers: Mapping[str, str] | None) -> bool:
    """Whether the id stands in a header that the source does not sign.

    Whoever gets hold of such a request could send it again as another event.
    """
    if rules is None or headers is None or rules.scheme == "standard":
        return False
    place = rules.event_id or PLACES[rules.scheme].event_id
    return place.lstrip().startswith(HEADERS_PREFIX)


def body_of(content: bytes) -> Json:
    """Parse an event.

    Raises:
        BadEvent: It is no JSON that means one thing only.
    """
    try:
        found: Json = json.loads(content.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise BadEvent("an event must be JSON in UTF-8, without NaN or infinities") from error
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond what a number can hold")
    return number


# --- which one it is -----------------------------------------------------------------------------


def _places(
    rules: WebhookRules | None, name: str, headers: Mapping[str, str] | None
) -> Iterator[str]:
    """Yield where to look for a part of an event: as declared, else as its scheme has it."""
    said = getattr(rules, name) if rules is not None else None
    if said is not None:
        yield said
        return
    for places in (PLACES[rules.scheme] if rules else None, BARE if headers is None else None):
        place = getattr(places, name, None)
        if place is not None:
            yield place


def _text(
    body: Json, said: str | None, *places: str, headers: Mapping[str, str] | None
) -> str | None:
    """Return the first of some values that can be a name."""
    found = [said, *(_value(place, body, headers) for place in places)]
    return next((name for value in found if (name := _name(value)) is not None), None)


def _value(place: str, body: Json, headers: Mapping[str, str] | None) -> Json:
    try:
        return evaluate(place, body, headers)
    except ExpressionError:
        return None


def _name(value: Json) -> str | None:
    """Return a value as a name, if it can be one: short, and safe to store and to show."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    return text if 0 < len(text) <= TEXT_CHARS_MAX and text.isprintable() else None


def instant_ms(value: Json) -> int | None:
    """Read an instant: a number is Unix seconds, a text RFC 3339. None: it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        ms = value * 1000
    else:
        try:
            when = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            return None
        if when is None:
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        ms = when.timestamp() * 1000
    return round(ms) if 0 <= ms <= MS_MAX else None


# --- what it tells about a tool ------------------------------------------------------------------


def readings_of(
    registry: Registry, source: str, kind: str | None, body: Json
) -> tuple[tuple[Reading, ...], bool]:
    """Return what an event tells about each tool that speaks of it, and if one can't be read."""
    readings, unreadable = [], False
    for contract in speaking(registry, source, kind):
        try:
            readings.append(_reading(contract, body))
        except ExpressionError:
            unreadable = True
    return tuple(readings), unreadable


def kinds_of(contract: Contract) -> tuple[str, ...]:
    """Return the types of events that speak about a tool."""
    return contract.events.types if contract.events is not None else ()


def speaking(registry: Registry, source: str, kind: str | None) -> Iterator[Contract]:
    """Yield the contracts of the tools of a source that speak of a type of event."""
    for tool in registry:
        contract = tool.contract
        if contract.source.name == source and speaks(contract.events, kind):
            yield contract


def speaks(rules: EventRules | None, kind: str | None) -> bool:
    """Whether events of a type speak about the tool with these rules."""
    return rules is not None and kind is not None and kind in rules.types


def rules_of(registry: Registry, contract: Contract, kind: str | None) -> EventRules | None:
    """Return by which rules an event speaks of an operation; None: it does not.

    Those of the tool as it is declared now; else those that the operation was prepared with.
    """
    tool = registry.find(contract.tool)
    declared = (tool.contract.events if tool is not None else None, contract.events)
    return next((rules for rules in declared if speaks(rules, kind)), None)


def _reading(contract: Contract, body: Json) -> Reading:
    rules = contract.events
    assert rules is not None  # noqa: S101 - it speaks of the event
    shows = shown(rules, body)
    return Reading(
        tool=contract.tool, values=values_in(rules, body), news=_news(rules, body, shows)
    )


def values_in(rules: EventRules, body: Json) -> dict[str, str]:
    """Return what in an event ties it to an operation, by the names of `MATCHES`.

    Raises:
        ExpressionError: The contract's expressions can't be evaluated over it.
    """
    found = {
        name: _name(evaluate(rules.match[name], body)) for name in MATCHES & rules.match.keys()
    }
    return {name: found[name] for name in MATCHES if found.get(name)}  # type: ignore[misc]


def shown(rules: EventRules, body: Json) -> Shows:
    """Say what an event shows of its operation. Only what the contract names as an end is one.

    Raises:
        ExpressionError: The contract's expressions can't be evaluated over it.
    """
    applied = rules.applied is not None and holds(rules.applied, body)
    failed = rules.failed is not None and holds(rules.failed, body)
    match applied, failed:
        case True, True:
            return Shows.CONFLICT
        case True, False:
            return Shows.APPLIED
        case False, True:
            return Shows.NOT_APPLIED
        case _:
            return Shows.IN_PROGRESS


def _news(rules: EventRules, body: Json, shows: Shows) -> str | None:
    """Digest which object and version an event speaks of. What says otherwise is other news."""
    parts = [evaluate(place, body) for place in rules.object]
    if not parts or any(part is None for part in parts):
        return None
    try:
        text = json.dumps([shows.value, *parts], sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return None  # no version is nested so deep
    return sha256(text.encode()).hexdigest()
