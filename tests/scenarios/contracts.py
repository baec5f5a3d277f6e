"""The contract of every story: one tool of the simulated provider, and what a story changes."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Changes = Mapping[str, object]
"""Keys by dotted name, `lookup.lag` or `source.proxy`; None takes a key or a table away."""

# Short, so that a story is over in seconds; all of it is waited for, never slept through.
REFUND: dict[str, Any] = {
    "effect": "money",
    "source": "payments",
    "business_key": ["charge"],
    "timeout": "1s",
    "in_flight_horizon": "200ms",
    "recovery_deadline": "30s",
    "on_absent": "report",
    "arguments": {
        "type": "object",
        "required": ["charge", "amount"],
        "additionalProperties": False,
        "properties": {
            "charge": {"type": "string"},
            "amount": {"type": "integer"},
            "note": {"type": "string"},
        },
    },
    "request": {
        "method": "POST",
        "path": "/v1/refunds",
        "json": {
            "charge": "{args.charge}",
            "amount": "{args.amount}",
            "metadata": {"operation": "{operation.ref}"},
        },
    },
    "response": {"provider_operation_id": "id"},
    "idempotency": {"header": "Idempotency-Key", "ttl": "24h", "stores": "all"},
    "lookup": {
        "path": "/v1/refunds",
        "query": {"charge": "{args.charge}"},
        "items": "data",
        "where": {"metadata.operation": "{operation.ref}"},
        "equal": {"amount": "{args.amount}"},
        "complete": "!has_more",
        "authoritative": True,
        "lag": "100ms",
        "confirmations": 2,
        "interval": "150ms",
        "timeout": "500ms",
    },
    "retry": {"backoff": "100ms"},
}

REPLAYED: Changes = {
    "effect": "idempotent_call",
    "on_absent": "resend",
    "business_key": None,
    "lookup": None,
}
"""The same tool where nothing can be looked up, and the provider replays the answer by key."""

ANYBODYS: Changes = {"lookup.where": {"charge": "{args.charge}"}}
"""A look-up that finds the object, but can't tell whose it is."""


def written(url: str, changes: Changes | None = None) -> str:
    """Write a contract file with the changed tool, `refund`."""
    source: dict[str, Any] = {"base_url": url}
    tool = copy.deepcopy(REFUND)
    for name, value in (changes or {}).items():
        *tables, key = name.split(".")
        place = tool
        if tables[:1] == ["source"]:
            place, tables = source, tables[1:]
        for table in tables:
            place = place[table]
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return f"{_table('sources.payments', source)}\n{_table('tools.refund', tool)}"


def _table(name: str, members: Mapping[str, object]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in members.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _toml(value: object) -> str:
    match value:
        case Mapping():
            inside = ", ".join(f"{json.dumps(key)} = {_toml(part)}" for key, part in value.items())
            return f"{{ {inside} }}"
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case _:
            return json.dumps(value)


def write_file(folder: Path, url: str, changes: Changes | None = None) -> Path:
    """Write the contract file of a story, and return its place."""
    path = folder / "contracts.toml"
    path.write_text(written(url, changes), encoding="utf-8")
    return path
