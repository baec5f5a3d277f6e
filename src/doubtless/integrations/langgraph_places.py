"""Where in a graph a tool is called: what names the call over repeats, and the session it is in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.prebuilt import ToolRuntime

from doubtless.core.outcome import Outcome
from doubtless.errors import BadRequest
from doubtless.integrations.guarding import call_identity
from doubtless.integrations.langgraph_messages import not_done

FRAMEWORK: Final = "langgraph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One call of a tool, as the graph names it."""

    name: str
    call_id: str
    session_id: str | None
    parts: tuple[str, ...] | None  # None: the graph keeps no name of it over its repeats

    def identity(self, number: int = 1) -> str | None:
        """Return the id of the call; from `number` 2 on, of its next round."""
        if self.parts is None:
            return None
        rounds = () if number == 1 else (str(number),)
        return call_identity(FRAMEWORK, *self.parts, *rounds)

    def is_of_another(self, outcome: Outcome) -> bool:
        """Whether it was done before this call, by another that its model was in doubt about."""
        return outcome.already_done and outcome.operation_id != self.identity()

    @property
    def correlation_id(self) -> str | None:
        """What the logs of both sides share, where it can travel in a header."""
        fits = 0 < len(self.call_id) <= 128 and all("!" <= each <= "~" for each in self.call_id)
        return self.call_id if fits else None

    def refused(self, error: BadRequest) -> ToolMessage:
        """Say that the call can't be carried out as it was written."""
        return not_done(str(error), name=self.name, call_id=self.call_id)


def place_of(
    name: str, runtime: ToolRuntime[object, object], state: object, scope: str | None
) -> Place:
    """Say where a call stands.

    Checkpoints keep the thread, the model's message and its call ids, so that these name the call
    when a graph is resumed. Ids of calls alone don't: some models number them anew in each answer.
    """
    thread = thread_of(runtime.config)
    call_id = runtime.tool_call_id or ""
    said_in = _message_id(state, call_id)
    info = runtime.execution_info
    where = said_in or (info.task_id if info is not None else None)
    parts = (thread or "", where, call_id) if where and call_id else None
    return Place(name=name, call_id=call_id, session_id=scope or thread, parts=parts)


def thread_of(config: RunnableConfig) -> str | None:
    """Return the checkpointer's thread."""
    found: object = (config.get("configurable") or {}).get("thread_id")
    return str(found) if found else None


def _message_id(state: object, call_id: str) -> str | None:
    """Return the id of the model's message that asks for the call."""
    for message in _messages(state):
        if any(call.get("id") == call_id for call in message.tool_calls):
            return message.id
    return None


def _messages(state: object) -> Iterable[AIMessage]:
    """Find the model's messages in a state of whatever form, the newest first."""
    if isinstance(state, Mapping):
        lists: list[object] = list(state.values())
    elif isinstance(state, list):
        lists = [state]
    else:
        lists = [cast("object", each) for each in vars(state).values()] if state else []
    for found in lists:
        if isinstance(found, list):
            yield from (each for each in reversed(found) if isinstance(each, AIMessage))
