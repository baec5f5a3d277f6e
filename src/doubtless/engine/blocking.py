"""The same application for code that blocks: every method waits for its coroutine elsewhere.

The application runs on an event loop in a thread of its own. Nothing is implemented a second time:
each method here is the asynchronous one, called over there.
"""

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from contextvars import Token
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
)

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from doubtless.core.model import Json, Principal
from doubtless.core.outcome import Outcome
from doubtless.engine.approving import Approving
from doubtless.engine.calls import Calls
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.deliveries import Callback
from doubtless.engine.events import Events
from doubtless.engine.exhibits import Exhibits
from doubtless.engine.figures import Figures
from doubtless.engine.inside import BLOCKING, INSIDE, Span
from doubtless.engine.outbox import Outbox, UserTx
from doubtless.engine.people import People
from doubtless.engine.reads import Reads
from doubtless.engine.registry import Registry
from doubtless.engine.settlements import Settlements
from doubtless.engine.tools import FunctionTool
from doubtless.errors import DoubtlessError

if TYPE_CHECKING:
    from doubtless.engine.actor import Actor
    from doubtless.engine.app import Doubtless

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ending: TypeAlias = Future[None]


class Loop(Protocol):
    """Runs calls on an event loop, and waits for them."""

    def run(self, call: Callable[[], Coroutine[object, object, T]]) -> T:
        """Return what the coroutine returns, or raise what it raises."""
        ...

    def do(self, call: Callable[[], T]) -> T:
        """Return what a plain call returns, or raise what it raises."""
        ...

    def start(self, call: Callable[..., Coroutine[object, object, None]]) -> tuple[Ending, object]:
        """Start a coroutine that says `task_status.started(value)`; return its end, and that."""
        ...


class Waits:
    """Has methods that wait for those of something on the event loop."""

    _surface: object
    _loop: Loop


def blocking(
    method: Callable[Concatenate[T, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[Waits, P], R]:
    """Return a method that calls the one of that name over there, and waits for it."""
    name = method.__name__

    def waits(self: Waits, /, *args: P.args, **kwargs: P.kwargs) -> R:
        over_there: Callable[P, Coroutine[object, object, R]] = getattr(self._surface, name)
        return self._loop.run(lambda: over_there(*args, **kwargs))

    # Its signature, too, is that of the method which it stands for.
    update_wrapper(waits, method)
    return waits


class Hands(Waits):
    """What one principal does with an application, blocking. Any thread may use it."""

    _surface: "Doubtless | Actor"

    def __init__(self, surface: "Doubtless | Actor", loop: Loop) -> None:
        self._surface, self._loop = surface, loop

    call = blocking(Calls.call)
    wait = blocking(Calls.wait)
    outcome = blocking(Calls.outcome)
    resolve = blocking(People.resolve)
    cancel = blocking(People.cancel)
    stop = blocking(People.stop)
    approve = blocking(Approving.approve)
    deny = blocking(Approving.deny)
    grant = blocking(Approving.grant)
    grants = blocking(Approving.grants)
    revoke_grant = blocking(Approving.revoke_grant)
    session = blocking(Reads.session)
    timeline = blocking(Reads.timeline)
    operations = blocking(Reads.operations)
    exhibits = blocking(Exhibits.exhibits)
    exhibit = blocking(Exhibits.exhibit)
    picture = blocking(Exhibits.picture)
    ingest = blocking(Events.ingest)
    events = blocking(Events.events)
    match = blocking(Events.match)
    settlements = blocking(Settlements.settlements)
    prepare = blocking(Outbox.prepare)

    def transaction(self) -> "BlockingTx":
        """Open a transaction, as `Outbox.transaction` says: `with app.transaction() as tx`."""
        return BlockingTx(self._surface, self._loop)

    @property
    def registry(self) -> Registry:
        """The tools that this process knows."""
        return self._surface.registry

    def on_settled(self, callback: Callback, *, name: str, after: int = 0) -> None:
        """Do as `Settlements.on_settled` says. `callback` is called in a thread of its own."""
        self._loop.do(partial(self._surface.on_settled, callback, name=name, after=after))


class BlockingDoubtless(Hands):
    """An application for code that blocks. Made by `Doubtless.sync`; use it in a `with` block.

        with Doubtless.sync("sqlite:///doubtless.db", contracts="contracts.toml") as app:
            outcome = app.call("create_refund", {"charge": "ch_1", "amount": 500})

    Its methods are those of `Doubtless`, with the same arguments, results and exceptions. It may be
    used by several threads at once. An interrupt ends the waiting, and no attempt: what is under
    way gets the usual time to end when the block is left.
    """

    def __init__(self, app: "Doubtless") -> None:
        self._thread = _LoopThread()
        super().__init__(app, self._thread)
        self._app = app

    metrics = blocking(Figures.metrics)

    @property
    def asynchronous(self) -> "Doubtless":
        """The application itself, for code that runs on its event loop (`asynchronous.loop`)."""
        return self._app

    def __enter__(self) -> Self:
        """Open the application, as `Doubtless.__aenter__` does."""
        self._thread.open(self._app)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let open attempts end for a while, and close."""
        self._thread.close(kind, error, trace)

    def drain(self, *, grace_s: float) -> None:
        """Take up nothing more, let open attempts end, and let go whoever waits."""
        self._thread.run(lambda: self._app.drain(grace_s=grace_s))

    def on_settled(self, callback: Callback, *, name: str, after: int = 0) -> None:
        """Do as `Doubtless.on_settled` says. `callback` is called in a thread of its own."""
        declare = partial(self._app.on_settled, callback, name=name, after=after)
        if self._thread.is_open:
            self._thread.do(declare)
        else:
            declare()

    def actor(self, principal: Principal) -> Hands:
        """Return the same application in the hands of another principal, while it is open."""
        return Hands(self._app.actor(principal), self._thread)

    def tool(
        self, *, name: str | None = None, **keys: Unpack[ToolKeys]
    ) -> "Callable[[Callable[P, R]], BlockingTool[P, R]]":
        """Declare a Python function as a tool, as `Doubtless.tool` does."""
        declare = self._app.tool(name=name, **keys)

        def declared(function: Callable[P, R]) -> BlockingTool[P, R]:
            return BlockingTool(declare(function), self._thread)

        return declared


@dataclass(frozen=True, slots=True)
class BlockingTool(Generic[P, R]):
    """A decorated function. Calling it carries out one operation and returns its outcome."""

    tool: FunctionTool[P, R]
    _loop: Loop

    def __call__(self, **arguments: Json) -> Outcome:
        """Carry the action out, durably, and say what is known of it."""
        return self._loop.run(lambda: self.tool(**arguments))

    def with_id(self, operation_id: str) -> "BlockingTool[P, R]":
        """Return the same tool for one operation with an id of the caller's."""
        return BlockingTool(self.tool.with_id(operation_id), self._loop)


class BlockingTx(Waits):
    """A transaction of the user's, for the thread that opened it."""

    def __init__(self, app: "Doubtless | Actor", loop: Loop) -> None:
        self._app, self._loop = app, loop
        self._left = anyio.Event()
        self._rolls_back = False
        self._held: tuple[Ending, Token[Span | None]] | None = None

    run = blocking(UserTx.run)
    row = blocking(UserTx.row)
    rows = blocking(UserTx.rows)
    prepare = blocking(UserTx.prepare)

    def __enter__(self) -> Self:
        """Take the ledger's write lock, as `UserTx.__aenter__` does."""
        end, self._surface = self._loop.start(self._hold)
        # What this thread calls over there is told by its context that it is inside.
        self._held = (end, INSIDE.set(cast("UserTx", self._surface)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; or roll back and raise, as `UserTx.__aexit__` does."""
        assert self._held is not None  # noqa: S101 - it was entered
        end, outside = self._held
        INSIDE.reset(outside)
        self._rolls_back = error is not None
        self._loop.do(self._left.set)
        with suppress(_RolledBack):
            end.result()

    async def _hold(self, *, task_status: TaskStatus[object]) -> None:
        """Hold it open in one task from its beginning to its end."""
        async with self._app.transaction() as tx:
            task_status.started(tx)
            await self._left.wait()
            if self._rolls_back:
                raise _RolledBack  # whatever left the block may be more than a task can raise


class _RolledBack(Exception):
    """A transaction's block was left by an exception, which goes on where it was raised."""


class _LoopThread:
    """An event loop in a thread of its own, with the application open on it."""

    def __init__(self) -> None:
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    @property
    def is_open(self) -> bool:
        """Whether calls can be run."""
        return self._portal is not None

    def open(self, app: "Doubtless") -> None:
        if self._portal is not None:
            raise DoubtlessError("the application is open already")
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            stack.enter_context(portal.wrap_async_context_manager(app))
            self._stack = stack.pop_all()
        self._portal = portal

    def close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal = None  # what other threads still ask for is refused, and told why
        self._stack.__exit__(kind, error, trace)

    def do(self, call: Callable[[], T]) -> T:
        async def called() -> T:
            return call()

        return self.run(called)

    def start(self, call: Callable[..., Coroutine[object, object, None]]) -> tuple[Ending, object]:
        return self._open_portal.start_task(call)

    @property
    def _open_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise DoubtlessError("the application is not open: use `with Doubtless.sync(…) as app`")
        return self._portal

    def run(self, call: Callable[[], Coroutine[object, object, T]]) -> T:
        waits = BLOCKING.set(True)
        try:
            future = self._open_portal.start_task_soon(call)
        except RuntimeError as error:  # the loop's own thread can't wait for the loop
            raise DoubtlessError(f"it can't be used here: {error}") from error
        finally:
            BLOCKING.reset(waits)
        try:
            return future.result()
        except CancelledError:
            raise DoubtlessError("the application was closed meanwhile") from None
        finally:
            future.cancel()  # an interrupt ends the waiting; what has ended isn't touched
