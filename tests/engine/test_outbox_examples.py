"""The examples of docs/sequences-and-outbox.md for connections of one's own, run as they stand."""

import ast
import inspect
import re
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # it comes without types
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from tests.engine.functions import WRITE
from tests.engine.shop import ORDERS, on_server

from doubtless import Call, Doubtless
from doubtless.ledger.address import schema_of

PAGE = Path(__file__).parents[2] / "docs" / "sequences-and-outbox.md"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


LIBRARIES = {"asyncpg": asyncpg, "psycopg": psycopg, "text": text, "AsyncSession": AsyncSession}


async def run(example: str, names: dict[str, object]) -> None:
    code = compile(example, str(PAGE), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, names)  # noqa: S307 - an example of ours
    if inspect.isawaitable(found):
        await found


@pytest.mark.proves("OUTBOX-9")
async def test_the_examples_for_each_driver_do_what_they_say(postgres):
    address = on_server(postgres)
    database = schema_of(address)[0]
    page = PAGE.read_text(encoding="utf-8").partition("### On a connection of your own")[2]
    examples = EXAMPLE.findall(page)
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: asyncpg.connect(database),
        poolclass=NullPool,
    )
    app, blocking, done = Doubtless(address), Doubtless.sync(address, worker=False), list[str]()

    async def refund(call: Call, charge: str, amount: int) -> None:
        done.append(charge)

    app.tool(**WRITE)(refund)
    blocking.tool(**WRITE)(refund)
    names = {**LIBRARIES, "app": app, "blocking": blocking, "database": database, "engine": engine}
    async with app:
        async with app.transaction() as tx:
            await tx.run(ORDERS)
            await tx.run("insert into orders select n, 'paid' from generate_series(1, 4) as n")
        with blocking:
            for example in examples:
                await run(example, names)
        for number in range(1, 5):
            told = await app.wait(f"refund_{number}", timeout=5)
            assert told.status == "succeeded"
        async with app.transaction() as tx:
            rows = await tx.rows("select state, count(*) as n from orders group by state")
    assert rows == [{"state": "refunding", "n": 4}]
    assert sorted(done) == ["ch_1", "ch_2", "ch_3", "ch_4"]
    assert len(examples) == 4
