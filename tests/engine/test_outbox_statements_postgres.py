"""What a statement of the user's may do on a server, where nobody is asked before it is done."""

import pytest
from tests.engine.shop import Shop, on_server, sells

from doubtless.errors import LedgerError, StatementRefused
from doubtless.ledger.address import schema_of

SLY = """
    create function sly() returns int language sql as 'update {s}.meta set mended = 7 returning 1'
"""
SLY_TRIGGER = """
    create function sly() returns trigger language plpgsql as
    'begin update {s}.meta set mended = 7; return null; end'
"""
OURS = (
    "update {s}.operation set state = 'succeeded'",
    "update {s}.meta set mended = 1",
    "insert into {s}.claim values ('main', 'x', 'y', 'z')",
    "with x as (delete from {s}.writer returning 1) select * from x",
    "truncate {s}.writer",
    "drop table {s}.evidence cascade",
    "drop trigger journal_kept on {s}.journal",
    "alter table {s}.operation add column mine int",
    "alter table {s}.operation disable trigger all",
    "create index mine on {s}.operation (id)",
    "create table {s}.mine (id int)",
    "lock table {s}.meta in exclusive mode",
    "do $$ begin update {s}.meta set mended = 1; end $$",
    "explain analyze update {s}.meta set mended = 1",
    "select sly()",
)
COURSE = (
    "commit",
    "; commit",
    "/* a /* nested */ one */ commit",
    "-- a word\ncommit and chain",
    "end",
    "abort",
    "begin",
    "savepoint a",
    "release savepoint unit",
    "rollback to savepoint unit",
    "prepare transaction 'x'",
    "select 1; commit",
    "do $$ begin commit; end $$",
)
SETTINGS = (
    "set synchronous_commit = off",
    "set local search_path = public",
    "reset all",
    "discard all",
    "deallocate all",
    "select set_config('synchronous_commit', 'off', true)",
    "select set_config('search_path', 'public', false)",
    "select set_config('role', 'pg_monitor', true)",
    "select set_config('session_replication_role', 'replica', true)",
    "copy orders to stdout",
    "vacuum",
    "listen x",
    "insert into orders values ($1, 'x')",
)


@pytest.fixture
def address(postgres) -> str:
    return on_server(postgres)


@pytest.fixture
async def shop(address):
    found = Shop(address)
    async with found.app:
        await found.open()
        yield found


@pytest.mark.proves("OUTBOX-5")
@pytest.mark.parametrize("statements", [OURS, COURSE, SETTINGS], ids=["ours", "course", "settings"])
async def test_a_statement_that_is_not_for_the_user_is_taken_back_and_the_others_stand(
    shop, address, statements
):
    schema = schema_of(address)[1]
    async with shop.app.transaction() as tx:
        await tx.run(SLY.replace("{s}", schema))
        await tx.run("insert into orders values (1, 'new')")
        await tx.prepare("ship", {"order": 1}, operation_id="o1")
        for sql in statements:
            with pytest.raises((LedgerError, StatementRefused)):
                await tx.run(sql.replace("{s}", schema))
            found = await tx.row("select current_setting('synchronous_commit') as value")
            assert found == {"value": "on"}, sql
        mended = await tx.row(f"select mended from {schema}.meta")  # noqa: S608
        assert mended == {"mended": 0}
    assert await shop.orders() == {1: "new"}
    assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"


@pytest.mark.proves("OUTBOX-5")
async def test_a_trigger_that_waits_for_the_end_writes_nothing_of_ours_either(shop, address):
    schema = schema_of(address)[1]

    async def defers() -> None:
        async with shop.app.transaction() as tx:
            await tx.run(SLY_TRIGGER.replace("{s}", schema))
            await tx.run(
                "create constraint trigger sly after insert on orders deferrable initially deferred"
                " for each row execute function sly()"
            )
            await tx.run("insert into orders values (1, 'new')")
            await tx.prepare("ship", {"order": 1}, operation_id="o1")

    with pytest.raises(StatementRefused, match="the ledger's own tables"):
        await defers()
    assert await shop.orders() == {}
    assert await shop.app.operations() == []


@pytest.mark.proves("OUTBOX-5")
async def test_tables_and_values_of_ones_own_are_those_of_postgresql(shop, address):
    schema = schema_of(address)[1]
    async with shop.app.transaction() as tx:
        await tx.run("create temp table operation (id text)")
        await tx.run("insert into operation values ('mine')")
        await tx.run("create table sums (x float8, y bytea, z text, d date, j jsonb, n numeric)")
        values = {"x": float("inf"), "y": b"\0", "z": None}
        await tx.run(
            "insert into sums values (:x, :y, :z, '2026-12-01'::date, '{\"a\": [1]}', 1.50)",
            **values,
        )
        row = await tx.row("select x, y, z from sums where j ? 'a' and d = :d", d="2026-12-01")
        assert row == values
        row = await tx.row("select :a || e'\\'' || $q$ :b $q$ || ':c' as text /* :d */", a="a")
        assert row == {"text": "a' :b :c"}
        with pytest.raises(StatementRefused, match="no value was given for :id"):
            await tx.run("insert into orders values (:id, 'new')")
        with pytest.raises(LedgerError, match="division by zero"):
            await tx.run("select 1 / 0")
        with pytest.raises(LedgerError, match="statement failed"):
            await tx.run("insert into orders values (:id, 'new')", id="x")
        name = (await tx.prepare("ship", {"order": 1}, operation_id="o1")).operation_id
        assert await tx.row("select id from operation") == {"id": "mine"}
        found = await tx.row(f"select id from {schema}.operation")  # noqa: S608
        assert found == {"id": name}, "ours can be read"
    assert (await shop.app.wait("o1", timeout=5)).status == "succeeded"
    assert await sells(shop, 3) == "ship-3"
