"""What a model was left in doubt about: it is told how that ended before it acts on it again.

The ledger bars a repeat as long as an operation is open. A model that was told "unknown" and calls
again after it was settled knows nothing of that: for the ledger it would be a new intent. So the
first such call is answered with what has become of the earlier one. What a model was told is kept
in memory: a new process begins without doubts, and reads what is unresolved.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from doubtless.core import identity
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Cause, Json, State
from doubtless.core.outcome import Outcome
from doubtless.core.refusals import refusal
from doubtless.engine.app import Doubtless
from doubtless.errors import BadRequest, OperationNotFound

DOUBTS_MAX: Final = 1_000

Key: TypeAlias = tuple[str, ...]
"""What an operation was about: a call in a session, or an object."""


async def ask(
    app: Doubtless,
    tool: str,
    arguments: Mapping[str, Json],
    *,
    request_id: str | None = None,
    session_id: str | None = None,
    correlation_id: str | None = None,
    wait_s: float | None = None,
) -> Outcome:
    """Make a model's call, as `app.call` does; what it was left in doubt about comes first.

    If its session was told of the same call that it is unknown or under way, and that has succeeded
    since, it gets that result, once. A variant on the same object is refused until it asked how
    the first one ended. A repeat under a `request_id` that the ledger knows is told of that one.

    Raises:
        BadRequest: It can't be carried out as it was written. Nothing was recorded or sent.
        LedgerUnavailable: Nothing could be recorded, so nothing was sent.
    """
    doubts = _of(app)
    same, others = _keys(app, tool, arguments, session_id)
    earlier = await doubts.ended(app, same)
    first = await doubts.ended(app, others) if earlier is None else None
    if (earlier or first) and await _is_known(app, request_id):
        earlier = first = None
    if earlier is not None:
        doubts.told(earlier)
        return _already(earlier)
    if first is not None:
        return _first(first, tool)
    outcome = await app.call(
        tool,
        arguments,
        request_id=request_id,
        session_id=session_id,
        correlation_id=correlation_id,
        wait_s=wait_s,
    )
    doubts.told(outcome, same, others)
    return outcome


def told(app: Doubtless, outcome: Outcome) -> None:
    """Note that whoever acts through an application was told how an operation stands."""
    _of(app).told(outcome)


class _Doubts:
    """The operations of which a model knows only that they were open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Key, str] = OrderedDict()

    def told(self, outcome: Outcome, *keys: Key | None) -> None:
        if outcome.outcome in ("unknown", "pending"):
            for key in keys:
                if key is not None:
                    self._open[key] = outcome.operation_id
            while len(self._open) > DOUBTS_MAX:
                self._open.popitem(last=False)
        elif outcome.version:  # not of a refusal, which is about no operation
            self._forget(outcome.operation_id)

    async def ended(self, app: Doubtless, key: Key | None) -> Outcome | None:
        """Return the operation in doubt, if it has taken effect since; forget what hasn't."""
        operation_id = self._open.get(key) if key is not None else None
        if operation_id is None:
            return None
        try:
            outcome = await app.outcome(operation_id)
        except OperationNotFound:
            self._forget(operation_id)
            return None
        if outcome.outcome == "success":
            return outcome
        if State(outcome.state).ends:
            self._forget(operation_id)
        return None

    def _forget(self, operation_id: str) -> None:
        for key in [key for key, each in self._open.items() if each == operation_id]:
            del self._open[key]


_DOUBTS: Final[WeakKeyDictionary[Doubtless, _Doubts]] = WeakKeyDictionary()


def _of(app: Doubtless) -> _Doubts:
    return _DOUBTS.setdefault(app, _Doubts())


def _keys(
    app: Doubtless, tool: str, arguments: Mapping[str, Json], session_id: str | None
) -> tuple[Key | None, Key | None]:
    """Return what a call is about: itself, and its object, where its contract names one."""
    found = app.registry.find(tool)
    if found is not None and found.contract.effect in NO_EFFECT:
        return None, None
    session = session_id or ""
    try:
        same = ("call", session, identity.canonical([tool, dict(arguments)]).decode())
        names = found.contract.business_key if found is not None else ()
        key = identity.business_key(arguments, names)
    except identity.NotCanonical:
        return None, None  # it will be refused
    if found is None or key is None:
        return same, None
    return same, ("object", session, found.contract.source.name, key)


async def _is_known(app: Doubtless, request_id: str | None) -> bool:
    try:
        return request_id is not None and bool(await app.outcome(request_id))
    except BadRequest:
        return False


def _already(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        already_done=True,
        recovery="already_done",
        message=f"{outcome.tool} had already been done as operation {outcome.operation_id}; "
        "nothing was sent now.",
    )


def _first(outcome: Outcome, tool: str) -> Outcome:
    """Refuse a variant of what has taken effect without its caller knowing."""
    refused = refusal(
        operation_id=None,
        tool=tool,
        code=Cause.TARGET_UNRESOLVED,
        by=outcome.operation_id,
        payload_hash="",
        target=outcome.target,
    )
    return replace(
        refused,
        payload_hash=None,
        message=f"{tool} was refused: an earlier operation on the same object was not known to its "
        f"caller, and has been settled since ({outcome.operation_id}). Nothing was sent. Ask how "
        "it ended first; do not try a variant.",
    )
