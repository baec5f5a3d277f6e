"""An API of a shop, as an owner would write it with our middleware: real sockets, real SQLite."""

import asyncio
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as Path_
from starlette.types import ASGIApp, Scope

from doubtless.integrations.asgi_idempotency import (
    IdempotencyMiddleware,
    Route,
    Settings,
    Store,
    operation,
)

Dies = Literal["never", "before", "between", "after"]
TABLES = (
    "create table if not exists refund (id integer primary key, amount integer, note text)",
    "create table if not exists queue (key text)",
)


class Clock:
    """Real time, which a test may move on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


class Shop:
    """The owner's database and handlers. Its rows are the count of effects."""

    def __init__(self, path: Path, dies: Dies = "never") -> None:
        self.path, self.dies = path, dies
        self.clock = Clock()
        self.store = Store(self.connect, clock=self.clock)
        self.entered = threading.Semaphore(0)
        self.goes_on = threading.Event()  # what the slow handlers wait for
        self.raises: Exception | None = None
        self.status = 201

    def create(self) -> None:
        with self.connection() as db:
            db.execute("pragma journal_mode = wal")
            for statement in TABLES:
                db.execute(statement)
        self.store.create_tables()

    def begin_anew(self) -> None:
        """Forget everything, and let handlers run."""
        with self.connection() as db:
            for table in ("refund", "queue", "idempotency"):
                db.execute(f"delete from {table}")  # noqa: S608 - our own names
        self.entered, self.raises, self.status = threading.Semaphore(0), None, 201
        self.clock.ahead_s = 0.0
        self.goes_on.set()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10)

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        db = self.connect()
        try:
            with db:
                yield db
        finally:
            db.close()

    def effects(self) -> int:
        with self.connection() as db:
            return int(db.execute("select count(*) from refund").fetchone()[0])

    def keys(self) -> list[str]:
        with self.connection() as db:
            return [row[0] for row in db.execute("select key from idempotency order by key")]

    def _refunded(self, db: sqlite3.Connection, said: dict[str, Any]) -> int:
        values = (said.get("amount"), said.get("note"))
        cursor = db.execute("insert into refund (amount, note) values (?, ?)", values)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _die(self, at: Dies) -> None:
        if self.dies == at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def in_one_transaction(self, request: Request) -> Response:
        """Act and record together, as the page for providers tells it."""
        once, said = operation(request), await request.json()
        self.entered.release()
        await asyncio.to_thread(self.goes_on.wait, 20)
        self._die("before")
        with self.connection() as db:
            number = self._refunded(db, said)
            self._die("between")
            body = once.record(db, {"id": number}, status=201, headers={"X-Shop": "one"})
        self._die("after")
        if self.raises is not None:
            raise self.raises
        return JSONResponse(body, 201)

    async def plainly(self, request: Request) -> Response:
        """Act in a transaction of its own, and leave the record to the middleware."""
        said = await request.json()
        self.entered.release()
        await asyncio.to_thread(self.goes_on.wait, 20)
        with self.connection() as db:
            number = self._refunded(db, said)
        self._die("between")
        if self.raises is not None:
            raise self.raises
        return JSONResponse({"id": number}, self.status, {"Set-Cookie": "a=b", "X-Shop": "two"})

    async def streamed(self, request: Request) -> Response:
        """Act, and answer in parts; the query says how many."""
        with self.connection() as db:
            self._refunded(db, await request.json())
        count = int(request.query_params["parts"])

        async def parts() -> AsyncIterator[bytes]:
            for number in range(count):
                yield f"part {number};".encode()
                self.entered.release()
                if not self.goes_on.is_set():
                    await asyncio.to_thread(self.goes_on.wait, 20)

        return StreamingResponse(parts(), 200, media_type="text/plain")

    async def forgets(self, request: Request) -> Response:
        """Act, and record nothing on a route that promises it."""
        with self.connection() as db:
            self._refunded(db, await request.json())
        return JSONResponse({})

    async def accepts(self, request: Request) -> Response:
        """Put the work into a queue."""
        once = operation(request)
        with self.connection() as db:
            db.execute("insert into queue values (?)", [once.key])
            body = once.accept(db)
        return JSONResponse(body, 202)

    async def open_to_all(self, request: Request) -> Response:
        """Act on every request: no key is kept here."""
        with self.connection() as db:
            return JSONResponse({"id": self._refunded(db, await request.json())}, 201)

    def app(
        self, *, settings: Settings | None = None, everybody: str | None = None, **changes: Any
    ) -> ASGIApp:
        """Return the guarded application; `changes` are those of every route.

        With `everybody` all requests come from that one caller.
        """
        paths: dict[str, tuple[Any, dict[str, Any]]] = {
            "/v1/refunds": (self.in_one_transaction, {"required": True, "atomic": True}),
            "/v1/plain": (self.plainly, {"required": True}),
            "/v1/lenient": (self.plainly, {"stores": "success_only"}),
            "/v1/streams": (self.streamed, {}),
            "/v1/forgets": (self.forgets, {"atomic": True}),
            "/v1/jobs": (self.accepts, {"required": True, "atomic": True}),
            "/v1/some": (self.plainly, {"fields": ("amount",)}),
        }
        inner = Starlette(
            routes=[
                Path_("/v1/open", self.open_to_all, methods=["POST"]),
                *(Path_(path, each, methods=["POST"]) for path, (each, _) in paths.items()),
            ]
        )
        routes = [Route(path=path, **{**said, **changes}) for path, (_, said) in paths.items()]
        inner.add_middleware(
            IdempotencyMiddleware,
            store=self.store,
            caller=(lambda scope: everybody) if everybody else caller,
            routes=routes,
            settings=settings,
        )
        return inner


def caller(scope: Scope) -> str | None:
    """Whose key it is: here simply what the request says."""
    headers = dict(scope["headers"])
    found: bytes = headers.get(b"authorization", b"")
    return found.decode() or None


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a free port of loopback, on a thread; its address."""
    with listening() as sock:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def listening() -> Iterator[socket.socket]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=128)
    try:
        yield sock
    finally:
        sock.close()
