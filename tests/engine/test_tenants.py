"""Tenants: two on one ledger see and change nothing of each other's."""

from contextlib import AsyncExitStack

import pytest
from tests.engine.functions import WRITE

from doubtless import Call, Doubtless
from doubtless.errors import OperationNotFound, SettingsError
from doubtless.ledger.store import open_ledger

TABLES = """
    select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'
"""


def application(folder, tenant: str, keys: list[str]) -> Doubtless:
    app = Doubtless(f"sqlite:///{folder / 'ledger.db'}", tenant=tenant, worker=False)

    @app.tool(**WRITE, business_key=["what"])
    async def buy(call: Call, what: str) -> dict[str, str]:
        keys.append(call.idempotency_key)
        if what == "lost":
            raise ConnectionResetError(what)
        return {"bought": what, "for": tenant}

    return app


def rows(folder, tenant: str) -> dict[str, list[tuple[object, ...]]]:
    """All that a tenant has in the ledger, by table; what tells of the ledger as a whole aside."""
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}", inline=True) as ledger:
        names = [str(row[0]) for row in ledger.read(lambda tx: tx.tuples(TABLES))]

        def of(name: str) -> list[tuple[object, ...]]:
            sql = f"select * from {name} where tenant = :tenant"  # noqa: S608 - names of our own
            return list(ledger.read(lambda tx: tx.tuples(sql, tenant=tenant)))

        return {name: of(name) for name in names if name not in ("meta", "migration", "at_work")}


@pytest.mark.proves("SCALE-7")
async def test_two_tenants_use_one_id_and_one_object_and_nothing_is_shared(tmp_path):
    keys: list[str] = []
    async with AsyncExitStack() as stack:
        main, acme = [
            await stack.enter_async_context(application(tmp_path, name, keys))
            for name in ("main", "acme")
        ]
        first = await main.call("buy", {"what": "tea"}, operation_id="o1", session_id="s")
        await main.call("buy", {"what": "lost"}, operation_id="o2", session_id="s")
        before = rows(tmp_path, "main")
        with pytest.raises(OperationNotFound):
            await acme.outcome("o1")
        with pytest.raises(OperationNotFound):
            await acme.timeline("o1")
        with pytest.raises(OperationNotFound):
            await acme.resolve("o2", "done", operator="otto", note="seen")
        second = await acme.call("buy", {"what": "tea"}, operation_id="o1", session_id="s")
        third = await acme.call("buy", {"what": "lost"}, operation_id="o3", session_id="s")
        assert (first.result, second.result) == (
            {"bought": "tea", "for": "main"},
            {"bought": "tea", "for": "acme"},
        )
        assert third.error is None  # nobody holds the object for this tenant
        assert {each.operation_id for each in await acme.operations()} == {"o1", "o3"}
        assert {each.operation_id for each in await main.operations()} == {"o1", "o2"}
        seen = await acme.session("s")
        assert {each.operation_id for each in (*seen.unresolved, *seen.recent)} == {"o1", "o3"}
        assert len((await acme.settlements()).settlements) == 1
        await acme.resolve("o3", "done", operator="otto", note="seen")
        await acme.metrics()
    assert len(set(keys)) == 4
    assert (first.ref, first.payload_hash) != (second.ref, "")
    assert first.ref != second.ref
    assert rows(tmp_path, "main") == before
    assert {name for name, found in rows(tmp_path, "acme").items() if found} >= {
        "operation", "attempt", "evidence", "journal", "body", "settlement", "contract",
    }  # fmt: skip


@pytest.mark.proves("SCALE-7")
@pytest.mark.parametrize("name", ["", "Acme", "a b", "ä", "-a", "a" * 65])
def test_a_name_that_no_tenant_can_have_is_refused(name):
    with pytest.raises(SettingsError, match="tenant's name"):
        Doubtless("sqlite://", tenant=name)
