"""Checks of what a request, a look-up and an answer look like, and of the arguments they use."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final

import jsonschema_rs

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Json
from doubtless.engine.contracts.draft import Check, Draft
from doubtless.engine.contracts.file import LookupTable, RequestTable
from doubtless.engine.contracts.snapshot import dump_contract
from doubtless.engine.contracts.values import near
from doubtless.engine.templates import names_in, strings_in
from doubtless.engine.templates_grammar import STATUS_URL_PATH, Place, parse
from doubtless.errors import Problem

SCHEMA_2020_12: Final = "https://json-schema.org/draft/2020-12/schema"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
READING_METHODS: Final = ("GET", "HEAD", "POST")  # a search may be a POST
PATH_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@%/"
)
# fmt: off
AUTHORITY_HEADERS: Final = frozenset({
    # who asks
    "authorization", "proxy-authorization", "cookie", "cookie2", "set-cookie",
    "api-key", "x-api-key", "x-auth-token", "x-access-token", "x-amz-security-token",
    # whom, and for whom
    "host", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip",
    "x-original-url", "x-rewrite-url",
    # what is asked
    "x-http-method", "x-http-method-override", "x-method-override",
    # the connection's own
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    "content-length", "expect",
})
# fmt: on
AFTER_THE_ANSWER: Final = frozenset({"operation.provider_operation_id", "operation.status_url"})


def _transport(draft: Draft) -> Iterator[Problem]:
    said = draft.said
    blocks = [block.KIND.value for block in said.blocks()]
    for extra in blocks[1:] if said.request is None else blocks:
        yield draft.problem(
            "",
            extra,
            f"it is carried out by {'request' if said.request else blocks[0]} too.",
            "keep one of them: a tool does one thing.",
        )
    carried = bool(blocks)
    if draft.is_http and said.request is None and not carried:
        yield draft.problem(
            "",
            "request",
            "nothing says how it is carried out.",
            f'add [tools.{draft.contract.tool}.request] with method = "POST" and path = "/…".',
        )
    if said.source is not None and draft.sources and said.source not in draft.sources:
        yield draft.problem(
            "", "source", f"there is no source {said.source!r}.", near(said.source, draft.sources)
        )
    elif draft.is_http and (said.source is None or not draft.sources) and not carried:
        yield draft.problem(
            "", "source", "no declared source says where it goes.", near("", draft.sources)
        )


def _arguments(draft: Draft) -> Iterator[Problem]:
    schema = draft.contract.arguments
    if schema.get("$schema", SCHEMA_2020_12) != SCHEMA_2020_12:
        yield draft.problem(
            "arguments", "$schema", "only JSON Schema 2020-12 is read.", f'say "{SCHEMA_2020_12}".'
        )
        return
    try:
        # Offline: a schema must never make us fetch a URL or read a file.
        jsonschema_rs.Draft202012Validator(dict(schema), offline=True)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        wrong = str(error).splitlines()[0].rstrip(".")
        yield draft.problem(
            "arguments", "", f"this is no JSON Schema 2020-12: {wrong}.", "mend the schema."
        )
    if schema.get("type") != "object":
        yield draft.problem(
            "arguments", "type", "arguments are an object.", 'write type = "object".'
        )
    try:
        dump_contract(draft.contract)
    except (ValueError, RecursionError) as error:
        yield draft.problem(
            "",
            "",
            f"it holds a value that canonical JSON can't write: {error}.",
            "use finite numbers within ±(2**53 - 1), well-formed text and less nesting.",
        )


def _methods(draft: Draft) -> Iterator[Problem]:
    request, reads = draft.said.request, draft.contract.effect in NO_EFFECT
    places = [("request", request.method, READING_METHODS if reads else METHODS)] if request else []
    places += [
        (table, look.method, READING_METHODS) for table, look in draft.lookups() if look.method
    ]
    for table, method, allowed in places:
        if method.upper() in allowed:
            continue
        wrong = f"{method!r} is no method that can be sent here."
        if method.upper() in METHODS:
            wrong = f"{method!r} changes something, and this is declared as a read."
        yield draft.problem(table, "method", wrong, near(method.upper(), allowed))


def _bodies(draft: Draft) -> Iterator[Problem]:
    for table, part in _requests(draft):
        if part.json_body is not None and part.form is not None:
            yield draft.problem(
                table, "form", "json and form exclude each other.", "keep the one it takes."
            )


def _requests(draft: Draft) -> Iterator[tuple[str, RequestTable | LookupTable]]:
    if draft.said.request:
        yield "request", draft.said.request
    yield from draft.lookups()


def _paths(draft: Draft) -> Iterator[Problem]:
    for table, part in _requests(draft):
        if part.path is None or (table != "request" and part.path == STATUS_URL_PATH):
            continue
        literal = "".join(piece for piece in parse(part.path) if isinstance(piece, str))
        wrong = ""
        if not part.path.startswith("/"):
            wrong = "a path begins with '/'."
        elif STATUS_URL_PATH in part.path:
            wrong = "{operation.status_url} is a whole URL, and can only be the whole path."
        elif not set(literal) <= PATH_CHARACTERS:
            odd = " ".join(sorted(set(literal) - PATH_CHARACTERS))
            wrong = f"{odd!r} can't stand in a path."
        elif {".", ".."} & set(part.path.split("/")):
            wrong = "a path holds no '.' or '..'."
        if wrong:
            yield draft.problem(
                table,
                "path",
                wrong,
                "write a path below base_url, percent-encoded, with the rest in query = { … }.",
            )


def _templates(draft: Draft) -> Iterator[Problem]:
    for table, key, template, looks in _places(draft):
        for name in sorted(names_in(template)):
            wrong = _wrong_name(draft, name, key, looks=looks)
            if wrong:
                yield draft.problem(table, key, *wrong)


def _places(draft: Draft) -> Iterator[tuple[str, str, Json, bool]]:
    """Yield table, key and template of everything that is rendered, and whether a look-up is."""
    for table, part in _requests(draft):
        looks = isinstance(part, LookupTable)
        yield table, "path", part.path or "", looks
        if not isinstance(part.json_body, Mapping):
            yield table, "json", part.json_body, looks
        members: dict[str, Mapping[str, Json]] = {
            "query": part.query,
            "headers": part.headers,
            "form": part.form or {},
            "json": part.json_body if isinstance(part.json_body, dict) else {},
        }
        if isinstance(part, LookupTable):
            members |= {"where": part.where or {}, "equal": part.equal}
        for key, templates in members.items():
            for name, template in templates.items():
                yield table, f"{key}.{name}", template, looks
    for block in draft.said.blocks():
        for key, text in _leaves(block.model_dump(mode="json", by_alias=True), ""):
            yield block.KIND.value, key, text, False
    if draft.said.condition:
        yield "condition", "value", draft.said.condition.value, False
        yield "condition", "id", draft.said.condition.id, False


def _leaves(said: Json, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a block, with its place."""
    if isinstance(said, str):
        yield key, said
    elif isinstance(said, dict):
        for name, member in said.items():
            yield from _leaves(member, f"{key}.{name}" if key else name)
    elif isinstance(said, list):
        for number, member in enumerate(said, 1):
            yield from _leaves(member, f"{key}[{number}]")


def _wrong_name(draft: Draft, name: str, key: str, *, looks: bool) -> tuple[str, str] | None:
    if name.startswith("args."):
        steps = name.split(".")[1:]
        if not draft.arguments_whole or _is_declared(draft.contract.arguments, steps):
            return None
        known = [f"args.{each}" for each in draft.properties()]
        return f"{{{name}}} is no declared argument.", near(name, known)
    if name == "page" and (not looks or key.startswith(("where", "equal"))):
        return "{page} is for the request of a look-up.", "take it out."
    if name in AFTER_THE_ANSWER and not looks:
        return f"{{{name}}} is not known before the answer.", "use {operation.ref}."
    if name == "operation.status_url" and draft.is_http and not draft.said.response.status_url:
        return f"nothing tells {{{name}}}.", "declare response.status_url."
    if name == "operation.provider_operation_id" and draft.is_http and not _tells_id(draft):
        return f"nothing tells {{{name}}}.", "declare response.provider_operation_id."
    return None


def _tells_id(draft: Draft) -> bool:
    lookups = any(look.provider_operation_id or look.python for look in draft.said.lookup)
    return lookups or draft.said.response.provider_operation_id is not None


def _is_declared(schema: object, steps: list[str]) -> bool:
    """Whether a schema declares a member; below the first step only where it lists members."""
    for index, step in enumerate(steps):
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping):
            return index > 0
        if step not in properties:
            return False
        schema = properties[step]
    return True


def _headers(draft: Draft) -> Iterator[Problem]:
    own = draft.contract.source.auth_header.lower()
    for table, key, name in _header_places(draft):
        if name.lower() in AUTHORITY_HEADERS or name.lower() == own:
            yield draft.problem(
                table,
                key,
                f"the header {name} could carry authority, or steer the connection.",
                "name a credential in the source's auth = { … }; leave the rest to the transport.",
            )
    seen: set[str] = set()
    for table, key, name in _header_places(draft):
        if table.startswith("lookup"):
            continue
        if name.lower() in seen:
            yield draft.problem(table, key, f"the header {name} is set twice.", "keep one.")
        seen.add(name.lower())


def _header_places(draft: Draft) -> Iterator[tuple[str, str, str]]:
    for table, part in _requests(draft):
        for name in part.headers:
            yield table, f"headers.{name}", name
    said = draft.said
    if said.idempotency and said.idempotency.header:
        yield "idempotency", "header", said.idempotency.header
    if said.condition and said.condition.header:
        yield "condition", "header", said.condition.header
    if draft.contract.correlation_header:
        yield "correlation", "header", draft.contract.correlation_header


def _statuses(draft: Draft) -> Iterator[Problem]:
    response, key = draft.said.response, draft.said.idempotency
    declared = [
        ("response", "unproven", set(response.unproven or ())),
        ("idempotency", "in_progress", set(key.in_progress if key else ())),
        ("idempotency", "mismatch", set(key.mismatch if key else ())),
        ("response", "not_processed", set(response.not_processed or ())),
        ("response", "rejected", set(response.rejected or ())),
    ]
    for (first, name, one), (table, second, other) in combinations(declared, 2):
        for status in sorted(one & other):
            yield draft.problem(
                table,
                second,
                f"{status} is declared in {first}.{name} too, and can mean only one of them.",
                "take it out of one.",
            )
    for table, name, statuses in declared[1:]:
        if any(status < 300 for status in statuses):
            yield draft.problem(
                table, name, "a 2xx is a success.", "use response.failed or response.accepted."
            )


def _optional_within_text(draft: Draft) -> Iterator[Problem]:
    required = {f"args.{name}" for name in draft.required()}
    for table, key, template, _ in _places(draft):
        for name in sorted(_names_within(template, whole=key == "path")):
            # A member of an object that was given is the schema's business.
            if name.startswith("args.") and name.count(".") == 1 and name not in required:
                yield draft.problem(
                    table,
                    key,
                    f"a call without the optional {{{name}}} would be refused.",
                    "make it required, or the whole value of its member.",
                )


def _names_within(template: Json, *, whole: bool) -> set[str]:
    """Return the names that stand within a longer text, or in any if `whole`."""
    texts = (parse(text) for text in strings_in(template))
    within = (part for parts in texts if whole or len(parts) > 1 for part in parts)
    return {part.name for part in within if isinstance(part, Place)}


def _repeatable_method(draft: Draft) -> Iterator[Problem]:
    request = draft.said.request
    acts = draft.contract.effect not in NO_EFFECT
    if acts and request and request.method.upper() in {"GET", "HEAD"}:
        yield draft.problem(
            "request",
            "method",
            "a proxy or a cache may repeat a GET, or answer it in the provider's place.",
            "use the provider's POST, if there is one.",
        )


HTTP_ERRORS: Final[tuple[Check, ...]] = (
    _transport,
    _arguments,
    _methods,
    _bodies,
    _paths,
    _templates,
    _headers,
    _statuses,
)
HTTP_WARNINGS: Final[tuple[Check, ...]] = (_optional_within_text, _repeatable_method)
