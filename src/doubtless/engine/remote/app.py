"""An application that runs in a service: `Doubtless("https://…", token=…)`.

A call gets its id here, before it is sent for the first time, so that an answer of the service that
is lost leads to a repeat of the same request, and never to a second operation.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Never, ParamSpec, Self, TypeVar, cast
from uuid import uuid4

import anyio
import anyio.abc

from doubtless.core import identity
from doubtless.core.model import Json, Principal, Role, State
from doubtless.core.outcome import Outcome
from doubtless.engine.actor import Actor
from doubtless.engine.app import Doubtless
from doubtless.engine.deliveries import Bell, Callback, Delivery, Position, Subscriber
from doubtless.engine.figures import Reading
from doubtless.engine.registry import Registry
from doubtless.engine.remote.asking import PAGE_MAX, Service, checked, members, part
from doubtless.engine.remote.exhibits import RemoteExhibits
from doubtless.engine.remote.people import RemotePeople
from doubtless.engine.remote.stream import RemotePosition, settlements
from doubtless.engine.remote.wire import RETRY_FOR_S, Ask
from doubtless.engine.reports import SessionRecord
from doubtless.engine.settlements import checked_name
from doubtless.engine.stream import SettlementPage, read_outcome
from doubtless.engine.surroundings import new_id
from doubtless.errors import (
    BadArguments,
    BadOperationId,
    OperationNotFound,
    ServiceUnavailable,
    SettingsError,
)
from doubtless.ledger.store import Ledger

P = ParamSpec("P")
R = TypeVar("R")

POLL_MIN_S: Final = 0.05
POLL_MAX_S: Final = 1.0
HELD_S: Final = 25.0  # how long the service holds a call; after that it is asked now and then
ANSWER_EXTRA_S: Final = 30.0
LONGEST_S: Final = 600.0  # a call that says no `wait_s` is waited for so long
UNDER_WAY: Final = frozenset({State.PREPARED, State.EXECUTING})
OPEN: Final = frozenset(state for state in State if not state.ends)


class RemoteDoubtless(RemoteExhibits, RemotePeople, Doubtless):
    """An application that runs in a service. Made by `Doubtless` from an address of http(s).

    Its methods have the arguments, results and exceptions of the local one. Contracts, credentials
    and tools are the service's; who acts is told by the token, and what it sees is that
    principal's.

    Args:
        ledger: The service's address: "https://doubtless.internal".
        token: Made by `doubtless token create`.
    """

    retry_for_s = RETRY_FOR_S
    """How long a service that can't be reached is tried again, in seconds."""

    def __init__(self, ledger: str, *, token: str | None = None, **options: object) -> None:
        said = sorted(name for name, value in options.items() if value is not None)
        if said:
            raise SettingsError(
                f"{', '.join(said)}: with the address of a service there is only token=; the rest"
                " is what the service was started with"
            )
        self._wire = Service(ledger, token or "", retry_for_s=self.retry_for_s)
        self._principal = Principal(name="", role=Role.AGENT)  # the token's: the service knows
        self.registry = Registry()  # the service has the tools
        self._subscribers: dict[str, Subscriber] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stack = AsyncExitStack()

    # --- opening and closing ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Make ready to ask. Nothing is asked yet."""
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self._wire.open()
            stack.push_async_callback(self._wire.aclose)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._stack = stack.pop_all()
        for subscriber in self._subscribers.values():
            self._deliver(subscriber)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections. What is under way goes on in the service."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._stack.aclose()

    # --- calls -----------------------------------------------------------------------------------

    async def call(  # noqa: PLR0913 - what a caller may say, each by its name
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        after: Sequence[str] = (),
        on_unknown: str = "stop",
        supersedes: str | None = None,
        wait_s: float | None = None,
    ) -> Outcome:
        """Do as `Calls.call` says. A lost answer leads to a repeat of the very same request.

        Raises:
            ServiceUnavailable: No answer came in time. It may have been recorded: a call with its
                `operation_id` or `request_id` means the same operation.
        """
        made = request_id or new_id()
        for each in (operation_id, made):
            if each is not None and not identity.is_operation_id(each):
                raise BadOperationId(each)
        _check(tool, arguments)
        held_s = None if wait_s is None else min(wait_s, HELD_S)
        body: dict[str, Json] = {
            "tool": tool,
            "arguments": arguments,
            "operation_id": operation_id,
            "request_id": made if operation_id is None else None,
            "session_id": session_id or None,
            "correlation_id": correlation_id,
            "after": list(after) or None,
            "on_unknown": on_unknown,
            "supersedes": supersedes,
            "wait": None if held_s is None else f"{round(held_s * 1000)}ms",
        }
        body = {name: value for name, value in body.items() if value is not None}
        end_s = anyio.current_time() + (wait_s or 0)
        name = operation_id or made
        try:
            found = await self._submit(tool, body, name, held_s)
            if wait_s is not None and wait_s > HELD_S:
                found = await self._until(found, _has_answer, end_s)
        except ServiceUnavailable as error:
            ours = None if operation_id is not None else made
            unheard = _unheard(error, request_id=ours, operation_id=operation_id)
            found = await self._recorded(name, unheard, None if wait_s is None else end_s)
        return found

    async def _recorded(
        self, name: str, unheard: ServiceUnavailable, end_s: float | None
    ) -> Outcome:
        """Ask for what a call led to whose answers were all lost, or came too late to be heard."""
        try:
            found = await self.outcome(name)
            if end_s is not None:
                return await self._until(found, _has_answer, end_s)
            return await self._until(found, _has_news, anyio.current_time() + LONGEST_S)
        except (OperationNotFound, ServiceUnavailable):
            raise unheard from None

    async def _submit(
        self, tool: str, body: Mapping[str, Json], name: str, held_s: float | None
    ) -> Outcome:
        answer_s = (HELD_S if held_s is None else held_s) + ANSWER_EXTRA_S
        answer = await self._wire.ask(
            Ask(method="POST", path="/v1/operations", body=body, answer_s=answer_s)
        )
        if answer.status == 409 and "refusal" in answer.body:
            return read_outcome(answer.body["refusal"])
        return read_outcome(checked(answer, tool=tool, operation_id=name).body)

    async def call_in_doubt(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        in_doubt: Sequence[str],
        request_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        wait_s: float | None = None,
    ) -> Outcome:
        """Raise `SettingsError`: a service takes none of those. `doubting.ask` is for both."""
        raise SettingsError("a service takes no in_doubt: use doubting.ask, which asks it first")

    async def wait(self, operation_id: str, *, timeout: float) -> Outcome:  # noqa: ASYNC109
        """Do as `Calls.wait` says."""
        end_s = anyio.current_time() + timeout
        found = await self.outcome(operation_id)
        return await self._until(found, lambda told: State(told.state).ends, end_s)

    async def _until(
        self, found: Outcome, ready: Callable[[Outcome], bool], end_s: float
    ) -> Outcome:
        """Ask now and then, until it is `ready` or time is up."""
        pause_s = POLL_MIN_S
        while not ready(found) and (left_s := end_s - anyio.current_time()) > 0:
            await anyio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, POLL_MAX_S)
            found = await self.outcome(found.operation_id)
        return found

    # --- reading ---------------------------------------------------------------------------------

    async def session(self, session_id: str | None = None) -> SessionRecord:
        """Do as `Reads.session` says."""
        path = f"/v1/sessions/{part(session_id)}" if session_id else "/v1/sessions"
        found = cast("Mapping[str, str]", await self._wire.get(path))
        return SessionRecord(
            session_id=found["session_id"],
            principal=found["principal"],
            unresolved=tuple(read_outcome(each) for each in members(found, "unresolved")),
            recent=tuple(read_outcome(each) for each in members(found, "recent")),
        )

    async def offered(self) -> list[dict[str, Json]]:
        """Return the service's tools as `GET /v1/tools` tells them."""
        return [dict(each) for each in members(await self._wire.get("/v1/tools"), "tools")]

    async def timeline(self, operation_id: str) -> list[dict[str, Json]]:
        """Do as `Reads.timeline` says. Agents are not shown it."""
        path = f"/v1/operations/{part(operation_id)}/timeline"
        found = await self._wire.get(path, operation_id=operation_id)
        return [dict(entry) for entry in members(found, "timeline")]

    async def operations(
        self,
        *,
        states: Sequence[State] = (),
        tool: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
    ) -> list[Outcome]:
        """Do as `Reads.operations` says, of those that the token's principal may see."""
        asked: list[str | None] = [State(state).value for state in states] or [None]
        if set(states) == OPEN:
            asked = ["unresolved"]
        found: list[Outcome] = []
        for state in asked:
            query: dict[str, Json] = {"state": state, "tool": tool, "session_id": session_id}
            found += await self._found(query, limit)
        if len(asked) > 1:
            found.sort(key=lambda each: each.created_at or "", reverse=True)
        return found[:limit]

    async def _found(self, query: Mapping[str, Json], limit: int) -> list[Outcome]:
        """Read pages until there are `limit` operations, or no more."""
        found: list[Outcome] = []
        cursor: Json = None
        while len(found) < limit:
            size = min(limit - len(found), PAGE_MAX)
            page = await self._wire.get(
                "/v1/operations", {**query, "limit": size, "cursor": cursor}
            )
            found += [read_outcome(each) for each in members(page, "operations")]
            cursor = cast("Mapping[str, Json]", page)["cursor"]
            if cursor is None:
                break
        return found

    # --- settlements -----------------------------------------------------------------------------

    async def settlements(self, after: int = 0, limit: int = 100) -> SettlementPage:
        """Do as `Settlements.settlements` says, 200 at most on a page."""
        return await settlements(self._wire, after, limit)

    def on_settled(self, callback: Callback, *, name: str, after: int = 0) -> None:
        """Do as `Settlements.on_settled` says: the position is kept by the service."""
        if name in self._subscribers:
            raise SettingsError(f"there is a subscriber {name!r} already: names are unique")
        subscriber = Subscriber(name=checked_name(name), callback=callback, after=after)
        self._subscribers[name] = subscriber
        if self._tasks is not None:
            self._deliver(subscriber)

    def position(self, name: str, *, holder: str, after: int = 0) -> Position:
        """Do as `Settlements.position` says."""
        return RemotePosition(self._wire, checked_name(name), holder, after)

    def _deliver(self, subscriber: Subscriber) -> None:
        assert self._tasks is not None  # noqa: S101 - callers have seen it
        position = self.position(subscriber.name, holder=uuid4().hex, after=subscriber.after)
        self._tasks.start_soon(Delivery(subscriber, position, Bell()).run)

    # --- what only the ledger's own process can do -----------------------------------------------

    def tool(self, **keys: object) -> Never:
        """Refuse: a function can't be carried out by another process.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(
            "a tool in Python code runs where the ledger is, and this application is remote:"
            ' declare it there, with Doubtless("sqlite:///…"), and call it from here by name'
        )

    def actor(self, principal: Principal) -> Actor:
        """Refuse: the token says who acts.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("the token says who acts: open another Doubtless(url, token=…) for it")

    async def metrics(self) -> tuple[Reading, ...]:
        """Refuse: the service tells them itself.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(f"GET {self._wire.url}/metrics tells them, to everybody")

    def check_webhooks(self) -> None:
        """Refuse: webhooks come to the service, which has their secrets.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("webhooks come to the service, which alone has their secrets")

    def webhook_secrets(self, source: str) -> tuple[str, ...]:
        """Refuse, as `check_webhooks` does.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("webhooks come to the service, which alone has their secrets")

    async def drain(self, *, grace_s: float) -> None:
        """Refuse: the service is stopped where it runs.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError("the service is stopped where it runs: send it SIGTERM")

    @property
    def tenant(self) -> str:
        """Refuse: it is the service's.

        Raises:
            SettingsError: Always.
        """
        return self._opened.book.tenant

    @property
    def ledger(self) -> Ledger:
        """Refuse: it is the service's.

        Raises:
            SettingsError: Always.
        """
        return self._opened.ledger


def _has_answer(told: Outcome) -> bool:
    return told.outcome != "pending"


def _has_news(told: Outcome) -> bool:
    return State(told.state) not in UNDER_WAY


def _check(tool: str, arguments: Mapping[str, Json]) -> None:
    """Be sure that arguments can be written as JSON that everybody reads alike."""
    try:
        identity.canonical(arguments)
    except identity.NotCanonical as error:
        raise BadArguments(tool, "", str(error)) from error


def _unheard(
    error: ServiceUnavailable, *, request_id: str | None, operation_id: str | None
) -> ServiceUnavailable:
    said = f"operation_id={operation_id!r}" if operation_id else f"request_id={request_id!r}"
    asked = operation_id or request_id
    return ServiceUnavailable(
        f"{error}. It may have been recorded: a call with {said} means the same operation, and"
        f" outcome({asked!r}) tells of it",
        request_id=request_id,
        operation_id=operation_id,
    )
