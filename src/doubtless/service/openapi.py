"""The OpenAPI document: made of the route table and the models, so that it says what they do."""

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from types import NoneType
from typing import Final, TypeAlias, cast

from pydantic import BaseModel
from starlette.responses import Response

from doubtless.core.model import Json
from doubtless.core.outcome import OUTCOMES, Outcome, Status
from doubtless.service.problems import MEDIA_TYPE
from doubtless.service.routing import ANYBODY, PARAMETERS, Asked, Row, reply

PATH: Final = "/openapi.json"
REF: Final = "#/components/schemas/"

Schema: TypeAlias = dict[str, Json]

KINDS: Final[Mapping[object, str]] = {str: "string", bool: "boolean", int: "integer"}


def _outcome() -> Schema:
    """Return the schema of an outcome, from its own fields."""
    kinds: dict[str, Schema] = {}
    for field in fields(Outcome):
        parts = typing.get_args(field.type)
        plain = next((part for part in (parts or (field.type,)) if part in KINDS), None)
        kind: Json = KINDS.get(plain, "object")
        kinds[field.name] = {"type": [kind, "null"] if NoneType in parts else kind}
    kinds["result"] = {"description": "What the provider answered, as the contract reads it."}
    kinds["status"]["enum"] = [status.value for status in Status]
    kinds["outcome"]["enum"] = sorted(set(OUTCOMES.values()))
    kinds["status_url"] = {"type": "string", "description": "Where to ask: with 202 alone."}
    needed = [field.name for field in fields(Outcome) if field.name != "read"]
    return {"type": "object", "properties": kinds, "required": needed}


def _object(**members: Json) -> Schema:
    return {"type": "object", "properties": members, "required": sorted(members)}


def _list(name: str) -> Schema:
    return {"type": "array", "items": {"$ref": REF + name}}


TEXT: Final[Schema] = {"type": "string"}
MAYBE: Final[Schema] = {"type": ["string", "null"]}

SCHEMAS: Final[Mapping[str, Schema]] = {
    "Outcome": _outcome(),
    "Page": _object(operations=_list("Outcome"), cursor=MAYBE),
    "Session": _object(
        session_id=TEXT,
        principal=TEXT,
        unresolved=_list("Outcome"),
        recent=_list("Outcome"),
        message=TEXT,
    ),
    "Settlement": _object(
        id={"type": "integer"},
        state=TEXT,
        version={"type": "integer"},
        at=TEXT,
        outcome={"$ref": REF + "Outcome"},
    ),
    "Settlements": _object(settlements=_list("Settlement"), after={"type": "integer"}),
    "Subscription": _object(
        name=TEXT, after={"type": ["integer", "null"]}, held={"type": "boolean"}
    ),
    "Approval": _object(
        id=TEXT,
        session_id=TEXT,
        tool=TEXT,
        contract_digest=TEXT,
        principal=TEXT,
        by=TEXT,
        at=TEXT,
        expires_at=TEXT,
        revoked_at=MAYBE,
        revoked_by=MAYBE,
        note=TEXT,
        binds=TEXT,
    ),
    "Approvals": _object(approvals=_list("Approval")),
    "Event": {
        "type": "object",
        "properties": {
            "id": TEXT,
            "event_id": TEXT,
            "source": TEXT,
            "matched": {"type": "boolean"},
            "operation_id": MAYBE,
            "reason": MAYBE,
        },
        "required": ["id", "event_id", "source", "operation_id", "reason"],
    },
    "Events": _object(events=_list("Event"), cursor=MAYBE),
    "Entry": {
        "type": "object",
        "properties": {"at": TEXT, "kind": TEXT, "principal": TEXT, "role": TEXT},
        "required": ["at", "kind", "principal", "role"],
    },
    "Timeline": _object(operation_id=TEXT, timeline=_list("Entry")),
    "Tool": _object(
        name=TEXT,
        description=MAYBE,
        arguments={"type": "object", "description": "JSON Schema 2020-12."},
        effect=TEXT,
        fully_automatic={"type": "boolean"},
    ),
    "Tools": _object(tools=_list("Tool")),
    "Exhibit": _object(
        name=TEXT,
        attempt={"type": "integer"},
        at=TEXT,
        size={"type": "integer"},
        media_type=TEXT,
    ),
    "Exhibits": _object(operation_id=TEXT, exhibits=_list("Exhibit")),
    "Bytes": {"type": "string", "format": "binary"},
    "Health": {"type": "object", "properties": {"status": TEXT}, "required": ["status"]},
    "OpenApi": {"type": "object"},
    "Problem": {
        "type": "object",
        "description": "RFC 9457. Programs tell problems apart by `code`.",
        "properties": {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer"},
            "code": TEXT,
            "detail": TEXT,
            "outcome": {"$ref": REF + "Outcome"},
            "errors": {"type": "array", "items": _object(where=TEXT, wrong=TEXT)},
        },
        "required": ["type", "title", "status", "code", "detail"],
    },
}

COMMON: Final[Mapping[int, str]] = {
    400: "It can't be read: HTTP, JSON or the query.",
    401: "There is no live token.",
    403: "The token's role may not do this.",
    408: "It did not come in time.",
    413: "The body is too long.",
    414: "The query is too long.",
    431: "The headers are too long.",
    415: "The body is not JSON in UTF-8.",
    422: "It can be read, and says something that it may not: `errors` names it.",
    500: "A fault of the service.",
    503: "The ledger can't be used now, or there are too many connections.",
}


def _elsewhere() -> Schema:
    """Describe the routes that have no row, since they are no part of the JSON API."""
    refusals = {
        400: "It is no event.",
        401: "The signature is not the source's. Nothing was stored.",
        404: "No webhook is declared of that source.",
        413: "It is too long.",
        503: "It could not be stored: send it again.",
    }
    problem: Schema = {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}}}
    answers: Schema = {
        "200": {"description": "It is stored. The same one again changes nothing."},
        **{
            str(status): {"description": refusals[status], "content": problem}
            for status in refusals
        },
    }
    webhook: Schema = {
        "operationId": "webhook",
        "summary": "A provider's event: signed, and stored before it is answered.",
        "parameters": [{"name": "source", "in": "path", "required": True, "schema": TEXT}],
        "requestBody": {"required": True, "content": {"*/*": {}}},
        "responses": answers,
        "security": [],
    }
    samples: Schema = {"description": "Samples.", "content": {"text/plain": {"schema": TEXT}}}
    metrics: Schema = {
        "operationId": "metrics",
        "summary": "What the ledger counts, as Prometheus reads it.",
        "responses": {"200": samples},
        "security": [],
    }
    return {"/metrics": {"get": metrics}, "/webhooks/{source}": {"post": webhook}}


def document(rows: Sequence[Row]) -> Schema:
    """Return the document of a route table."""
    schemas = dict(SCHEMAS)
    paths: dict[str, dict[str, Json]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "doubtless",
            "version": version("doubtless"),
            "description": "Durable operations for the external actions of AI agents.",
        },
        "paths": {**paths, **_elsewhere()},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Row, schemas: dict[str, Schema]) -> Schema:
    found: Schema = {
        "operationId": row.name,
        "summary": row.summary,
        "parameters": list(_parameters(row, schemas)),
        "responses": _responses(row),
        "security": [{"token": []}] if row.roles else [],
    }
    if row.roles:
        found["x-roles"] = sorted(row.roles)
    if row.body is not None:
        reference = _named(row.body, schemas)
        found["requestBody"] = {
            "required": bool(row.body.model_fields),
            "content": {"application/json": {"schema": reference}},
        }
    return found


def _parameters(row: Row, schemas: dict[str, Schema]) -> Iterator[Schema]:
    for name in re.findall(r"{(\w+)}", row.path):
        schema: Schema = {"type": "string", "pattern": PARAMETERS[name]}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name, text in row.headers.items():
        yield {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
    query = _schema(row.query, schemas)
    members = cast("Mapping[str, Schema]", query.get("properties", {}))
    needed = cast("list[str]", query.get("required", []))
    for name, member in members.items():
        schema = _without_null(member)
        yield {"name": name, "in": "query", "required": name in needed, "schema": schema}


def _without_null(schema: Schema) -> Schema:
    """Leave out that a parameter may be null: in a query it is there, or it isn't."""
    choices = cast("list[Schema]", schema.get("anyOf", []))
    kept = [choice for choice in choices if choice != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    if not kept:
        return {**rest, **({"default": schema["default"]} if schema.get("default") else {})}
    return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": cast("Json", kept)}


def _named(model: type[BaseModel], schemas: dict[str, Schema]) -> Schema:
    schemas[model.__name__] = _schema(model, schemas)
    return {"$ref": REF + model.__name__}


def _schema(model: type[BaseModel], schemas: dict[str, Schema]) -> Schema:
    found = model.model_json_schema(ref_template=REF + "{model}")
    schemas |= found.pop("$defs", {})
    return found


def _responses(row: Row) -> Schema:
    found: dict[str, Json] = {}
    statuses = {**{status: COMMON[status] for status in _common(row)}, **row.answers}
    for status, text in sorted(statuses.items()):
        good = status < 400
        media = row.media if good else MEDIA_TYPE
        name = row.returns if good else "Problem"
        content = {media: {"schema": {"$ref": f"{REF}{name}"}}}
        found[str(status)] = {"description": text, "content": content}
    return found


def _common(row: Row) -> Iterator[int]:
    yield from (400, 408, 413, 414, 422, 431, 500, 503)
    if row.roles != ANYBODY:
        yield from (401, 403)
    if row.body is not None:
        yield 415


def row(rows: Sequence[Row]) -> Row:
    """Return the route of the document itself."""

    async def show(_: Asked) -> Response:
        return reply(found)

    this = Row(
        method="GET",
        path=PATH,
        name="openapi",
        summary="This document.",
        roles=ANYBODY,
        answer=show,
        answers={200: "OpenAPI 3.1."},
        returns="OpenApi",
    )
    found = document([*rows, this])
    return this
