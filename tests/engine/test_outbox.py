"""The transactional outbox, in one process: what is committed together, and what is refused."""

import asyncio
import sqlite3
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import anyio
import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.functions import POLL_S, WRITE, application, comes_true, ends
from tests.engine.shop import Shop, on_file, on_server, sells

from doubtless import Call, Doubtless
from doubtless.engine.foreign import refuse_by_kind
from doubtless.errors import (
    BadArguments,
    ForeignConnection,
    InsideTransaction,
    LedgerError,
    NotPrepared,
    OperationNotFound,
    SettingsError,
    TransactionOver,
    TransactionTimedOut,
)
from doubtless.ledger.foreign_drivers import driver_of
from doubtless.ledger.store import Ledger, open_ledger

BUSY = {"transaction_timeout_s": 0.3}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path) -> str:
    """The address of an empty ledger, and of a place for tables of one's own."""
    if request.param == "postgres":
        return on_server(request.getfixturevalue("postgres"))
    return on_file(tmp_path)


@pytest.fixture
async def shop(address):
    found = Shop(address)
    async with found.app:
        await found.open()
        yield found


# --- together, or not at all ---------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-1")
async def test_what_is_committed_will_be_done(shop):
    name = await sells(shop)
    assert (await shop.app.wait(name, timeout=5)).status == "succeeded"
    assert (await shop.orders(), shop.done) == ({7: "paid"}, [7])


@pytest.mark.proves("OUTBOX-1")
async def test_it_is_taken_up_as_soon_as_it_is_committed(shop):
    since = time.monotonic()
    name = await sells(shop)
    assert (await shop.app.wait(name, timeout=5)).status == "succeeded"
    assert time.monotonic() - since < 0.8, "a poll would take longer"


@pytest.mark.proves("OUTBOX-1")
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, asyncio.CancelledError])
async def test_what_is_rolled_back_never_existed_and_the_error_goes_on(shop, error):

    async def fails() -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into orders values (7, 'paid')")
            await tx.prepare("ship", {"order": 7}, operation_id="o7")
            raise error

    with pytest.raises(error):
        await fails()
    assert await shop.orders() == {}
    with pytest.raises(OperationNotFound):
        await shop.app.outcome("o7")
    await sells(shop)  # the same id and row are free


@pytest.mark.proves("OUTBOX-1")
async def test_a_cancelled_transaction_is_rolled_back(shop):
    entered = anyio.Event()

    async def work() -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into orders values (7, 'paid')")
            entered.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await entered.wait()
        tasks.cancel_scope.cancel()
    task = asyncio.create_task(work())
    entered = anyio.Event()
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await shop.orders() == {}


@pytest.mark.proves("OUTBOX-1")
async def test_a_statement_that_fails_leaves_the_others_standing(shop):
    async with shop.app.transaction() as tx:
        assert await tx.run("insert into orders values (1, 'new')") == 1
        with pytest.raises(LedgerError, match="UNIQUE"):
            await tx.run("insert into orders values (1, 'again')")
        with pytest.raises(LedgerError, match="syntax error"):
            await tx.run("insert order")
        assert await tx.run("update orders set state = :state where id = :id", id=1, state="x") == 1
        assert await tx.row("select * from orders where id = :id", id=2) is None
        assert await tx.row("select state from orders") == {"state": "x"}
    assert await shop.orders() == {1: "x"}


@pytest.mark.proves("OUTBOX-1")
async def test_a_constraint_that_is_judged_at_the_end_rolls_everything_back(shop):
    async with shop.app.transaction() as tx:
        await tx.run(
            "create table line (id integer primary key,"
            " order_id integer references orders (id) deferrable initially deferred)"
        )

    async def dangles() -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into line values (1, 99)")
            await tx.prepare("ship", {"order": 99}, operation_id="o99")

    with pytest.raises(LedgerError, match="FOREIGN KEY"):
        await dangles()
    with pytest.raises(OperationNotFound):
        await shop.app.outcome("o99")
    assert (await shop.app.call("ship", {"order": 1})).status == "succeeded"


@pytest.mark.proves("OUTBOX-1")
@pytest.mark.parametrize("address", ["sqlite"], indirect=True)  # a server knows no such statement
async def test_a_statement_that_rolls_back_everything_is_noticed(shop):

    async def goes_on(*, unaware: bool) -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into orders values (1, 'new')")
            with suppress(TransactionOver if unaware else KeyError):
                await tx.run("insert or rollback into orders values (1, 'again')")
            await tx.run("insert into orders values (2, 'alone')")

    for unaware in (True, False):
        with pytest.raises(TransactionOver, match="rolled the whole transaction back"):
            await goes_on(unaware=unaware)
    assert await shop.orders() == {}


STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),  # the order
        st.sampled_from(["commit", "raise", "cancel", "time out"]),
        st.booleans(),  # whether a call of another task comes meanwhile
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.proves("OUTBOX-1", "OUTBOX-4")
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_row_and_effect_are_both_there_or_neither_however_transactions_interleave(
    tmp_path_factory, steps
):
    folder = tmp_path_factory.mktemp("shop")

    async def run() -> None:
        shop = Shop(folder, **BUSY)
        async with shop.app:
            await shop.open()
            async with anyio.create_task_group() as tasks:
                for number, (order, end, calls) in enumerate(steps):
                    tasks.start_soon(_one, shop, 10 * number + order, end)
                    if calls:
                        tasks.start_soon(_calls, shop, 1000 + number)
            rows = await shop.orders()
            for order in rows:
                told = await shop.app.wait(f"o{order}", timeout=5)
                assert told.status == "succeeded"
            called = {1000 + number for number, step in enumerate(steps) if step[2]}
            assert sorted(shop.done) == sorted({*rows, *called})
            committed = {10 * n + o for n, (o, end, _) in enumerate(steps) if end == "commit"}
            assert set(rows) == committed

    anyio.run(run)


async def _one(shop: Shop, order: int, end: str) -> None:
    with anyio.CancelScope() as scope:
        try:
            async with shop.app.transaction() as tx:
                await tx.run("insert into orders values (:id, 'new')", id=order)
                await anyio.lowlevel.checkpoint()
                await tx.prepare("ship", {"order": order}, operation_id=f"o{order}")
                if end == "raise":
                    raise KeyError
                if end == "cancel":
                    scope.cancel()
                if end != "commit":
                    await anyio.sleep_forever()
        except KeyError:
            assert end == "raise"
        except TransactionTimedOut:
            assert end == "time out"


async def _calls(shop: Shop, order: int) -> None:
    told = await shop.app.call("ship", {"order": order})
    assert told.status == "succeeded"


# --- its time ------------------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-3")
@pytest.mark.parametrize("how", ["awaits", "blocks", "asks on and on", "ignores it"])
async def test_a_transaction_that_is_open_too_long_is_rolled_back(address, how):
    shop = Shop(address, **BUSY)
    async with shop.app:
        await shop.open()

        async def lingers() -> None:
            async with shop.app.transaction() as tx:
                await tx.run("insert into orders values (1, 'new')")
                await tx.prepare("ship", {"order": 1}, operation_id="o1")
                await _too_long(tx, how)

        since = time.monotonic()
        with pytest.raises(TransactionTimedOut, match=r"more than 0\.3 s, and was rolled back"):
            await lingers()
        assert time.monotonic() - since < 2
        assert await shop.orders() == {}
        with pytest.raises(OperationNotFound):
            await shop.app.outcome("o1")


async def _too_long(tx: Any, how: str) -> None:
    match how:
        case "awaits":
            await anyio.sleep_forever()
        case "blocks":
            while tx.is_open:  # a program that holds up its own event loop
                time.sleep(POLL_S)  # noqa: ASYNC251
        case "asks on and on":
            endless = "with recursive n (x) as (select 1 union all select x + 1 from n)"
            await tx.rows(f"{endless} select count(*) from n")  # noqa: S608
        case "ignores it":
            with anyio.CancelScope(shield=True):
                await comes_true(lambda: not tx.is_open)
            with pytest.raises(TransactionTimedOut):
                await tx.run("insert into orders values (2, 'late')")


@pytest.mark.proves("OUTBOX-3")
async def test_the_lock_is_free_as_soon_as_time_is_over_even_while_its_program_stands_still(
    address,
):
    shop = Shop(address, **BUSY)
    async with shop.app:
        await shop.open()

        async def holds_up_its_loop(other: Ledger) -> None:
            async with shop.app.transaction() as tx:
                await tx.run("insert into orders values (1, 'new')")
                since = time.monotonic()
                other.write(lambda tx: tx.run("update meta set mended = mended"))
                assert 0.2 < time.monotonic() - since < 2

        other = open_ledger(address)
        with other, pytest.raises(TransactionTimedOut):
            await holds_up_its_loop(other)


@pytest.mark.parametrize("seconds", [0, -1, 9.5, float("nan"), float("inf")])
def test_a_time_that_others_could_not_wait_for_is_refused(tmp_path, seconds):
    with pytest.raises(SettingsError, match="transaction_timeout_s"):
        application(tmp_path, transaction_timeout_s=seconds)


# --- others meanwhile ----------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-4")
async def test_what_would_wait_for_the_transaction_raises_at_once(shop):
    name = await sells(shop)
    calls = [
        lambda: shop.app.call("ship", {"order": 1}),
        lambda: shop.app.wait(name, timeout=1),
        lambda: shop.app.outcome(name),
        lambda: shop.app.prepare("ship", {"order": 1}),
        lambda: shop.app.resolve(name, "done", operator="ann", note=""),
        lambda: shop.app.cancel(name),
        lambda: shop.app.approve(name, operator="ann", note="", payload_hash=None),
        lambda: shop.app.transaction().__aenter__(),
    ]
    async with shop.app.transaction() as tx:
        for call in calls:
            with pytest.raises(InsideTransaction, match=r"Use tx\.prepare"):
                await call()
        await tx.run("insert into orders values (8, 'new')")
    assert 8 in await shop.orders()
    assert (await shop.app.call("ship", {"order": 1})).status == "succeeded"


@pytest.mark.proves("OUTBOX-4")
async def test_calls_of_other_tasks_wait_and_then_succeed(shop):
    entered, leave, told = anyio.Event(), anyio.Event(), []

    async def holds() -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into orders values (1, 'new')")
            entered.set()
            await leave.wait()

    async def calls(order: int) -> None:
        told.append(await shop.app.call("ship", {"order": order}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holds)
        await entered.wait()
        for order in range(20):
            tasks.start_soon(calls, order)
        await anyio.wait_all_tasks_blocked()
        assert shop.done == []
        leave.set()
    assert {each.status for each in told} == {"succeeded"}
    assert sorted(shop.done) == list(range(20))


@pytest.mark.proves("OUTBOX-4")
async def test_two_transactions_wait_for_one_another_and_calls_have_their_turn_between(address):
    shop = Shop(address)
    order: list[str] = []

    async def transacts(number: int) -> None:
        for turn in range(5):
            async with shop.app.transaction() as tx:
                row = await tx.row("select count(*) as n from orders")
                assert row is not None
                await anyio.lowlevel.checkpoint()
                await tx.run("insert into orders values (:id, 'new')", id=row["n"])
                order.append(f"{number}.{turn}")

    async with shop.app:
        await shop.open()
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(transacts, number)
            assert (await shop.app.call("ship", {"order": 1})).status == "succeeded"
            assert len(order) < 20, "the call waited for all of them"
        assert sorted(await shop.orders()) == list(range(20))


async def test_a_transaction_is_used_once_and_only_as_a_block(shop):
    tx = shop.app.transaction()
    with pytest.raises(TransactionOver, match="async with"):
        await tx.run("select 1")
    async with tx:
        await tx.run("select 1")
    with pytest.raises(TransactionOver):
        await tx.run("select 1")
    with pytest.raises(TransactionOver, match="once"):
        await tx.__aenter__()


async def test_a_ledger_in_memory_has_no_second_connection():
    app = Doubtless("sqlite://")
    async with app:
        with pytest.raises(LedgerError, match="in memory"):
            async with app.transaction():
                pass
        with pytest.raises(LedgerError, match="in memory"):
            async with app.transaction():
                pass


# --- what is prepared ----------------------------------------------------------------------------


@pytest.mark.proves("OUTBOX-6")
async def test_a_refused_operation_raises_and_takes_the_transaction_with_it(shop):
    name = await sells(shop, 1)
    await shop.app.wait(name, timeout=5)

    async def reuses() -> None:
        async with shop.app.transaction() as tx:
            await tx.run("insert into orders values (2, 'paid')")
            await tx.prepare("ship", {"order": 2}, operation_id=name)

    with pytest.raises(NotPrepared) as refused:
        await reuses()
    error = refused.value
    assert (error.code, error.operation_id, error.status) == (
        "payload_mismatch",
        name,
        "rejected_by_policy",
    )
    assert await shop.orders() == {1: "paid"}


@pytest.mark.proves("OUTBOX-6")
async def test_one_that_is_caught_leaves_no_trace_and_the_rest_stands(shop):
    await sells(shop, 1)
    await shop.app.wait("ship-1", timeout=5)
    async with shop.app.transaction() as tx:
        await tx.run("insert into orders values (2, 'paid')")
        with pytest.raises(NotPrepared):
            await tx.prepare("ship", {"order": 2}, operation_id="ship-1")
        with pytest.raises(BadArguments):
            await tx.prepare("ship", {"order": "two"}, operation_id="o2")
        await tx.prepare("ship", {"order": 2}, operation_id="o2")
    assert (await shop.app.wait("o2", timeout=5)).status == "succeeded"
    assert await shop.orders() == {1: "paid", 2: "paid"}


@pytest.mark.proves("OUTBOX-6")
async def test_preparing_again_what_is_there_joins_it(shop):
    async with shop.app.transaction() as tx:
        await tx.prepare("ship", {"order": 1}, operation_id="o1")
        again = await tx.prepare("ship", {"order": 1}, operation_id="o1")
        assert again.status == "pending"
    assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"
    async with shop.app.transaction() as tx:
        told = await tx.prepare("ship", {"order": 1}, operation_id="o1")
        assert (told.status, told.already_done) == ("succeeded", True)
    assert shop.done == [1]


@pytest.mark.proves("OUTBOX-6")
async def test_what_ended_without_success_is_not_prepared_again(shop):
    refusing = {**WRITE, "timeout": "300ms"}

    @shop.app.tool(**refusing, rejected=[PermissionError])
    async def refuse(call: Call) -> None:
        raise PermissionError

    await shop.app.call("refuse", {}, operation_id="o1")
    async with shop.app.transaction() as tx:
        with pytest.raises(NotPrepared) as refused:
            await tx.prepare("refuse", {}, operation_id="o1")
        assert refused.value.status == "failed"
        with pytest.raises(NotPrepared) as refused:
            await tx.prepare("ship", {"order": 1}, operation_id="o2", after=["o1"])
        assert refused.value.code == "after_failed"
    with pytest.raises(OperationNotFound):
        await shop.app.outcome("o2")


@pytest.mark.proves("OUTBOX-1")
async def test_a_whole_sequence_is_prepared_in_one_transaction(shop):
    async with shop.app.transaction() as tx:
        before: list[str] = []
        for order in (1, 2, 3):
            told = await tx.prepare(
                "ship", {"order": order}, operation_id=f"o{order}", after=before
            )
            before = [told.operation_id]
    assert (await shop.app.wait("o3", timeout=5)).status == "succeeded"
    assert shop.done == [1, 2, 3]


@pytest.mark.proves("OUTBOX-8")
async def test_what_is_prepared_alone_is_carried_out_by_a_worker(address):
    first = Shop(address, worker=False)
    async with first.app:
        told = await first.app.prepare("ship", {"order": 1}, operation_id="o1")
        assert (told.status, told.state) == ("pending", "prepared")
        found = await first.app.outcome("o1")
        assert found.state == "prepared"
        refused = await first.app.prepare("ship", {"order": 2}, operation_id="o1")
        assert (refused.error or {})["code"] == "payload_mismatch"
        assert first.done == []
    second = Shop(address)
    async with second.app:
        await ends(second.app, "succeeded")
        assert second.done == [1]
        since = time.monotonic()
        await second.app.prepare("ship", {"order": 2}, operation_id="o2")
        assert (await second.app.wait("o2", timeout=5)).status == "succeeded"
        assert time.monotonic() - since < 0.8


@pytest.mark.proves("OUTBOX-8")
async def test_what_is_prepared_is_valid_for_a_day(shop):
    told = await shop.app.prepare("ship", {"order": 1}, operation_id="o1")
    operation = shop.app.ledger.read(
        lambda tx: tx.row(
            "select valid_until_ms - created_ms as ms from operation where tenant = 'main'"
        )
    )
    assert told.operation_id == "o1"
    assert operation == {"ms": 86_400_000}


# --- connections of the user's -------------------------------------------------------------------


def of(module: str, name: str = "Connection", **attributes: Any) -> object:
    """Make an object of a library that need not be installed."""
    made = type(name, (SimpleNamespace,), {"__module__": module})
    return made(**attributes)


def dialect(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name)


@pytest.mark.proves("OUTBOX-7")
async def test_a_foreign_sqlite_connection_is_refused_with_the_reason(shop):
    connections: list[Any] = [
        sqlite3.connect(":memory:"),
        apsw.Connection(":memory:"),
        of("aiosqlite.core"),
        of("sqlalchemy.engine.base", dialect=dialect("sqlite")),
        of(
            "sqlalchemy.orm.session", "Session", get_bind=lambda: of("x", dialect=dialect("sqlite"))
        ),
        of("sqlalchemy.ext.asyncio.engine", sync_connection=of("x", dialect=dialect("sqlite"))),
    ]
    for connection in connections:
        with pytest.raises(ForeignConnection, match="commits of other processes are lost"):
            await shop.app.prepare("ship", {"order": 1}, connection=connection)
    assert await shop.app.operations() == []
    for connection in connections[:2]:
        connection.close()


@pytest.mark.proves("OUTBOX-7")
@pytest.mark.parametrize(
    "connection",
    [
        of("psycopg", "AsyncConnection"),
        of("asyncpg.connection"),
        of("sqlalchemy.engine.base", dialect=dialect("postgresql")),
    ],
    ids=["psycopg", "asyncpg", "sqlalchemy"],
)
def test_a_file_shares_no_transaction_with_a_server(connection):
    with pytest.raises(ForeignConnection, match="can't commit together with it"):
        refuse_by_kind(connection, on_server=False)
    refuse_by_kind(connection, on_server=True)


@pytest.mark.proves("OUTBOX-7")
@pytest.mark.parametrize("on_server", [False, True])
def test_anything_else_is_no_connection(on_server):
    with pytest.raises(ForeignConnection, match=r"builtins\.dict is no connection"):
        refuse_by_kind({}, on_server=on_server)
    with pytest.raises(ForeignConnection, match=r"psycopg2\..* is no connection .* psycopg 3"):
        driver_of(of("psycopg2.extensions", "connection"))
