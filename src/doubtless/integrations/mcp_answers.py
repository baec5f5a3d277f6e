"""What a client is told of a call: the tool's own result where it succeeded, our outcome otherwise.

What is unknown is never handed on as a plain error. Shapes that a client of an earlier protocol
can't take are left out, so that no success turns into an error on its way.
"""

import json
from collections.abc import Mapping
from typing import Final

import mcp_types as types
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import BadArguments, BadOperationId, DoubtlessError, LedgerUnavailable
from doubtless.integrations import telling
from doubtless.transports.mcp_servers import OPERATION_ID

RESERVED: Final = "io.modelcontextprotocol/"
"""What begins so in `_meta` is said by each side of a connection of itself."""
ALREADY_DONE: Final = "doubtless.dev/already-done"
"""In `_meta` of a result: nothing was sent for this call; it is the result of an earlier one."""


def answered(outcome: Outcome, *, status_tool: str, more: str = "") -> types.CallToolResult:
    """Say how a call of a tool ended that is carried out here.

    Args:
        outcome: What is known of it.
        status_tool: What the tool is called here that tells of operations.
        more: What is said besides, where there is no result.
    """
    if not telling.is_good(outcome):
        return _untold(outcome, status_tool, more)
    if outcome.result is None:
        return _texts(telling.told(outcome), None, _meta(outcome))
    text = json.dumps(outcome.result, ensure_ascii=False)
    return _texts(text, outcome.result, _meta(outcome))


def handed_on(
    outcome: Outcome,
    kept: bytes | None,
    *,
    tool: types.Tool,
    is_read: bool,
    status_tool: str,
    more: str = "",
) -> types.CallToolResult:
    """Say how a call of an upstream's tool ended: by its own result, unchanged, if it succeeded.

    Args:
        outcome: What is known of it.
        kept: The last whole result that the upstream gave, as JSON.
        tool: The tool: where it says how its results look, nothing else may be taken for one.
        is_read: Whether it only reads.
        status_tool: What the tool is called here that tells of operations.
        more: What is said besides, where there is no result.
    """
    theirs = None if kept is None else _read(kept)
    if is_read and theirs is not None and outcome.outcome in ("success", "failure"):
        return _theirs(theirs, outcome)  # an error of what only reads is its answer
    if not telling.is_good(outcome):
        found = _untold(outcome, status_tool, more)
        if outcome.outcome == "failure" and theirs is not None and theirs.is_error:
            found.content.extend(theirs.content)  # why it refused, which a caller may mend
        return found
    if theirs is not None and not theirs.is_error:
        return _theirs(theirs, outcome)
    # It took effect, as a look-up or a person found: there is no result of the tool itself.
    text = telling.told(outcome)
    is_error = tool.output_schema is not None
    return _texts(text, outcome.to_json(), _meta(outcome), is_error=is_error)


def read_only(value: Mapping[str, Json] | list[dict[str, Json]]) -> types.CallToolResult:
    """Answer one of the tools that only read the ledger."""
    told: Json = dict(value) if isinstance(value, Mapping) else {"operations": list(value)}
    return _texts(json.dumps(told, ensure_ascii=False), told, {})


def refused(tool: str, error: DoubtlessError) -> types.CallToolResult:
    """Say that a call was not even recorded: so nothing was done, and a better one may be made."""
    code = "ledger_unavailable" if isinstance(error, LedgerUnavailable) else "bad_request"
    if isinstance(error, BadArguments):
        code = "bad_arguments"
    if isinstance(error, BadOperationId):
        code = "bad_operation_id"
    text = telling.not_done(str(error))
    told: dict[str, Json] = {
        "operation_id": None,
        "tool": tool,
        "status": "rejected_by_policy",
        "outcome": "rejected",
        "error": {"code": code},
        "message": text,
    }
    return _texts(text, told, {}, is_error=True)


def unanswered(tool: str, unresolved_tool: str) -> types.CallToolResult:
    """Say that it can't be told here what became of a call. The log has the reason."""
    text = (
        f"[unknown_reconciliation_required] It can't be told what became of {tool}: the gateway"
        " failed. Do not repeat it and do not try a variant. To learn what is open, ask"
        f" {unresolved_tool}."
    )
    told: dict[str, Json] = {
        "operation_id": None,
        "tool": tool,
        "status": "unknown_reconciliation_required",
        "outcome": "unknown",
        "retry_allowed": False,
        "message": text,
    }
    return _texts(text, told, {}, is_error=True)


def fitting(result: types.CallToolResult, version: str) -> types.CallToolResult:
    """Leave out what a protocol version has no place for; the text has it all the same."""
    if version in MODERN_PROTOCOL_VERSIONS or isinstance(result.structured_content, dict | None):
        return result
    return result.model_copy(update={"structured_content": None})


def fitting_tool(tool: types.Tool, version: str) -> types.Tool:
    """Leave out the schema of results that a protocol version has no place for."""
    schema = tool.output_schema
    if version in MODERN_PROTOCOL_VERSIONS or schema is None or schema.get("type") == "object":
        return tool
    return tool.model_copy(update={"output_schema": None})


def _untold(outcome: Outcome, status_tool: str, more: str) -> types.CallToolResult:
    """Say what is known where there is no result. Only as an error may it differ from a schema."""
    text = telling.told(outcome).replace(f"{telling.STATUS_TOOL}(", f"{status_tool}(")
    text = f"{text}\n{more}" if more else text
    return _texts(text, outcome.to_json(), _meta(outcome), is_error=True)


def _meta(outcome: Outcome) -> dict[str, Json]:
    meta: dict[str, Json] = {OPERATION_ID: outcome.operation_id}
    return {**meta, ALREADY_DONE: True} if outcome.already_done else meta


def _theirs(result: types.CallToolResult, outcome: Outcome) -> types.CallToolResult:
    said = result.meta or {}
    own = {name: value for name, value in said.items() if not name.startswith(RESERVED)}
    return result.model_copy(update={"meta": {**own, **_meta(outcome)}})


def _read(kept: bytes) -> types.CallToolResult | None:
    try:
        return types.CallToolResult.model_validate_json(kept, by_name=False)
    except ValidationError:
        return None


def _texts(
    text: str, structured: Json, meta: Mapping[str, Json], *, is_error: bool = False
) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=structured,
        is_error=is_error,
        _meta=dict(meta) or None,
    )
