"""Operations prepared in a transaction on the user's own PostgreSQL connection."""

import asyncio
import os
import sqlite3
from typing import Any

import anyio
import anyio.lowlevel
import psycopg
import pytest
from tests.engine.connections import OPENERS, opens
from tests.engine.functions import WRITE, comes_true
from tests.engine.shop import ORDERS, Shop, on_server

from doubtless import Call, Doubtless
from doubtless.errors import (
    BadArguments,
    ForeignConnection,
    LedgerError,
    LedgerUnavailable,
    NotPrepared,
    OperationNotFound,
)
from doubtless.ledger.address import schema_of

SLICE = ("psycopg", "asyncpg", "a session over asyncpg")
KINDS = [pytest.param(kind, marks=() if kind in SLICE else pytest.mark.long) for kind in OPENERS]


@pytest.fixture
def address(postgres) -> str:
    return on_server(postgres)


@pytest.fixture
async def shop(address):
    found = Shop(address)
    async with found.app:
        await found.open()
        yield found


async def sells(shop, hand, order: int, operation_id: str | None = None):
    await hand.run(f"insert into orders values ({order}, 'paid')")  # noqa: S608 - a number
    name = operation_id or f"ship-{order}"
    arguments = {"order": order}
    return await shop.app.prepare("ship", arguments, operation_id=name, connection=hand.connection)


async def knows(shop, name: str) -> bool:
    try:
        await shop.app.outcome(name)
    except OperationNotFound:
        return False
    return True


@pytest.mark.proves("OUTBOX-9")
@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_committed_with_the_users_change_and_rolled_back_with_it(shop, address, kind):
    async with opens(kind, address) as hand:
        told = await sells(shop, hand, 1)
        assert (told.status, told.state) == ("pending", "prepared")
        assert not await knows(shop, "ship-1"), "it is not committed yet"
        await hand.rollback()
    async with opens(kind, address) as hand:
        await sells(shop, hand, 2)
        await hand.run("savepoint mine")
        await sells(shop, hand, 3)
        await hand.run("rollback to savepoint mine")
        await hand.commit()
    assert (await shop.app.wait("ship-2", timeout=5)).status == "succeeded"
    assert await shop.orders() == {2: "paid"}
    assert (await knows(shop, "ship-1"), await knows(shop, "ship-3")) == (False, False)
    assert shop.done == [2]


# --- what can't be shared ------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-10")
@pytest.mark.parametrize(
    "kind", ["psycopg", "psycopg, blocking", "asyncpg", "sqlalchemy, blocking"]
)
async def test_a_connection_without_a_transaction_is_refused(shop, address, kind):
    async with opens(kind, address) as hand:
        connection = hand.connection
        match kind:
            case "psycopg":
                await connection.set_autocommit(True)
            case "psycopg, blocking":
                connection.autocommit = True
            case "asyncpg":
                await connection.execute("rollback")
            case _:
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ForeignConnection, match="no transaction is open"):
            await shop.app.prepare("ship", {"order": 1}, connection=connection)
    assert await shop.app.operations() == []


@pytest.mark.proves("OUTBOX-10")
@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "a session over asyncpg"])
async def test_a_transaction_that_can_take_nothing_more_is_refused(shop, address, kind):
    async with opens(kind, address) as hand:
        with pytest.raises(Exception, match="nowhere"):
            await hand.run("select * from nowhere")
        with pytest.raises(ForeignConnection, match="statement of your transaction has failed"):
            await shop.app.prepare("ship", {"order": 1}, connection=hand.connection)


@pytest.mark.proves("OUTBOX-10")
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("set transaction read only", "read only: begin one that may write"),
        ("set local session_replication_role = replica", "set it to origin"),
    ],
)
async def test_a_transaction_that_may_not_write_as_it_should_is_refused(
    shop, address, statement, told
):
    async with opens("psycopg", address) as hand:
        await hand.run(statement)
        with pytest.raises(ForeignConnection, match=told):
            await shop.app.prepare("ship", {"order": 1}, connection=hand.connection)


@pytest.mark.proves("OUTBOX-10")
async def test_a_connection_to_another_database_of_the_server_is_refused(shop, address):
    elsewhere = schema_of(address)[0].replace("/postgres?", "/template1?")
    async with await psycopg.AsyncConnection.connect(elsewhere) as connection:
        with pytest.raises(ForeignConnection, match=r"'template1' .* both can't commit together"):
            await shop.app.prepare("ship", {"order": 1}, connection=connection)


@pytest.mark.proves("OUTBOX-10")
async def test_a_role_needs_the_right_to_write_the_ledger_and_no_more(shop, address, postgres):
    role, schema = f"clerk_{os.getpid()}", schema_of(address)[1]
    with postgres.connect() as admin:
        admin.execute(f"create role {role}")
        admin.execute(f"grant all on schema {schema}_shop to {role}")
        admin.execute(f"grant all on all tables in schema {schema}_shop to {role}")
        async with opens("psycopg", address) as hand:
            await hand.run(f"set role {role}")
            with pytest.raises(ForeignConnection, match=f'grant usage on schema "{schema}"'):
                await sells(shop, hand, 1)
            admin.execute(f"grant usage on schema {schema} to {role}")
            admin.execute(f"grant select on all tables in schema {schema} to {role}")
            with pytest.raises(ForeignConnection, match="grant select, insert, update"):
                await sells(shop, hand, 2)
            admin.execute(
                f"grant select, insert, update on all tables in schema {schema} to {role}"
            )
            await shop.app.prepare(
                "ship", {"order": 1}, operation_id="o1", connection=hand.connection
            )
            await hand.commit()
        admin.execute(f"drop owned by {role}")
        admin.execute(f"drop role {role}")
    assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"


@pytest.mark.proves("OUTBOX-7")
async def test_a_connection_of_another_kind_is_refused_with_the_reason(shop, tmp_path, address):
    with pytest.raises(ForeignConnection, match="commits of other processes are lost"):
        await shop.app.prepare("ship", {"order": 1}, connection=sqlite3.connect(":memory:"))
    on_file = Shop(tmp_path)
    async with on_file.app, opens("psycopg", address) as hand:
        with pytest.raises(ForeignConnection, match="Put the ledger into the database"):
            await on_file.app.prepare("ship", {"order": 1}, connection=hand.connection)
        with pytest.raises(ForeignConnection, match=r"AsyncCursor is no connection .* psycopg 3"):
            await shop.app.prepare("ship", {"order": 1}, connection=hand.connection.cursor())


# --- two at once ---------------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-11")
@pytest.mark.parametrize("commits", [True, False], ids=["it commits", "it is rolled back"])
async def test_who_prepares_the_same_id_waits_for_the_other_transaction_and_is_told_right(
    shop, address, commits
):
    async with opens("psycopg", address) as first, opens("asyncpg", address) as second:
        await sells(shop, first, 1)
        again = await shop.app.prepare(
            "ship", {"order": 1}, operation_id="ship-1", connection=first.connection
        )
        assert again.status == "pending"
        told: list[Any] = []

        async def prepares() -> None:
            told.append(
                await shop.app.prepare(
                    "ship", {"order": 1}, operation_id="ship-1", connection=second.connection
                )
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepares)
            await somebody_waits(address)
            assert told == []
            await (first.commit() if commits else first.rollback())
        await second.commit()
    assert told[0].operation_id == "ship-1"
    assert (await shop.app.wait("ship-1", timeout=5)).status == "succeeded"
    assert shop.done == [1]
    assert await shop.orders() == ({1: "paid"} if commits else {})


async def somebody_waits(address: str) -> None:
    """Wait until somebody waits for the end of another transaction."""
    async with await psycopg.AsyncConnection.connect(
        schema_of(address)[0], autocommit=True
    ) as asking:

        async def one_does() -> bool:
            found = await asking.execute(
                "select 1 from pg_locks where not granted and locktype = 'transactionid'"
            )
            return found.rowcount > 0

        await comes_true(one_does)


@pytest.mark.proves("OUTBOX-11")
async def test_conflicts_are_told_and_leave_the_users_change_standing(address):
    shop = Shop(address, worker=False)
    async with shop.app, opens("psycopg", address) as hand:
        await shop.open()
        await shop.app.prepare("ship", {"order": 1}, operation_id="o1")
        await hand.run("insert into orders values (7, 'paid')")
        for name, order, code in (("o1", 9, "payload_mismatch"), ("o6", 1, "target_unresolved")):
            with pytest.raises(NotPrepared) as refused:
                await shop.app.prepare(
                    "ship", {"order": order}, operation_id=name, connection=hand.connection
                )
            assert refused.value.code == code
        with pytest.raises(BadArguments):
            await shop.app.prepare("ship", {"order": "x"}, connection=hand.connection)
        await hand.commit()
        assert await shop.orders() == {7: "paid"}
        assert not await knows(shop, "o6")


@pytest.mark.proves("OUTBOX-11")
async def test_two_transactions_that_wait_for_each_other_are_told_to_repeat(shop, address):
    errors: list[LedgerError] = []

    async def works(hand, *orders: int) -> None:
        try:
            for order in orders:
                await sells(shop, hand, 100 * orders[0] + order, f"o{order}")
                await anyio.lowlevel.checkpoint()
        except LedgerError as error:
            errors.append(error)
            await hand.rollback()
        else:
            await hand.commit()

    async with opens("psycopg", address) as first, opens("psycopg", address) as second:
        await sells(shop, first, 1, "o1")
        await sells(shop, second, 2, "o2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(works, first, 2)
            tasks.start_soon(works, second, 1)
    assert "repeat it" in str(errors[0])
    assert len(errors) in (1, 2)


# --- others meanwhile ----------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-12")
async def test_a_transaction_that_stays_open_keeps_nobody_else_from_working(shop, address):
    async with opens("psycopg", address) as hand:
        await sells(shop, hand, 1)
        assert (await shop.app.call("ship", {"order": 2})).status == "succeeded"
        async with shop.app.transaction() as tx:
            await tx.prepare("ship", {"order": 3}, operation_id="o3")
        assert (await shop.app.wait("o3", timeout=5)).status == "succeeded"
        # Only who wants the same one has to wait, and is told before long.
        with pytest.raises(LedgerUnavailable, match="Let that one end, and try again"):
            await shop.app.call("ship", {"order": 1}, operation_id="ship-1")
        with pytest.raises(LedgerUnavailable, match="Let that one end, and try again"):
            await shop.app.call("ship", {"order": 1}, operation_id="another")
        assert shop.done == [2, 3]
        await hand.commit()
    assert (await shop.app.call("ship", {"order": 1}, operation_id="ship-1")).status == "succeeded"
    assert sorted(shop.done) == [1, 2, 3]


@pytest.mark.proves("OUTBOX-12")
async def test_what_happened_until_its_commit_is_heeded_by_who_looks_first(shop, address):
    idle = Shop(address, worker=False)
    async with idle.app, opens("psycopg", address) as hand:
        await idle.app.prepare("ship", {"order": 1}, operation_id="o1")
        await idle.app.prepare(
            "ship", {"order": 2}, operation_id="o2", after=["o1"], connection=hand.connection
        )
        assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"
        await hand.commit()
    assert (await shop.app.wait("o2", timeout=5)).status == "succeeded"
    assert shop.done == [1, 2]


@pytest.mark.proves("OUTBOX-12")
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("scope", "psycopg"),
        ("scope", "psycopg, blocking"),
        ("task", "psycopg"),
        ("task", "asyncpg"),
    ],
)
async def test_one_that_is_cancelled_leaves_nothing_of_ours_and_the_rest_stands(
    shop, address, kind, how
):
    async with opens("psycopg", address) as first, opens(kind, address) as second:
        await sells(shop, first, 1)
        await second.run("insert into orders values (2, 'paid')")

        async def prepares() -> None:
            await shop.app.prepare(
                "ship", {"order": 1}, operation_id="ship-1", connection=second.connection
            )

        if how == "scope":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepares)
                await somebody_waits(address)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await lets_go(kind, first)
        else:
            task = asyncio.create_task(prepares())
            await somebody_waits(address)
            task.cancel()
            await lets_go(kind, first)
            with pytest.raises(asyncio.CancelledError):
                await task
        await second.commit()
    assert await shop.orders() == {2: "paid"}
    journal = shop.app.ledger.read(lambda tx: tx.tuples("select operation_id from journal"))
    assert journal == []
    assert not await knows(shop, "ship-1")


async def lets_go(kind, hand) -> None:
    """End the other transaction, where a statement that blocks is waited for."""
    if kind == "psycopg, blocking":
        await hand.rollback()


# --- their session -------------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-13")
async def test_their_session_confuses_nothing_and_is_left_as_it_was(shop, address):
    async with opens("psycopg", address) as hand:
        for statement in (
            "create temp table operation (id text)",
            "create temp table journal (id text)",
            "set synchronous_commit = off",
            "set lock_timeout = '7s'",
        ):
            await hand.run(statement)
        path = await (await hand.connection.execute("show search_path")).fetchone()
        await sells(shop, hand, 1)
        assert await (await hand.connection.execute("show search_path")).fetchone() == path
        for name, value in (("lock_timeout", "7s"), ("synchronous_commit", "on")):
            found = await hand.connection.execute(f"show {name}")
            assert await found.fetchone() == (value,), "durable, for this transaction"
        await hand.commit()
        found = await hand.connection.execute("show synchronous_commit")
        assert await found.fetchone() == ("off",)
    assert (await shop.app.wait("ship-1", timeout=5)).status == "succeeded"


@pytest.mark.proves("OUTBOX-13")
async def test_an_old_snapshot_is_told_to_repeat_its_transaction(shop, address):
    async with opens("psycopg", address) as hand:
        await hand.run("set transaction isolation level repeatable read")
        await hand.run("select count(*) from orders")
        await shop.app.prepare("ship", {"order": 1}, operation_id="o1")
        with pytest.raises(LedgerUnavailable, match="roll your transaction back and repeat it"):
            await sells(shop, hand, 1, "o1")
        await hand.rollback()
        told = await sells(shop, hand, 1, "o1")
        assert told.operation_id == "o1"
        await hand.commit()


@pytest.mark.proves("OUTBOX-9")
def test_a_blocking_application_takes_connections_that_block_and_no_others(address):
    shop = Shop(address)
    with Doubtless.sync(address) as app:

        @app.tool(**WRITE)
        def ship(call: Call, order: int) -> int:
            shop.done.append(order)
            return order

        with app.transaction() as tx:
            tx.run(ORDERS)
        with psycopg.connect(schema_of(address)[0]) as connection:
            connection.execute("insert into orders values (1, 'paid')")
            app.prepare("ship", {"order": 1}, operation_id="o1", connection=connection)
        assert app.wait("o1", timeout=5).status == "succeeded"
        with app.transaction() as tx:
            assert tx.rows("select id from orders") == [{"id": 1}]

        async def asks() -> None:
            async with opens("asyncpg", address) as hand:
                with pytest.raises(ForeignConnection, match="belongs to an event loop"):
                    app.prepare("ship", {"order": 2}, connection=hand.connection)

        anyio.run(asks)
