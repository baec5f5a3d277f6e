"""Records on connections of the usual drivers, and who may record when a key was taken over."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count
from typing import Any

import aiosqlite
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine

from doubtless.integrations.idempotency_drivers import written
from doubtless.integrations.idempotency_handle import Once
from doubtless.integrations.idempotency_rules import Asked, Record, Route, State, Step, decide
from doubtless.integrations.idempotency_store import Held, NotYours, Store

ASKED = Asked(caller="me", key="k:1 %s", fingerprint="f")
ROUTE = Route(path="/x", atomic=True, run_limit_s=5, keep_s=10)
numbers = count(1)


class Place:
    """A database with our table, and how to get at it."""

    def __init__(self, transaction: Callable[[], Any], *, table: str = "idempotency") -> None:
        self.clock_s = 1000.0
        self.store = Store(transaction, table=table, clock=lambda: self.clock_s)
        self.transaction = transaction

    def find(self) -> Record | None:
        return self.store.transactions.run(lambda: self.store.find(ASKED.caller, ASKED.key))

    def claim(self) -> Held | None:
        """Take the key if it may be taken now."""
        found = self.find()
        step = decide(found, ASKED.fingerprint, self.store.now_ms())
        assert step in (Step.EXECUTE, Step.TAKE_OVER)
        return self.store.transactions.run(lambda: self.store.claim(ASKED, ROUTE, step, found))

    def once(self, held: Held | None) -> Once:
        assert held is not None
        return Once(
            store=self.store, asked=ASKED, token=held.token, status_url="/by-id", caller="me"
        )


def on_sqlite3(path: str, postgres: Any) -> Callable[[], Any]:
    return lambda: sqlite3.connect(path)


def on_sqlite3_rows(path: str, postgres: Any) -> Callable[[], Any]:
    def opened() -> sqlite3.Connection:
        db = sqlite3.connect(path)
        db.row_factory = sqlite3.Row
        return db

    return opened


def on_alchemy(path: str, postgres: Any) -> Callable[[], Any]:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=sqlalchemy.NullPool)
    return engine.begin


def on_psycopg(path: str, postgres: Any) -> Callable[[], Any]:
    return lambda: psycopg.connect(schema(postgres()))


def on_psycopg_dicts(path: str, postgres: Any) -> Callable[[], Any]:
    return lambda: psycopg.connect(schema(postgres()), row_factory=dict_row)


def on_alchemy_psycopg(path: str, postgres: Any) -> Callable[[], Any]:
    address = schema(postgres())
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(address),
        poolclass=sqlalchemy.NullPool,
    )
    return engine.begin


def schema(server: Any) -> str:
    return f"{server.base}&options=-csearch_path%3Didempotent"


def on_aiosqlite(path: str, postgres: Any) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(path) as db:
            yield db
            await db.commit()

    return opened


def on_async_alchemy(path: str, postgres: Any) -> Callable[[], Any]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=sqlalchemy.NullPool)
    return engine.begin


def on_async_psycopg(path: str, postgres: Any) -> Callable[[], Any]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(schema(postgres())) as db:
            yield db

    return opened


BLOCKING = [
    on_sqlite3,
    on_sqlite3_rows,
    on_alchemy,
    on_psycopg,
    on_psycopg_dicts,
    on_alchemy_psycopg,
]
ASYNCHRONOUS = [on_aiosqlite, on_async_alchemy, on_async_psycopg]


@pytest.fixture
def of(request, tmp_path) -> Callable[[Callable[..., Any]], Place]:
    """What makes a place of a driver, with a table of its own."""

    def made(driver: Callable[..., Any]) -> Place:
        def server() -> Any:
            return request.getfixturevalue("postgres")

        if "psycopg" in driver.__name__:
            with psycopg.connect(server().base, autocommit=True) as connection:
                connection.execute("create schema if not exists idempotent")
            table = f"keys_{next(numbers)}"
            with psycopg.connect(schema(server()), autocommit=True) as connection:
                connection.execute(f"drop table if exists {table}")
        else:
            table = "keys"
        return Place(driver(str(tmp_path / "shop.db"), server), table=table)

    return made


@pytest.mark.proves("PROVIDER-13")
@pytest.mark.parametrize("driver", BLOCKING)
def test_a_record_is_made_in_the_owners_transaction_on_any_blocking_driver(of, driver):
    place = of(driver)
    for _ in range(2):
        place.store.create_tables()
    held = place.claim()
    again = place.store.claim(ASKED, ROUTE, Step.EXECUTE, None)
    assert place.store.transactions.run(lambda: again) is None  # another was quicker
    once = place.once(held)
    with suppress(RolledBack), place.transaction() as db:
        once.record(db, {"n": 1})
        raise RolledBack
    found = place.find()
    assert (found.state, found.answer) == (State.IN_PROGRESS, None)
    with place.transaction() as db:
        once.record(db, {"n": "ü\0"}, status=201, headers={"X-One": "a"})
    found = place.find()
    assert (found.state, found.answer.status) == (State.SUCCEEDED, 201)
    assert found.answer.headers == [("content-type", "application/json"), ("x-one", "a")]
    assert found.answer.body == '{"n":"ü\\u0000"}'.encode()
    place.clock_s += 11
    assert place.claim() is not None
    place.clock_s += 11
    place.store.clean()
    assert place.find() is None


class RolledBack(Exception):
    pass


@pytest.mark.proves("PROVIDER-13")
@pytest.mark.parametrize("driver", ASYNCHRONOUS)
async def test_a_record_is_made_in_the_owners_transaction_on_any_asynchronous_driver(of, driver):
    place = of(driver)
    store = place.store
    await store.create_tables_async()

    async def find() -> Record | None:
        steps = store.transactions
        found: Record | None = await steps.run_async(lambda: store.find("me", ASKED.key))
        return found

    held = await store.transactions.run_async(lambda: store.claim(ASKED, ROUTE, Step.EXECUTE, None))
    once = place.once(held)
    with suppress(RolledBack):
        async with place.transaction() as db:
            await once.accept_async(db)
            raise RolledBack
    found = await find()
    assert found is not None
    assert found.state is State.IN_PROGRESS
    async with place.transaction() as db:
        await once.accept_async(db)
    async with place.transaction() as db:
        assert await store.settle_async(db, caller="me", key=ASKED.key, body=[1], status=422)
        with pytest.raises(TypeError, match="asynchronous"):
            once.record(db, {})
    found = await find()
    assert found is not None
    assert (found.state, found.result) == (State.FAILED, [1])
    with pytest.raises(TypeError, match="asynchronous"):
        store.create_tables()


@pytest.mark.proves("PROVIDER-9")
@pytest.mark.parametrize("driver", [on_sqlite3, on_psycopg])
def test_an_execution_that_was_taken_over_can_not_commit_its_effect(of, driver):
    place = of(driver)
    place.store.create_tables()
    slow = place.once(place.claim())
    place.clock_s += 6  # it is taken for dead, though it isn't
    quick = place.once(place.claim())
    with pytest.raises(NotYours), place.transaction() as db:
        slow.record(db, "slow")
    with place.transaction() as db:
        quick.record(db, "quick")
    assert place.find().answer.body == b'"quick"'


@pytest.mark.proves("PROVIDER-9")
def test_who_takes_over_waits_for_a_commit_that_is_under_way(of):
    place = of(on_psycopg)
    place.store.create_tables()
    slow = place.once(place.claim())
    place.clock_s += 6
    taken: list[Held | None] = []
    taker = threading.Thread(target=lambda: taken.append(place.claim()))
    with place.transaction() as db:
        slow.record(db, "slow")  # its effect is made, and not committed yet
        taker.start()
        wait_for_a_lock(db)
    taker.join()
    assert taken == [None]
    assert place.find().answer.body == b'"slow"'


def wait_for_a_lock(db: psycopg.Connection) -> None:
    """Return once somebody waits for what this transaction holds."""
    asked = "select count(*) from pg_locks where not granted and pg_backend_pid() = any"
    asked += "(pg_blocking_pids(pid))"
    for _ in range(2000):
        row = db.execute(asked).fetchone()
        assert row is not None
        if row[0]:
            return
    pytest.fail("nobody waits")


def test_the_parameters_of_a_statement_are_written_as_each_driver_wants_them():
    said = "update t set a = :a where b = :b and c = :a"
    values: dict[str, str | int | None] = {"b": 2, "a": 1}
    assert written(said, "qmark", values) == ("update t set a = ? where b = ? and c = ?", (1, 2, 1))
    assert (
        written(said, "numeric_dollar", values)[0] == "update t set a = $1 where b = $2 and c = $1"
    )
    assert written(said, "numeric_dollar", values)[1] == (1, 2)
    assert written(said, "pyformat", values)[0].endswith("c = %(a)s")
    with pytest.raises(TypeError, match="numeric_colon"):
        written(said, "numeric_colon", values)


def test_a_table_has_the_name_of_an_identifier():
    with pytest.raises(ValueError, match="no name for a table"):
        Store(nullcontext, table="a; drop table b")
    assert (
        "create table if not exists shop.keys" in Store(nullcontext, table="shop.keys").schema()[0]
    )
