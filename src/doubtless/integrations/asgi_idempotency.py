"""The server half of idempotency, for APIs on ASGI: Starlette, FastAPI, Litestar and others.

    app = IdempotencyMiddleware(
        app,
        store=Store(lambda: sqlite3.connect("shop.db")),
        caller=lambda scope: scope["user"],
        routes=[Route(path="/v1/refunds", required=True, atomic=True)],
    )

A key is held in the owner's database before the handler runs, and its answer is there before
anybody is told it. A request with the same key waits for the first one, and gets its answer.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar, cast

import anyio
from starlette.types import Message, Receive, Scope, Send

from doubtless.integrations.idempotency_course import Conduct, Course, Execution, Pause
from doubtless.integrations.idempotency_desk import Desk, Settings, too_large, unauthenticated
from doubtless.integrations.idempotency_handle import PLACE, Once, operation
from doubtless.integrations.idempotency_requests import Said, below
from doubtless.integrations.idempotency_rules import Answer, Asked, Record, Refused, Route
from doubtless.integrations.idempotency_store import NotYours, Store

__all__ = ["IdempotencyMiddleware", "NotYours", "Once", "Route", "Settings", "Store", "operation"]

T = TypeVar("T")
_LENGTHS: Final = (b"content-length", b"transfer-encoding")
# Frameworks write the types of scopes and messages in ways that don't fit each other.
App: TypeAlias = Callable[..., Awaitable[None]]
Caller: TypeAlias = Callable[[Scope], str | Awaitable[str | None] | None]


class IdempotencyMiddleware:
    """Executes a request with a key once, and answers all that repeat it alike.

    Args:
        app: The application. Other routes than those listed are not touched.
        store: Where keys are kept: in the database of the application.
        caller: Returns whose key it is, from a scope that the owner's authentication has seen.
            None or an empty text is nobody, who is refused with 401. Callers share no keys.
        routes: Where keys are kept, the first that fits.
        settings: What else may be set.
    """

    def __init__(
        self,
        app: App,
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
        self._running: dict[tuple[str, str], anyio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = _said(scope)
        try:
            key = self._desk.key_asked_about(said.method, _raw_path(scope))
            route = None if key is not None else self._desk.route_of(said)
            if key is not None:
                await _give(send, await self._looked_up(scope, key))
            elif route is None:
                await self._app(scope, receive, send)
            else:
                await self._guard(scope, receive, send, said, route)
        except Refused as refused:
            await _give(send, self._desk.refusal(refused, said))

    async def _who(self, scope: Scope) -> str:
        found = self._caller(scope)
        caller = await found if inspect.isawaitable(found) else found
        if not caller:
            raise unauthenticated()
        return caller

    async def _looked_up(self, scope: Scope, key: str) -> Answer:
        caller = await self._who(scope)
        found = await self.store.transactions.run_async(lambda: self.store.find(caller, key))
        return self._desk.look_up(found, key, self.store.now_ms())

    async def _guard(
        self, scope: Scope, receive: Receive, send: Send, said: Said, route: Route
    ) -> None:
        caller = await self._who(scope)
        body = await _read(receive, self._desk.settings.request_max)
        if body is None:
            return  # the client left before it had said everything
        asked = self._desk.asked(said, body, caller=caller, route=route, now_ms=self.store.now_ms())
        if asked is None:
            scope[PLACE] = Once(
                store=self.store, asked=None, token="", status_url=None, caller=caller
            )
            await self._app(scope, _given(body, receive), send)
            return
        held = await self._take(asked, self._conduct.admitted(asked, route))
        if isinstance(held, Record):
            await _give(send, self._desk.replay(held, asked))
            return
        run = _Run(self.store, self._conduct.execution(asked, route, held), route, send)
        run.answer_max = self._desk.settings.answer_max
        place, ended = (asked.caller, asked.key), anyio.Event()
        self._running[place] = ended
        try:
            await run.carry_out(self._app, scope, body)
        finally:
            if self._running.get(place) is ended:
                del self._running[place]
            ended.set()

    async def _take(self, asked: Asked, course: Course[T]) -> T:
        """Take a course, and wait where it waits."""
        value: object = None
        try:
            while True:
                wanted = course.send(value)
                if isinstance(wanted, Pause):
                    await self._pause(asked, wanted)
                    value = None
                else:
                    value = await self.store.transactions.run_async(wanted)
        except StopIteration as end:
            return cast("T", end.value)

    async def _pause(self, asked: Asked, pause: Pause) -> None:
        ended = self._running.get((asked.caller, asked.key))
        if ended is None:
            await anyio.sleep(pause.seconds)
            return
        with anyio.move_on_after(pause.longest_s):
            await ended.wait()


class _Run:
    """Runs the handler under a key, and lets nothing out before it is stored."""

    answer_max = 0

    def __init__(self, store: Store, execution: Execution, route: Route, send: Send) -> None:
        self._store, self._execution, self._route, self._send = store, execution, route, send
        self._start: Message = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._is_whole = False  # all of the handler's answer has come
        self._is_told = False  # the caller has been given an answer, or is being
        self._ended = anyio.Event()  # set once the caller has been told
        self._closes = False  # the server closes the connection after it
        self._streams = False  # it is too long to keep, and goes out as it comes

    async def carry_out(self, app: App, scope: Scope, body: bytes) -> None:
        """Run the handler, and see to it that its end is recorded before it is told."""
        scope[PLACE] = self._execution.once
        scope["extensions"] = {}  # an answer may not go out by a way that isn't seen here
        try:
            await app(scope, _given(body, self._until_told), self._take)
        except Exception:
            if not self._is_told:
                # Servers close a connection of which the handler raised: who reads the answer
                # is to know it, and not to send its next request there.
                self._closes = str(scope.get("http_version", "")).startswith("1")
                await self._tell(self._execution.answered(self._execution.failed()))
            raise
        if not self._is_told:
            # Servers make a 500 of no answer.
            answer = self._answer() if self._is_whole else self._execution.failed()
            await self._tell(self._execution.answered(answer))

    async def _until_told(self) -> Message:
        # That the client has left is no reason to stop in the middle: its repeat wants the answer.
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def _take(self, message: Message) -> None:
        if self._streams:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start, self._parts, self._size = message, [], 0
        elif message["type"] == "http.response.body" and not self._is_told:
            self._parts.append(message.get("body", b""))
            self._size += len(self._parts[-1])
            self._is_whole = not message.get("more_body", False)
            await self._came()

    async def _came(self) -> None:
        execution = self._execution
        if execution.once.recorded is not None:
            if self._is_whole and (done := await self._do(execution.committed())) is not None:
                await self._give(done)
            # Else it may be committed by what runs around the handler: see `carry_out`.
        elif self._size > self.answer_max:
            await self._overflow()
        elif self._is_whole and not self._route.atomic:
            await self._tell(execution.answered(self._answer()))

    async def _overflow(self) -> None:
        begun = self._answer()
        marked = await self._do(self._execution.too_long(begun))
        if marked is None:
            await self._tell(self._execution.answered(begun))
            return
        self._is_told = self._streams = True
        await self._send({**self._start, "headers": _raw(marked)})
        more = not self._is_whole
        await self._send({"type": "http.response.body", "body": begun.body, "more_body": more})

    def _answer(self) -> Answer:
        pairs = self._start.get("headers", ())
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
        return Answer(status=self._start["status"], headers=headers, body=b"".join(self._parts))

    async def _tell(self, course: Course[Answer]) -> None:
        await self._give(await self._do(course))

    async def _give(self, answer: Answer) -> None:
        self._is_told = True
        if self._closes:
            headers = [*answer.headers, ("connection", "close")]
            answer = Answer(status=answer.status, headers=headers, body=answer.body)
        await _give(self._send, answer)
        self._ended.set()

    async def _do(self, course: Course[T]) -> T:
        """Take a course in which nothing waits."""
        value: object = None
        try:
            while True:
                wanted = course.send(value)
                assert not isinstance(wanted, Pause)  # noqa: S101 - only admission waits
                value = await self._store.transactions.run_async(wanted)
        except StopIteration as end:
            return cast("T", end.value)


def _said(scope: Scope) -> Said:
    return Said(
        method=scope["method"].upper(),
        path=scope["path"],
        query=scope.get("query_string", b""),
        root=scope.get("root_path", ""),
        headers=[(n.decode("latin-1").lower(), v.decode("latin-1")) for n, v in scope["headers"]],
    )


def _raw_path(scope: Scope) -> str:
    """Return the path with its escapes, since a key may have a slash."""
    raw = cast("bytes | None", scope.get("raw_path"))
    path = str(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("latin-1")
    return below(scope.get("root_path", ""), path)


async def _read(receive: Receive, most: int) -> bytes | None:
    """Return the whole body; None if the client left.

    Raises:
        Refused: It is longer than `most` bytes (413).
    """
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise too_large(most)
        more = message.get("more_body", False)
    return b"".join(parts)


def _given(body: bytes, then: Receive) -> Receive:
    """Return what gives the body, and after it what `then` gives."""
    is_given = False

    async def given() -> Message:
        nonlocal is_given
        if is_given:
            return await then()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


def _raw(answer: Answer) -> list[tuple[bytes, bytes]]:
    return [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers]


async def _give(send: Send, answer: Answer) -> None:
    body = answer.body or b""
    headers = [each for each in _raw(answer) if each[0] not in _LENGTHS]
    if answer.status not in (204, 304):
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
