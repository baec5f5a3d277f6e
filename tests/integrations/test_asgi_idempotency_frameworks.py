"""The same middleware around FastAPI and Litestar, with handlers as their users write them."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

import aiosqlite
import httpx2
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi import Request as FastRequest
from fastapi.middleware import Middleware
from litestar import Litestar, post
from litestar import Request as StarRequest
from litestar.exceptions import HTTPException as StarHTTPException
from litestar.params import FromPath, JSONBody
from starlette.types import ASGIApp
from tests.integrations.idempotent_shop import served

from doubtless.integrations.asgi_idempotency import (
    IdempotencyMiddleware,
    Route,
    Store,
    operation,
)

REFUND = {"amount": 500}
ROUTES = [
    Route(path="/v1/refunds", required=True, atomic=True),
    Route(path="/v1/plain/{kind}", methods=("POST", "PUT")),
]


class Place:
    """A database, counted by its rows."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        with closing(self.connect()) as db, db:
            db.execute("pragma journal_mode = wal")
            db.execute("create table refund (id integer primary key, amount integer)")
        self.store = Store(self.connect)
        self.store.create_tables()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10)

    def refund(self, amount: int) -> int:
        with closing(self.connect()) as db, db:
            number = db.execute("insert into refund (amount) values (?)", [amount]).lastrowid
            assert number is not None
            return number

    def effects(self) -> int:
        with closing(self.connect()) as db:
            return int(db.execute("select count(*) from refund").fetchone()[0])

    def guard(self) -> dict[str, Any]:
        return {"store": self.store, "caller": lambda scope: "me", "routes": ROUTES}


def fastapi_app(place: Place) -> ASGIApp:
    """Blocking handlers; the transaction is a dependency's, and ends after the handler."""

    def transaction() -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(place.path, timeout=10, check_same_thread=False)
        with closing(db), db:
            yield db

    # FastAPI may build its middleware after the first request: it is given at the start.
    app = FastAPI(middleware=[Middleware(IdempotencyMiddleware, **place.guard())])

    @app.post("/v1/refunds", status_code=201)
    def refund(
        request: FastRequest,
        said: dict[str, int],
        db: Annotated[sqlite3.Connection, Depends(transaction)],
    ) -> Any:
        number = db.execute("insert into refund (amount) values (?)", [said["amount"]]).lastrowid
        return operation(request).record(db, {"id": number}, status=201)

    @app.post("/v1/plain/{kind}")
    def plain(kind: str, said: dict[str, int]) -> dict[str, int]:
        if kind == "refused":
            raise HTTPException(402, "no money")
        return {"id": place.refund(said["amount"])}

    return app


def litestar_app(place: Place) -> ASGIApp:
    """Asynchronous handlers. Its own middleware sees routed requests alone, so it is wrapped."""

    @asynccontextmanager
    async def transaction() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(place.path, timeout=10) as db:
            yield db
            await db.commit()

    @post("/v1/refunds")
    async def refund(request: StarRequest[Any, Any, Any], data: JSONBody[dict[str, int]]) -> Any:
        async with transaction() as db:
            made = "insert into refund (amount) values (?)"
            number = (await db.execute(made, [data["amount"]])).lastrowid
            return await operation(request).record_async(db, {"id": number}, status=201)

    @post("/v1/plain/{kind:str}", status_code=200)
    async def plain(kind: FromPath[str], data: JSONBody[dict[str, int]]) -> dict[str, int]:
        if kind == "refused":
            raise StarHTTPException(status_code=402, detail="no money")
        return {"id": await asyncio.to_thread(place.refund, data["amount"])}

    return IdempotencyMiddleware(Litestar([refund, plain], logging_config=None), **place.guard())


@pytest.fixture(params=[fastapi_app, litestar_app], ids=["fastapi", "litestar"])
def place(request, tmp_path) -> Iterator[tuple[Place, str]]:
    made: Callable[[Place], ASGIApp] = request.param
    found = Place(tmp_path)
    with served(made(found)) as url:
        yield found, url


def sending(client: httpx2.AsyncClient, path: str, key: str) -> Awaitable[httpx2.Response]:
    return client.post(path, json=REFUND, headers={"Idempotency-Key": key})


@pytest.mark.proves("PROVIDER-14")
async def test_one_is_executed_and_the_others_get_its_answer_in_each_framework(place):
    shop, url = place
    async with httpx2.AsyncClient(base_url=url, timeout=20) as client:
        for path, status in (("/v1/refunds", 201), ("/v1/plain/sale", 200)):
            said = await asyncio.gather(*(sending(client, path, path) for _ in range(12)))
            assert Counter(each.status_code for each in said) == {status: 12}
            assert len({each.text for each in said}) == 1
            assert sum(each.headers.get("idempotency-replayed") == "true" for each in said) == 11
        assert shop.effects() == 2
        refused = [await sending(client, "/v1/plain/refused", "no") for _ in range(2)]
        assert [each.status_code for each in refused] == [402, 402]
        assert refused[0].json() == refused[1].json()
        missing = await client.post("/v1/refunds/", json=REFUND)
        assert (missing.status_code, missing.json()["code"]) == (400, "key_missing")
        told = (await client.get("/operations/by-id/%2Fv1%2Frefunds")).json()
        assert (told["state"], told["result"]) == ("succeeded", {"id": 1})
    assert shop.effects() == 2
