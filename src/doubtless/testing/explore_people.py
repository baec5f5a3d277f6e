"""People and agents: whoever repeats a call, and an operator who never says what isn't so.

"Not done" may be said while something can still arrive: it is true when it is said.
"""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core import decisions, permission
from doubtless.core.contract import STALL_MARGIN_MS
from doubtless.core.decisions import Word
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, State
from doubtless.errors import DecisionRefused
from doubtless.testing import explore_steps as steps
from doubtless.testing.explore_steps import Broken
from doubtless.testing.explore_world import GATED, WORK_GOES_ON, Event, Scene, Sending, World


def agent(scene: Scene, world: World) -> Iterator[Event]:
    """Yield a repeated call of an operation that has failed, where policy permits one."""
    if not world.budget.repeats or world.state is not State.FAILED:
        return
    if permission.may_repeat(world.record, scene.contract, world.clock).allowed:
        left = replace(world, budget=replace(world.budget, repeats=world.budget.repeats - 1))
        resend = world.operation.cause is Cause.CONFIRMED_ABSENT
        after = steps.begin(scene, left, resend=resend)
        if after.record.evidence != world.record.evidence or after.state is not State.EXECUTING:
            raise Broken("agent: a call of the agent settled something")
        yield "agent", "repeats the call: a new attempt is opened", after


def operator(scene: Scene, world: World) -> Iterator[Event]:
    """Yield every decision that an honest operator may take."""
    if not world.budget.words or world.state not in (State.MANUAL_REVIEW, State.FAILED):
        return
    left = replace(world, budget=replace(world.budget, words=world.budget.words - 1))
    sendings = world.sendings
    acting = any(_may_still_act(world, sending) for sending in sendings)
    # A word and an arrival within the very last millisecond: the word then counts as the earlier.
    ties = any(world.may_act(sending) and world.now == sending.until_ms for sending in sendings)
    honest = {
        Word.DONE: world.effects > 0,
        Word.NOT_DONE: world.effects == 0 and not ties and world.work != WORK_GOES_ON,
        Word.LOOK_AGAIN: True,
        # More than this is a risk that the operator takes, and no property of the rules.
        Word.RETRY: world.effects == 0 and not acting and world.work != WORK_GOES_ON,
    }
    for word, may in honest.items():
        if may:
            after = _ruled(scene, left, word)
            if after is not None:
                yield "operator", f"decides {word}", after


def _may_still_act(world: World, sending: Sending) -> bool:
    """Whether its request can take effect, or can still be written."""
    last_ms = (sending.write_by_ms or 0) + STALL_MARGIN_MS
    return world.may_act(sending) or (sending.worker == GATED and world.now <= last_ms)


def _ruled(scene: Scene, world: World, word: Word) -> World | None:
    try:
        ruling = decisions.rule(
            world.record, scene.contract, world.clock, word, operator="operator", note=""
        )
    except DecisionRefused:
        return None
    if ruling.evidence is not None:
        return steps.weighed(scene, world, [ruling.evidence])
    if ruling.change is not None:
        after = steps.stepped(world.operation, ruling.change.after)
        return steps.settled(scene, world, replace(world.record, operation=after))
    by = Need.OPERATOR if world.state is State.MANUAL_REVIEW else Need.PERMITTED
    return steps.begin(scene, world, resend=steps.is_doubtful(scene, world), by=by)
