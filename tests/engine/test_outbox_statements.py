"""What a statement in a transaction of the user's may do to the ledger, and to its own tables."""

import pytest
from tests.engine.shop import Shop, sells

from doubtless.errors import LedgerError, StatementRefused


@pytest.fixture
async def shop(tmp_path):
    found = Shop(tmp_path)
    async with found.app:
        await found.open()
        yield found


OURS = (
    "update operation set state = 'succeeded'",
    "delete from journal",
    "insert into approval (operation_id) values ('x')",
    "with x as (select 1) update meta set mended = 1",
    "drop table evidence",
    "drop trigger journal_kept",
    "drop index operation_due",
    "alter table operation add column mine",
    "alter table operation rename to mine",
    "create index mine on operation (id)",
    "create trigger mine after insert on operation begin select 1; end",
    "create temp table operation (id)",
    "create temp view OPERATION as select 1",
    "replace into SETTLEMENT (seq) values (1)",
)
COURSE = ("commit", "rollback", "begin", "savepoint a", "release a", "rollback to a", "end")
SETTINGS = (
    "pragma synchronous = off",
    "pragma journal_mode = delete",
    "pragma foreign_keys = 0",
    "pragma writable_schema = on",
    "pragma user_version = 7",
    "pragma wal_checkpoint",
    "pragma query_only = 1",
    "attach ':memory:' as other",
    "detach main",
    "select load_extension('x')",
)


@pytest.mark.proves("OUTBOX-5")
@pytest.mark.parametrize("sql", [*OURS, *COURSE, *SETTINGS])
async def test_a_statement_that_is_not_for_the_user_is_refused_and_the_others_stand(shop, sql):
    async with shop.app.transaction() as tx:
        await tx.run("insert into orders values (1, 'new')")
        with pytest.raises(StatementRefused):
            await tx.run(sql)
        assert (await tx.row("pragma synchronous") or {})["synchronous"] == 2
        await tx.prepare("ship", {"order": 1}, operation_id="o1")
    assert await shop.orders() == {1: "new"}
    assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"


@pytest.mark.proves("OUTBOX-5")
@pytest.mark.parametrize(
    "sql", ["vacuum", "delete from sqlite_schema", "update sqlite_master set sql = ''"]
)
async def test_what_sqlite_itself_refuses_is_no_harm(shop, sql):
    async with shop.app.transaction() as tx:
        with pytest.raises((LedgerError, StatementRefused)):
            await tx.run(sql)
        await tx.run("insert into orders values (1, 'new')")
    assert await shop.orders() == {1: "new"}


@pytest.mark.proves("OUTBOX-5")
async def test_a_trigger_of_the_users_does_not_write_where_the_user_may_not(shop):
    async with shop.app.transaction() as tx:
        await tx.run(
            "create trigger sly after insert on orders begin"
            " update operation set state = 'succeeded'; end"
        )
        with pytest.raises(StatementRefused, match="operation"):
            await tx.run("insert into orders values (1, 'new')")
    assert (await shop.app.call("ship", {"order": 1})).status == "succeeded"


@pytest.mark.proves("OUTBOX-5")
async def test_tables_of_ones_own_can_be_made_changed_and_taken_away(shop):
    async with shop.app.transaction() as tx:
        for sql in (
            "create table mine (id integer primary key autoincrement, name text)",
            "create unique index mine_name on mine (name)",
            "create view named as select name from mine",
            "create trigger greet after insert on mine begin update orders set state = 'x'; end",
            "alter table mine add column age integer",
            "insert into mine (name) values ('a')",
            "create virtual table words using fts5 (word)",
            "insert into words values ('hello')",
            "analyze mine",
        ):
            await tx.run(sql)
        assert await tx.rows("select name from named") == [{"name": "a"}]
        assert await tx.row("select state from operation limit 1") is None, "ours can be read"
    async with shop.app.transaction() as tx:
        assert await tx.rows("select word from words where words match 'hello'") == [
            {"word": "hello"}
        ]
        for sql in ("drop view named", "drop table words", "drop table mine"):
            await tx.run(sql)
    name = await sells(shop)
    assert (await shop.app.wait(name, timeout=5)).status == "succeeded"


@pytest.mark.proves("OUTBOX-5")
async def test_a_value_that_is_missing_or_is_none_is_told(shop):
    async with shop.app.transaction() as tx:
        with pytest.raises(StatementRefused, match="no value was given for :id"):
            await tx.run("insert into orders values (:id, 'new')")
        with pytest.raises(ValueError, match="NaN"):
            await tx.run("insert into orders values (1, :x)", x=float("nan"))
        with pytest.raises(ValueError, match="too large"):
            await tx.run("insert into orders values (:id, 'new')", id=2**70)
        await tx.run("create table sums (x real, y blob, z)")
        values = {"x": 0.5, "y": b"\0", "z": None}
        await tx.run("insert into sums values (:x, :y, :z)", **values)
        assert await tx.row("select * from sums") == values
