"""An application with a table of its own in the ledger's database."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.engine.functions import WRITE
from tests.postgres import Postgres

from doubtless import Call, Doubtless

ORDERS = "create table if not exists orders (id integer primary key, state text not null)"


def on_file(folder: Path) -> str:
    """Return the address of a ledger in a file."""
    return f"sqlite:///{folder / 'ledger.db'}"


def on_server(postgres: Postgres) -> str:
    """Return the address of an empty ledger whose users have a schema of their own, empty too."""
    ledger = postgres.empty()
    theirs = f"{ledger.rpartition('schema=')[2]}_shop"
    with postgres.connect() as connection:
        connection.execute(f"drop schema if exists {theirs} cascade")
        connection.execute(f"create schema {theirs}")
    return f"{ledger}&options={quote(f'-csearch_path={theirs}')}"


class Shop:
    """An application with a table of its own, and what its tool did."""

    def __init__(self, address: str | Path, **options: Any) -> None:
        found = address if isinstance(address, str) else on_file(address)
        self.app = Doubtless(found, **options)
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
