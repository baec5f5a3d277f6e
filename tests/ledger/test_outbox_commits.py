"""A transaction of the user's whose COMMIT was not answered: settled before anybody is told."""

import pytest
from tests.engine.functions import WRITE
from tests.ledger.cutting import Cutter
from tests.ledger.test_postgres_commits import through

from doubtless import Call, Doubtless
from doubtless.errors import LedgerUnavailable, OperationNotFound
from doubtless.ledger.group import NOTHING


@pytest.fixture
def cutter(own, tmp_path):
    """A way to the own server that can be cut."""
    found = Cutter(tmp_path, own.socket)
    yield found
    found.close()


@pytest.mark.proves("OUTBOX-14")
@pytest.mark.parametrize("how", ["lose", "cut", "deafen"])
async def test_a_commit_whose_connection_is_lost_is_found_out(own, cutter, how):
    app = Doubtless(through(cutter, own.empty()), worker=False)

    @app.tool(**WRITE)
    async def ship(call: Call, order: int) -> int:
        return order

    async with app:
        async with app.transaction() as tx:
            await tx.run("create temp table if not exists unused (id int)")
            await tx.run("drop table if exists public.orders")
            await tx.run("create table public.orders (id int)")

        async def sells() -> None:
            async with app.transaction() as tx:
                await tx.run("insert into public.orders values (1)")
                await tx.prepare("ship", {"order": 1}, operation_id="o1")
                cutter.at_commit = how

        if how == "lose":
            with pytest.raises(LedgerUnavailable, match=NOTHING):
                await sells()
            with pytest.raises(OperationNotFound):
                await app.outcome("o1")
        else:
            await sells()
            assert (await app.outcome("o1")).state == "prepared"
        assert cutter.cut.is_set()
        async with app.transaction() as tx:
            rows = await tx.rows("select id from public.orders")
        assert rows == ([] if how == "lose" else [{"id": 1}])
