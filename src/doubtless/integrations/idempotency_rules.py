"""What a provider decides of a request with a key: pure, for every store and every server.

The rules are those of the Idempotency-Key draft (draft-ietf-httpapi-idempotency-key-header) and of
OASIS Repeatable Requests 1.0. Times are milliseconds since 1970, by the clock of the provider.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import quote

from doubtless.core.model import Json

DAY_S: Final = 86_400.0
RUN_LIMIT_S: Final = 60.0
PROBLEM: Final = "application/problem+json"

Stores = Literal["all", "success_only"]
Headers = Sequence[tuple[str, str]]


class State(enum.StrEnum):
    """Where the work under a key is. What is told at `/operations/by-id/…` too."""

    IN_PROGRESS = "in_progress"
    ACCEPTED = "accepted"  # answered with 202; the work goes on
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"  # it ended without a word: nobody can say what it did


class Step(enum.Enum):
    """What to do with a request under a key."""

    EXECUTE = enum.auto()  # nothing is known of the key, or its time is over
    TAKE_OVER = enum.auto()  # the execution died, and what it had done was rolled back with it
    REPLAY = enum.auto()
    WAIT = enum.auto()  # the first request still runs
    MISMATCH = enum.auto()  # the key came before with another content
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route on which keys are kept.

    Raises:
        ValueError: `stores`, a method or a time makes no sense.
    """

    path: str  # "/v1/refunds", "/v1/orders/{id}/refunds"; a slash at the end means the same
    methods: tuple[str, ...] = ("POST",)
    required: bool = False  # 400 without a key
    # Dotted names in a JSON body. What else differs is no other payload; None: everything counts.
    fields: tuple[str, ...] | None = None
    stores: Stores = "all"  # "success_only": a 4xx means that nothing was done, and is not kept
    atomic: bool = False  # the handler records its answer in the transaction of its change
    keep_s: float = DAY_S  # how long a key is kept, from the first request with it
    wait_s: float = 15.0  # how long a request waits for the first one before it is told 409
    run_limit_s: float = (
        RUN_LIMIT_S  # an execution that has said nothing for so long is taken for dead
    )

    def __post_init__(self) -> None:
        if self.stores not in ("all", "success_only"):
            raise ValueError(f"{self.path}: stores is 'all' or 'success_only', not {self.stores!r}")
        if {each.upper() for each in self.methods} & {"GET", "HEAD", "OPTIONS", "TRACE"}:
            raise ValueError(f"{self.path}: a method that changes nothing needs no key")
        if min(self.keep_s, self.run_limit_s) <= 0 or self.wait_s < 0:
            raise ValueError(f"{self.path}: times are seconds above zero")
        if self.keep_s < self.run_limit_s:
            raise ValueError(f"{self.path}: keep_s is shorter than run_limit_s")

    def takes(self, method: str, path: str) -> bool:
        """Whether a request with this method and decoded path is for this route."""
        if method.upper() not in {each.upper() for each in self.methods}:
            return False
        here, there = parts_of(self.path), parts_of(path)
        return len(here) == len(there) and all(
            part == given or (part.startswith("{") and part.endswith("}"))
            for part, given in zip(here, there, strict=True)
        )


def parts_of(path: str) -> list[str]:
    """Return the segments of a path. Servers route `/a//b/` as `/a/b`, so it is the same here."""
    return [part for part in path.split("/") if part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as it is stored, and given again."""

    status: int
    headers: Headers = ()  # names in lower case, without those of the connection
    body: bytes | None = b""  # None: it was too long to keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a provider remembers of a key."""

    fingerprint: str
    state: State
    token: str  # of the execution: whoever has lost it may not record
    created_ms: int
    until_ms: int  # an execution that has said nothing by then is taken for dead
    expires_ms: int | None  # None: never
    atomic: bool = False  # the execution records what it does in the transaction that does it
    answer: Answer | None = None
    result: Json = None  # of accepted work


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request under a key, as far as a decision needs it."""

    caller: str
    key: str
    fingerprint: str
    first_sent_ms: int | None = None  # of a repeatable request (OASIS)

    @property
    def is_repeatable_request(self) -> bool:
        """Whether it came by the OASIS standard, and is answered by it."""
        return self.first_sent_ms is not None


def decide(found: Record | None, fingerprint: str, now_ms: int) -> Step:
    """Choose what to do with a request. Pure: the same arguments always give the same step."""
    if found is None or (found.expires_ms is not None and found.expires_ms <= now_ms):
        return Step.EXECUTE
    if found.fingerprint != fingerprint:
        return Step.MISMATCH
    if found.state is State.UNKNOWN:
        return Step.REPLAY if found.answer is not None else Step.UNKNOWN
    if found.state is not State.IN_PROGRESS:
        return Step.REPLAY
    if now_ms < found.until_ms:
        return Step.WAIT
    # What it did can't be committed any more: its record has another token by then.
    return Step.TAKE_OVER if found.atomic else Step.UNKNOWN


class Ending(enum.Enum):
    """What becomes of a key once its execution has ended."""

    KEEP = enum.auto()  # the answer is stored, and replayed
    GIVE_BACK = enum.auto()  # nothing was done: a repeat is executed
    GIVE_UP = enum.auto()  # nobody knows what was done: a repeat is not executed


def ending(status: int, *, stores: Stores, atomic: bool) -> Ending:
    """Choose what becomes of a key whose handler answered, and recorded nothing itself.

    Args:
        status: Of the answer; 500 where the handler raised.
        stores: What the route declares.
        atomic: Whether all that the handler does is recorded with it. Then an answer without a
            record is an answer without an effect.
    """
    if status < HTTPStatus.BAD_REQUEST:
        return Ending.GIVE_UP if atomic else Ending.KEEP
    if stores == "all":
        return Ending.KEEP
    if atomic or status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Ending.GIVE_BACK
    return Ending.GIVE_UP


def state_of(status: int, *, rolled_back: bool = False) -> State:
    """Return what an answer says of the work. A 5xx alone proves nothing, whoever gave it."""
    if status == HTTPStatus.ACCEPTED:
        return State.ACCEPTED
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not rolled_back:
        return State.UNKNOWN
    return State.FAILED if status >= HTTPStatus.BAD_REQUEST else State.SUCCEEDED


def told(found: Record, now_ms: int) -> State:
    """Return the state as it is told to the caller."""
    overdue = found.state is State.IN_PROGRESS and now_ms >= found.until_ms
    return State.UNKNOWN if overdue and not found.atomic else found.state


def to_bytes(value: Json) -> bytes:
    """Write JSON in UTF-8; what UTF-8 can't carry is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def json_answer(
    status: int,
    body: Json,
    headers: Mapping[str, str] | None = None,
    *,
    media_type: str = "application/json",
) -> Answer:
    """Return an answer with a JSON body."""
    named = [(name.lower(), value) for name, value in (headers or {}).items()]
    if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return Answer(status=status, headers=named)
    return Answer(
        status=status, headers=[("content-type", media_type), *named], body=to_bytes(body)
    )


class Refused(Exception):
    """A request is answered with a problem document (RFC 9457), and not executed."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: Json,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers, self.members = dict(headers or {}), members

    def answer(self, help_url: str | None = None) -> Answer:
        """Return the document; `help_url` is the owner's page about keys."""
        document: dict[str, Json] = {
            "type": help_url or "about:blank",
            "title": TITLES.get(self.code, HTTPStatus(self.status).phrase),
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            **self.members,
        }
        return json_answer(self.status, document, self.headers, media_type=PROBLEM)


# The titles of the draft.
TITLES: Final = {
    "key_missing": "Idempotency-Key is missing",
    "key_reused": "Idempotency-Key is already used",
    "in_progress": "A request is outstanding for this Idempotency-Key",
}


def status_url(base: str, key: str) -> str:
    """Return where a caller asks about a key; `base` is the place of all of them."""
    return f"{base.rstrip('/')}/{quote(key, safe='')}"


def mismatch(asked: Asked) -> Refused:
    """Refuse a key that came before with another content."""
    detail = (
        f"the key {asked.key!r} came before with another request: another method, path or content."
        " Nothing was executed. A key stands for one request; a new intent needs a new key"
    )
    if asked.is_repeatable_request:
        return Refused(400, "key_reused", detail)
    return Refused(422, "key_reused", detail)


def still_running(asked: Asked, url: str) -> Refused:
    """Say that the first request under the key has no answer yet."""
    return Refused(
        409,
        "in_progress",
        "the first request with this key is still being executed; this one was not. Ask at"
        " status_url, or send the same request again later",
        headers={"retry-after": "1"},
        operation_id=asked.key,
        state=State.IN_PROGRESS.value,
        status_url=url,
    )


def not_known(asked: Asked, url: str) -> Refused:
    """Say that nobody knows what the first request did."""
    return Refused(
        409,
        "outcome_unknown",
        "the first request with this key ended without an answer: it may have taken effect or not."
        " It is not executed again. Ask at status_url, or the provider's support",
        operation_id=asked.key,
        state=State.UNKNOWN.value,
        status_url=url,
    )


def not_kept(asked: Asked, record: Record, url: str) -> Refused:
    """Say that the request was executed, and that its answer was too long to keep."""
    assert record.answer is not None  # noqa: S101 - callers have seen it
    return Refused(
        409,
        "answer_not_kept",
        "the first request with this key was executed, and answered with the given status; its"
        " body was too long to be kept. It is not executed again",
        operation_id=asked.key,
        state=record.state.value,
        answered_status=record.answer.status,
        status_url=url,
    )
