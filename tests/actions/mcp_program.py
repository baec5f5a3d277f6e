"""A real MCP server, written with the SDK: `python mcp_program.py DATABASE`, on its pipes.

It counts what it does in a table of its own, and does with the answer whatever it is told.
"""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

CHARGE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["charge"],
    "properties": {
        "charge": {"type": "string"},
        "how": {"type": "string"},
        "memo": {"type": "string"},
        "pad": {"type": "string"},
    },
}
NUMBERED = {
    "type": "object",
    "required": ["number"],
    "properties": {"number": {"type": "integer"}},
}
TOOLS = [
    Tool(name="charge", description="Charge.", input_schema=CHARGE, output_schema=NUMBERED),
    Tool(
        name="find",
        input_schema={"type": "object", "properties": {"memo": {"type": "string"}}},
        annotations=ToolAnnotations(read_only_hint=True),
    ),
]
SLOW_S = 1.6
TABLE = "create table if not exists charges (number integer primary key, charge, memo, meta)"
FIND = "select number, charge, memo from charges where ? is null or memo = ?"


class Book:
    """What was done, in a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._open() as base:
            base.execute("pragma journal_mode = wal")
            base.execute(TABLE)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30, isolation_level=None)

    def add(self, charge: str, memo: str | None, meta: str) -> int:
        with self._open() as base:
            told = (charge, memo, meta)
            added = base.execute("insert into charges (charge, memo, meta) values (?, ?, ?)", told)
            return int(added.lastrowid or 0)

    def rows(self, memo: str | None = None) -> list[dict[str, Any]]:
        with self._open() as base:
            found = base.execute(FIND, (memo, memo)).fetchall()
        return [dict(zip(("number", "charge", "memo"), row, strict=True)) for row in found]

    def clear(self) -> None:
        with self._open() as base:
            base.execute("delete from charges")

    def metas(self) -> list[str]:
        with self._open() as base:
            return [row[0] for row in base.execute("select meta from charges order by number")]


def _text(text: str, **more: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], **more)


async def _charge(book: Book, arguments: dict[str, Any], meta: str) -> CallToolResult:
    how = arguments.get("how", "answer")
    if how == "die before":
        os._exit(3)
    if how == "refuse":
        return _text("no such charge", is_error=True)
    if how == "slow":
        await anyio.sleep(SLOW_S)
    number = book.add(arguments["charge"], arguments.get("memo"), meta)
    match how:
        case "die after":
            os._exit(3)
        case "hang":
            await anyio.sleep_forever()
        case "error":
            return _text("the database is gone", is_error=True)
        case "protocol error":
            raise MCPError(code=-32602, message="no such argument")
        case "echo":
            return _text(f"I am {os.environ['PAY_TOKEN']}")
        case "misfit":
            return _text("done", structured_content={"number": "not a number"})
        case "nonsense":
            os.write(1, b"Traceback (most recent call last)\n")
            os._exit(3)
        case "deaf":
            os.close(1)
            await anyio.sleep_forever()
    return _text(f"charged as {number}", structured_content={"number": number})


def server(book: Book) -> Server[Any]:
    """Return the server, on whatever transport."""

    async def call(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        arguments = params.arguments or {}
        if params.name == "charge":
            return await _charge(book, arguments, str(dict(params.meta or {})))
        found = book.rows(arguments.get("memo"))
        if (odd := arguments.get("odd")) == "ignores":
            found = book.rows()
        elif odd == "error":
            return _text("not now", is_error=True)
        return _text("found", structured_content={"items": found, "more": odd == "part"})

    async def listed(ctx: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=TOOLS)

    return Server("pay", on_list_tools=listed, on_call_tool=call)


async def _main(path: str) -> None:
    served = server(Book(path))
    async with stdio_server() as (read, write):
        await served.run(read, write, served.create_initialization_options())


def run(path: str) -> None:
    """Serve this process's pipes, and note that it was started."""
    with Path(f"{path}.starts").open("a", encoding="utf-8") as starts:
        starts.write(f"{os.getpid()} {os.environ.get('PAY_TOKEN', '')}\n")
    asyncio.run(_main(path))


if __name__ == "__main__":
    run(sys.argv[1])
