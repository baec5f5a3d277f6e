"""The invariants, judged after every event against what is really there."""

from doubtless.core.model import Cause, State
from doubtless.testing.explore_steps import Broken
from doubtless.testing.explore_world import TICK, WORK_FAILED, Scene, World

PROOFS = frozenset(
    {
        Cause.NOT_SENT,
        Cause.NOT_PROCESSED,
        Cause.CONFIRMED_ABSENT,
        Cause.NO_EFFECT,
        Cause.REFUSED,
    }
)
"""The causes with which `failed` says that the effect does not exist and never will.

A definite failure is judged by what the provider gave up; an operator's word by later evidence.
"""

PATIENCE = 6 * TICK  # a look that is under way, its lease, and workers that come late

OPEN = frozenset({State.UNKNOWN, State.RECONCILING})
RESTS = frozenset(
    {State.SUCCEEDED, State.FAILED, State.REJECTED, State.CANCELLED, State.MANUAL_REVIEW}
)
"""Where an operation may stay for ever without anybody having forgotten it."""


def check(scene: Scene, world: World) -> None:
    """Raise `Broken` where an invariant does not hold.

    That nothing can come later needs no look ahead: every request that can still take effect does
    so in some explored world, and that world is judged as well.
    """
    operation, state = world.operation, world.state
    if world.effects > 1:
        raise Broken(f"effects: there are {world.effects} effects")
    if not scene.harmless:
        _check_truth(world, state, operation.cause)
    if (operation.due_ms is None) is not state.ends:
        raise Broken(f"due: {state} is due at {operation.due_ms}")
    if state in OPEN and scene.contract.review:
        deadline_ms = operation.deadline_ms or operation.completes_by_ms
        if operation.origin is State.ACCEPTED:  # while it is seen at work only this one runs
            deadline_ms = operation.completes_by_ms
        if deadline_ms is None or world.now > deadline_ms + PATIENCE:
            raise Broken(f"deadline: still {state} after the deadline for a review")
    if state is State.ACCEPTED:
        by_ms = operation.completes_by_ms
        if by_ms is None or world.now > by_ms + PATIENCE:
            raise Broken("deadline: still accepted after the time in which it completes")


def _check_truth(world: World, state: State, cause: Cause | None) -> None:
    if state is State.SUCCEEDED and not world.effects:
        raise Broken("truth: succeeded, and there is no effect")
    nothing = state in (State.REJECTED, State.CANCELLED)
    nothing = nothing or (state is State.FAILED and cause in PROOFS)
    if nothing and world.effects:
        raise Broken(f"truth: {state} ({cause}), and the effect exists")
    if state is State.FAILED and cause is Cause.DEFINITE_FAILURE and world.work != WORK_FAILED:
        raise Broken("truth: failed as a definite failure that never was")
