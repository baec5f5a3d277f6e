"""The application: calls, waits, decisions and tools on one ledger."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, Unpack, cast

import anyio
import anyio.abc

from doubtless.core.decisions import Word
from doubtless.core.model import Json, Principal, Record, Role, State
from doubtless.core.outcome import Outcome
from doubtless.engine import decisions, intake, reports
from doubtless.engine.book import Book
from doubtless.engine.contracts import Contracts, ToolKeys, build_contract, load_contracts
from doubtless.engine.credentials import Credentials
from doubtless.engine.decisions import Decision
from doubtless.engine.opened import OpenApp
from doubtless.engine.registry import Registry, Tool, code_lookups
from doubtless.engine.reports import SessionRecord
from doubtless.engine.surroundings import Surroundings
from doubtless.engine.tools import FunctionTool, schema_of
from doubtless.engine.waiting import Known
from doubtless.errors import DoubtlessError, SettingsError
from doubtless.ledger import listing
from doubtless.ledger.store import Ledger, Transaction, open_ledger
from doubtless.transports.base import HttpSender
from doubtless.transports.function import Body, Function
from doubtless.transports.http import HttpTransport

P = ParamSpec("P")
R = TypeVar("R")

WAIT_EXTRA_S = 5.0  # a call waits for its tool's time-out and this long
GRACE_S = 5.0  # open attempts get this long to end when the application is closed


class Doubtless:
    """One application on one ledger. Use it as an asynchronous context manager.

        async with Doubtless("sqlite:///doubtless.db", contracts="contracts.toml") as app:
            outcome = await app.call("create_refund", {"charge": "ch_1", "amount": 500})

    While it is open it also takes up whatever is due on the ledger, its own and what others left:
    prepared operations, look-ups of unknown ones, and what a crash interrupted.

    Args:
        ledger: `sqlite:///relative.db` or `sqlite:////absolute.db`; created if it is absent.
        contracts: A contract file, or contracts that were read already.
        principal: In whose name calls are made; the same after a restart.
        worker: False leaves what is due to other processes.
        secrets: A folder with one file for each credential.
        surroundings: Clocks, ids and liveness; the real ones by default.
        http: Sends requests in place of our own transport.
    """

    def __init__(
        self,
        ledger: str | Ledger = "sqlite:///doubtless.db",
        *,
        contracts: str | Path | Contracts | None = None,
        principal: str = "local",
        worker: bool = True,
        secrets: str | Path | None = None,
        surroundings: Surroundings | None = None,
        http: HttpSender | None = None,
    ) -> None:
        self._address = ledger
        self._principal = Principal(name=principal, role=Role.AGENT)
        self._with_worker = worker
        self._surroundings = surroundings or Surroundings()
        self._http = http
        self._credentials = Credentials(Path(secrets) if secrets is not None else None)
        self.registry = Registry()
        declared = contracts
        if isinstance(contracts, str | Path):
            declared = load_contracts(contracts)
        if isinstance(declared, Contracts):
            for contract in declared.tools.values():
                self.registry.add(Tool(contract=contract))
        self._open: OpenApp | None = None
        self._stack = contextlib.AsyncExitStack()

    # --- opening and closing ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the ledger and start the worker.

        Raises:
            LedgerError: The ledger can't be opened safely.
            SettingsError: A credential is missing, or the HTTP library isn't one that is known.
        """
        self._credentials.check(tool.contract for tool in self.registry)
        async with contextlib.AsyncExitStack() as stack:
            self._open = await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let open attempts end for a while; what is open after that is recorded as unknown."""
        opened, self._open = self._opened, None
        opened.worker_scope.cancel()
        try:
            with anyio.move_on_after(GRACE_S):
                await opened.runner.idle()
        finally:
            opened.tasks.cancel_scope.cancel()
            # What the caller raised goes on as it is; a task group would wrap it.
            await self._stack.aclose()

    async def _start(self, stack: contextlib.AsyncExitStack) -> OpenApp:
        address = self._address
        if isinstance(address, str):
            ledger = stack.enter_context(open_ledger(address, clock=self._surroundings.wall_ms))
        else:
            ledger = address
        http = self._http or HttpTransport(boot_clock=self._surroundings.boot_s)
        await http.self_test()
        stack.push_async_callback(_shielded, http.aclose)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        book = Book(self.registry, self._surroundings, ledger.id)
        opened = OpenApp(ledger, book, http, tasks, self._credentials)
        if self._with_worker:
            tasks.start_soon(opened.work)
        return opened

    @property
    def _opened(self) -> OpenApp:
        if self._open is None:
            raise DoubtlessError(
                "the application is not open: use `async with Doubtless(…) as app`"
            )
        return self._open

    # --- tools -----------------------------------------------------------------------------------

    def tool(
        self,
        *,
        name: str | None = None,
        not_sent: Sequence[type[BaseException]] = (),
        rejected: Sequence[type[BaseException]] = (),
        **keys: Unpack[ToolKeys],
    ) -> Callable[[Callable[P, R]], FunctionTool[P, R]]:
        """Declare a Python function as a tool; its first parameter takes the `Call`.

        The keywords are those of a tool's table in the contract file. `not_sent` and `rejected`
        are exceptions that prove, when they escape, that nothing was sent or that it was refused.

        Raises:
            ContractError: What is declared doesn't fit; all of it at once.
            SettingsError: The signature has no JSON Schema, or another tool has that name.
        """

        def declare(function: Callable[P, R]) -> FunctionTool[P, R]:
            called = name or _name(function)
            place = f"{function.__module__}:{_name(function)}"
            contract = build_contract(
                called, arguments_schema=schema_of(function), declared_in=place, **keys
            )
            code = cast("Function", function)
            body = Body(function=code, not_sent=tuple(not_sent), rejected=tuple(rejected))
            looks = code_lookups(contract, keys.get("lookup"))
            self.registry.add(Tool(contract=contract, body=body, lookups=looks))

            async def invoke(arguments: dict[str, Json], operation_id: str | None) -> Outcome:
                return await self.call(called, arguments, operation_id=operation_id)

            return FunctionTool(called, function, invoke)

        return declare

    # --- calls -----------------------------------------------------------------------------------

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        session_id: str | None = None,
        correlation_id: str | None = None,
        wait_s: float | None = None,
    ) -> Outcome:
        """Carry out one intent at most once, and say what is known of its effect.

        Unknown is an answer too: the worker goes on looking. A call that means an operation which
        exists already joins it, and sends nothing. Cancelling this call doesn't stop the attempt.

        Args:
            tool: The tool's name.
            arguments: JSON-ready.
            operation_id: The caller's own identity of the intent. Without one, the same call in
                the same session joins the one that is still open, and is a new intent after it.
            session_id: Which session of the principal; without one, its implicit one.
            correlation_id: Travels with the request, for the logs of both sides.
            wait_s: Seconds to wait for it to be settled. Without it: until there is something to
                say, at most the tool's time-out and 5 s. Running out of time undoes nothing.

        Raises:
            UnknownTool: No contract is registered under `tool`.
            BadArguments: They don't fit the tool's schema. Nothing was recorded or sent.
            BadOperationId: The id isn't one that may be used.
            LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        """
        opened = self._opened
        ask = intake.draft(
            opened.book,
            self.registry.tool(tool),
            arguments,
            principal=self._principal,
            operation_id=operation_id,
            session_id=session_id,
            correlation_id=correlation_id,
        )
        met = await opened.ledger.commit(
            lambda tx: intake.prepare(opened.book, tx, ask), then=opened.go_on
        )
        if met.refusal is not None:
            return intake.refused(ask, met)
        if not met.joined:
            opened.book.kept.add(ask.tool.digest)  # its snapshot is durable now
        seconds = ask.tool.contract.timeout_ms / 1000 + WAIT_EXTRA_S if wait_s is None else wait_s
        ready = _has_news if wait_s is None else _is_settled
        record = met.begun.record if met.begun is not None else None
        found = await opened.waiting.until(
            met.operation_id, ready, timeout_s=seconds, record=record
        )
        return opened.outcome(found, already_done=met.joined and met.begun is None)

    async def wait(self, operation_id: str, *, timeout_s: float) -> Outcome:
        """Return the outcome once it is settled, or as it is after `timeout_s`: never a guess.

        Raises:
            OperationNotFound: There is no such operation.
        """
        opened = self._opened
        opened.check_owner(operation_id, self._principal)
        found = await opened.waiting.until(operation_id, _has_ended, timeout_s=timeout_s)
        return opened.outcome(found)

    async def outcome(self, operation_id: str) -> Outcome:
        """Return the outcome as it is. Asks nobody and changes nothing.

        Raises:
            OperationNotFound: There is no such operation.
        """
        return await self.wait(operation_id, timeout_s=0)

    # --- people ----------------------------------------------------------------------------------

    async def resolve(
        self,
        operation_id: str,
        decision: str,
        *,
        operator: str,
        note: str,
        version: int | None = None,
        provider_operation_id: str | None = None,
        mark_duplicate: bool = False,
    ) -> Outcome:
        """Record an operator's decision and carry it out.

        Args:
            operation_id: Which operation.
            decision: done, not_done, unsure, retry, look_again or again (`-` for `_` too).
            operator: Who decides.
            note: What was seen, and where.
            version: The version that the operator saw; a newer one is refused.
            provider_operation_id: The provider's id of what was found.
            mark_duplicate: With `again`: the new operation may be a duplicate, and says so.

        Returns:
            The outcome of the operation; for `again` that of the new one.

        Raises:
            StaleVersion: It changed since the operator saw it.
            DecisionRefused: The decision is not legal as things stand.
            OperationNotFound: There is no such operation.
        """
        opened = self._opened
        made = Decision(
            operation_id=operation_id,
            word=_word(decision),
            operator=operator,
            note=note,
            version=version,
            provider_operation_id=provider_operation_id,
            mark_duplicate=mark_duplicate,
        )
        again = opened.draft_again(made) if made.word is Word.AGAIN else None
        decided = await opened.ledger.commit(
            lambda tx: decisions.resolve(opened.book, tx, made, again), then=opened.go_on
        )
        known = Known(opened.load(decided.operation_id))
        opened.changed(known.record)
        if decided.begun is not None:
            seconds = decided.begun.contract.timeout_ms / 1000 + WAIT_EXTRA_S
            known = await opened.waiting.until(decided.operation_id, _has_news, timeout_s=seconds)
        return opened.outcome(known)

    async def cancel(self, operation_id: str) -> Outcome:
        """Withdraw an operation of which nothing was sent.

        Raises:
            DecisionRefused: Something was sent, or it has ended.
            OperationNotFound: There is no such operation.
        """
        opened, principal = self._opened, self._principal
        opened.check_owner(operation_id, principal)
        await opened.ledger.commit(
            lambda tx: decisions.cancel(opened.book, tx, operation_id, principal)
        )
        opened.changed(opened.load(operation_id))
        return await self.outcome(operation_id)

    async def session(self, session_id: str | None = None) -> SessionRecord:
        """Return what this principal did in a session: the first thing for a restarted agent."""
        opened, name = self._opened, self._principal.name
        return opened.ledger.read(
            lambda tx: reports.session(opened.book, tx, session_id or "", name)
        )

    async def timeline(self, operation_id: str) -> list[dict[str, Json]]:
        """Return everything that happened to an operation, in order.

        Raises:
            OperationNotFound: There is no such operation.
        """
        opened = self._opened
        return opened.ledger.read(lambda tx: reports.timeline(opened.book, tx, operation_id))

    async def operations(
        self,
        *,
        states: Sequence[State] = (),
        tool: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
    ) -> list[Outcome]:
        """Return operations of all principals, newest first."""
        opened = self._opened
        filters = {"tool": tool, "session_id": session_id}
        said = {name: value for name, value in filters.items() if value is not None}

        def unit(tx: Transaction) -> list[Outcome]:
            page = listing.find(tx, opened.book.tenant, states=states, filters=said, limit=limit)
            return [opened.outcome_in(tx, found.id) for found in page.operations]

        return opened.ledger.read(unit)


async def _shielded(close: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await close()


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", "tool"))


def _word(decision: str) -> Word:
    try:
        return Word(decision.replace("-", "_"))
    except ValueError:
        words = ", ".join(Word)
        raise SettingsError(f"no decision {decision!r}: it is one of {words}") from None


def _has_ended(record: Record) -> bool:
    return record.operation.state.ends


def _is_settled(record: Record) -> bool:
    """Whether there is an answer: an end, or that it is not known. Under way is none."""
    waits = (State.PREPARED, State.EXECUTING, State.ACCEPTED, State.AWAITING_APPROVAL)
    going_on = record.operation.state is State.RECONCILING and record.operation.origin is not None
    return record.operation.state not in waits and not going_on


def _has_news(record: Record) -> bool:
    """Whether there is something to say: an answer, or that it takes longer."""
    return record.operation.state not in (State.PREPARED, State.EXECUTING)
