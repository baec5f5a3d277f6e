"""What every server does alike, without waiting: which route, which key, which answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

from doubtless.core.model import Json
from doubtless.integrations.idempotency_requests import (
    FIRST_SENT,
    REQUEST_ID,
    RESULT,
    Form,
    Said,
    check_window,
    fixdate,
    header_of,
    read,
)
from doubtless.integrations.idempotency_rules import (
    Answer,
    Asked,
    Record,
    Refused,
    Route,
    State,
    json_answer,
    not_kept,
    parts_of,
    status_url,
    told,
)

MIB: Final = 1 << 20
EXPIRES: Final = "idempotency-expires"
_UNSAFE: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Neither "accepted" nor "rejected" would be true of these.
_NEITHER: Final = frozenset({"in_progress", "outcome_unknown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an owner may set, for all routes."""

    operations_path: str = "/operations/by-id"  # where callers ask what became of a key
    base_url: str = ""  # before that path in status_url: "https://api.example.com", "/mounted"
    help_url: str | None = None  # the owner's page about keys, for problem documents
    keys: Form = "any"  # "quoted": strings of structured fields alone, as the draft has it
    key_max: int = 255  # characters
    request_max: int = MIB  # bytes of a body; more is refused with 413
    answer_max: int = MIB  # bytes of a body that are kept
    repeatable: bool = True  # OASIS Repeatable Requests too
    replayed_header: str = "Idempotency-Replayed"


class Desk:
    """Decides what needs no waiting."""

    def __init__(self, settings: Settings, routes: Sequence[Route]) -> None:
        self.settings, self.routes = settings, tuple(routes)

    def route_of(self, said: Said) -> Route | None:
        """Return the route on which keys are kept, or None.

        Raises:
            Refused: It is a repeatable request, which isn't supported there (501).
        """
        for route in self.routes:
            if route.takes(said.method, said.route_path):
                return route
        if self.settings.repeatable and said.method in _UNSAFE and said.all_of(REQUEST_ID):
            detail = "repeatable requests are not supported here. Nothing was executed"
            raise Refused(501, "not_repeatable", detail)
        return None

    def key_asked_about(self, method: str, raw_path: str) -> str | None:
        """Return the key of a look-up, or None where the request is none."""
        if method not in ("GET", "HEAD"):
            return None
        *place, key = parts_of(raw_path) or [""]
        return unquote(key) if key and place == parts_of(self.settings.operations_path) else None

    def asked(
        self, said: Said, body: bytes, *, caller: str, route: Route, now_ms: int
    ) -> Asked | None:
        """Return what is asked under which key; None where there is no key and none is needed.

        Raises:
            Refused: The key is missing or malformed, or the request too old.
        """
        given = said
        if not self.settings.repeatable:
            ours = [each for each in said.headers if not each[0].startswith("repeatability-")]
            given = replace(said, headers=ours)
        asked = read(
            given,
            body,
            caller=caller,
            fields=route.fields,
            form=self.settings.keys,
            key_max=self.settings.key_max,
        )
        if asked is None and route.required:
            detail = "this operation needs an Idempotency-Key. Nothing was executed"
            raise Refused(400, "key_missing", detail)
        if asked is not None and asked.first_sent_ms is not None:
            check_window(asked.first_sent_ms, now_ms, route.keep_s)
        return asked

    def url_of(self, key: str) -> str:
        """Return where to ask about a key."""
        return self.settings.base_url + status_url(self.settings.operations_path, key)

    def fresh(self, answer: Answer, asked: Asked, expires_ms: int | None) -> Answer:
        """Return an answer as the one whose request was executed gets it."""
        return self._marked(answer, asked, expires_ms, replayed=False)

    def replay(self, found: Record, asked: Asked) -> Answer:
        """Return the stored answer, marked as such."""
        assert found.answer is not None  # noqa: S101 - that is what replaying means
        if found.answer.body is None:
            refusal = not_kept(asked, found, self.url_of(asked.key))
            return self._marked(
                refusal.answer(self.settings.help_url), asked, found.expires_ms, replayed=False
            )
        return self._marked(found.answer, asked, found.expires_ms, replayed=True)

    def _marked(
        self, answer: Answer, asked: Asked, expires_ms: int | None, *, replayed: bool
    ) -> Answer:
        headers = list(answer.headers)
        if expires_ms is not None:
            headers.append((EXPIRES, fixdate(expires_ms)))
        if replayed:
            headers.append((self.settings.replayed_header.lower(), "true"))
        if asked.is_repeatable_request:
            headers.append((RESULT, "accepted"))
        return Answer(status=answer.status, headers=headers, body=answer.body)

    def refusal(self, refused: Refused, said: Said) -> Answer:
        """Return the problem document, with the standard's word for a repeatable request."""
        answer = refused.answer(self.settings.help_url)
        is_repeatable = said.all_of(REQUEST_ID) or said.all_of(FIRST_SENT)
        if not (self.settings.repeatable and is_repeatable) or refused.code in _NEITHER:
            return answer
        headers = [*answer.headers, (RESULT, "rejected")]
        return Answer(status=answer.status, headers=headers, body=answer.body)

    def look_up(self, found: Record | None, key: str, now_ms: int) -> Answer:
        """Tell a caller what became of a key.

        Raises:
            Refused: Nothing is known of it (404).
        """
        if found is None or (found.expires_ms is not None and found.expires_ms <= now_ms):
            raise Refused(
                404,
                "no_such_operation",
                "no request with this key has begun to be executed for this caller, or the time for"
                " which keys are kept is over. One that is still on its way is not excluded",
                headers={"cache-control": "no-store"},
            )
        answer, state = found.answer, told(found, now_ms)
        ended = state in (State.SUCCEEDED, State.FAILED)
        body: dict[str, Json] = {
            "operation_id": key,
            "state": state.value,
            "answered_status": answer.status if answer else None,
            "result": found.result or (_json(answer) if ended else None),
            "created_at": fixdate(found.created_ms),
            "expires_at": None if found.expires_ms is None else fixdate(found.expires_ms),
            "status_url": self.url_of(key),
        }
        return json_answer(200, body, {"cache-control": "no-store"})


def _json(answer: Answer | None) -> Json:
    """Return the stored body where it is JSON."""
    kind = header_of(answer.headers, "content-type") if answer else None
    if answer is None or not answer.body or kind is None or "json" not in kind:
        return None
    try:
        found: Json = json.loads(answer.body)
    except ValueError:
        return None
    return found


def unauthenticated() -> Refused:
    """Refuse a caller whom the owner's function doesn't know."""
    return Refused(401, "who_are_you", "keys belong to callers, and this one is not known")


def too_large(most: int) -> Refused:
    """Refuse a body that is too long to be compared."""
    return Refused(413, "too_large", f"a body has at most {most} bytes here. Nothing was executed")
