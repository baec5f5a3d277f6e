"""A fastmcp server whose tools end the process right after their effect, and its client."""

import asyncio
import os
from pathlib import Path
from typing import Any

from fastmcp import Client, FastMCP

from doubtless import Doubtless
from doubtless.integrations.fastmcp import Guarded


def shop(effects: Path, app: Doubtless | None, *, ends: bool = False) -> FastMCP[Any]:
    """Return a server whose tool adds a line to `effects`, and then may end the process."""
    mcp: FastMCP[Any] = FastMCP("shop")
    if app is not None:
        mcp.add_middleware(Guarded(app, scope="agent-7"))

    @mcp.tool
    async def pay(amount: int) -> str:
        """Pay an amount."""
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{amount}\n")
        if ends:
            os._exit(9)
        return f"paid {amount}"

    return mcp


async def calls(options: dict[str, Any]) -> None:
    folder = Path(options["folder"])
    async with Doubtless(f"sqlite:///{folder / 'ledger.db'}") as app:
        given = app if options["is_ours"] else None
        async with Client(shop(folder / options["effects"], given, ends=True)) as client:
            await client.call_tool("pay", {"amount": 5})


def run(options: dict[str, Any]) -> None:
    """Call the tool; it doesn't return."""
    asyncio.run(calls(options))
