"""An application with a table of its own in the ledger's database."""

from pathlib import Path
from typing import Any

from tests.engine.functions import WRITE, application

from doubtless import Call

ORDERS = "create table if not exists orders (id integer primary key, state text not null) strict"


class Shop:
    """An application with a table of its own, and what its tool did."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.app = application(folder, **options)
        self.done: list[int] = []

        @self.app.tool(**WRITE)
        async def ship(call: Call, order: int) -> int:
            del call
            self.done.append(order)
            return order

    async def open(self) -> None:
        async with self.app.transaction() as tx:
            await tx.run(ORDERS)

    async def orders(self) -> dict[int, str]:
        async with self.app.transaction() as tx:
            rows = await tx.rows("select id, state from orders order by id")
        return {int(row["id"]): str(row["state"]) for row in rows}  # type: ignore[arg-type]


async def sells(shop: Shop, order: int = 7) -> str:
    async with shop.app.transaction() as tx:
        await tx.run("insert into orders values (:id, 'paid')", id=order)
        told = await tx.prepare("ship", {"order": order}, operation_id=f"ship-{order}")
        assert (told.status, told.state) == ("pending", "prepared")
    return told.operation_id
