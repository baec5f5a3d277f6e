"""The states and every step between them, as one table.

What the table doesn't list can't happen: `advance` raises. Three rules are not visible in it.

* A step may need proof. `Need` names what must hold; whoever takes the step says what holds.
* Every step out of `executing` raises the fence, whoever makes it, so that a worker which lost its
  lease finds the gate closed.
* A step is journalled in the same transaction, with its reason, evidence and principal.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from doubtless.core.model import State
from doubtless.errors import IllegalTransition


class Need(StrEnum):
    """What must be proven before a step may be taken."""

    NO_TRACE = "no attempt, or all proven not sent or not processed"
    TRACE = "some attempt, and a proof that covers all of them"
    ALL_PROVEN = "every attempt proven not done, or covered by a confirmed absence"
    CONTRADICTION = "authoritative evidence that disagrees"
    PERMITTED = "policy allows this send, in the same transaction"
    OPERATOR = "an operator's word"


_P, _W, _X = State.PREPARED, State.AWAITING_APPROVAL, State.EXECUTING
_A, _U, _R, _M = State.ACCEPTED, State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW
_S, _F, _J, _C = State.SUCCEEDED, State.FAILED, State.REJECTED, State.CANCELLED

TRANSITIONS: Mapping[tuple[State, State], Need | None] = MappingProxyType(
    {
        (_P, _X): Need.PERMITTED,
        (_P, _W): None,
        (_P, _J): Need.NO_TRACE,
        (_P, _C): Need.NO_TRACE,
        (_P, _F): Need.TRACE,
        (_W, _P): None,
        (_W, _J): None,
        (_W, _C): None,
        (_X, _S): None,
        (_X, _A): None,
        (_X, _U): None,
        (_X, _M): Need.CONTRADICTION,
        (_X, _P): Need.ALL_PROVEN,
        (_X, _F): Need.ALL_PROVEN,
        (_A, _S): None,
        (_A, _F): None,
        (_A, _R): None,
        (_A, _U): None,
        (_A, _M): None,
        (_U, _R): None,
        (_U, _A): None,
        (_U, _S): None,
        (_U, _F): Need.ALL_PROVEN,
        (_U, _X): Need.PERMITTED,
        (_U, _M): None,
        (_R, _S): None,
        (_R, _F): Need.ALL_PROVEN,
        (_R, _A): None,
        (_R, _M): None,
        (_R, _X): Need.PERMITTED,
        (_R, _U): None,
        (_M, _S): None,
        (_M, _F): Need.ALL_PROVEN,
        (_M, _A): None,
        (_M, _X): Need.OPERATOR,
        (_M, _R): None,
        (_M, _M): None,
        (_F, _X): Need.PERMITTED,
        (_S, _M): Need.CONTRADICTION,
        (_F, _M): Need.CONTRADICTION,
    }
)


def advance(source: State, target: State, *, holds: frozenset[Need] = frozenset()) -> State:
    """Return `target` if that step is legal with what is proven to hold.

    Raises:
        IllegalTransition: The table doesn't list the step, or what it needs isn't proven.
    """
    try:
        need = TRANSITIONS[source, target]
    except KeyError:
        raise IllegalTransition(source, target) from None
    if need is not None and need not in holds:
        raise IllegalTransition(source, target, f"it needs {need.value}")
    return target


def leads_to(source: State) -> frozenset[State]:
    """Return every state that may follow `source`."""
    return frozenset(target for origin, target in TRANSITIONS if origin is source)
