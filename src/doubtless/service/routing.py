"""The route table's rows, and what carries a request along one: who asks, what is said, the answer.

Everything about a route stands in its row: the OpenAPI document, the tests and the router read it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, get_args
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from doubtless.core.model import Json, Principal, Role
from doubtless.engine.actor import Actor
from doubtless.errors import (
    ApprovalNotFound,
    BadOperationId,
    BadRequest,
    DecisionRefused,
    EventNotFound,
    ExhibitNotFound,
    GrantRefused,
    NotWatched,
    OperationNotFound,
    SettingsError,
    UnknownSource,
    UnknownTool,
)
from doubtless.service import logs
from doubtless.service.auth import principal_of
from doubtless.service.models import OPERATION_ID, SESSION_ID, NoQuery
from doubtless.service.problems import Refused, to_bytes
from doubtless.service.strict_json import NotJson, parse, shown

if TYPE_CHECKING:
    from doubtless.service.app import Service

M = TypeVar("M", bound=BaseModel)

AGENT: Final = frozenset({Role.AGENT})
OPERATOR: Final = frozenset({Role.OPERATOR})
WORKER: Final = frozenset({Role.WORKER})
ANYBODY: Final[frozenset[Role]] = frozenset()  # no token is needed

PARAMETERS: Final[Mapping[str, str]] = {
    "operation_id": OPERATION_ID,
    "session_id": SESSION_ID,
    "event_id": r"^[A-Za-z0-9._:@~+=-]{1,200}$",
    "approval_id": r"^[A-Za-z0-9._:-]{1,128}$",
    "exhibit": r"^[A-Za-z0-9._-]{1,80}$",
}
"""What stands in a path, by its name."""

ERRORS_SHOWN_MAX: Final = 20
RETRY_AFTER: Final = {"Retry-After": "5"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One route."""

    method: str
    path: str  # "/v1/operations/{operation_id}"
    name: str  # the operationId of the OpenAPI document
    summary: str
    roles: frozenset[Role]
    answer: "Handler"
    answers: Mapping[int, str]  # status → what it means; 2xx bodies are of `returns`
    returns: str  # the name of a schema in `openapi.SCHEMAS`
    body: type[BaseModel] | None = None
    query: type[BaseModel] = NoQuery
    media: str = "application/json"  # of the answer
    starts_work: bool = False  # refused while the service is being stopped
    headers: Mapping[str, str] = field(default_factory=dict)  # request headers that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that may be answered: by whom, of what, and what it says."""

    service: "Service"
    request: Request
    row: Row
    principal: Principal
    path: Mapping[str, str]
    _query: BaseModel
    _body: BaseModel | None

    @property
    def actor(self) -> Actor:
        """The application in the hands of whoever asks."""
        return self.service.application.actor(self.principal)

    def query(self, kind: type[M]) -> M:
        """Return the query."""
        assert isinstance(self._query, kind)  # noqa: S101 - the row says so
        return self._query

    def body(self, kind: type[M]) -> M:
        """Return the body."""
        assert isinstance(self._body, kind)  # noqa: S101 - the row says so
        return self._body

    def note(self, **said: Json) -> None:
        """Add to the request's line in the log."""
        logs.note(self.request.scope, **said)


Handler: TypeAlias = Callable[[Asked], Awaitable[Response]]


def reply(value: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON. It is about one principal at one instant, so nobody may keep it."""
    said = {"Cache-Control": "no-store", **(headers or {})}
    return Response(to_bytes(value), status, said, "application/json")


def routes_of(rows: Sequence[Row], service: "Service") -> list[Route]:
    """Return the router's routes: one for each path, so that 405 names all its methods."""
    by_path: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_path.setdefault(row.path, {})[row.method] = row
    return [
        Route(path, _endpoint(methods, service), methods=list(methods), name=path)
        for path, methods in by_path.items()
    ]


def _endpoint(
    methods: Mapping[str, Row], service: "Service"
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        row = methods["GET" if request.method == "HEAD" else request.method]
        logs.note(request.scope, route=row.path)
        try:
            return await row.answer(await _asked(row, request, service))
        except Refused as error:
            refused = error
        except get_args(Told) as error:
            refused = told(error)
        logs.note(request.scope, refused=refused.code)
        return refused.response()

    return answer


Told: TypeAlias = BadRequest | DecisionRefused | GrantRefused | ApprovalNotFound | SettingsError


def told(error: Told) -> Refused:
    """Say why what was asked can't be done."""
    match error:
        case UnknownTool() | UnknownSource() | OperationNotFound() | EventNotFound():
            status = 404
        case ApprovalNotFound() | ExhibitNotFound() | NotWatched():
            status = 404
        case DecisionRefused() | GrantRefused():
            status = 409
        case SettingsError():  # of an argument that the model let through
            return Refused(422, "bad_request", str(error))
        case _:
            status = 422
    return Refused(status, code_of(error), str(error))


def code_of(error: Exception) -> str:
    """Return what programs tell an error by: its class's name, as words."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


# --- who and what --------------------------------------------------------------------------------


async def _asked(row: Row, request: Request, service: "Service") -> Asked:
    """Read a request, from the outside in: who asks is known before anything is read."""
    principal = _principal(row, request, service)
    if row.starts_work and service.is_draining:
        detail = "the service is being stopped, and takes no new work: try again"
        raise Refused(503, "stopping", detail, headers=RETRY_AFTER)
    path = _path(request)
    query = _query(row, request)
    body = None if row.body is None else await _body(row.body, request, service)
    return Asked(
        service=service,
        request=request,
        row=row,
        principal=principal,
        path=path,
        _query=query,
        _body=body,
    )


def _principal(row: Row, request: Request, service: "Service") -> Principal:
    if not row.roles:
        return Principal(name="anybody", role=Role.AGENT)
    said = request.headers.getlist("authorization")
    found = None
    if len(said) == 1:
        found = principal_of(service.ledger, said[0], tenant=service.application.tenant)
    if found is None:
        shows = 'Bearer realm="doubtless"' + (', error="invalid_token"' if said else "")
        detail = "a live token is needed: Authorization: Bearer …"
        raise Refused(401, "unauthorised", detail, headers={"WWW-Authenticate": shows})
    logs.note(request.scope, principal=found.name, role=found.role.value)
    if found.role not in row.roles:
        roles = " or ".join(sorted(row.roles))
        detail = f"this needs the role {roles}; the token's is {found.role}"
        shows = 'Bearer realm="doubtless", error="insufficient_scope"'
        raise Refused(403, "forbidden", detail, headers={"WWW-Authenticate": shows})
    return found


def _path(request: Request) -> Mapping[str, str]:
    for name, value in request.path_params.items():
        if not re.fullmatch(PARAMETERS[name], value):
            if name == "operation_id":
                raise BadOperationId(value if value.isprintable() else ascii(value)[1:-1])
            detail = f"{name} in the path must match {PARAMETERS[name]}"
            raise Refused(422, f"bad_{name}", detail)
        if name == "operation_id":
            logs.note(request.scope, operation_id=value)
    return request.path_params


def _query(row: Row, request: Request) -> BaseModel:
    text = request.scope["query_string"]
    try:
        pairs = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=50,
        )
    except (UnicodeDecodeError, ValueError):
        detail = "the query can't be read: percent-encoded UTF-8 is wanted, 50 parameters at most"
        raise Refused(400, "bad_query", detail) from None
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Refused(422, "bad_query", f"the query says {shown(twice[0])} twice")
    return _valid(row.query, dict(pairs), code="bad_query", place="query")


async def _body(kind: type[BaseModel], request: Request, service: "Service") -> BaseModel:
    content = await request.body()
    empty_will_do = not kind.model_fields
    if not content and empty_will_do:
        return kind()
    _check_media_type(request)
    try:
        limits = service.settings.limits
        found = parse(content, depth_max=limits.json_depth_max, values_max=limits.json_values_max)
    except NotJson as error:
        raise Refused(400, "bad_json", f"the body can't be read: {error}") from None
    if not isinstance(found, dict):
        raise Refused(422, "bad_body", "the body must be a JSON object")
    return _valid(kind, found, code="bad_body", place="body")


def _check_media_type(request: Request) -> None:
    said, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = re.fullmatch(r"""\s*(charset\s*=\s*"?utf-8"?)?\s*""", parameters, re.IGNORECASE)
    if said.strip().lower() != "application/json" or charset is None:
        detail = "the body must be JSON in UTF-8: Content-Type: application/json"
        raise Refused(415, "not_json", detail, headers={"Accept": "application/json"})


def _valid(kind: type[M], said: Mapping[str, Json], *, code: str, place: str) -> M:
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    errors: list[Json] = []
    for each in found[:ERRORS_SHOWN_MAX]:
        where = ".".join(shown(str(step))[1:-1] for step in each["loc"][:8])
        unknown = each["type"] == "extra_forbidden"
        wrong = "is not known here" if unknown else each["msg"].removeprefix("Value error, ")
        errors.append({"where": where, "wrong": wrong})
    text = "; ".join(f"{each['where']}: {each['wrong']}" for each in errors[:3])  # type: ignore[call-overload,index]
    code = "bad_operation_id" if _is_about_the_id(found) else code
    raise Refused(422, code, f"the {place} can't be taken: {text}", members={"errors": errors})


def _is_about_the_id(found: Sequence[Mapping[str, object]]) -> bool:
    return len(found) == 1 and found[0]["loc"] == ("operation_id",)
