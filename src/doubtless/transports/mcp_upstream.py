"""Upstream MCP servers of one process: connections, and single calls with their evidence.

Each server has one connection, made when it is first needed. A server that has gone away is
started or connected to again for the next call, never for the one in flight.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, cast

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, Tool
from pydantic import ValidationError

from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.errors import DoubtlessError
from doubtless.transports.base import Gate, Watch
from doubtless.transports.http_exchange import Halted
from doubtless.transports.mcp_pipe import PipeWriter, piped
from doubtless.transports.mcp_servers import ServerRules
from doubtless.transports.mcp_ticket import TICKET, Ticket
from doubtless.transports.mcp_web import Carrier, webbed

__all__ = ["Called", "ServerRules", "Unreachable", "Upstreams"]

CLIENT: Final = types.Implementation(name="doubtless", version="1")


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
    error: types.ErrorData | None = None  # the server's own answer, where it is one of JSON-RPC
    proof: Seen | None = None
    cause: Cause | None = None
    detail: str = ""
    status: int | None = None


class _Session(ClientSession):
    """The SDK's session, which takes a success for one even if it doesn't fit its schema."""

    async def validate_tool_result(self, name: str, result: CallToolResult) -> None:
        """Do nothing: what was done was done."""


class Connection:
    """One connection to one server, in a task of its own that outlives its callers."""

    def __init__(
        self, server: ServerRules, secret: Callable[[str], str], boot_s: Callable[[], float]
    ) -> None:
        self._server, self._secret = server, secret
        self._carrier = Carrier(server, secret, boot_s) if server.url is not None else None
        self._users = 0
        self._leave = asyncio.Event()
        self._ready: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.is_retired = False
        self.task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ClientSession]:
        """Hold the session, once it is agreed on.

        Raises:
            Unreachable: There will be none.
        """
        self._users += 1
        try:
            yield await asyncio.shield(self._ready)
        finally:
            self._users -= 1
            self._may_leave()

    def retire(self) -> None:
        """Take nobody in any more; those that are in stay to their end."""
        self.is_retired = True
        self._may_leave()

    def _may_leave(self) -> None:
        if self.is_retired and not self._users:
            self._leave.set()

    async def aclose(self) -> None:
        """Leave at once. What an endpoint has begun goes on there; a process ends."""
        self.is_retired = True
        if self._carrier is not None:
            self._carrier.leaves_calls = self._users > 0
        self._leave.set()
        if not self._ready.done():
            self.task.cancel()
        await asyncio.wait([self.task])

    async def _run(self) -> None:
        try:
            async with (
                self._streams() as (read, write),
                _Session(read, write, client_info=CLIENT) as session,
            ):
                try:
                    await self._agreed(session)
                except Exception as error:  # noqa: BLE001 - as below, but before the server ends
                    self._fail(self._words(error))
                    return
                self._ready.set_result(session)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next call begins anew
            self._fail(self._words(error))
        finally:
            self._fail("the connection is closed")

    async def _agreed(self, session: ClientSession) -> None:
        async with asyncio.timeout(self._server.timeout_ms / 1000):
            await (session.initialize() if self._server.handshake else _agree(session))
            if self._carrier is not None:
                await _list(session)  # a modern call repeats arguments in its headers

    def _fail(self, why: str) -> None:
        """Take nobody in, and tell those who wait, if they were not let in yet."""
        self.is_retired = True
        if not self._ready.done():
            self._ready.set_exception(Unreachable(f"{self._server.name}: {why}"))

    @asynccontextmanager
    async def _streams(
        self,
    ) -> AsyncIterator[
        tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage] | PipeWriter]
    ]:
        if self._carrier is not None:
            async with webbed(self._server, self._carrier) as found:
                yield found
            return
        secrets = {name: self._secret(of) for name, of in self._server.env_credentials}
        async with piped(self._server, secrets, self.retire) as streams:
            yield streams

    def _words(self, error: Exception) -> str:
        if self._carrier is not None and self._carrier.failure:
            return self._carrier.failure
        inner: BaseException = error
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]
        match inner:
            case TimeoutError():
                return f"it did not agree to talk within {self._server.timeout_ms / 1000:g} s"
            case MCPError():
                return f"it did not agree to talk: {inner.error.message[:200]}"
            case OSError():
                return f"it can't be started: {inner.strerror}"
            case DoubtlessError():
                return str(inner)
            case _:
                return f"it did not agree to talk ({type(inner).__name__})"


class Upstreams:
    """The connections of one process, by server. They belong to the event loop that uses them.

    Args:
        secret: Returns a credential by name; asked when a server is started or a request sent.
        boot_s: The boot-time clock of gates, in seconds.
    """

    def __init__(self, secret: Callable[[str], str], boot_s: Callable[[], float]) -> None:
        self._secret, self._boot_s = secret, boot_s
        self._connections: dict[ServerRules, Connection] = {}
        self._old: set[Connection] = set()
        self._calls: set[asyncio.Task[Called]] = set()

    async def tools(self, server: ServerRules) -> list[Tool]:
        """Return all tools that a server lists now, of all pages.

        Raises:
            Unreachable: It can't be asked.
        """
        connection = self._connection(server)
        try:
            async with (
                connection.session() as session,
                asyncio.timeout(server.timeout_ms / 1000),
            ):
                return await _list(session)
        except (MCPError, ValidationError, TimeoutError) as error:
            if server.url is not None:
                connection.retire()  # a new session costs nothing; a busy process is left in peace
            told = error.error.message if isinstance(error, MCPError) else type(error).__name__
            raise Unreachable(f"{server.name} does not list its tools: {told:.200}") from error

    async def protocol(self, server: ServerRules) -> str:
        """Return the version of the protocol that is spoken with a server.

        Raises:
            Unreachable: It can't be asked.
        """
        async with self.asking(server) as session:
            return session.protocol_version or ""

    @asynccontextmanager
    async def asking(self, server: ServerRules) -> AsyncIterator[ClientSession]:
        """Hold the session with a server, for what only reads: never to call a tool.

        Raises:
            Unreachable: It can't be asked.
        """
        async with self._connection(server).session() as session:
            yield session

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

        A caller that is cancelled leaves the call running to its limit, unless it was not wholly
        written: then no more of it will be. No cancellation is ever sent to the server.
        """
        connection = self._connection(server)
        try:
            async with connection.session():
                ticket = Ticket(gate=gate, watch=watch, boot_s=self._boot_s, headers=headers)
                work = _Work(connection, ticket, limit_s)
                task = asyncio.create_task(work.call(tool, arguments, meta))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
                try:
                    return await asyncio.shield(task)
                except asyncio.CancelledError:
                    _let_go(ticket, task)
                    raise
        except Unreachable as error:
            return Called(stage=Stage.CONNECTING, proof=Seen.NOT_SENT, detail=str(error))

    async def aclose(self) -> None:
        """Close all connections: servers that were started here are ended."""
        found = [*self._connections.values(), *self._old]
        self._connections.clear()
        await asyncio.gather(*(each.aclose() for each in found))
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _connection(self, server: ServerRules) -> Connection:
        """Return the live connection to a server, or begin one."""
        found = self._connections.get(server)
        if found is None or found.is_retired:
            if found is not None and not found.task.done():
                self._old.add(found)
                found.task.add_done_callback(lambda _: self._old.discard(found))
            found = Connection(server, self._secret, self._boot_s)
            self._connections[server] = found
        return found


def _let_go(ticket: Ticket, task: "asyncio.Task[Called]") -> None:
    """Leave a call that was wholly written to itself; let nothing more of any other be written."""
    if ticket.watch.written:
        return
    ticket.revoke()
    if ticket.abort is not None:
        ticket.abort()
    task.cancel()


@dataclass(slots=True)
class _Work:
    """One call under way."""

    connection: Connection
    ticket: Ticket
    limit_s: float

    async def call(
        self, tool: str, arguments: Mapping[str, Json], meta: Mapping[str, Json]
    ) -> Called:
        """Send it, wait for its answer, and say what was seen."""
        TICKET.set(self.ticket)
        try:
            async with self.connection.session() as session, asyncio.timeout(self.limit_s):
                found = await session.call_tool(
                    tool,
                    dict(arguments),
                    meta=cast("types.RequestParamsMeta", dict(meta)),
                    allow_input_required=True,
                )
        except TimeoutError:
            self.connection.retire()  # the next call does not depend on what hangs
            return self._unknown(Cause.TIMEOUT, "no answer within the time for late ones")
        except ValidationError:
            return self._unknown(Cause.UNREADABLE, "the answer is no result of a tool")
        except Halted as error:
            return self._unknown(Cause.CONNECTION_RESET, error.detail)
        except MCPError as error:
            return self._without_result(error)
        except Exception as error:  # noqa: BLE001 - it proves nothing, whatever it is
            return self._unknown(Cause.UNREADABLE, f"{type(error).__name__} in the MCP library")
        if not isinstance(found, CallToolResult):
            why = "the server asks for input before it goes on, which nobody gives here"
            return self._unknown(Cause.TOOL_ERROR, why)
        self.ticket.watch.stage = Stage.READ
        return Called(stage=Stage.READ, result=found, status=self.ticket.status)

    def _unknown(self, cause: Cause, detail: str) -> Called:
        """Say why it is not known, unless it is: not a byte of it has left, nor ever will."""
        ticket = self.ticket
        if ticket.revoke():
            why = ticket.halted or ticket.broken or detail
            stage = ticket.watch.stage
            return Called(stage=stage, proof=Seen.NOT_SENT, detail=f"it was not sent: {why}")
        return Called(stage=ticket.watch.stage, cause=cause, detail=detail, status=ticket.status)

    def _without_result(self, error: MCPError) -> Called:
        """Say what an answer without a result is, by what came over the link. No code is asked."""
        ticket = self.ticket
        if ticket.was_answered():
            ticket.watch.stage = Stage.READ
            told = f"the server answered with an error of the protocol ({error.error.code})"
            return replace(self._unknown(Cause.TOOL_ERROR, told), error=error.error)
        self.connection.retire()
        if ticket.status is None:
            why = ticket.broken or "the server is gone"
            return self._unknown(Cause.CONNECTION_RESET, f"no answer after request write: {why}")
        return self._by_status(ticket.status)

    def _by_status(self, status: int) -> Called:
        """Say what an HTTP answer is that holds none to the call."""
        ticket = self.ticket
        if status == 401:
            why = "the endpoint wants another credential (401)"
            return Called(stage=Stage.READ, proof=Seen.REJECTED, detail=why, status=status)
        if status == 404 and ticket.session:
            why = "the endpoint does not know the session any more, and took no call in it (404)"
            return Called(stage=Stage.READ, proof=Seen.NOT_PROCESSED, detail=why, status=status)
        if status >= 500:
            return self._unknown(Cause.GATEWAY_ERROR, f"status {status} proves nothing")
        if not 200 <= status < 300:
            return self._unknown(Cause.UNPROVEN_STATUS, f"status {status} proves nothing")
        if ticket.broken:
            why = f"the answer broke off: {ticket.broken}"
            return self._unknown(Cause.CONNECTION_RESET, why)
        if ticket.kept_type.startswith("text/event-stream"):
            why = "the answer ended without a result"
            return self._unknown(Cause.CONNECTION_RESET, why)
        return self._unknown(Cause.UNREADABLE, "the answer is no message of the protocol")


async def _agree(session: ClientSession) -> None:
    """Agree on the newest version that both speak, of either era of the protocol."""
    try:
        await session.discover()
    except (MCPError, ValidationError, RuntimeError):
        try:
            await session.initialize()
        except MCPError as error:
            if error.error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            await session.discover()  # it came up late: it has taken the first question by now


async def _list(session: ClientSession) -> list[Tool]:
    found: list[Tool] = []
    page = await session.list_tools()
    found += page.tools
    while page.next_cursor:
        cursor = types.PaginatedRequestParams(cursor=page.next_cursor)
        page = await session.list_tools(params=cursor)
        found += page.tools
    return found
