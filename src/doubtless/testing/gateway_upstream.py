"""An MCP server that only counts: `python -m doubtless.testing.gateway_upstream`, over its pipes.

On the official SDK, as most servers are. What takes time in front of it is what is measured.
"""

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

charged: list[int] = []


async def list_tools(
    _: ServerRequestContext[dict[str, object], object], __: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    """Name `charge`, and `count`, which tells how often it was called."""
    amount = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    reads = types.ToolAnnotations(read_only_hint=True)
    return types.ListToolsResult(
        tools=[
            types.Tool(name="charge", input_schema=amount),
            types.Tool(name="count", input_schema={"type": "object"}, annotations=reads),
        ]
    )


async def call_tool(
    _: ServerRequestContext[dict[str, object], object], params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Do as the tool's name says."""
    if params.name == "charge":
        charged.append(int((params.arguments or {})["amount"]))
    text = types.TextContent(type="text", text=str(len(charged)))
    return types.CallToolResult(content=[text])


async def main() -> None:
    """Serve until the client goes away."""
    server = Server("counting", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
