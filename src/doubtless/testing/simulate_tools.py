"""Tools for simulated runs: contracts of every effect that load, and what their provider is like.

Durations are short, so that a run is over soon; what the loader refuses never occurs.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from doubtless.core.contract import Contract
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts import Key, Lookup, build_contract, parse_contracts
from doubtless.engine.contracts.rules import OF_OTHER_TRANSPORTS
from doubtless.engine.registry import Ask, Tool
from doubtless.errors import ContractError
from doubtless.transports.function import Body

DESIGNS: Final = 400  # different tools, from which each run takes a few
TRIES_MAX: Final = 50
OFTEN: Final = (Effect.IDEMPOTENT_CALL, Effect.IDEMPOTENT_CALL, Effect.MONEY, Effect.WRITE)
TARGETS: Final = ("a", "b", "c")

ARGUMENTS: Final[dict[str, Json]] = {
    "type": "object",
    "required": ["target", "amount", "etag"],
    "properties": {
        "target": {"type": "string"},
        "amount": {"type": "integer"},
        "etag": {"type": "string"},
    },
}
REF: Final = "{operation.ref}"


@dataclass(frozen=True, kw_only=True)
class Design:
    """One tool."""

    contract: Contract
    pending: bool  # its provider may accept work and finish it later
    unique: bool  # one target can be acted on only once

    @cached_property
    def tool(self) -> Tool:
        """The tool as processes register it, without code; shared by all of them."""
        tool = Tool(contract=self.contract)
        assert tool.digest
        assert tool.snapshot
        tool.check({"target": "a", "amount": 1, "etag": "v1"})
        return tool

    def with_code(self, body: Body, lookups: Mapping[str, Ask]) -> Tool:
        """Return the tool with a process's own code. What is costly is not computed again."""
        tool = Tool(contract=self.contract, body=body, lookups=lookups)
        vars(tool).update({**vars(self.tool), **vars(tool)})
        return tool


async def found_elsewhere(operation: object) -> None:
    """Stand for the look-up of a function tool; a run puts its own in this place."""


@lru_cache(maxsize=DESIGNS)
def design(number: int) -> Design:
    """Return the tool of that number, always the same. Every second one is a function."""
    chance = random.Random(f"design {number}")
    for _ in range(TRIES_MAX):
        try:
            return _function(number, chance) if number % 2 else _http(number, chance)
        except ContractError:
            continue
    raise AssertionError(f"no contract of design {number} loads")


def _http(number: int, chance: random.Random) -> Design:
    effects = [effect for effect in Effect if effect not in OF_OTHER_TRANSPORTS]
    effect = chance.choice([*effects, *OFTEN])
    pending = chance.random() < 0.45
    table = _common(chance, effect)
    body: dict[str, Json] = {"target": "{args.target}", "amount": "{args.amount}"}
    if chance.random() < 0.9 or effect is Effect.KEYED_CREATE:
        body["metadata"] = {"operation": REF}
    table |= {"source": "provider", "arguments": ARGUMENTS}
    table["request"] = {"method": "POST", "path": f"/t{number}/things", "json": body}
    table["response"] = _response(chance, pending=pending)
    if (key := _key(chance, effect)) is not None:
        table["idempotency"] = {"header": "Idempotency-Key"} | key
    if _looks_up(chance, effect):
        count = chance.choice((1, 1, 1, 2))
        table["lookup"] = [_http_look(chance, number, pending=pending) for _ in range(count)]
        for index, look in enumerate(table["lookup"]):
            look["name"] = f"look{index}"
    source = {"base_url": "https://api.example.com"}
    text = f"[sources]\nprovider = {_toml(source)}\n[tools]\nt{number} = {_toml(table)}\n"
    contract = parse_contracts(text, "simulated.toml").tools[f"t{number}"]
    acts = effect not in NO_EFFECT
    unique = acts and chance.random() < 0.1
    return Design(contract=contract, pending=acts and pending, unique=unique)


def _function(number: int, chance: random.Random) -> Design:
    effect = chance.choice([*Effect, *OFTEN])
    table = _common(chance, effect)
    if (key := _key(chance, effect)) is not None:
        table["idempotency"] = Key(**key)
    if _looks_up(chance, effect):
        table["lookup"] = Lookup(found_elsewhere, **_pace(chance))
    contract = build_contract(f"t{number}", arguments_schema=ARGUMENTS, **table)
    return Design(contract=contract, pending=False, unique=chance.random() < 0.1)


def _common(chance: random.Random, effect: Effect) -> dict[str, Any]:
    rule = RULES[effect]
    table: dict[str, Any] = {
        "effect": effect.value,
        "timeout": chance.choice(("1s", "2s", "4s")),
        "in_flight_horizon": chance.choice(("2s", "5s", "10s")),
        "valid_for": chance.choice(("30s", "90s", "150s")),
        "completes_within": chance.choice(("15s", "60s")),
        "record_sending": chance.random() < 0.35,
        "retry": {
            "attempts": chance.randint(1, 4),
            "backoff": chance.choice(("200ms", "1s")),
        },
    }
    if effect not in NO_EFFECT:
        table["recovery_deadline"] = chance.choice(("40s", "60s", "60s", "90s", "180s"))
    if chance.random() < 0.5:
        table["business_key"] = ["target"]
    if chance.random() < 0.1:
        table["review"] = "none"
    if chance.random() < 0.1:
        table["dedupe_window"] = "30s"
    if chance.random() < 0.06:
        table["ordering"] = "latest_wins"
    if chance.random() < 0.1 and not rule.irreversible:
        table["duplicates"] = "acceptable"
    if chance.random() < 0.6:
        table["on_absent"] = chance.choice(("resend", "resend", "report", "review"))
    if effect is Effect.CONDITIONAL_UPDATE:
        reuse = chance.random() < 0.3
        table["condition"] = {"value": "{args.etag}", "version_reuse": reuse}
        table["condition"]["header"] = "If-Match"
    if effect is Effect.KEYED_CREATE:
        table["condition"] = {"id": REF}
    if rule.resend is not Resend.NEVER and chance.random() < 0.3:
        table["retry"]["resend"] = chance.randint(0, 1 if rule.resends_max == 1 else 3)
    return table


def _looks_up(chance: random.Random, effect: Effect) -> bool:
    # A documented replay answers by itself: then a repeat may meet the first one at work.
    often = 0.4 if effect is Effect.IDEMPOTENT_CALL else 0.8
    return RULES[effect].looks_up and chance.random() < often


def _key(chance: random.Random, effect: Effect) -> dict[str, Any] | None:
    if effect is not Effect.IDEMPOTENT_CALL and chance.random() < 0.5:
        return None
    stores = ("all", "all", "success_only", "reexecutes_failed", "current_state")
    key: dict[str, Any] = {"stores": chance.choice(stores)}
    if chance.random() < 0.9:
        key["ttl"] = chance.choice(("80s", "100s", "120s", "600s", "600s"))
    if chance.random() < 0.6:
        key |= {"in_progress": [409], "mismatch": [422]}
    if chance.random() < 0.6:
        key["replayed"] = 'headers."idempotent-replayed"'
    return key


def _response(chance: random.Random, *, pending: bool) -> dict[str, Json]:
    response: dict[str, Json] = {"provider_operation_id": "id"}
    if pending:
        response["accepted"] = "status == 'pending'"
    if chance.random() < 0.3:
        response["failed"] = "status == 'failed'"
    if chance.random() < 0.2:
        response["unproven"] = [404]
    return response


def _pace(chance: random.Random) -> dict[str, Any]:
    pace: dict[str, Any] = {
        "confirmations": chance.choice((1, 2, 3)),
        "in_flight_horizon": chance.choice(("2s", "5s", "10s")),
        "interval": chance.choice(("500ms", "1s", "2s")),
        "interval_max": chance.choice(("8s", "30s")),
        "timeout": chance.choice(("500ms", "1s")),
    }
    if chance.random() < 0.85:
        pace |= {"authoritative": True, "lag": chance.choice(("0s", "1s", "3s"))}
    return pace


def _http_look(chance: random.Random, number: int, *, pending: bool) -> dict[str, Any]:
    look: dict[str, Any] = {**_pace(chance), "provider_operation_id": "id"}
    way = chance.random()
    if way < 0.25:
        look |= {"path": f"/t{number}/things/{REF}"}
    else:
        ours = {"metadata.operation": REF} if way < 0.95 else {"target": "{args.target}"}
        look |= {"path": f"/t{number}/things", "items": "data", "where": ours}
        look["complete"] = "!has_more"
        if chance.random() < 0.5:
            look["query"] = {"target": "{args.target}"}
        if chance.random() < 0.4:
            look["next_page"] = "next"
            look["query"] = look.get("query", {}) | {"page": "{page}"}
    if pending or chance.random() < 0.5:
        look |= {
            "applied": "status == 'succeeded'",
            "in_progress": "status == 'pending'",
            "failed": "status == 'failed'",
        }
    if chance.random() < 0.3:
        look["equal"] = {"amount": "{args.amount}"}
    return look


def _toml(value: object) -> str:
    """Write a value on one line."""
    if isinstance(value, Mapping):
        members = (f"{json.dumps(name)} = {_toml(member)}" for name, member in value.items())
        return f"{{ {', '.join(members)} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
