"""Reading a request as the two standards of keys have it: its key, its fingerprint, its times.

Pure. The key of the Idempotency-Key draft is a string of a structured field (RFC 9651), `"abc"`;
most clients send it bare, `abc`. OASIS Repeatable Requests has two headers that come together.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Final, Literal

from doubtless.core.identity import NotCanonical, canonical
from doubtless.core.model import Json
from doubtless.integrations.idempotency_rules import Asked, Refused, parts_of

Form = Literal["any", "quoted"]

KEY: Final = "idempotency-key"
REQUEST_ID: Final = "repeatability-request-id"
FIRST_SENT: Final = "repeatability-first-sent"
RESULT: Final = "repeatability-result"

SKEW_MS: Final = 300_000  # so far ahead may the clock of a client be
_QUOTED: Final = re.compile(
    r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
    r"(?: *; *[a-z*][a-z0-9_.*-]*(?:=(?:[!#-+\--:<-~]+|\"[^\"\\]*\"))?)*"  # parameters: no meaning
)
# A comma is how two headers look after a proxy has joined them.
_BARE: Final = re.compile(r"[!#-+\--~]+")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# Of the connection, of the moment, or a secret: none of them is part of an answer that is kept.
_NOT_KEPT: Final = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "set-cookie", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "proxy-authenticate", RESULT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A request as it came in, on any server."""

    method: str
    path: str  # decoded
    query: bytes
    headers: Sequence[tuple[str, str]]  # names in lower case; a name may come twice
    root: str = ""  # under which the application is mounted: the beginning of `path`

    @property
    def route_path(self) -> str:
        """The path as the application's own routes have it."""
        return below(self.root, self.path)

    def all_of(self, name: str) -> list[str]:
        """Return every value of a header, as they came."""
        return [value.strip() for given, value in self.headers if given == name]


def below(root: str, path: str) -> str:
    """Return a path without the one under which an application is mounted."""
    root = root.rstrip("/")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path


def parse_key(values: Sequence[str], *, form: Form, key_max: int) -> str | None:
    """Return the Idempotency-Key, or None where there is none.

    Args:
        values: All values of the header.
        form: "any" takes `"abc"` and `abc`, which are the same key; "quoted" is the draft's letter.
        key_max: So many characters a key may have.

    Raises:
        Refused: It is said twice, empty, too long, or no string (400).
    """
    if not values:
        return None
    if len(values) > 1:
        raise _bad_key(f"it is said {len(values)} times")
    quoted = _QUOTED.fullmatch(values[0])
    if quoted:
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif form == "any" and _BARE.fullmatch(values[0]):
        key = values[0]
    else:
        raise _bad_key('it is no string of a structured field, such as "8e03978e-40d5"')
    if not key:
        raise _bad_key("it is empty")
    if len(key) > key_max:
        raise _bad_key(f"it is longer than {key_max} characters")
    return key


def _bad_key(why: str) -> Refused:
    return Refused(400, "key_invalid", f"Idempotency-Key: {why}. Nothing was executed")


def parse_repeatable(said: Said, *, key_max: int) -> tuple[str, int] | None:
    """Return the id and the time of a repeatable request, or None where it is none.

    Raises:
        Refused: One of the two is missing or malformed (400).
    """
    ids, times = said.all_of(REQUEST_ID), said.all_of(FIRST_SENT)
    if not ids and not times:
        return None
    if len(ids) != 1 or len(times) != 1:
        raise _bad_pair("Repeatability-Request-ID and Repeatability-First-Sent come once each")
    if not _BARE.fullmatch(ids[0]) or len(ids[0]) > key_max:
        raise _bad_pair(f"Repeatability-Request-ID is a word of at most {key_max} characters")
    key = ids[0].lower() if _UUID.fullmatch(ids[0]) else ids[0]  # a UUID has no case
    return key, _fixdate_ms(times[0])


def _fixdate_ms(text: str) -> int:
    try:
        at_ms = int(parsedate_to_datetime(text).timestamp() * 1000)
        # That reads much more than the one form, and overlooks the wrong day of the week.
        if fixdate(at_ms) == text:
            return at_ms
    except (ValueError, OverflowError):
        pass
    raise _bad_pair("Repeatability-First-Sent is no date such as Tue, 26 Mar 2019 16:06:51 GMT")


def _bad_pair(why: str) -> Refused:
    return Refused(400, "repeatability_invalid", f"{why}. Nothing was executed")


def fixdate(at_ms: int) -> str:
    """Write a time as HTTP has it, whole seconds."""
    return format_datetime(datetime.fromtimestamp(at_ms // 1000, UTC), usegmt=True)


def check_window(first_sent_ms: int, now_ms: int, keep_s: float) -> None:
    """Refuse a repeatable request that may have been executed and forgotten.

    Raises:
        Refused: It is older than what is kept, or from the future (412).
    """
    if first_sent_ms <= now_ms - int(keep_s * 1000):
        raise Refused(
            412,
            "too_old",
            f"it was first sent more than {keep_s:g} s ago: whether it was executed is no longer"
            " known. Nothing was executed now",
        )
    if first_sent_ms > now_ms + SKEW_MS:
        raise Refused(412, "too_new", "its first sending lies in the future. Nothing was executed")


def fingerprint(said: Said, body: bytes, fields: Sequence[str] | None, salt: str = "") -> str:
    """Return what tells one request from another under the same key.

    Method, path and query count, and of the content the listed fields, or all of it. JSON is
    compared by its value: white space and the order of members don't count.
    """
    content = _significant(body, fields)
    head = [said.method.upper(), "/".join(parts_of(said.path)), said.query.decode("latin-1"), salt]
    return hashlib.sha256(json.dumps(head).encode() + b"\n" + content).hexdigest()


def _significant(body: bytes, fields: Sequence[str] | None) -> bytes:
    try:
        value: Json = json.loads(body, object_pairs_hook=_once)
        if fields is not None:
            # A field that is missing and one that is null are told apart.
            value = {name: found for name in fields if (found := _at(value, name)) is not None}
        return b"json " + canonical(value)
    except (ValueError, RecursionError, NotCanonical):
        return b"bytes " + body


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Refuse a name that comes twice: readers differ on which one counts."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member comes twice")
    return members


def _at(value: Json, name: str) -> list[Json] | None:
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return [value]


def read(
    said: Said,
    body: bytes,
    *,
    caller: str,
    fields: Sequence[str] | None,
    form: Form,
    key_max: int,
) -> Asked | None:
    """Return what is asked under which key, or None where the request has no key.

    Raises:
        Refused: The key or its companions are malformed (400).
    """
    key = parse_key(said.all_of(KEY), form=form, key_max=key_max)
    repeatable = parse_repeatable(said, key_max=key_max)
    if key is not None and repeatable is not None:
        raise Refused(400, "two_keys", "Idempotency-Key or Repeatability-Request-ID, not both")
    if repeatable is not None:
        word, at_ms = repeatable
        # A repeat with another time is no repeat.
        mark = fingerprint(said, body, fields, salt=str(at_ms))
        return Asked(caller=caller, key=word, fingerprint=mark, first_sent_ms=at_ms)
    if key is None:
        return None
    return Asked(caller=caller, key=key, fingerprint=fingerprint(said, body, fields))


def kept_headers(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those headers of an answer that are part of what is kept."""
    return [(name.lower(), value) for name, value in headers if name.lower() not in _NOT_KEPT]


def header_of(headers: Mapping[str, str] | Sequence[tuple[str, str]], name: str) -> str | None:
    """Return a header's first value."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return next((value for given, value in pairs if given.lower() == name), None)
