"""The server half of idempotency, for APIs on WSGI: Django, Flask and others.

    application = IdempotencyMiddleware(
        get_wsgi_application(),
        store=Store(transaction),
        caller=lambda environ: owner_of(environ.get("HTTP_AUTHORIZATION")),
        routes=[Route(path="/v1/refunds", required=True, atomic=True)],
    )

It is the ASGI middleware's equal, but that an answer is always gathered whole before it goes out.
"""

import io
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from doubtless.integrations.idempotency_course import Conduct, Course, Execution, Pause
from doubtless.integrations.idempotency_desk import Desk, Settings, too_large, unauthenticated
from doubtless.integrations.idempotency_handle import PLACE, Once, operation
from doubtless.integrations.idempotency_requests import Said, below
from doubtless.integrations.idempotency_rules import Answer, Asked, Record, Refused, Route
from doubtless.integrations.idempotency_store import NotYours, Store

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["IdempotencyMiddleware", "NotYours", "Once", "Route", "Settings", "Store", "operation"]

T = TypeVar("T")
Caller: TypeAlias = "Callable[[WSGIEnvironment], str | None]"
_LENGTHS: Final = ("content-length", "transfer-encoding")
_PLAIN: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}


class IdempotencyMiddleware:
    """Executes a request with a key once, and answers all that repeat it alike.

    Args:
        app: The application. Other routes than those listed are not touched.
        store: Where keys are kept; its transactions block.
        caller: Returns whose key it is, from an environment that the owner's authentication has
            seen. None or an empty text is nobody, who is refused with 401. Callers share no keys.
        routes: Where keys are kept, the first that fits.
        settings: What else may be set.
    """

    def __init__(
        self,
        app: "WSGIApplication",
        *,
        store: Store,
        caller: Caller,
        routes: Sequence[Route],
        settings: Settings | None = None,
    ) -> None:
        self._app, self._caller = app, caller
        self.store = store
        self._desk = Desk(settings or Settings(), routes)
        self._conduct = Conduct(store, self._desk)
        self._running: dict[tuple[str, str], threading.Event] = {}

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Serve one request."""
        said = _said(environ)
        try:
            key = self._desk.key_asked_about(said.method, _raw_path(environ))
            route = None if key is not None else self._desk.route_of(said)
            if key is not None:
                return _give(start_response, self._looked_up(environ, key))
            if route is None:
                return self._app(environ, start_response)
            return self._guard(environ, start_response, said, route)
        except Refused as refused:
            return _give(start_response, self._desk.refusal(refused, said))

    def _who(self, environ: "WSGIEnvironment") -> str:
        caller = self._caller(environ)
        if not caller:
            raise unauthenticated()
        return caller

    def _looked_up(self, environ: "WSGIEnvironment", key: str) -> Answer:
        caller = self._who(environ)
        found = self.store.transactions.run(lambda: self.store.find(caller, key))
        return self._desk.look_up(found, key, self.store.now_ms())

    def _guard(
        self,
        environ: "WSGIEnvironment",
        start_response: "StartResponse",
        said: Said,
        route: Route,
    ) -> Iterable[bytes]:
        caller = self._who(environ)
        body = _read(environ, self._desk.settings.request_max)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
        asked = self._desk.asked(said, body, caller=caller, route=route, now_ms=self.store.now_ms())
        if asked is None:
            environ[PLACE] = Once(
                store=self.store, asked=None, token="", status_url=None, caller=caller
            )
            return self._app(environ, start_response)
        held = self._take(asked, self._conduct.admitted(asked, route))
        if isinstance(held, Record):
            return _give(start_response, self._desk.replay(held, asked))
        place, ended = (asked.caller, asked.key), threading.Event()
        self._running[place] = ended
        try:
            execution = self._conduct.execution(asked, route, held)
            return self._carried_out(asked, execution, environ, start_response)
        finally:
            if self._running.get(place) is ended:
                del self._running[place]
            ended.set()

    def _carried_out(
        self,
        asked: Asked,
        execution: Execution,
        environ: "WSGIEnvironment",
        start_response: "StartResponse",
    ) -> Iterable[bytes]:
        environ[PLACE] = execution.once
        try:
            answer = _gathered(self._app, environ)
        except Exception:
            self._take(asked, execution.answered(execution.failed()))
            raise
        if len(answer.body or b"") > self._desk.settings.answer_max:
            marked = self._take(asked, execution.too_long(answer))
            if marked is not None:
                return _give(start_response, marked)
        return _give(start_response, self._take(asked, execution.answered(answer)))

    def _take(self, asked: Asked, course: Course[T]) -> T:
        """Take a course, and wait where it waits."""
        value: object = None
        try:
            while True:
                wanted = course.send(value)
                if isinstance(wanted, Pause):
                    self._pause(asked, wanted)
                    value = None
                else:
                    value = self.store.transactions.run(wanted)
        except StopIteration as end:
            return cast("T", end.value)

    def _pause(self, asked: Asked, pause: Pause) -> None:
        ended = self._running.get((asked.caller, asked.key))
        if ended is None:
            time.sleep(pause.seconds)
        else:
            ended.wait(pause.longest_s)


def _said(environ: "WSGIEnvironment") -> Said:
    headers = [
        (name[5:].replace("_", "-").lower(), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    headers += [(named, str(environ[name])) for name, named in _PLAIN.items() if environ.get(name)]
    root = _decoded(environ.get("SCRIPT_NAME", ""))
    return Said(
        method=str(environ["REQUEST_METHOD"]).upper(),
        path=root + _decoded(environ.get("PATH_INFO", "")),
        root=root,
        query=str(environ.get("QUERY_STRING", "")).encode("latin-1"),
        headers=headers,
    )


def _decoded(text: object) -> str:
    return str(text).encode("latin-1").decode(errors="replace")


def _raw_path(environ: "WSGIEnvironment") -> str:
    """Return the path; servers that keep its escapes have them under one of two names."""
    for name in ("RAW_URI", "REQUEST_URI"):
        if (raw := environ.get(name)) and str(raw).startswith("/"):
            return below(str(environ.get("SCRIPT_NAME", "")), str(raw).partition("?")[0])
    return str(environ.get("PATH_INFO", ""))


def _read(environ: "WSGIEnvironment", most: int) -> bytes:
    """Return the whole body.

    Raises:
        Refused: It is longer than `most` bytes (413), or its length isn't said (411).
    """
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = 0
    if not length and "HTTP_TRANSFER_ENCODING" in environ:
        detail = "a body comes with its Content-Length here. Nothing was executed"
        raise Refused(411, "length_required", detail)
    if length > most:
        raise too_large(most)
    body = environ["wsgi.input"].read(length) if length > 0 else b""
    if len(body) < length:
        raise Refused(400, "incomplete_body", "the body ended early. Nothing was executed")
    return bytes(body)


def _gathered(app: "WSGIApplication", environ: "WSGIEnvironment") -> Answer:
    """Run the application, and return its whole answer."""
    heads: list[tuple[int, list[tuple[str, str]]]] = []
    parts: list[bytes] = []

    def start(status: str, headers: list[tuple[str, str]], _: object = None) -> object:
        heads.append((int(status.split(" ", 1)[0]), headers))
        return parts.append

    chunks = app(environ, cast("StartResponse", start))
    try:
        parts.extend(chunks)
    finally:
        if (close := getattr(chunks, "close", None)) is not None:
            close()
    status, headers = heads[-1]
    return Answer(status=status, headers=headers, body=b"".join(parts))


def _give(start_response: "StartResponse", answer: Answer) -> Iterable[bytes]:
    body = answer.body or b""
    headers = [each for each in answer.headers if each[0].lower() not in _LENGTHS]
    if answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        headers.append(("content-length", str(len(body))))
    phrase = ""
    with suppress(ValueError):  # a status of the owner's own
        phrase = HTTPStatus(answer.status).phrase
    start_response(f"{answer.status} {phrase}", headers)
    return [body]
