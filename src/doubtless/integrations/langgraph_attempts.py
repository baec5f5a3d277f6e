"""What becomes of a LangChain tool in one attempt: executed once at most, and judged by itself.

A node may turn a tool's exception into a message, and what stands between may execute it again.
So the tool itself is watched.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.errors import GraphBubbleUp

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import DoubtlessError, Rejected
from doubtless.integrations.causes import is_broken
from doubtless.integrations.langgraph_messages import Answer, is_error, kept, message, rebuilt
from doubtless.integrations.langgraph_places import Place
from doubtless.integrations.performing import ENDED

INTERRUPTED: Final = "interrupted the graph before it acted"

_log: Final = logging.getLogger("doubtless.integrations")


class ToolSaidError(DoubtlessError):
    """A tool answered with an error, which proves nothing about what it had done by then."""


class ExecutedAlready(DoubtlessError):
    """Something between the ledger and a tool would execute it again, within one attempt."""


@dataclass(frozen=True, slots=True)
class Proofs:
    """Tools by name whose errors, or whose interrupts, prove that nothing was done."""

    definitive: frozenset[str]
    interrupting: frozenset[str]


class Held:
    """One call, with what the framework is to be given back for it."""

    def __init__(self, tool: BaseTool, proofs: Proofs) -> None:
        self.tool, self.proofs = tool, proofs
        self.has_begun = False
        self.fresh: object = None  # the answer of this very call
        self.instead: object = None  # what is answered in place of ours: nothing was done
        self.words = ""
        self.bubble: GraphBubbleUp | None = None

    def begin(self) -> "Attempt":
        """Begin an attempt."""
        self.has_begun = True
        return Attempt(self)

    def check(self) -> None:
        """Let an interrupt through that came before the tool acted.

        Raises:
            GraphBubbleUp: It.
        """
        if self.bubble is not None:
            raise self.bubble

    def is_to_be_asked_anew(self, outcome: Outcome) -> bool:
        """Whether the operation of an earlier run never came to executing anything."""
        detail = str((outcome.observation or {}).get("detail"))
        return outcome.outcome == "failure" and detail.endswith((INTERRUPTED, ENDED))

    def answer(self, outcome: Outcome, place: Place) -> "Answer | list[Answer]":
        """Return what the framework is given."""
        if self.instead is not None and outcome.outcome == "failure":
            return cast("Answer", self.instead)
        if outcome.outcome != "success":
            return message(outcome, name=place.name, call_id=place.call_id, words=self.words)
        if self.fresh is not None:
            return cast("Answer", self.fresh)
        found = rebuilt(outcome, name=place.name, call_id=place.call_id)
        if place.is_of_another(outcome):
            words = str(found.content) if isinstance(found, ToolMessage) else ""
            return message(outcome, name=place.name, call_id=place.call_id, words=words)
        return found


class Attempt:
    """One execution of a tool, behind whatever else wraps it."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._has_run = False
        self._error: Exception | None = None
        self._result: object = None
        self.tool = cast("BaseTool", _Watched(held.tool, self))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the execution; there is only one."""
        if self._has_run:
            raise ExecutedAlready(
                f"{self._held.tool.name} was executed, and is not executed again: make"
                " DurableTools the last of the middleware"
            )
        self._has_run = True
        try:
            yield
        except Exception as error:
            self._error = error
            raise

    def returned(self, result: object) -> object:
        """Keep what the tool returned."""
        self._result = result
        return result

    def ended(self, found: object) -> Json:
        """Return what the ledger keeps of an answer, if it is one of a tool that succeeded.

        Raises:
            Rejected: Nothing was done: the tool wasn't executed, or says so by its contract.
            Exception: What the tool raised, or that it answered with an error.
        """
        held = self._held
        if not self._has_run:
            held.instead = found
            raise Rejected("it was answered in the tool's place, which was not executed")
        if self._error is not None:
            return self.failed(self._error)
        if is_error(self._result):
            if held.tool.name in held.proofs.definitive:
                held.instead = found
                raise Rejected("it answered with an error, which its contract calls definitive")
            raise ToolSaidError(f"{held.tool.name} answered with an error")
        held.fresh = found
        return kept(found)

    def failed(self, error: Exception) -> Json:
        """Return what the ledger keeps of a tool that had succeeded before something else failed.

        Raises:
            Rejected: Nothing was done.
            Exception: What the tool raised.
        """
        held, name = self._held, self._held.tool.name
        if isinstance(error, GraphBubbleUp):
            if not self._has_run or name in held.proofs.interrupting:
                held.bubble = error
                raise Rejected(INTERRUPTED) from error
            _log.warning(
                "%s interrupted the graph from within, and may have acted before: if it interrupts"
                " before it acts, name it in DurableTools(interrupting=…)",
                name,
            )
            raise error
        if not self._has_run:
            raise Rejected(f"it was not executed: {type(error).__name__}: {error}") from error
        if self._error is None:
            _log.warning("%s succeeded; what came of it afterwards failed: %r", name, error)
            return kept(self._result)
        is_said = isinstance(self._error, ToolException) and not is_broken(self._error)
        if is_said and name in held.proofs.definitive:
            held.words = str(self._error)
            raise Rejected("it raised what its contract calls definitive") from self._error
        raise self._error


class _Watched:
    """A tool, as whoever executes it sees it."""

    def __init__(self, tool: BaseTool, attempt: Attempt) -> None:
        self._tool, self._attempt = tool, attempt

    def __getattr__(self, name: str) -> object:
        return getattr(self._tool, name)

    def invoke(self, given: object, config: RunnableConfig | None = None, **more: object) -> object:
        with self._attempt.running():
            found = self._tool.invoke(cast("str", given), config, **more)
        return self._attempt.returned(found)

    async def ainvoke(
        self, given: object, config: RunnableConfig | None = None, **more: object
    ) -> object:
        with self._attempt.running():
            found = await self._tool.ainvoke(cast("str", given), config, **more)
        return self._attempt.returned(found)


def async_only(tool: BaseTool) -> bool:
    """Whether a tool can't be executed synchronously."""
    return isinstance(tool, StructuredTool) and tool.func is None
