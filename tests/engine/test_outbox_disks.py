"""A disk that fails under a transaction of the user's: nothing is half there, as it is told."""

import subprocess
from functools import partial
from operator import eq
from pathlib import Path

import apsw
import pytest
from tests.engine.functions import WRITE
from tests.ledger.faults import failing_disk

from doubtless import Call, Doubtless
from doubtless.errors import LedgerError
from doubtless.ledger import operations
from doubtless.ledger.group import IN_DOUBT, NOTHING
from doubtless.ledger.store import open_ledger

ORDERS = "create table orders (id integer primary key, name text)"
COUNT = "select count(*) from orders where id = :id"


def _from(nth: int, number: int) -> bool:
    return number >= nth


def held(ledger, number: int) -> tuple[bool, bool]:
    """Whether the row is there, and whether the operation is."""

    def unit(tx) -> tuple[bool, bool]:
        row = tx.tuples(COUNT, id=number)[0][0] == 1
        return row, operations.get(tx, "main", f"o{number}") is not None

    found: tuple[bool, bool] = ledger.read(unit)
    return found


def held_after_a_crash(folder: Path, number: int) -> tuple[bool, bool]:
    image = folder / "image"
    image.mkdir(exist_ok=True)
    for name in ("ledger.db", "ledger.db-wal"):
        # Another process copies them: closing a descriptor in this one would drop locks.
        subprocess.run(["cp", folder / name, image / name], check=True)
    with open_ledger(f"sqlite:///{image}/ledger.db", inline=True) as ledger:
        return held(ledger, number)


async def transacts(app: Doubtless, number: int) -> LedgerError | None:
    try:
        async with app.transaction() as tx:
            await tx.run("insert into orders values (:id, :name)", id=number, name="x" * 3000)
            await tx.prepare("ship", {"order": number}, operation_id=f"o{number}")
    except LedgerError as error:
        return error
    return None


@pytest.mark.proves("OUTBOX-1", "OUTBOX-2")
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
async def test_whichever_write_fails_row_and_operation_are_both_there_or_neither(
    tmp_path, error, lasting
):
    told: list[str] = []
    with failing_disk() as (disk, vfs):
        app = Doubtless(f"sqlite:///{tmp_path}/ledger.db?vfs={vfs}", worker=False)

        @app.tool(**WRITE)
        async def ship(call: Call, order: int) -> int:
            return order

        async with app:
            async with app.transaction() as tx:
                await tx.run(ORDERS)
            disk.fail(lambda _: False)
            assert await transacts(app, 0) is None
            writes = disk.done
            assert writes > 2
            for nth in range(1, writes + 2):
                disk.fail(partial(_from if lasting else eq, nth), error=error)
                refused = await transacts(app, nth)
                disk.heal()
                there = held(app.ledger, nth)
                assert there in {(True, True), (False, False)}
                assert (refused is None) is there[0], refused
                if refused is not None:
                    told.append(str(refused))
                    if NOTHING in str(refused):
                        assert held_after_a_crash(tmp_path, nth) == (False, False)
                await transacts(app, 1000 + nth)  # it goes on
                assert held(app.ledger, 1000 + nth) == (True, True)
                assert held_after_a_crash(tmp_path, nth) == there
    assert told
    commits = [text for text in told if NOTHING in text or IN_DOUBT in text]
    assert commits, told
