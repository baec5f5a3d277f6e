"""The application: calls, waits, decisions and tools on one ledger."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

import anyio
import anyio.abc

from doubtless.core.model import Json, Principal, Role
from doubtless.core.outcome import Outcome
from doubtless.engine.actions import Actions
from doubtless.engine.actor import Actor
from doubtless.engine.approving import Approving
from doubtless.engine.blocking import BlockingDoubtless
from doubtless.engine.book import TENANT, Book, checked_tenant
from doubtless.engine.calls import Calls
from doubtless.engine.contracts import Contracts, ToolKeys, build_contract, load_contracts
from doubtless.engine.credentials import Credentials
from doubtless.engine.deliveries import Callback, Subscriber
from doubtless.engine.events import Events, reread
from doubtless.engine.exhibits import Exhibits
from doubtless.engine.figures import Figures
from doubtless.engine.opened import TRANSACTION_S, OpenApp
from doubtless.engine.outbox import Outbox, checked_timeout_s
from doubtless.engine.people import People
from doubtless.engine.reads import Reads
from doubtless.engine.registry import Registry, Tool, code_lookups
from doubtless.engine.retention import Upkeep, kept
from doubtless.engine.settlements import Settlements, checked_name, start
from doubtless.engine.surroundings import Surroundings
from doubtless.engine.tools import FunctionTool, schema_of
from doubtless.errors import DoubtlessError, SettingsError
from doubtless.ledger.store import Ledger, open_ledger
from doubtless.transports.base import HttpSender, Workplace
from doubtless.transports.function import Body, Function
from doubtless.transports.http import HttpTransport

P = ParamSpec("P")
R = TypeVar("R")

_SERVICE = re.compile("https?://", re.IGNORECASE)
GRACE_S = 5.0  # open attempts get this long to end when the application is closed


class Options(TypedDict, total=False):
    """What `Doubtless` takes besides the ledger."""

    contracts: str | Path | Contracts | None
    principal: str
    worker: bool
    secrets: str | Path | None
    surroundings: Surroundings | None
    http: HttpSender | None
    transaction_timeout_s: float
    tenant: str
    retention: str | None
    archive_after: str | None
    token: str | None


class Doubtless(Approving, Calls, Events, Exhibits, Figures, Outbox, People, Reads, Settlements):
    """One application on one ledger. Use it as an asynchronous context manager.

        async with Doubtless("sqlite:///doubtless.db", contracts="contracts.toml") as app:
            outcome = await app.call("create_refund", {"charge": "ch_1", "amount": 500})

    While it is open it also takes up whatever is due on the ledger, its own and what others left:
    prepared operations, look-ups of unknown ones, and what a crash interrupted.

    Args:
        ledger: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`; created if it
            is absent.
        contracts: A contract file, or contracts that were read already.
        principal: In whose name calls are made; the same after a restart.
        worker: False leaves what is due to other processes.
        secrets: A folder with one file for each credential.
        surroundings: Clocks, ids and liveness; the real ones by default.
        http: Sends requests in place of our own transport.
        transaction_timeout_s: How long `transaction()` may be open; nobody else can write then.
        tenant: Whose part of the ledger: it sees, and can change, nothing of any other's.
        retention: For how long settled operations keep payloads, replies and results, such as
            "90d"; then the worker empties them. Without it they are kept.
        archive_after: After what time the worker moves what was recorded of settled operations
            into the archive, such as "30d". Without it, never.
        token: With the address of a running service, https://…, in place of a ledger's: then the
            application is that one, and there is nothing else to be said.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def __new__(cls, ledger: str | Ledger = "sqlite:///doubtless.db", **_: Unpack[Options]) -> Self:
        """Make a local application, or a remote one where `ledger` is a service's address."""
        is_service = isinstance(ledger, str) and _SERVICE.match(ledger) is not None
        if cls is Doubtless and is_service:
            from doubtless.engine.remote.app import RemoteDoubtless  # noqa: PLC0415 - it extends this

            return cast("Self", object.__new__(RemoteDoubtless))
        return object.__new__(cls)

    def __init__(  # noqa: PLR0913 - what an application may be told, each by its name
        self,
        ledger: str | Ledger = "sqlite:///doubtless.db",
        *,
        contracts: str | Path | Contracts | None = None,
        principal: str = "local",
        worker: bool = True,
        secrets: str | Path | None = None,
        surroundings: Surroundings | None = None,
        http: HttpSender | None = None,
        transaction_timeout_s: float = TRANSACTION_S,
        tenant: str = TENANT,
        retention: str | None = None,
        archive_after: str | None = None,
        token: str | None = None,
    ) -> None:
        if token is not None:
            raise SettingsError("token= belongs to the address of a service: https://host:8787")
        self._transaction_timeout_s = checked_timeout_s(transaction_timeout_s)
        self._keep = kept(retention, archive_after)
        self._tenant = checked_tenant(tenant)
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
            self.registry.webhooks.update(declared.webhooks)
        self._subscribers: dict[str, Subscriber] = {}
        self._open: OpenApp | None = None
        self._grace_s = GRACE_S
        self._stack = contextlib.AsyncExitStack()

    @classmethod
    def sync(
        cls, ledger: str = "sqlite:///doubtless.db", **options: Unpack[Options]
    ) -> BlockingDoubtless:
        """Return the same application for code that blocks; takes what `Doubtless` takes."""
        return BlockingDoubtless(cls(ledger, **options))

    # --- opening and closing ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the ledger and start the worker.

        Raises:
            LedgerError: The ledger can't be opened safely.
            SettingsError: A credential is missing, or the HTTP library isn't one that is known.
        """
        self._loop = asyncio.get_running_loop()
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
            with anyio.move_on_after(self._grace_s):
                await opened.committed()
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
        book = Book(self.registry, self._surroundings, ledger.id, tenant=self._tenant)
        actions = Actions(self._workplace())
        actions.check(tool.contract for tool in self.registry)
        stack.push_async_callback(_shielded, actions.aclose)
        self.registry.can = actions.can
        opened = OpenApp(ledger, book, http, tasks, self._credentials, actions)
        opened.transaction_timeout_s = self._transaction_timeout_s
        if ledger.is_shared:
            tasks.start_soon(opened.listen)
        if self._with_worker:
            await reread(opened)
            tasks.start_soon(opened.work)
            tasks.start_soon(Upkeep(ledger, book, self._keep).run)
        for subscriber in self._subscribers.values():
            start(opened, self._principal, subscriber)
        return opened

    def _workplace(self) -> Workplace:
        surroundings = self._surroundings
        return Workplace(
            owner=surroundings.owner,
            liveness=surroundings.liveness,
            boot_s=surroundings.boot_s,
            wall_ms=surroundings.wall_ms,
            secret=self._credentials.find,
        )

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

    def on_settled(self, callback: Callback, *, name: str, after: int = 0) -> None:
        """Do as `Settlements.on_settled` says: before the application is opened, or while it is.

        Raises:
            SettingsError: The name is empty, too long, or that of another subscriber here.
        """
        if name in self._subscribers:
            raise SettingsError(f"there is a subscriber {name!r} already: names are unique")
        subscriber = Subscriber(name=checked_name(name), callback=callback, after=after)
        self._subscribers[name] = subscriber
        if self._open is not None:
            start(self._open, self._principal, subscriber)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it was opened on: its coroutines have to run there.

        Raises:
            DoubtlessError: It was never opened.
        """
        if self._loop is None:
            raise DoubtlessError(
                "the application is not open: use `async with Doubtless(…) as app`"
            )
        return self._loop

    @property
    def tenant(self) -> str:
        """Whose part of the ledger it is."""
        return self._tenant

    @property
    def ledger(self) -> Ledger:
        """The ledger, while the application is open."""
        return self._opened.ledger

    @property
    def actions(self) -> Actions:
        """The transports of this process, while the application is open."""
        return self._opened.actions

    async def drain(self, *, grace_s: float) -> None:
        """Take up nothing more, and let open attempts end; then whoever waits is answered.

        What is open after `grace_s` seconds is recorded as unknown when the application is closed.
        """
        opened = self._opened
        opened.worker_scope.cancel()
        with anyio.move_on_after(grace_s):
            await opened.committed()
            await opened.runner.idle()
        self._grace_s = 0.0  # they had it
        opened.waiting.release()

    def check_webhooks(self) -> None:
        """Be sure that there is a secret for every source whose webhooks may come.

        Only a process that takes them in has to have them.

        Raises:
            SettingsError: Naming every missing one, and where to put it.
        """
        self._credentials.check((), self.registry.webhooks)

    def webhook_secrets(self, source: str) -> tuple[str, ...]:
        """Return the live secrets of a source's webhook, as they are now.

        Raises:
            SettingsError: There is none.
        """
        return self._credentials.live(self.registry.webhooks[source].credential)

    def actor(self, principal: Principal) -> Actor:
        """Return the same application in the hands of another principal, while it is open."""
        return Actor(self._opened, self.registry, principal)


async def _shielded(close: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await close()


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", "tool"))
