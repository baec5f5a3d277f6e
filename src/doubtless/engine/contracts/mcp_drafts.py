"""The contract of an upstream MCP tool that nobody wrote one for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import jsonschema_rs
import rfc8785

from doubtless.core.contract import Contract, Kind, SourceRules
from doubtless.core.model import Json
from doubtless.engine.contracts.block import Place
from doubtless.engine.contracts.build import build
from doubtless.engine.contracts.draft import Draft
from doubtless.engine.contracts.file import ToolTable
from doubtless.engine.contracts.problems import read_table
from doubtless.engine.contracts.rules import untold_errors
from doubtless.engine.contracts.sources import TOLERANCE_MS
from doubtless.errors import ContractError
from doubtless.transports.mcp_servers import ServerRules, ToolClaims

VALID_FOR: Final = "1h"
ANY_OBJECT: Final[Mapping[str, Json]] = {"type": "object"}


def contract_of(
    server: ServerRules,
    tool: ToolClaims,
    *,
    errors_definitive: bool = False,
    name: str | None = None,
) -> Contract:
    """Return the contract of a tool by what its server claims of it.

    `readOnlyHint` makes it a read. Everything else is `time_sensitive`, valid for an hour: never
    looked up, never sent again, and an unknown goes straight to a person. A schema that can't be
    read here is left to the server.

    Args:
        server: How it is reached; stored with every operation.
        tool: What the server says of it.
        errors_definitive: Whether `isError` is declared to prove that nothing was done.
        name: Our name of it, where it isn't the server's own (of several servers).

    Raises:
        ContractError: Its name can't be a contract's.
    """
    called, place = name or tool.name, f"(server):{server.name}"
    block: dict[str, Json] = {"server": server.name, "tool": tool.name}
    if errors_definitive:
        block["errors"] = "definitive"
    said: dict[str, Json] = {
        "effect": "read" if tool.read_only else "time_sensitive",
        "description": tool.description,
        "arguments": dict(_schema(tool.input_schema)),
        "mcp": block,
    }
    if not tool.read_only:
        said["valid_for"] = VALID_FOR
    reading = read_table(ToolTable, said, file=place, table=f"tools.{called}")
    if reading.table is None:
        raise ContractError(list(reading.problems))
    contract, defaults = build(
        called,
        reading.table,
        SourceRules(name=server.name),
        kind=Kind.MCP,
        tolerance_ms=TOLERANCE_MS,
        place=Place(folder=Path(), files_root=Path(), servers={server.name: server}),
    )
    draft = Draft(file=place, said=reading.table, contract=contract, defaults=defaults)
    problems = [*reading.problems, *untold_errors(draft, reading.problems)]
    if problems:
        raise ContractError(problems)
    return contract


def _schema(said: Mapping[str, Json] | None) -> Mapping[str, Json]:
    """Return a tool's schema as far as it can be read here: servers write drafts of any year."""
    found = {key: value for key, value in (said or {}).items() if key != "$schema"}
    if found.get("type") != "object":
        return ANY_OBJECT
    try:
        jsonschema_rs.Draft202012Validator(dict(found), offline=True)
        rfc8785.dumps(found)
    except (
        ValueError,
        RecursionError,
        jsonschema_rs.ValidationError,
        rfc8785.CanonicalizationError,
    ):
        return ANY_OBJECT
    return found
