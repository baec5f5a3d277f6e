"""Calls through the gateway: who means what, and whose answer reached nobody."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from doubtless.core import identity
from doubtless.core.model import Json
from doubtless.engine.actor import Actor
from doubtless.errors import BadRequest
from doubtless.transports.mcp_servers import OPERATION_ID

REQUEST_ID: Final = "doubtless.dev/request-id"
"""In `_meta` of a call: an id of this one request, for clients that may have to repeat it."""
CORRELATION_ID: Final = "doubtless.dev/correlation-id"
TRACE: Final = "traceparent"  # W3C Trace Context, as MCP carries it in `_meta`

UNANSWERED_MAX: Final = 10_000
UNANSWERED_S: Final = 3_600.0  # after that the same call is a new intent
CORRELATION_CHARS_MAX: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls, and in which session. Neither ever comes from the protocol's own session."""

    actor: Actor
    principal: str
    session_id: str
    is_gone: Callable[[], Awaitable[bool]]  # whether an answer would reach nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request says of its own identity. A client may; a model never does."""

    operation_id: str | None
    request_id: str | None
    correlation_id: str

    @classmethod
    def of(cls, meta: Mapping[str, object] | None, otherwise: str) -> "Asked":
        """Read it from `_meta`.

        Raises:
            BadRequest: What stands there is no text.
        """
        said = meta or {}
        found: dict[str, str | None] = {}
        for name in (OPERATION_ID, REQUEST_ID, CORRELATION_ID):
            value = said.get(name)
            if value is not None and not isinstance(value, str):
                raise BadRequest(f"_meta: {name} must be text")
            found[name] = value
        trace = said.get(TRACE)
        correlation = found[CORRELATION_ID] or (trace if isinstance(trace, str) else otherwise)
        return cls(
            operation_id=found[OPERATION_ID],
            request_id=found[REQUEST_ID],
            correlation_id=correlation[:CORRELATION_CHARS_MAX],
        )


class Unanswered:
    """Calls whose answer reached nobody: the same call again is told of their operations.

    A client that timed out, or died, has not heard how its call ended: so the same call after that
    is no new intent, even if it has succeeded meanwhile. It is kept in memory: what is open stands
    in the ledger, and bars the same call anyway.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._lost: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._clock_s = clock_s

    def request_id(self, call: str) -> str | None:
        """Return the id of the request that first made a call, if it was not answered."""
        found = self._lost.get(call)
        if found is None or self._clock_s() - found[1] > UNANSWERED_S:
            return None
        return found[0]

    def add(self, call: str, request_id: str) -> None:
        """Note that the answer of a request reached nobody."""
        self._lost[call] = (request_id, self._clock_s())
        self._lost.move_to_end(call)
        while len(self._lost) > UNANSWERED_MAX:
            self._lost.popitem(last=False)

    def told(self, call: str, request_id: str) -> None:
        """Note that somebody was told what became of a request."""
        found = self._lost.get(call)
        if found is not None and found[0] == request_id:
            del self._lost[call]


def call_key(caller: Caller, tool: str, arguments: Mapping[str, Json]) -> str:
    """Return what two calls share that mean the same thing.

    Raises:
        BadRequest: The arguments can't be canonical JSON.
    """
    try:
        return identity.sha256(
            identity.canonical([caller.principal, caller.session_id, tool, dict(arguments)])
        )
    except identity.NotCanonical as error:
        raise BadRequest(f"arguments: {error}") from error
