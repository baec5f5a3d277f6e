"""What a model was left in doubt about: it is told how that ended before it acts on it again.

The ledger bars a repeat as long as an operation is open. A model that was told "unknown" and calls
again after it was settled knows nothing of that: for the ledger it would be a new intent. So the
first such call is answered with what has become of the earlier one. What a model was told is kept
in memory: a new process begins without doubts, and reads what is unresolved.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from doubtless.core import identity
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Cause, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.errors import BadRequest, ServiceUnavailable

DOUBTS_MAX: Final = 1_000
UNHEARD: Final = "unheard"  # ends the key of a request whose answer nobody waited for

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
    since, it gets that result, once; so does one whose call was cancelled, and that heard nothing.
    A variant on the same object is refused until it asked how the first one ended; a service
    doesn't know of that, and takes it for a new intent. A repeat under a `request_id` that the
    ledger knows is told of that one.

    Raises:
        BadRequest: It can't be carried out as it was written. Nothing was recorded or sent.
        LedgerUnavailable: Nothing could be recorded, so nothing was sent.
        ServiceUnavailable: A service did not answer in time. It may have been recorded.
    """
    doubts = _of(app)
    keys = _keys(app, tool, arguments, session_id)
    in_doubt = doubts.about(keys)
    try:
        if isinstance(app, RemoteDoubtless):
            found = await _done_since(app, in_doubt, request_id)
            outcome = found or await app.call(
                tool,
                arguments,
                request_id=request_id,
                session_id=session_id,
                correlation_id=correlation_id,
                wait_s=wait_s,
            )
        else:
            found = await app.call_in_doubt(
                tool,
                arguments,
                in_doubt=in_doubt,
                request_id=request_id,
                session_id=session_id,
                correlation_id=correlation_id,
                wait_s=wait_s,
            )
            outcome = await _worded(app, found, in_doubt)
    except (asyncio.CancelledError, ServiceUnavailable):
        doubts.unheard(request_id, keys)
        raise
    doubts.told(outcome, keys)
    return outcome


def told(app: Doubtless, outcome: Outcome) -> None:
    """Note that whoever acts through an application was told how an operation stands."""
    _of(app).told(outcome)


class _Doubts:
    """The operations of which a model knows only that they were open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Key, str] = OrderedDict()

    def about(self, keys: Sequence[Key]) -> list[str]:
        """Return the operations that a call may be about."""
        asked = [each for key in keys for each in (key, (*key, UNHEARD))]
        return [self._open[key] for key in asked if key in self._open]

    def unheard(self, request_id: str | None, keys: Sequence[Key]) -> None:
        """Note that whoever made a request did not hear what became of it."""
        for key in keys if request_id is not None else ():
            self._open[*key, UNHEARD] = str(request_id)
        self._forget_the_oldest()

    def told(self, outcome: Outcome, keys: Sequence[Key] = ()) -> None:
        """Note what was told of an operation, and what it is about."""
        if outcome.outcome in ("unknown", "pending"):
            for key in keys:
                self._open[key] = outcome.operation_id
            self._forget_the_oldest()
        elif outcome.version:  # of an operation: a refusal is about none
            for key in [key for key, each in self._open.items() if each == outcome.operation_id]:
                del self._open[key]

    def _forget_the_oldest(self) -> None:
        while len(self._open) > DOUBTS_MAX:
            self._open.popitem(last=False)


_DOUBTS: Final[WeakKeyDictionary[Doubtless, _Doubts]] = WeakKeyDictionary()


def _of(app: Doubtless) -> _Doubts:
    return _DOUBTS.setdefault(app, _Doubts())


def _keys(
    app: Doubtless, tool: str, arguments: Mapping[str, Json], session_id: str | None
) -> list[Key]:
    """Return what a call is about: itself, and its object, where its contract names one."""
    found = app.registry.find(tool)
    contract = found.contract if found is not None else None
    if contract is not None and contract.effect in NO_EFFECT:
        return []
    session = session_id or ""
    try:
        same = ("call", session, identity.canonical([tool, dict(arguments)]).decode())
        names = contract.business_key if contract is not None else ()
        key = identity.business_key(arguments, names)
    except identity.NotCanonical:
        return []  # it will be refused
    if contract is None or contract.latest_wins or key is None:
        return [same]
    return [same, ("object", session, contract.source.name, key)]


async def _done_since(
    app: Doubtless, in_doubt: Sequence[str], request_id: str | None
) -> Outcome | None:
    """Return what has succeeded in a service, unless its caller repeats a request."""
    for operation_id in in_doubt:
        try:
            outcome = await app.outcome(operation_id)
            if outcome.outcome != "success":
                continue
            if request_id is None or not await _is_known(app, request_id):
                return _already(outcome)
        except BadRequest:
            continue
    return None


async def _is_known(app: Doubtless, request_id: str) -> bool:
    try:
        await app.outcome(request_id)
    except BadRequest:
        return False
    return True


def _already(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        already_done=True,
        recovery="already_done",
        message=f"{outcome.tool} had already been done as operation {outcome.operation_id}; "
        "nothing was sent now.",
    )


async def _worded(app: Doubtless, outcome: Outcome, in_doubt: Sequence[str]) -> Outcome:
    """Say of a variant that was refused what its caller couldn't know: the first one has ended."""
    error = outcome.error or {}
    by = error.get("operation_id")
    if error.get("code") != Cause.TARGET_UNRESOLVED or by not in in_doubt:
        return outcome
    if (await app.outcome(str(by))).outcome != "success":
        return outcome
    return replace(
        outcome,
        message=f"{outcome.tool} was refused: an earlier operation on the same object was not known"
        f" to its caller, and has been settled since ({by}). Nothing was sent. Ask how it ended"
        " first; do not try a variant.",
    )
