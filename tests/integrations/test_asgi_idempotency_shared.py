"""Two servers on one PostgreSQL: a key is held for both, and each finds what the other answered."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route as At
from tests.integrations.idempotent_shop import served

from doubtless.integrations.asgi_idempotency import (
    IdempotencyMiddleware,
    Route,
    Store,
    operation,
)


@pytest.fixture
def address(postgres) -> str:
    """The address of a schema of this test's own."""
    schema = f"idempotency_{os.getpid()}"
    with psycopg.connect(postgres.base, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        connection.execute(f"create table {schema}.refund (id serial primary key, amount int)")
    return f"{postgres.base}&options=-csearch_path%3D{schema}"


def app_on(address: str) -> IdempotencyMiddleware:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(address) as db:
            yield db

    async def refund(request: Request) -> JSONResponse:
        said = await request.json()
        async with transaction() as db:
            made = "insert into refund (amount) values (%s) returning id"
            row = await (await db.execute(made, [said["amount"]])).fetchone()
            assert row is not None
            await db.execute("select pg_sleep(0.2)")  # so that others come while it runs
            body = await operation(request).record_async(db, {"id": row[0]}, status=201)
        return JSONResponse(body, 201)

    return IdempotencyMiddleware(
        Starlette(routes=[At("/v1/refunds", refund, methods=["POST"])]),
        store=Store(transaction),
        caller=lambda scope: "me",
        routes=[Route(path="/v1/refunds", required=True, atomic=True)],
    )


@pytest.mark.proves("PROVIDER-1", "PROVIDER-13")
async def test_of_many_at_once_on_two_servers_one_is_executed(address):
    apps = app_on(address), app_on(address)
    await apps[0].store.create_tables_async()
    with served(apps[0]) as one, served(apps[1]) as other:
        async with httpx2.AsyncClient(timeout=20) as client:
            said: dict[str, Any] = {"json": {"amount": 5}, "headers": {"Idempotency-Key": "k"}}
            answers = await asyncio.gather(
                *(client.post(f"{url}/v1/refunds", **said) for url in [one, other] * 10)
            )
    assert Counter(each.status_code for each in answers) == {201: 20}
    assert Counter(each.headers.get("idempotency-replayed") for each in answers) == {
        "true": 19,
        None: 1,
    }
    with psycopg.connect(address) as db:
        assert db.execute("select count(*) from refund").fetchone() == (1,)
