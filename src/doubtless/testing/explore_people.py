"""People and agents: whoever repeats a call, and an operator who never says what isn't so.

Whoever approves may do so, or refuse, at any time that the engine lets them. "Not done" may be said
while something can still arrive: it is true when it is said.
"""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core import approvals, decisions, permission, settling
from doubtless.core.contract import STALL_MARGIN_MS
from doubtless.core.decisions import Word
from doubtless.core.lifecycle import Need
from doubtless.core.model import Approval, Cause, Seen, State
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
    if world.operation.needs_approval:  # whoever decides this authorises it by that
        world = _approved(scene, world, retry=True)
    by = Need.OPERATOR if world.state is State.MANUAL_REVIEW else Need.PERMITTED
    return steps.begin(scene, world, resend=steps.is_doubtful(scene, world), by=by)


# --- approvals -----------------------------------------------------------------------------------


def voters(scene: Scene, world: World) -> Iterator[Event]:
    """Yield a person's approval, or refusal, of what waits for it or was not tried yet."""
    if not world.budget.votes or not world.operation.needs_approval:
        return
    left = replace(world, budget=replace(world.budget, votes=world.budget.votes - 1))
    if world.state is State.AWAITING_APPROVAL and world.now < _asked_until_ms(world):
        said = _approved(scene, left, retry=False)
        yield "a person", "approves it", steps.settled(scene, said, said.record)
    harmless = {Seen.NOT_SENT, Seen.NOT_PROCESSED}
    untried = all(attempt.seen in harmless for attempt in world.record.attempts)
    if untried and world.state in (State.AWAITING_APPROVAL, State.PREPARED):
        denied = settling.enter(
            world.operation,
            State.REJECTED,
            world.clock,
            cause=Cause.DENIED,
            contract=scene.contract,
            holds=frozenset({Need.NO_TRACE}),
        )
        after = steps.stepped(world.operation, denied)
        yield "a person", "refuses it", replace(left, record=replace(left.record, operation=after))


def _asked_until_ms(world: World) -> int:
    operation = world.operation
    return min(operation.not_before_ms or operation.valid_until_ms, operation.valid_until_ms)


def _approved(scene: Scene, world: World, *, retry: bool) -> World:
    """Add an authorisation, bound to what is executed. Every one is another person's."""
    operation, rules = world.operation, scene.contract.approval
    lasts_ms = rules.expires_ms if rules is not None else 0
    expires_ms = min(world.now + lasts_ms, operation.valid_until_ms)
    given = Approval(
        by=f"person {len(world.record.approvals) + 1}",
        at_ms=world.now,
        expires_ms=expires_ms,
        digest=approvals.digest_of(operation, expires_ms),
        retry=retry,
    )
    record = replace(world.record, approvals=(*world.record.approvals, given))
    return replace(world, record=record)
