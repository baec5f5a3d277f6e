"""Carry an effect for an engine: under an id that survives its repairs, and to a known end.

What the adapters share. The engine keeps the workflow, the ledger keeps the effect.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias, TypedDict, TypeVar

from doubtless.core import identity
from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.engine.blocking import Hands
from doubtless.engine.calls import Calls
from doubtless.errors import (
    BadRequest,
    DoubtlessError,
    LedgerUnavailable,
    NoIdentity,
    NotDone,
    OperationNotFound,
    ServiceUnavailable,
    SettingsError,
    WontBeDone,
)

T = TypeVar("T")
App: TypeAlias = Calls | Hands
"""`Doubtless(…)` or `Doubtless.sync(…)`, on a ledger or against a service."""

AWAY: Final = (LedgerUnavailable, ServiceUnavailable)
"""Nothing is known yet, and the same call may simply be made again: it means the same operation."""

FINAL: Final = (BadRequest, NoIdentity, SettingsError, WontBeDone)
"""What a retry by the engine would be told again."""

ROUND_S: Final = 5.0  # whoever waits asks so often whether it still has to
PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 30.0
LOOK_MIN_S: Final = 0.05
LOOK_MAX_S: Final = 1.0
AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
NAME_MAX: Final = 128

_log: Final = logging.getLogger("doubtless.integrations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in an engine an effect is asked for: only what its retries and repairs leave as it is.

    The arguments are no part of it. The ledger binds them to the operation, and refuses others
    under the same id: a repair that changes them must not act beside what was done already.
    """

    engine: str
    flow: tuple[str, ...]  # which run of which workflow, or which task
    step: tuple[str, ...] = ()  # which step of it

    def operation_id(self, tool: str, part: str) -> str:
        """Return the id of the operation that `tool` is here; `part` tells several apart."""
        named = identity.canonical([self.engine, list(self.flow), list(self.step), tool, part])
        return f"{self.engine}:{hashlib.sha256(named).hexdigest()[:40]}"

    @property
    def session_id(self) -> str:
        """One for all steps: what is unresolved here bars the same payload under other ids."""
        return self._word(":".join((self.engine, *self.flow)))

    def correlation_id(self, run: str) -> str:
        """Return what the logs of both sides share; `run` is the engine's own name of it."""
        return self._word("/".join((run, *self.step)))

    def _word(self, text: str) -> str:
        """Return the text itself if it can travel in a header, else a digest of it."""
        if 0 < len(text) <= NAME_MAX and all("!" <= each <= "~" for each in text):
            return text
        return f"{self.engine}:{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One effect that an engine asks for."""

    tool: str
    arguments: Mapping[str, Json]
    operation_id: str
    session_id: str | None
    correlation_id: str | None

    def ids(self) -> "Ids":
        """Return the ids that go with the call."""
        return {
            "operation_id": self.operation_id,
            "session_id": self.session_id,
            "correlation_id": self.correlation_id,
        }


class Ids(TypedDict):
    """The ids that go with a call."""

    operation_id: str
    session_id: str | None
    correlation_id: str | None


def effect(
    place: Place | None,
    tool: str,
    arguments: Mapping[str, Json],
    *,
    run: str,
    operation_id: str | None,
    part: str,
    otherwise: str,
) -> Effect:
    """Name the operation that is meant: by the caller's own id, or by the place.

    Raises:
        NoIdentity: There is neither; `otherwise` says why.
    """
    if operation_id is None and place is None:
        raise NoIdentity(f"{tool}: {otherwise}. Give operation_id=, an id of the intent itself")
    return Effect(
        tool=tool,
        arguments=arguments,
        operation_id=operation_id or (place.operation_id(tool, part) if place else ""),
        session_id=place.session_id if place else None,
        correlation_id=place.correlation_id(run) if place else None,
    )


# --- what an outcome means for an engine ---------------------------------------------------------


def is_open(outcome: Outcome) -> bool:
    """Whether it is not known yet how it ends: unknown, accepted, awaiting approval, under way."""
    return outcome.outcome in ("unknown", "pending")


def result_of(outcome: Outcome) -> Json:
    """Return the result of what succeeded.

    Raises:
        NotDone: It provably did nothing, and a repeat may act: the engine may retry.
        WontBeDone: It failed or was refused for good: a retry would be told the same.
    """
    if outcome.outcome == "success":
        return outcome.result
    kind = NotDone if outcome.retry_allowed else WontBeDone
    code = (outcome.error or {}).get("code")
    raise kind(
        outcome.message,
        operation_id=outcome.operation_id,
        status=outcome.status,
        code=None if code is None else str(code),
    )


def look_again_s(outcome: Outcome) -> float:
    """Return when to look at an open operation again, in seconds: the longer it takes, the later.

    Between 1 s and a minute. Looking asks the ledger alone, and no provider.
    """
    begun = datetime.fromisoformat(outcome.created_at) if outcome.created_at else None
    age_s = (datetime.now(UTC) - begun).total_seconds() if begun else 0.0
    return min(max(age_s / 2, AGAIN_MIN_S), AGAIN_MAX_S)


# --- asking an application from wherever an engine runs its code ---------------------------------


class Closed(DoubtlessError):
    """The application is not open, or was closed meanwhile. The operation goes on all the same."""


class Carrier:
    """An application, for the threads and event loops of an engine.

    A blocking application may be used by all of them as it is. An asynchronous one belongs to the
    event loop that it was opened on: make the adapter there, and calls are passed on to it.

    Raises:
        SettingsError: An asynchronous application, and no event loop is running here.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None
        if isinstance(app, Calls):
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError:
                raise SettingsError(
                    "an asynchronous application belongs to an event loop: make the adapter inside"
                    " `async with Doubtless(…) as app`, or give it Doubtless.sync(…)"
                ) from None

    # From a thread.

    def call(self, asked: Effect) -> Outcome:
        """Make the call, and return what is known of it once there is something to say.

        Raises:
            LedgerUnavailable, ServiceUnavailable: Not known yet: make the same call again.
            BadRequest: It can't be carried out as it was written. Nothing was recorded or sent.
            Closed: The application is not open.
        """
        with _telling_closed():
            if isinstance(self._app, Hands):
                return self._app.call(asked.tool, asked.arguments, **asked.ids())
            return self._pass_on(self._app.call(asked.tool, asked.arguments, **asked.ids()))

    def wait(self, operation_id: str, *, timeout_s: float) -> Outcome:
        """Return the outcome once it is settled, or as it stands after so many seconds.

        Raises:
            LedgerUnavailable, ServiceUnavailable: Not known now: ask again.
            Closed: The application is not open.
        """
        with _telling_closed():
            if isinstance(self._app, Hands):
                return self._app.wait(operation_id, timeout=timeout_s)
            return self._pass_on(self._app.wait(operation_id, timeout=timeout_s))

    def known(self, asked: Effect) -> Outcome | None:
        """Return what is known of the operation, without carrying it out; None: there is none."""
        try:
            return self.wait(asked.operation_id, timeout_s=0)
        except OperationNotFound:
            return None

    def begin(self, asked: Effect, *, go_on: Callable[[], None]) -> Outcome:
        """Make the call until the ledger or the service can be reached; return what is known."""
        return _patiently(lambda: self.call(asked), go_on)

    def carry(self, asked: Effect, *, go_on: Callable[[], None]) -> Outcome:
        """Make the call and wait for its end, however long that takes; return how it ended.

        `go_on` is called now and then: what it raises ends the waiting, and nothing else.
        """
        found = self.begin(asked, go_on=go_on)
        name = found.operation_id
        while is_open(found):
            go_on()
            begun_s = time.monotonic()
            found = _patiently(lambda: self.wait(name, timeout_s=ROUND_S), go_on)
            if time.monotonic() - begun_s < PAUSE_MIN_S and is_open(found):
                time.sleep(PAUSE_MIN_S)  # the application is being closed, and lets nobody wait
        return found

    def _pass_on(self, call: Coroutine[object, object, T]) -> T:
        """Wait in this thread for what is done on the application's own loop."""
        if self._is_here():
            call.close()
            raise DoubtlessError(
                "it would wait for the event loop that it runs on: await call_async"
            )
        return self._begun(call).result()

    # From an event loop, not necessarily the application's.

    async def call_async(self, asked: Effect) -> Outcome:
        """Do as `call` does."""
        with _telling_closed():
            if isinstance(self._app, Hands):
                return await asyncio.to_thread(self.call, asked)
            return await self._there(self._app.call(asked.tool, asked.arguments, **asked.ids()))

    async def wait_async(self, operation_id: str, *, timeout_s: float) -> Outcome:
        """Do as `wait` does. No thread is held meanwhile."""
        with _telling_closed():
            if not isinstance(self._app, Hands):
                return await self._there(self._app.wait(operation_id, timeout=timeout_s))
            end_s, pause_s = time.monotonic() + timeout_s, LOOK_MIN_S
            found = await asyncio.to_thread(self._app.outcome, operation_id)
            while is_open(found) and (left_s := end_s - time.monotonic()) > 0:
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(pause_s * 2, LOOK_MAX_S)
                found = await asyncio.to_thread(self._app.outcome, operation_id)
            return found

    async def known_async(self, asked: Effect) -> Outcome | None:
        """Do as `known` does."""
        try:
            return await self.wait_async(asked.operation_id, timeout_s=0)
        except OperationNotFound:
            return None

    async def begin_async(self, asked: Effect, *, go_on: Callable[[], Awaitable[None]]) -> Outcome:
        """Do as `begin` does."""
        return await _patiently_async(lambda: self.call_async(asked), go_on)

    async def carry_async(self, asked: Effect, *, go_on: Callable[[], Awaitable[None]]) -> Outcome:
        """Do as `carry` does. No thread is held meanwhile."""
        found = await self.begin_async(asked, go_on=go_on)
        while is_open(found):
            found = await self.end_async(found.operation_id, go_on=go_on)
        return found

    async def end_async(
        self, operation_id: str, *, go_on: Callable[[], Awaitable[None]], every_s: float = ROUND_S
    ) -> Outcome:
        """Wait for the end of an operation; `go_on` is awaited every so many seconds."""
        while True:
            await go_on()
            begun_s = time.monotonic()
            found = await _patiently_async(
                lambda: self.wait_async(operation_id, timeout_s=every_s), go_on
            )
            if not is_open(found):
                return found
            if time.monotonic() - begun_s < PAUSE_MIN_S:
                await asyncio.sleep(PAUSE_MIN_S)

    async def _there(self, call: Coroutine[object, object, T]) -> T:
        """Await it on the application's own loop."""
        if self._is_here():
            return await call
        return await asyncio.wrap_future(self._begun(call))

    def _begun(self, call: Coroutine[object, object, T]) -> Future[T]:
        assert self._loop is not None  # noqa: S101 - an asynchronous application has one
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError as error:  # the loop has been closed
            call.close()
            raise Closed(str(error)) from error

    def _is_here(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


def _patiently(ask: Callable[[], T], go_on: Callable[[], None]) -> T:
    """Ask until the ledger or the service can be reached."""
    pause_s = PAUSE_MIN_S
    while True:
        try:
            return ask()
        except AWAY as error:
            _log.warning("asked again in %.1f s: %s", pause_s, error)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)
        go_on()


async def _patiently_async(
    ask: Callable[[], Awaitable[T]], go_on: Callable[[], Awaitable[None]]
) -> T:
    pause_s = PAUSE_MIN_S
    while True:
        try:
            return await ask()
        except AWAY as error:
            _log.warning("asked again in %.1f s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_MAX_S)
        await go_on()


@contextmanager
def _telling_closed() -> Iterator[None]:
    """Tell an application that is not open from all that is wrong with a call."""
    try:
        yield
    except DoubtlessError as error:
        if type(error) is DoubtlessError:  # all that has to do with a call has a name of its own
            raise Closed(str(error)) from error
        raise
