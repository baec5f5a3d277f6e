"""Templates: how arguments and an operation's identity get into a request.

A template is JSON in which strings may hold places:

    {args.NAME}               an argument of the call; dots reach into nested objects
    {operation.NAME}          one of `OPERATION_NAMES`
    {page}                    in a look-up: where its next page begins
    {{ and }}                 a brace

A string that is one whole place keeps the value's JSON type. A place within a longer string takes
text, numbers and booleans. Keys are never templates.

What is missing: an optional argument that was not given, `{page}` on the first page and
`{operation.duplicate_of}` where there is none drop the member of the object (or of the query, form
or headers) whose whole value they are. Anywhere else they are an error, and so is any other name
that has no value yet: a look-up that lost its one criterion would find somebody else's object.

A value never becomes syntax: in a path it is percent-encoded (RFC 6570, simple expansion), and it
may neither be empty nor make a `.` or `..` segment.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

import rfc8785
import uritemplate

from doubtless.core.contract import ConditionRules, KeyRules, RequestRules
from doubtless.core.model import Json, Operation
from doubtless.engine.templates_grammar import (
    OPERATION_NAMES,
    OPTIONAL_NAMES,
    STATUS_URL_PATH,
    Place,
    TemplateError,
    names_in,
    parse,
    strings_in,
)
from doubtless.transports.base import Action, HttpRequest

__all__ = [
    "OPERATION_NAMES",
    "TemplateError",
    "TemplateValues",
    "names_in",
    "render",
    "render_path",
    "render_request",
    "request_digest",
    "same_origin",
    "strings_in",
]

_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?")


class _Missing(Enum):
    """The value of an optional name that has none; null is a value."""

    MISSING = 0


_Found: TypeAlias = "Json | _Missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateValues:
    """What the places of a template stand for. None means that there is no such value yet."""

    args: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = None
    ref: str | None = None
    idempotency_key: str | None = None
    session_id: str | None = None
    provider_operation_id: str | None = None
    status_url: str | None = None
    duplicate_of: str | None = None
    page: Json = None

    @classmethod
    def of(
        cls, operation: Operation, args: Mapping[str, Json], *, page: Json = None
    ) -> "TemplateValues":
        """Collect the values of a stored operation."""
        return cls(
            args=args,
            id=operation.id,
            ref=operation.ref,
            idempotency_key=operation.key,
            session_id=operation.session_id,
            provider_operation_id=operation.provider_operation_id,
            status_url=operation.status_url,
            duplicate_of=operation.duplicate_of,
            page=page,
        )


def render(template: Json, values: TemplateValues, *, strict: bool = False) -> Json:
    """Put values into a template.

    Args:
        strict: Drop nothing: whatever is missing is an error. For a look-up's `where`, which must
            not become looser than it was written.

    Raises:
        TemplateError: It is malformed, or a value that it needs is missing or of the wrong type.
    """
    found = _render(template, values, strict=strict)
    if isinstance(found, _Missing):
        raise TemplateError(str(template), "it has no value here")
    return found


def _render(template: Json, values: TemplateValues, *, strict: bool) -> _Found:
    if isinstance(template, str):
        return _render_text(template, values, strict=strict)
    if isinstance(template, Mapping):
        members = {key: _render(value, values, strict=strict) for key, value in template.items()}
        return {key: found for key, found in members.items() if not isinstance(found, _Missing)}
    if isinstance(template, Sequence):
        return [render(value, values, strict=strict) for value in template]
    return template


def _render_text(text: str, values: TemplateValues, *, strict: bool) -> _Found:
    parts = parse(text)
    if len(parts) == 1 and isinstance(whole := parts[0], Place):
        found = _value(whole.name, values, text)
        if isinstance(found, _Missing) and strict:
            raise TemplateError(text, "it has no value here")
        return found
    return "".join(part if isinstance(part, str) else _text(part, values, text) for part in parts)


def _value(name: str, values: TemplateValues, template: str) -> _Found:
    """Look a name up. Optional ones may be missing; any other that has no value is an error."""
    kind, _, rest = name.partition(".")
    if kind == "args":
        return _argument(rest.split("."), values.args, template)
    found: Json = values.page if kind == "page" else getattr(values, rest)
    if found is not None:
        return found
    if name in OPTIONAL_NAMES:
        return _Missing.MISSING
    raise TemplateError(template, f"{{{name}}} is not known yet")


def _argument(steps: Sequence[str], args: Json, template: str) -> _Found:
    found = args
    for step in steps:
        if found is None:
            return _Missing.MISSING
        if not isinstance(found, Mapping):
            raise TemplateError(template, f"{step!r} is asked of a value that is no object")
        if step not in found:
            return _Missing.MISSING
        found = found[step]
    return found


def _text(place: Place, values: TemplateValues, template: str) -> str:
    found = _value(place.name, values, template)
    if isinstance(found, _Missing) or found is None:
        raise TemplateError(template, f"{{{place.name}}} has no value, within a longer text")
    return _scalar(found, template)


def _scalar(found: Json, template: str) -> str:
    """Write text as it is, and numbers and booleans as JSON does."""
    if isinstance(found, str):
        return found
    if isinstance(found, bool | int | float):
        return _canonical(found, template).decode()
    raise TemplateError(template, "an object, a list or null can't stand here")


def _canonical(value: Json, template: str) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError, TypeError) as error:
        raise TemplateError(template, f"not canonical JSON: {error}") from error


def render_path(path: str, values: TemplateValues) -> str:
    """Render a URL's path; every value is percent-encoded and stays within its segment.

    Raises:
        TemplateError: A value is missing or empty, or makes a segment `.` or `..`.
    """
    rendered = ""
    for part in parse(path):
        if isinstance(part, str):
            rendered += part
            continue
        text = _text(part, values, path)
        if not text:
            raise TemplateError(path, f"{{{part.name}}} is empty, which would name another path")
        try:
            rendered += uritemplate.expand("{value}", value=text)
        except UnicodeEncodeError as error:
            raise TemplateError(path, f"{{{part.name}}} is no well-formed text") from error
    # A server or a proxy may resolve these before it looks at the path.
    if any(segment in {".", ".."} for segment in rendered.split("/")):
        raise TemplateError(path, "a segment would be '.' or '..'")
    return rendered


def same_origin(base_url: str, url: str) -> str | None:
    """Resolve `url` against `base_url`; None unless scheme, host and port stay the same."""
    try:
        base, found = urlsplit(base_url), urlsplit(urljoin(base_url, url))
        ours = (base.scheme, base.hostname, base.port or _port(base.scheme))
        theirs = (found.scheme, found.hostname, found.port or _port(found.scheme))
    except ValueError:
        return None
    if ours != theirs or found.username is not None or not _is_plain(url):
        return None
    return urlunsplit(found._replace(fragment=""))


def _port(scheme: str) -> int | None:
    return {"http": 80, "https": 443}.get(scheme)


def _is_plain(url: str) -> bool:
    """Whether two readers of the URL would agree on its host."""
    return url.isascii() and url.isprintable() and not set(url) & set("\\ ")


def render_request(
    rules: RequestRules,
    base_url: str,
    values: TemplateValues,
    *,
    key: KeyRules | None = None,
    condition: ConditionRules | None = None,
) -> HttpRequest:
    """Render a request. The same rules and values always give the same bytes.

    Members of a query or form are sorted by name, a JSON body is canonical (RFC 8785), header
    names are lower-case and sorted. A list in a query or form repeats its name; null leaves it
    out. A path that is wholly `{operation.status_url}` is that URL, on the origin of `base_url`.

    Args:
        key: Where the idempotency key goes; None for a look-up.
        condition: Adds its header, where it has one.

    Raises:
        TemplateError: A value is missing, or does not fit the place it is meant for.
    """
    key_place, key_name = (key.place, key.name) if key else ("", "")
    key_value = (
        render("{operation.idempotency_key}", values) if key_place not in {"", "code"} else ""
    )
    content_type, body = _body(rules, values, {key_name: key_value} if key_place == "field" else {})
    headers = {"content-type": content_type} if content_type else {}
    headers |= _headers(rules.headers, values)
    if condition and condition.header and condition.value:
        headers |= _headers({condition.header: condition.value}, values)
    if key_place == "header":
        headers |= _headers({key_name: "{operation.idempotency_key}"}, values)
    query = {**rules.query, **({key_name: key_value} if key_place == "query" else {})}
    return HttpRequest(
        method=rules.method.upper(),
        url=_url(rules.path, base_url, values, _encoded(query, values, plus=False)),
        headers=tuple(sorted(headers.items())),
        body=body,
    )


def _headers(templates: Mapping[str, str], values: TemplateValues) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, template in templates.items():
        found = _render(template, values, strict=False)
        if found is None or isinstance(found, _Missing):
            continue
        text = _scalar(found, template)
        # A line break here would begin a header of the caller's own.
        if not _HEADER_VALUE.fullmatch(text):
            raise TemplateError(
                template, f"header {name}: only printable ASCII, without space around"
            )
        headers[name.lower()] = text
    return headers


def _body(
    rules: RequestRules, values: TemplateValues, key: Mapping[str, Json]
) -> tuple[str, bytes]:
    """Return content type and body; "" where there is none."""
    if rules.form is not None:
        encoded = _encoded({**rules.form, **key}, values, plus=True)
        return "application/x-www-form-urlencoded", encoded.encode()
    if rules.json is None and not key:
        return "", b""
    body = render(rules.json, values) if rules.json is not None else {}
    for name, value in key.items():
        body = _with_member(body, name.split("."), value, str(rules.json))
    return "application/json", _canonical(body, str(rules.json))


def _with_member(body: Json, steps: Sequence[str], value: Json, template: str) -> Json:
    """Return the body with one more member; steps reach into nested objects, and make them."""
    if not isinstance(body, Mapping):
        raise TemplateError(template, f"the key's field {steps[0]!r} needs an object to stand in")
    if len(steps) == 1:
        return {**body, steps[0]: value}
    inner = _with_member(body.get(steps[0], {}), steps[1:], value, template)
    return {**body, steps[0]: inner}


def _encoded(members: Mapping[str, Json], values: TemplateValues, *, plus: bool) -> str:
    pairs: list[tuple[str, str]] = []
    for name, template in sorted(members.items()):
        found = _render(template, values, strict=False)
        if found is None or isinstance(found, _Missing):
            continue
        many = found if isinstance(found, Sequence) and not isinstance(found, str) else [found]
        pairs.extend((name, _scalar(one, f"{name} = {template}")) for one in many)
    try:
        return urlencode(pairs) if plus else urlencode(pairs, quote_via=quote, safe="")
    except UnicodeEncodeError as error:
        raise TemplateError(str(members), "a value is no well-formed text") from error


def _url(path: str, base_url: str, values: TemplateValues, query: str) -> str:
    if path == STATUS_URL_PATH:
        status_url = str(render(path, values))
        found = same_origin(base_url, status_url)
        if found is None:
            raise TemplateError(path, "the provider's URL leaves the source's origin")
        url = found
    else:
        url = base_url.rstrip("/") + render_path(path, values)
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{query}"


def request_digest(request: HttpRequest | Action) -> str:
    """Return `sha256:…` over everything that is sent, except what each attempt adds."""
    if isinstance(request, Action):
        whole: Json = {"kind": request.kind.value, "members": request.members}
        return "sha256:" + hashlib.sha256(rfc8785.dumps(whole)).hexdigest()
    parts: Json = {
        "method": request.method,
        "url": request.url,
        "headers": [list(header) for header in request.headers],
        "body": hashlib.sha256(request.body).hexdigest(),
    }
    return "sha256:" + hashlib.sha256(rfc8785.dumps(parts)).hexdigest()
