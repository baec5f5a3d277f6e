"""Upstream MCP servers of one process: connections, and one call at a time on the evidence.

Each server has one connection, made when it is first needed. A server that has gone away is
started or connected to again for the next call, never for the one in flight.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcp_types import CallToolResult, Tool

from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.transports.base import Gate, Watch
from doubtless.transports.mcp_servers import ServerRules

__all__ = ["Called", "ServerRules", "Unreachable", "Upstreams"]


class Unreachable(Exception):
    """A server could not be started, reached or agreed with; the text says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What was seen of one tools/call. `result` is there only if a whole one came.

    Without a result, `proof` is NOT_SENT, NOT_PROCESSED or REJECTED where the transport itself
    proves it; else `cause` says why it is not known what became of the call.
    """

    stage: Stage
    result: CallToolResult | None = None
    proof: Seen | None = None
    cause: Cause | None = None
    detail: str = ""
    status: int | None = None


class Upstreams:
    """The connections of one process, by server. They belong to the event loop that uses them.

    Args:
        secret: Returns a credential by name; asked when a server is started or a request sent.
        boot_s: The boot-time clock of gates, in seconds.
    """

    def __init__(self, secret: Callable[[str], str], boot_s: Callable[[], float]) -> None:
        self._secret, self._boot_s = secret, boot_s

    async def tools(self, server: ServerRules) -> list[Tool]:
        """Return all tools that a server lists now, of all pages.

        Raises:
            Unreachable: It can't be asked.
        """
        raise NotImplementedError

    async def protocol(self, server: ServerRules) -> str:
        """Return the version of the protocol that is spoken with a server.

        Raises:
            Unreachable: It can't be asked.
        """
        raise NotImplementedError

    async def call(
        self,
        server: ServerRules,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        meta: Mapping[str, Json],
        headers: Mapping[str, str],
        gate: Gate,
        watch: Watch,
        limit_s: float,
    ) -> Called:
        """Call a tool at most once, in a task of its own. Never raises but cancelled.

        A caller that is cancelled leaves the call running to its limit, unless not a byte of it
        has left: then none will. No cancellation is ever sent to the server.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close all connections: servers that were started here are ended."""
        raise NotImplementedError


def claims_order(tools: Sequence[Tool]) -> list[Tool]:
    """Return tools by name, so that lists are the same each time."""
    return sorted(tools, key=lambda tool: tool.name)
