"""Who executes an operation of a framework's tool: the run that asked for it, and no other.

The ledger keeps what was asked for. How it is executed lives in memory, with the context of whoever
asked, and is let go with the operation. An operation whose run has ended is not executed here.
"""

import asyncio
import contextvars
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from doubtless.core import identity
from doubtless.core.model import Json
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.registry import Registry
from doubtless.engine.tools import Call
from doubtless.errors import BadArguments, NotSent

Perform: TypeAlias = Callable[[Call], "Awaitable[Json] | Json"]
"""The framework's own way of executing one call, asynchronous or blocking. Returns JSON.

It is called in a thread of its own; what it returns to be awaited runs on the event loop. Both see
the context variables of whoever asked, as they were then.
"""

ENDED: Final = "the run that asked for it has ended, and nothing of it was executed"
LEFT_MAX: Final = 1_000  # operations that go on although nobody waits for them any more

Key: TypeAlias = tuple[str, bytes]
"""An operation and what is asked for: the same id with other arguments is another thing."""


@dataclass(frozen=True, slots=True)
class _Live:
    """One call as its framework would execute it, in the context in which it was asked for."""

    perform: Perform
    context: contextvars.Context


class Said(NamedTuple):
    """What was said of a tool when it was declared."""

    schema: Mapping[str, Json] | None
    description: str
    is_read: bool
    keys: ToolKeys | None
    not_sent: tuple[type[BaseException], ...]
    rejected: tuple[type[BaseException], ...]


class Performers:
    """The live calls of one application, from all its guards."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._live: dict[Key, _Live] = {}
        self._left: OrderedDict[Key, None] = OrderedDict()
        self.declared: dict[str, Said] = {}  # by tool

    def __len__(self) -> int:
        return len(self._live)

    def ask(self, name: str, tool: str, arguments: Mapping[str, Json], perform: Perform) -> Key:
        """Take in how a call is executed, should it come to that. The newest way counts.

        Raises:
            BadArguments: They can't be canonical JSON.
        """
        key = _key(name, tool, arguments)
        self._live[key] = _Live(perform, contextvars.copy_context())
        self._left.pop(key, None)
        return key

    def let_go(self, key: Key, operation_id: str | None = None) -> None:
        """Forget a call that is over, and that of the operation it turned out to mean."""
        for each in (key, (operation_id or key[0], key[1])):
            self._live.pop(each, None)
            self._left.pop(each, None)

    def leave(self, key: Key) -> None:
        """Keep a call that nobody waits for: its operation is open, and may have to begin again."""
        if key in self._live:
            self._left[key] = None
        while len(self._left) > LEFT_MAX:
            self._live.pop(self._left.popitem(last=False)[0], None)

    def has_run(self, operation_id: str) -> bool:
        """Whether the run that asked for an operation is in this process."""
        return any(name == operation_id for name, _ in tuple(self._live))

    def oldest_left(self) -> Key | None:
        """Return a call that nobody waits for, each in its turn."""
        if not self._left:
            return None
        key = next(iter(self._left))
        self._left.move_to_end(key)
        return key

    def run(self, tool: str, call: Call, /, **arguments: Json) -> "Awaitable[Json] | Json":
        """Execute what an operation stands for, in the context of whoever asked for it.

        It blocks, so that the engine takes it for what can't be stopped: whatever a framework's
        function does after its time-out is awaited, and its late answer recorded.

        Raises:
            NotSent: Nobody in this process asked for it. Nothing was executed.
        """
        live = self._live.get(_key(call.operation_id, tool, arguments))
        if live is None:
            raise NotSent(ENDED)
        # Each execution has a copy: one that can't be stopped may still be in the last.
        within = live.context.copy()
        within.run(_outside_of_any_loop)
        with _no_exit():
            found = within.run(live.perform, call)
        if not isawaitable(found):
            return found
        return self._awaited(found, live.context.copy(), tool)

    async def _awaited(
        self, found: Awaitable[Json], within: contextvars.Context, tool: str
    ) -> Json:
        """Await what was returned, no longer than something of it is expected to arrive."""
        contract = self._registry.tool(tool).contract
        async with asyncio.timeout((contract.timeout_ms + contract.horizon_ms) / 1000):
            return await asyncio.get_running_loop().create_task(_result(found), context=within)


_PERFORMERS: Final[WeakKeyDictionary[Doubtless, Performers]] = WeakKeyDictionary()


def performers_of(app: Doubtless) -> Performers:
    """Return those of an application. Its guards share them, as they share its tools."""
    found = _PERFORMERS.get(app)
    if found is None:
        found = _PERFORMERS[app] = Performers(app.registry)
    return found


def _key(name: str, tool: str, arguments: Mapping[str, Json]) -> Key:
    try:
        return name, identity.canonical([tool, dict(arguments)])
    except identity.NotCanonical as error:
        raise BadArguments(tool, "", str(error)) from error


async def _result(found: Awaitable[Json]) -> Json:
    with _no_exit():
        return await found


@contextmanager
def _no_exit() -> Iterator[None]:
    """Let no tool end the application by `sys.exit`, which is another's way to fail.

    An argument parser calls it, for one. What is under way beside it must go on.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error


def _outside_of_any_loop() -> None:
    """Say to libraries which ask that no event loop runs in this thread: the context says one."""
    asked = sys.modules.get("sniffio")  # whoever asks has imported it; often it is not there
    if asked is not None:
        asked.current_async_library_cvar.set(None)
