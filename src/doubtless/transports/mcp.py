"""One call of a tool of an upstream MCP server.

The barrier is the first byte of the tools/call. Before it, a server that can't be started, reached
or agreed with proves that nothing was sent. After it only a whole result counts: one that is no
error is a success. `isError` proves nothing, since a tool may act and then fail, unless it is
declared to be definite; and neither an error of JSON-RPC, whatever its code, nor silence does.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import rfc8785
from mcp_types import CallToolResult, ErrorData, TextContent

from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.errors import GateClosed, SettingsError
from doubtless.transports.base import (
    Errand,
    Gate,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
    open_gate,
)
from doubtless.transports.http_reply import SECRET_LENGTH_MIN, without
from doubtless.transports.mcp_found import seen_in
from doubtless.transports.mcp_servers import (
    CORRELATION_ID,
    IDEMPOTENCY_KEY,
    OPERATION_ID,
    ServerRules,
)
from doubtless.transports.mcp_upstream import Called, Upstreams

RESULT: Final = "mcp-result.json"
"""The exhibit that holds a whole CallToolResult as the server gave it, errors too."""

ANSWER: Final = "answer"
"""`errors` of what has no effect: any error of the server is its answer."""

DEFINITIVE: Final = "definitive"
"""`errors` of what has one, where it is declared that `isError` means that nothing was done."""


class McpTransport:
    """Calls tools of upstream servers, over one connection to each."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self.upstreams = Upstreams(workplace.secret, workplace.boot_s)

    async def survey(self, errand: Errand) -> Json:
        """Return which server it is. That it was noted says that an attempt came so far."""
        return {"server": str(_server(errand).name)}

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Call the tool once; see `ActionTransport.perform`."""
        members = errand.action.members
        watch.stage = Stage.CONNECTING
        try:
            found = await self.upstreams.call(
                _server(errand),
                str(members["tool"]),
                {**errand.arguments, **_object(members, "arguments")},
                meta=_meta(errand),
                headers=cast("dict[str, str]", dict(_object(members, "headers"))),
                gate=gate,
                watch=watch,
                limit_s=limit_s,
            )
        except GateClosed as error:
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=str(error))
        return _without(self._secrets(errand), _reply(found, members.get("errors")))

    def _secrets(self, errand: Errand) -> list[bytes]:
        """Return what must not come back from the server, as it would stand in JSON."""
        server = _server(errand)
        named = [name for _, name in server.env_credentials]
        named += [server.credential] if server.credential is not None else []
        found: list[bytes] = []
        for name in named:
            try:
                found.append(
                    json.dumps(self._workplace.secret(name), ensure_ascii=False)[1:-1].encode()
                )
            except SettingsError:
                continue  # it can't have been handed over
        return sorted((each for each in found if len(each) >= SECRET_LENGTH_MIN), key=len)[::-1]

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Ask another tool of the server; see `ActionTransport.look`."""
        look = errand.action.members.get("lookup")
        if not isinstance(look, Mapping):
            return could_not_ask("no look-up is declared")
        found = await self.upstreams.call(
            _server(errand),
            str(look["tool"]),
            _object(look, "arguments"),
            meta={},
            headers={},
            gate=open_gate,
            watch=Watch(),
            limit_s=limit_s,
        )
        if found.result is None:
            return could_not_ask(f"{look['tool']} was not answered: {found.detail}")
        if found.result.is_error:
            return could_not_ask(f"{look['tool']} answered with an error")
        return seen_in(_read(found.result), look, marks=(errand.ref, errand.operation_id))

    async def aclose(self) -> None:
        """Close all connections. A server that was started here ends with them."""
        await self.upstreams.aclose()


def _server(errand: Errand) -> ServerRules:
    return ServerRules.from_json(_object(errand.action.members, "server"))


def _object(members: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = members.get(name)
    return found if isinstance(found, Mapping) else {}


def _meta(errand: Errand) -> dict[str, Json]:
    """Return the `_meta` of every attempt: whose operation it is, under our own names."""
    members = errand.action.members
    ours: dict[str, Json] = {
        OPERATION_ID: errand.operation_id,
        CORRELATION_ID: errand.correlation_id,
    }
    if (key := members.get("key")) is not None:
        ours[IDEMPOTENCY_KEY] = key
    return {**_object(members, "meta"), **ours}


def _reply(found: Called, errors: Json) -> Reply:
    result = found.result or _told(found.error)
    if result is None:
        return Reply(stage=found.stage, proof=found.proof, cause=found.cause, detail=found.detail)
    exhibits = {RESULT: whole(result)}
    if not result.is_error:
        body, note = _result(result)
        return Reply(
            stage=Stage.READ,
            proof=Seen.SUCCEEDED,
            detail=f"the tool answered{note}",
            body=body,
            complete=True,
            exhibits=exhibits,
        )
    told = found.detail or "the tool answered with an error"
    if errors == ANSWER or (errors == DEFINITIVE and found.error is None):
        return Reply(stage=Stage.READ, proof=Seen.REJECTED, detail=told, exhibits=exhibits)
    told = f"{told}, which proves nothing: it may have acted before"
    return Reply(stage=Stage.READ, cause=Cause.TOOL_ERROR, detail=told, exhibits=exhibits)


def _without(secrets: Sequence[bytes], reply: Reply) -> Reply:
    """Blot out credentials that the server sent back."""
    return replace(
        reply,
        detail=without(secrets, reply.detail.encode()).decode(),
        body=without(secrets, reply.body),
        exhibits={name: without(secrets, each) for name, each in reply.exhibits.items()},
    )


def _told(error: ErrorData | None) -> CallToolResult | None:
    """Return an error of the protocol as a tool would have told it."""
    if error is None:
        return None
    return CallToolResult(content=[TextContent(type="text", text=error.message)], is_error=True)


def whole(result: CallToolResult) -> bytes:
    """Return a result as it came over the link, as JSON: `CallToolResult.model_validate` reads it.

    Only its keys are in another order.
    """
    return result.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _result(result: CallToolResult) -> tuple[bytes, str]:
    """Return what the caller gets, and a note for people where that is nothing."""
    value = _value(result)
    try:
        return rfc8785.dumps(value), ""
    except (rfc8785.CanonicalizationError, RecursionError):
        pass
    try:
        # Numbers that other languages would round: as they are, since they are nobody's digest.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), ""
    except (ValueError, RecursionError):
        return b"", ", but what it answered is no JSON, and was not kept"


def _value(result: CallToolResult) -> Json:
    """Return a result's structured content, or else its content."""
    if result.structured_content is not None:
        return cast("Json", result.structured_content)
    parts = (
        each.model_dump(by_alias=True, mode="json", exclude_unset=True) for each in result.content
    )
    return cast("Json", list(parts))


def _read(result: CallToolResult) -> Json:
    """Return what a look-up's tool said: its one text too, where that is JSON."""
    if result.structured_content is None and len(result.content) == 1:
        only = result.content[0]
        try:
            found: Json = json.loads(only.text) if isinstance(only, TextContent) else None
        except (ValueError, RecursionError):
            return _value(result)
        return found
    return _value(result)
