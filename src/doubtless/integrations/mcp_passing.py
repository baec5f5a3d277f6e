"""What servers offer besides tools: resources and prompts, handed on as they are.

They only read, so nothing of it is recorded. Prompts of several servers have their server's name in
front, as tools have; resources are found by their URI.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeAlias

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from doubtless.integrations.mcp_tools import Fronted
from doubtless.transports.mcp_upstream import Unreachable, Upstreams

FIRST: Final = types.PaginatedRequestParams()

Context: TypeAlias = ServerRequestContext[dict[str, object], object]
Page: TypeAlias = types.PaginatedRequestParams | None


class Passing:
    """Hands questions on to the servers that can answer them.

    Args:
        upstreams: The connections.
        servers: What is fronted.
    """

    def __init__(self, upstreams: Upstreams, servers: Sequence[Fronted]) -> None:
        self._upstreams, self._servers = upstreams, servers
        self._homes: dict[str, Fronted] = {}  # of resources that were listed, by URI

    async def resources(self, _: Context, __: Page) -> types.ListResourcesResult:
        """List the resources of all servers."""
        found: list[types.Resource] = []
        for server in self._servers:
            async with self._asking(server, "resources") as session:
                page = FIRST if session else None
                while session and page:
                    listed = await session.list_resources(params=page)
                    found += listed.resources
                    self._homes.update({each.uri: server for each in listed.resources})
                    page = _next(listed)
        return types.ListResourcesResult(resources=found)

    async def templates(self, _: Context, __: Page) -> types.ListResourceTemplatesResult:
        """List the templates of resources of all servers."""
        found: list[types.ResourceTemplate] = []
        for server in self._servers:
            async with self._asking(server, "resources") as session:
                page = FIRST if session else None
                while session and page:
                    listed = await session.list_resource_templates(params=page)
                    found += listed.resource_templates
                    page = _next(listed)
        return types.ListResourceTemplatesResult(resource_templates=found)

    async def read(
        self, _: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Read a resource, of the server that has listed it or else of the first that knows it."""
        home = self._homes.get(params.uri)
        refusal = MCPError(types.INVALID_PARAMS, f"Unknown resource: {params.uri}")
        for server in self._servers if home is None else (home,):
            async with self._asking(server, "resources") as session:
                try:
                    if session is not None:
                        return await session.read_resource(params.uri)
                except MCPError as error:
                    refusal = error
        raise refusal

    async def prompts(self, _: Context, __: Page) -> types.ListPromptsResult:
        """List the prompts of all servers."""
        found: list[types.Prompt] = []
        for server in self._servers:
            async with self._asking(server, "prompts") as session:
                page = FIRST if session else None
                while session and page:
                    listed = await session.list_prompts(params=page)
                    found += [
                        each.model_copy(update={"name": f"{server.prefix}{each.name}"})
                        for each in listed.prompts
                    ]
                    page = _next(listed)
        return types.ListPromptsResult(prompts=found)

    async def prompt(
        self, _: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Get a prompt of the server that its name begins with."""
        for server in self._servers:
            if params.name.startswith(server.prefix):
                async with self._asking(server, "prompts") as session:
                    if session is not None:
                        name = params.name.removeprefix(server.prefix)
                        return await session.get_prompt(name, params.arguments)
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")

    @asynccontextmanager
    async def _asking(self, server: Fronted, what: str) -> AsyncIterator[ClientSession | None]:
        """Hold the session with a server that offers something; None with one that doesn't.

        One that can't be asked has nothing to offer now, if there are others.
        """
        async with AsyncExitStack() as stack:
            try:
                session = await stack.enter_async_context(self._upstreams.asking(server.rules))
            except Unreachable as error:
                if len(self._servers) == 1:
                    raise MCPError(types.INTERNAL_ERROR, str(error)) from error
                yield None
                return
            offers = getattr(session.server_capabilities, what, None) is not None
            yield session if offers else None


def _next(listed: types.PaginatedResult) -> types.PaginatedRequestParams | None:
    """Return what asks for the next page; None after the last one."""
    cursor = listed.next_cursor
    return types.PaginatedRequestParams(cursor=cursor) if cursor else None
