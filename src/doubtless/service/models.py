"""What requests may say: the models of bodies and queries, strict at the boundary.

Descriptions and limits go into the OpenAPI document as they stand here.
"""

import json
import re
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
)

from doubtless.core import identity
from doubtless.core.decisions import Word
from doubtless.core.model import State

OPERATION_ID: Final = r"^[A-Za-z0-9._:-]{1,128}$"
SESSION_ID: Final = r"^[A-Za-z0-9._:@~+=-]{1,128}$"
PLAIN: Final = r"^[^\x00-\x1f\x7f]+$"  # no control characters
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = r"^[0-9]{1,9}(ms|s|m|h|d)$"


def duration_ms(text: str) -> int:
    """Read a duration as contracts have it: 250ms, 10s, 15m, 24h, 30d. It is of that form."""
    number, unit = re.fullmatch(r"([0-9]+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS_MS[unit]


OperationId = Annotated[str, Field(pattern=OPERATION_ID, examples=["refund_74219"])]
SessionId = Annotated[str, Field(pattern=SESSION_ID, examples=["session-1"])]
Duration = Annotated[str, Field(pattern=DURATION, examples=["10s"])]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=PLAIN)]
Word128 = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=PLAIN)]
Note = Annotated[
    str,
    StringConstraints(max_length=4_000, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$"),
    Field(description="What was seen, and where.", examples=["seen in the provider's console"]),
]


def _word(value: object) -> object:
    """Read a decision, with - for _ too; what is none is left for the model to refuse."""
    words = {word.value: word for word in Word}
    return words.get(value.replace("-", "_"), value) if isinstance(value, str) else value


def _integral(value: object) -> object:
    """Read 1.0 as 1: in JSON, and in JSON Schema, they are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Body(BaseModel):
    """A request's body: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Empty(Body):
    """Nothing is said: no body, or an empty object."""


class Submit(Body):
    """One intent. Under the same `operation_id` it acts at most once."""

    tool: ToolName
    arguments: dict[str, JsonValue]
    operation_id: OperationId | None = None
    request_id: Annotated[
        OperationId | None,
        Field(
            description="Made for this one request: a repeat of it, because its answer was lost, is"
            " told of the operation that the first one led to. It names no intent."
        ),
    ] = None
    session_id: SessionId | None = None
    correlation_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")] | None = None
    after: Annotated[list[OperationId], Field(max_length=100)] = []
    on_unknown: Literal["stop", "continue"] = "stop"
    supersedes: OperationId | None = None
    wait: Duration | None = None


class Resolve(Body):
    """An operator's decision, on the version that was seen."""

    decision: Annotated[Word, BeforeValidator(_word)]
    note: Note
    version: Annotated[int, Field(ge=1, le=2**53 - 1), BeforeValidator(_integral)]
    provider_operation_id: Word128 | None = None
    mark_duplicate: bool = False


class Authorise(Body):
    """An operator's word on an operation that waits for approval."""

    note: Note
    payload_hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Grant(Body):
    """An approval for all operations of one tool and one principal in one session."""

    tool: ToolName
    principal: Word128
    expires: Duration
    note: Note


class MatchEvent(Body):
    """Which operation an unmatched event speaks of."""

    operation_id: OperationId
    note: Note


class Ingest(Body):
    """An event from a queue, or from an application's own handler."""

    source: Word128
    event: dict[str, JsonValue]
    event_id: Word128 | None = None
    occurred_at: Annotated[
        Word128 | None, Field(description="By the provider's clock: RFC 3339.")
    ] = None


# --- queries -------------------------------------------------------------------------------------


def whole(value: object) -> object:
    """Read a number in a query; what is none is left for the model to refuse."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,16}", value) else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(str(value), value)


def _state(value: object) -> object:
    return {state.value: state for state in State}.get(str(value), value)


def _object(text: str) -> str:
    """Write the members of a business key as the ledger has them."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError('write a JSON object: {"charge":"ch_1"}')  # noqa: TRY004 - pydantic's way
    return identity.canonical(found).decode()


class Query(BaseModel):
    """A request's query: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoQuery(Query):
    """Nothing is asked."""


Limit = Annotated[int, Field(ge=1, le=200), BeforeValidator(whole)]
StateName = Annotated[State, BeforeValidator(_state)] | Literal["unresolved"]


class Filters(Query):
    """Which operations. `unresolved` means every state that is no end."""

    state: StateName | None = None
    tool: ToolName | None = None
    session_id: SessionId | None = None
    provider_operation_id: Word128 | None = None
    idempotency_key: Word128 | None = None
    correlation_id: Word128 | None = None
    business_key: (
        Annotated[
            str,
            AfterValidator(_object),
            Field(description="A JSON object.", examples=['{"charge":"ch_1"}']),
        ]
        | None
    ) = None
    cursor: OperationId | None = None
    limit: Limit = 50

    @property
    def states(self) -> tuple[State, ...]:
        """The states that are meant; none means all."""
        if self.state is None:
            return ()
        if isinstance(self.state, State):
            return (self.state,)
        return tuple(state for state in State if not state.ends)

    @property
    def equal(self) -> dict[str, str]:
        """The values that must be equal, by the ledger's names."""
        said = self.model_dump(exclude={"state", "cursor", "limit"}, exclude_none=True)
        return {name: str(value) for name, value in said.items()}


class WhoseSession(Query):
    """For an operator: whose session it is, where several principals have one of that id."""

    principal: Word128 | None = None


class WhichAttempt(Query):
    """Of which attempt; without it the latest that has it."""

    attempt: Annotated[int, Field(ge=1, le=1000), BeforeValidator(whole)] | None = None


class After(Query):
    """Where a stream goes on: the `id` of the last one that was read."""

    after: Annotated[int, Field(ge=0, le=2**53 - 1), BeforeValidator(whole)] = 0
    limit: Limit = 100


class Inbox(Query):
    """Which events."""

    matched: Annotated[bool, BeforeValidator(_flag)] | None = None
    source: Word128 | None = None
    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | None = None
    limit: Limit = 50
