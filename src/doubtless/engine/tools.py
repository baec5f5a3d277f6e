"""Tools in Python code: the `Call` that a function is given, and the JSON Schema of its arguments.

@app.tool(effect=Effect.MONEY, business_key=["charge"], idempotency=Key(ttl="24h"), …)
async def create_refund(call: Call, charge: str, amount: int) -> dict: …
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar, get_type_hints

from pydantic import Field, PydanticUserError, create_model

from doubtless.core.contract import SourceRules
from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import GateClosed, SettingsError
from doubtless.transports.base import Watch
from doubtless.transports.http_client import GuardedClient

P = ParamSpec("P")
R = TypeVar("R")


class Call:
    """What a function tool knows about the operation that it carries out."""

    def __init__(  # noqa: PLR0913 - what a function may know, each by its name
        self,
        *,
        operation_id: str,
        ref: str,
        idempotency_key: str,
        correlation_id: str,
        attempt: int,
        headers: Mapping[str, str],
        source: SourceRules | None,
        limit_s: float,
        applied: Callable[[str | None], None],
    ) -> None:
        self.operation_id = operation_id
        self.ref = ref  # ours, unique everywhere: the one to put into the provider's objects
        self.idempotency_key = idempotency_key  # the operation's, the same for every attempt
        self.correlation_id = correlation_id
        self.attempt = attempt
        self._headers, self._source = headers, source
        self._limit_s, self._applied = limit_s, applied
        self._watch = Watch()
        self._client: GuardedClient | None = None
        self._ended = False

    @property
    def http(self) -> GuardedClient:
        """An `httpx2.AsyncClient` that attaches the key and never resends by itself.

        Where the tool's source has a `base_url`, it goes to that origin only, with its credential.

        It keeps count of what was sent, so that a declared `not_sent` exception is believed only
        where nothing left.
        """
        if self._client is None:
            self._client = GuardedClient(
                gate=self._gate,
                watch=self._watch,
                headers=dict(self._headers),
                source=self._source,
                limit_s=self._limit_s,
            )
        return self._client

    async def _gate(self) -> float:
        """Let requests pass while the call lasts; what a task left behind sends is too late."""
        if self._ended:
            raise GateClosed("the call has ended")
        return float("inf")

    def applied(self, provider_operation_id: str | None = None) -> None:
        """Record that the effect exists: the point of no return. Durable when it returns.

        Whatever fails afterwards is about the rest of the call.

        Raises:
            LedgerUnavailable: It could not be recorded.
        """
        self._applied(provider_operation_id)

    def nothing_left(self) -> bool:
        """Whether nothing that was sent through `http` can have left this process."""
        return self._client is None or self._client.proves_not_sent() or not self._client.sends

    async def aclose(self) -> None:
        """End the call: nothing is sent through its client any more."""
        self._ended = True
        if self._client is not None:
            await self._client.aclose()


@dataclass(frozen=True, slots=True)
class FunctionTool(Generic[P, R]):
    """A decorated function. Calling it carries out one operation and returns its outcome."""

    name: str
    function: Callable[P, R]
    invoke: Callable[[dict[str, Json], str | None], Awaitable[Outcome]]
    operation_id: str | None = None

    async def __call__(self, **arguments: Json) -> Outcome:
        """Carry the action out, durably, and say what is known of it."""
        return await self.invoke(arguments, self.operation_id)

    def with_id(self, operation_id: str) -> "FunctionTool[P, R]":
        """Return the same tool for one operation with an id of the caller's."""
        return FunctionTool(self.name, self.function, self.invoke, operation_id)


def schema_of(function: Callable[..., object]) -> dict[str, Json]:
    """Return the JSON Schema of a function's arguments, its first parameter left out.

    Raises:
        SettingsError: It has no first parameter for the `Call`, takes `*args` or `**kwargs`, or a
            type that JSON Schema can't express.
    """
    name = getattr(function, "__name__", "function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SettingsError(f"{name}: it yields, so that calling it does nothing: return instead")
    parameters = list(inspect.signature(function).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in kinds:
        raise SettingsError(f"{name}: its first parameter must take the Call, by position")
    hints = _hints(function)
    fields: dict[str, tuple[object, object]] = {}
    for number, parameter in enumerate(parameters[1:]):
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise SettingsError(f"{name}: {parameter}: name every argument, none may be variable")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        hint = hints.get(parameter.name, object)
        # By an alias: a model's own attributes, such as `json`, are no names for its fields.
        fields[f"argument_{number}"] = (hint, Field(default=default, alias=parameter.name))
    try:
        model = create_model(name, **fields)  # type: ignore[call-overload]
        schema: dict[str, Json] = model.model_json_schema(by_alias=True)
    except (PydanticUserError, TypeError, ValueError) as error:
        raise SettingsError(f"{name}: its arguments have no JSON Schema: {error}") from error
    return {**schema, "additionalProperties": False}


def _hints(function: Callable[..., object]) -> dict[str, object]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        name = getattr(function, "__name__", "function")
        raise SettingsError(f"{name}: an annotation can't be resolved: {error}") from error
