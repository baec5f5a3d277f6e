"""What a LangChain tool answers, as JSON for the ledger and back; and an outcome as its message.

Content, artifacts and commands are kept as far as they are JSON. What isn't is named, so that an
answer out of the ledger says what it lacks. It never makes a failure of what succeeded.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, cast

from langchain_core.messages import (
    BaseMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langgraph.types import Command

from doubtless.core import identity
from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.integrations import telling

Answer: TypeAlias = ToolMessage | Command[object]
"""What a tool's call may lead to in a graph."""

Status: TypeAlias = Literal["success", "error"]

GRAVE: Final = ("failure", "rejected")
"""Outcomes that are shown as errors. What is not known is none: an error invites a repeat."""

MESSAGE: Final = "langchain:message"
LIST: Final = "langchain:list"


def is_error(answer: object) -> bool:
    """Whether a tool, or the node that executed it, marked its answer as an error."""
    items = answer if isinstance(answer, list) else [answer]
    return any(isinstance(item, ToolMessage) and item.status == "error" for item in items)


# --- into the ledger -----------------------------------------------------------------------------


def kept(answer: object) -> Json:
    """Return what of an answer can be kept: content, artifact, the updates of a command."""
    if isinstance(answer, list):
        return {"several": [kept(item) for item in answer]}
    if isinstance(answer, ToolMessage):
        attached = {} if answer.artifact is None else {"artifact": answer.artifact}
        return _kept({"content": answer.content, **attached})
    if isinstance(answer, Command):
        return {"command": _command(cast("Command[object]", answer))}
    return _kept({"content": answer})


def _command(command: "Command[object]") -> Json:
    update: object = command.update
    if isinstance(update, Mapping):
        update = {str(name): _value(value) for name, value in update.items()}
        shown: Json = _kept(update)
    else:
        shown = _kept({"": _value(update)})
    others: dict[str, object] = {"goto": command.goto, "graph": command.graph}
    return {"update": shown, "is_map": isinstance(update, Mapping), **_members(others)}


def _value(value: object) -> object:
    """Return a value of a state's update, with messages as the objects that stand for them."""
    if isinstance(value, BaseMessage):
        return {MESSAGE: message_to_dict(value)}
    if isinstance(value, list | tuple) and any(isinstance(item, BaseMessage) for item in value):
        return {LIST: [_value(item) for item in value]}
    return value


def _kept(values: Mapping[str, object]) -> Json:
    members = _members(values)
    left_out: list[Json] = [name for name in values if name not in members]
    return {**members, **({"left_out": left_out} if left_out else {})}


def _members(values: Mapping[str, object]) -> dict[str, Json]:
    return {name: cast("Json", value) for name, value in values.items() if _is_json(value)}


def _is_json(value: object) -> bool:
    try:
        identity.canonical(cast("Json", value))
    except Exception:  # noqa: BLE001 - a value may raise whatever it likes when it is looked at
        return False
    return True


# --- out of it -----------------------------------------------------------------------------------


def rebuilt(outcome: Outcome, *, name: str, call_id: str) -> "Answer | list[Answer]":
    """Return the answer that a succeeded operation was given, as far as it was kept."""
    result = outcome.result
    if isinstance(result, Mapping) and isinstance(result.get("several"), Sequence):
        items = cast("Sequence[Mapping[str, Json]]", result["several"])
        return [_answer(item, outcome, name, call_id) for item in items]
    return _answer(result if isinstance(result, Mapping) else {}, outcome, name, call_id)


def _answer(result: Mapping[str, Json], outcome: Outcome, name: str, call_id: str) -> Answer:
    if isinstance(result.get("command"), Mapping):
        told = cast("Mapping[str, Json]", result["command"])
        shown = cast("Mapping[str, Json]", told.get("update") or {})
        values = {key: _revived(value) for key, value in shown.items() if key != "left_out"}
        update = values if told.get("is_map") else values.get("")
        graph = told.get("graph")
        return Command(
            update=update,
            goto=cast("Sequence[str]", told.get("goto") or ()),
            graph=graph if isinstance(graph, str) else None,
        )
    lacks = cast("Sequence[str]", result.get("left_out") or ())
    note = (
        f"\n(Out of the ledger; not kept, as it is no JSON: {', '.join(lacks)}.)" if lacks else ""
    )
    content = result.get("content")
    if content is None:
        content = telling.told(outcome)
    elif not isinstance(content, str) and not _is_blocks(content):
        content = str(content)
    if note:
        content = f"{content}{note}" if isinstance(content, str) else [*_blocks(content), note]
    return ToolMessage(
        content=cast("str | list[str | dict[object, object]]", content),
        artifact=result.get("artifact"),
        name=name,
        tool_call_id=call_id,
        response_metadata=mark(outcome),
    )


def _revived(value: Json) -> object:
    if isinstance(value, Mapping) and set(value) == {MESSAGE}:
        return messages_from_dict(
            [cast("dict[str, object]", dict(cast("dict[str, Json]", value[MESSAGE])))]
        )[0]
    if isinstance(value, Mapping) and set(value) == {LIST}:
        return [_revived(item) for item in cast("Sequence[Json]", value[LIST])]
    return value


def _is_blocks(content: Json) -> bool:
    return isinstance(content, list | tuple) and all(
        isinstance(item, str | Mapping) for item in content
    )


def _blocks(content: Json) -> list[Json]:
    return list(cast("Sequence[Json]", content))


def mark(outcome: Outcome) -> dict[str, object]:
    """Return what programs find in `response_metadata` of each message: which operation it is."""
    return {
        "doubtless": {
            "operation_id": outcome.operation_id,
            "status": outcome.status,
            "retry_allowed": outcome.retry_allowed,
        }
    }


def message(outcome: Outcome, *, name: str, call_id: str, words: str = "") -> ToolMessage:
    """Say what is known of an operation: words for the model, the whole object as the artifact."""
    text = telling.told(outcome)
    status: Status = "error" if outcome.outcome in GRAVE else "success"
    return ToolMessage(
        content=f"{text}\n{words}" if words else text,
        artifact=outcome.to_json(),
        name=name,
        tool_call_id=call_id,
        status=status,
        response_metadata=mark(outcome),
    )


def not_done(why: str, *, name: str, call_id: str) -> ToolMessage:
    """Say of a call that it was not even recorded, and why. Correcting it is safe."""
    return ToolMessage(
        content=telling.not_done(why), name=name, tool_call_id=call_id, status="error"
    )
