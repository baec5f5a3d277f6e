"""Tools of servers that are mounted on a fastmcp server: one execution for each attempt.

A mounted server's own middleware is within the operation, and may repeat the tool. So the tool is
given one permit, which a repeat finds used.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers.fastmcp_provider import FastMCPProviderTool
from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from fastmcp.tools.tool_transform import TransformedTool
from fastmcp.utilities.versions import VersionSpec
from pydantic import PrivateAttr

from doubtless.errors import DoubtlessError


class ActedAlready(DoubtlessError):
    """Something within a mounted server repeats a call, of which the first may have acted."""


@dataclass(slots=True, eq=False)
class Permit:
    """The one execution that an attempt has of a tool that was mounted from another server."""

    server: object
    tool: str
    within: "Permit | None" = None  # of the server that this one is mounted on
    is_used: bool = False
    is_repeated: bool = False

    def take(self) -> None:
        """Use it, once.

        Raises:
            ActedAlready: It was used before.
        """
        if self.is_used:
            above: Permit | None = self
            while above is not None:
                above.is_repeated, above = True, above.within
            raise ActedAlready(f"{self.tool} has been executed, and may have acted")
        self.is_used = True


_permits: ContextVar[tuple[Permit, ...]] = ContextVar("permits", default=())


class _Once(Transform):
    """Lets a tool of a mounted server run once for each permit."""

    def __init__(self, server: FastMCP[Any]) -> None:
        self._server = server

    async def get_tool(
        self, name: str, call_next: GetToolNext, *, version: VersionSpec | None = None
    ) -> Tool | None:
        """Return the tool; under a permit, one that runs once."""
        found = await call_next(name, version=version)
        for permit in _permits.get():
            if found is not None and permit.server is self._server and permit.tool == name:
                return _Single.under(permit, found)
        return found


class _Single(Tool):
    _permit: Permit = PrivateAttr()
    _inner: Tool = PrivateAttr()

    @classmethod
    def under(cls, permit: Permit, inner: Tool) -> "_Single":
        made = cls(**{name: getattr(inner, name) for name in Tool.model_fields})
        made._permit, made._inner = permit, inner
        return made

    async def _run(self, arguments: dict[str, Any]) -> ToolResult:
        permit = self._permit
        permit.take()
        # What the tool itself calls is its own business.
        within = _permits.set(tuple(each for each in _permits.get() if each is not permit))
        try:
            permit_once(self._inner, permit)
            return await self._inner._run(arguments)  # noqa: SLF001 - as the server does
        finally:
            _permits.reset(within)


def permit_once(tool: Tool, within: Permit | None = None) -> Permit | None:
    """Permit one execution of a tool, if it belongs to a mounted server; else it has no more."""
    while isinstance(tool, TransformedTool):
        tool = tool.parent_tool
    if not isinstance(tool, FastMCPProviderTool):
        return None
    server, name = tool._server, tool._original_name or tool.name  # noqa: SLF001 - nowhere public
    if not any(isinstance(each, _Once) for each in server.transforms):
        server.add_transform(_Once(server))
    permit = Permit(server, name, within)
    _permits.set((*_permits.get(), permit))
    return permit
