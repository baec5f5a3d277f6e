"""One call of a tool in Pydantic AI: what names it, what becomes of it, and what is answered."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypedDict, TypeVar, cast

from pydantic_ai import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunContext,
    ToolFailed,
    ToolReturn,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from doubtless.core import identity
from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import BadArguments, BadRequest, Rejected
from doubtless.integrations import telling
from doubtless.integrations.causes import is_broken
from doubtless.integrations.guarding import call_identity

FRAMEWORK: Final = "pydantic-ai"

DepsT = TypeVar("DepsT")


class Ids(TypedDict):
    """The ids that go with a guarded call."""

    call_id: str | None
    session_id: str | None
    correlation_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What names a call over the framework's own repeats."""

    call_id: str | None
    session_id: str | None
    correlation_id: str | None

    @classmethod
    def of(cls, ctx: RunContext[DepsT], session_id: str | None) -> "Place":
        """Say where a call stands.

        The model's response is kept with the messages: by its run and its instant the call is
        named also in a run that goes on from them, and told from one that a model numbers alike.
        """
        call_id = ctx.tool_call_id
        if not call_id:
            return cls(call_id=None, session_id=session_id, correlation_id=None)
        response = _response(ctx, call_id)
        if response is not None:
            parts = [response.run_id or "", response.timestamp.isoformat(), call_id]
        else:
            parts = [ctx.run_id or "", str(ctx.run_step), call_id]
        if ctx.tool_call_approved:  # it asked for that before, and had done nothing
            parts.append("approved")
        return cls(
            call_id=call_identity(FRAMEWORK, *parts),
            session_id=session_id,
            correlation_id=call_id,
        )

    def is_of_another(self, outcome: Outcome) -> bool:
        """Whether it was done before this call, by another that its model was in doubt about."""
        return outcome.already_done and outcome.operation_id != self.call_id

    def ids(self) -> Ids:
        """Return them as arguments."""
        return {
            "call_id": self.call_id,
            "session_id": self.session_id,
            "correlation_id": self.correlation_id,
        }


def _response(ctx: RunContext[DepsT], call_id: str) -> ModelResponse | None:
    """Return the newest response that asks for the call."""
    for message in reversed(ctx.messages):
        if isinstance(message, ModelResponse) and any(
            isinstance(part, ToolCallPart) and part.tool_call_id == call_id
            for part in message.parts
        ):
            return message
    return None


def arguments_of(validated: Mapping[str, object], ctx: RunContext[DepsT]) -> Mapping[str, Json]:
    """Return validated arguments as JSON; where that can't be, as the model wrote them.

    Raises:
        BadArguments: They can't be JSON. Nothing was executed.
    """
    try:
        return cast("dict[str, Json]", to_jsonable_python(dict(validated)))
    except (PydanticSerializationError, ValueError) as error:
        response = _response(ctx, ctx.tool_call_id or "")
        for part in response.parts if response is not None else ():
            if isinstance(part, ToolCallPart) and part.tool_call_id == ctx.tool_call_id:
                return cast("dict[str, Json]", part.args_as_dict())
        raise BadArguments(ctx.tool_name or "", "", str(error)) from error


def not_done(error: BadRequest) -> ToolFailed:
    """Say that a call was not even recorded."""
    return ToolFailed(telling.not_done(str(error)))


# --- what becomes of it --------------------------------------------------------------------------


class Held:
    """One call, with what the framework is to be given back for it."""

    def __init__(self, is_definitive: bool) -> None:
        self._is_definitive = is_definitive
        self._fresh: tuple[object] | None = None
        self._deferral: ApprovalRequired | CallDeferred | None = None
        self._words = ""

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Judge what a tool raises. A deferral of the call ends the block.

        Raises:
            Rejected: Nothing was done.
            Exception: What the tool raised, which proves nothing.
        """
        try:
            yield
        except ApprovalRequired as error:
            self._deferral = error
            raise Rejected("it asks for approval before it acts") from error
        except CallDeferred as error:
            self._deferral = error
        except (ModelRetry, ToolFailed) as error:
            if self._is_definitive and not is_broken(error):
                self._words = error.message
                raise Rejected("it raised what its contract calls definitive") from error
            raise

    def returned(self, found: object) -> None:
        """Hold what the tool returned."""
        self._fresh = (found,)

    def kept(self) -> Json:
        """Return what the ledger keeps of it; of a call that was handed on, just that."""
        if self._fresh is not None:
            return kept(self._fresh[0])
        assert isinstance(self._deferral, CallDeferred)  # noqa: S101 - the block ended by it
        metadata = self._deferral.metadata
        return {
            "deferred": {
                "kind": self._deferral.kind,
                "metadata": cast("Json", metadata) if _is_json(metadata) else None,
            }
        }

    def answer(self, outcome: Outcome, place: Place) -> object:
        """Return the tool's answer, or what is known of it.

        Raises:
            ToolFailed: Nothing was done, or it may not be.
            ApprovalRequired, CallDeferred: The tool said so.
        """
        if self._deferral is not None:
            raise self._deferral
        if outcome.outcome in ("failure", "rejected"):
            told = telling.told(outcome)
            raise ToolFailed(f"{told}\n{self._words}" if self._words else told)
        if outcome.outcome != "success":
            return ToolReturn(return_value=telling.told(outcome), metadata=marked(outcome))
        if self._fresh is not None:
            return self._fresh[0]
        found = rebuilt(outcome)
        if place.is_of_another(outcome):
            return replace(found, return_value=done_before(outcome, found.return_value))
        return found


# --- into the ledger and out of it ---------------------------------------------------------------


def kept(found: object) -> Json:
    """Return what of a result can be kept: values, texts, metadata, as far as they are JSON."""
    if not isinstance(found, ToolReturn):
        return _kept({"value": found})
    extras = {"content": found.content, "metadata": found.metadata}
    said = {name: value for name, value in extras.items() if value is not None}
    return _kept({"value": cast("object", found.return_value), **said})


def _kept(values: Mapping[str, object]) -> Json:
    members: dict[str, Json] = {}
    for name, value in values.items():
        try:
            shown = cast("Json", to_jsonable_python(value))
        except (PydanticSerializationError, ValueError, RecursionError):
            continue
        if _is_json(shown):
            members[name] = shown
    left_out: list[Json] = [name for name in values if name not in members]
    return {**members, **({"left_out": left_out} if left_out else {})}


def _is_json(value: object) -> bool:
    try:
        identity.canonical(cast("Json", value))
    except Exception:  # noqa: BLE001 - a value may raise whatever it likes when it is looked at
        return False
    return True


def done_before(outcome: Outcome, result: object = None) -> str:
    """Say that it had been done already, and with which result."""
    found = outcome.result if result is None else result
    return f"{telling.told(outcome)}\n{to_json(found, fallback=str).decode()}"


def rebuilt(outcome: Outcome) -> "ToolReturn[object]":
    """Return the result that a succeeded operation had, as far as it was kept.

    Raises:
        CallDeferred: It was handed on.
    """
    result = outcome.result if isinstance(outcome.result, Mapping) else {}
    deferred = result.get("deferred")
    if isinstance(deferred, Mapping):
        kind = cast('Literal["external", "question"]', deferred.get("kind") or "external")
        raise CallDeferred(cast("dict[str, object] | None", deferred.get("metadata")), kind=kind)
    value = result.get("value", telling.told(outcome))
    content = result.get("content")
    metadata = result.get("metadata")
    return ToolReturn(
        return_value=cast("str", value),
        content=content if isinstance(content, str) else None,
        metadata=marked(outcome) if metadata is None else metadata,
    )


def marked(outcome: Outcome) -> dict[str, Json]:
    """Return the outcome as metadata, which the application sees and the model doesn't."""
    return {"doubtless": outcome.to_json()}
