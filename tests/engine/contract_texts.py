"""Texts of contract files for tests: one good tool, and what a test changes of it."""

from collections.abc import Mapping

from doubtless.engine.contracts import parse_contracts
from doubtless.errors import ContractError

FILE = "contracts.toml"

SOURCE = {
    "": {
        "base_url": '"https://api.example.com"',
        "auth.scheme": '"bearer"',
        "auth.credential": '"p"',
    }
}
WEBHOOK = {"webhook": {"scheme": '"standard"', "credential": '"payments-webhook"'}}
TOOL = {
    "": {
        "effect": '"money"',
        "source": '"payments"',
        "business_key": '["charge"]',
        "in_flight_horizon": '"2m"',
    },
    "arguments": {
        "type": '"object"',
        "required": '["charge", "amount"]',
        "additionalProperties": "false",
        "properties.charge": '{ type = "string" }',
        "properties.amount": '{ type = "integer" }',
        "properties.note": '{ type = "string" }',
    },
    "request": {
        "method": '"POST"',
        "path": '"/v1/refunds"',
        "json": '{ charge = "{args.charge}", ref = "{operation.ref}" }',
    },
    "idempotency": {"header": '"Idempotency-Key"', "ttl": '"24h"', "stores": '"all"'},
    "lookup": {
        "path": '"/v1/refunds"',
        "items": '"data"',
        "where": '{ ref = "{operation.ref}" }',
        "complete": '"!has_more"',
        "authoritative": "true",
        "lag": '"30s"',
    },
}
PLAIN = {"effect": '"write"', "idempotency": None, "lookup": None}
"""The same tool as a plain write that nothing can be said about afterwards."""


def changed(tables, changes: Mapping[str, object]):
    """Set keys by dotted name (`lookup.lag`); None takes a key or a whole table away."""
    result = {name: dict(keys) for name, keys in tables.items()}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        table, key = (first, rest) if first in ALL else ("", name)
        if not key and value is None:
            result.pop(table, None)
        elif not key:
            result.pop(table, None)
            result[""][table] = value
        elif value is None:
            result.setdefault(table, {}).pop(key, None)
        else:
            result.setdefault(table, {})[key] = value
    return result


ALL = {
    *("arguments", "request", "response", "idempotency", "lookup", "events", "approval"),
    *("retry", "condition", "read", "webhook", "file", "shell"),
}


def written(prefix: str, tables) -> str:
    lines = []
    for table, keys in tables.items():
        lines.append(f"[{prefix}.{table}]" if table else f"[{prefix}]")
        lines += [f"{key} = {value}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def file_text(changes=None, source=None) -> str:
    """Write the file with one tool, `refund`, of the source `payments`."""
    return written("sources.payments", changed(SOURCE, source or {})) + written(
        "tools.refund", changed(TOOL, changes or {})
    )


def refund(changes=None, source=None):
    """Load the contract of the changed tool."""
    return parse_contracts(file_text(changes, source), FILE).tools["refund"]


def problems(text: str):
    """Return the problems of a file that doesn't load; each must have a mend."""
    try:
        parse_contracts(text, FILE)
    except ContractError as error:
        found = error.problems
    else:
        found = ()
    assert all(problem.mend and problem.wrong and problem.file for problem in found)
    return found


def places(changes=None, source=None):
    """Return table and key of every problem, `tools.refund` left out."""
    return [
        (problem.table.removeprefix("tools.refund").removeprefix("."), problem.key)
        for problem in problems(file_text(changes, source))
    ]


def warned(changes=None, source=None):
    """Return table and key of every warning of a file that loads."""
    loaded = parse_contracts(file_text(changes, source), FILE)
    assert all(warning.mend for warning in loaded.warnings)
    return [
        (warning.table.removeprefix("tools.refund").removeprefix("."), warning.key)
        for warning in loaded.warnings
    ]
