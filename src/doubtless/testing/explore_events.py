"""Everything that may happen next to one operation: the adversarial environment.

Workers crash, stop anywhere and wake up again, never longer than the stall margin between the check
of `write_by` and the write. Reads trail by up to `lag`. What is due is taken up before time passes,
but for the ticks for which a scene lets it lie.
"""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core.contract import STALL_MARGIN_MS
from doubtless.core.model import Cause, Observation, Seen, Shows, Stage, State
from doubtless.core.progress import Liveness
from doubtless.testing import explore_steps as steps
from doubtless.testing.explore_people import agent, operator, voters
from doubtless.testing.explore_provider import requests, webhook, work
from doubtless.testing.explore_steps import Broken
from doubtless.testing.explore_world import (
    ACCEPTED,
    BUSY,
    DEAD,
    FLYING,
    GATED,
    GONE,
    IN_PROGRESS,
    NUMBERED,
    OLD_REFUSAL,
    OPENED,
    REFUSED,
    REPLAY,
    SENT,
    SUCCESS,
    TICK,
    WORK_FAILED,
    WORK_GOES_ON,
    Event,
    Look,
    Scene,
    Sending,
    World,
)

STATUS = {SUCCESS: 201, NUMBERED: 500, REPLAY: 201, REFUSED: 422, OLD_REFUSAL: 422, BUSY: 429}


def events(scene: Scene, world: World) -> Iterator[Event]:
    """Yield everything that may happen next."""
    for index, sending in enumerate(world.sendings):
        if sending.worker not in (GONE, DEAD):
            yield from _worker(scene, world, index, sending)
        if world.may_act(sending):
            yield from requests(scene, world, index, sending)
    yield from work(scene, world)
    yield from _recovery(scene, world)
    if world.look is not None:
        yield from _looking(scene, world, world.look)
    due = list(_due(scene, world))
    yield from due
    yield from webhook(scene, world)
    yield from agent(scene, world)
    yield from operator(scene, world)
    yield from voters(scene, world)
    yield from _time(world, scene, due=bool(due))


# --- workers -------------------------------------------------------------------------------------


def _worker(scene: Scene, world: World, index: int, sending: Sending) -> Iterator[Event]:
    who, budget = f"worker {index + 1}", world.budget
    if budget.crashes:
        left = replace(world, budget=replace(budget, crashes=budget.crashes - 1))
        dead = replace(sending, worker=DEAD, stalled=False, answer="")
        yield who, "is killed", left.with_sending(index, dead)
    if budget.stalls and not sending.stalled:
        left = replace(world, budget=replace(budget, stalls=budget.stalls - 1))
        yield who, "is stopped (SIGSTOP)", left.with_sending(index, replace(sending, stalled=True))
    if sending.worker == OPENED:
        yield from _before_gate(scene, world, index, who)
    elif sending.worker == GATED:
        yield from _at_the_write(scene, world, index, sending, who)
    elif sending.worker == SENT:
        yield from _hearing(scene, world, index, sending, who)


def _before_gate(scene: Scene, world: World, index: int, who: str) -> Iterator[Event]:
    after = steps.ask_gate(scene, world, index)
    opened = after.sendings[index].worker == GATED
    yield who, "passes the gate" if opened else "is stopped by the gate: nothing sent", after
    if not world.sendings[index].stalled:
        seen = Observation(seen=Seen.NOT_SENT, stage=Stage.CONNECTING)
        yield who, "can't connect: not sent", steps.finish(scene, world, index, seen)


def _at_the_write(
    scene: Scene, world: World, index: int, sending: Sending, who: str
) -> Iterator[Event]:
    write_by_ms = sending.write_by_ms or 0
    if world.now > write_by_ms:
        seen = steps.stopped("write_by has passed")
        after = steps.finish(scene, world, index, seen)
        yield who, "finds write_by in the past: nothing sent", after
    # It may have been stopped for the stall margin between that check and the write itself.
    if world.now <= write_by_ms + STALL_MARGIN_MS:
        takes_ms = scene.contract.timeout_ms + scene.contract.horizon_ms
        written = replace(
            sending,
            worker=SENT,
            stalled=False,
            first_byte_ms=world.now,
            request=FLYING,
            until_ms=world.now + takes_ms,
        )
        _check_send(scene, world, index, written)
        yield who, "writes the request", world.with_sending(index, written)


def _check_send(scene: Scene, world: World, index: int, written: Sending) -> None:
    """Nothing is sent without a durable attempt, beyond its lease, or beyond the key's life."""
    attempt = world.record.attempts[index]
    if world.now > attempt.lease_end_ms:
        raise Broken(f"gate: request {index + 1} was written after the end of its lease")
    given = [approval.expires_ms for approval in world.record.approvals]
    if world.operation.needs_approval and world.now > max(given, default=0) + STALL_MARGIN_MS:
        raise Broken(f"approval: request {index + 1} was written after its approval had expired")
    first = [s.first_byte_ms for s in world.sendings if s.first_byte_ms is not None]
    key = scene.contract.key
    if key is None or not first or scene.harmless:
        return
    if written.until_ms > min(first) + (key.ttl_ms or 0):
        why = "can arrive after the provider has forgotten the key"
        raise Broken(f"key: request {index + 1} {why}")


def _hearing(scene: Scene, world: World, index: int, sending: Sending, who: str) -> Iterator[Event]:
    if sending.answer:
        seen = _heard(scene, sending.answer)
        yield who, f"hears {sending.answer}", steps.finish(scene, world, index, seen)
    lost = Observation(seen=Seen.UNKNOWN, stage=Stage.SENT, cause=Cause.CONNECTION_RESET)
    first_ms = sending.first_byte_ms or 0
    late = world.now >= first_ms + scene.contract.timeout_ms
    what = "hears nothing within its timeout" if late else "loses the connection"
    yield who, what, steps.finish(scene, world, index, lost)


def _heard(scene: Scene, answer: str) -> Observation:
    if answer == ACCEPTED:
        return steps.answer(scene.contract, 202)
    if answer == IN_PROGRESS:
        return steps.answer(scene.contract, 409)
    replayed = answer in (REPLAY, OLD_REFUSAL)
    numbered = answer == NUMBERED
    return steps.answer(scene.contract, STATUS[answer], replayed=replayed, numbered=numbered)


def _recovery(scene: Scene, world: World) -> Iterator[Event]:
    attempt = world.record.open_attempt
    if attempt is None or world.state is not State.EXECUTING:
        return
    sending = world.sendings[attempt.number - 1]
    lapsed = world.now >= attempt.lease_end_ms
    dead = sending.worker == DEAD
    if dead:
        after = steps.recover(scene, world, Liveness.DEAD)
        yield "recovery", "finds the worker dead", after
    if lapsed:
        after = steps.recover(scene, world, Liveness.FOREIGN)
        yield "recovery", "finds the lease run out, on another host", after
        if not dead:
            after = steps.recover(scene, world, Liveness.ALIVE)
            yield "recovery", "finds the worker silent but alive", after


# --- the reconciler ------------------------------------------------------------------------------


def _looking(scene: Scene, world: World, look: Look) -> Iterator[Event]:
    who, budget = "look-up", world.budget
    freed = replace(world, look=None)
    if budget.crashes:
        left = replace(freed, budget=replace(budget, crashes=budget.crashes - 1))
        yield who, "is lost: its worker is killed", left
    if budget.blind:
        left = replace(freed, budget=replace(budget, blind=budget.blind - 1))
        yield who, "could not ask", steps.looked(scene, left, look, Shows.COULD_NOT_ASK)
    said = replace(freed, answered=True)
    if look.absent:
        yield who, "finds nothing", steps.looked(scene, said, look, Shows.ABSENT)
    elif budget.stray and not world.answered:
        left = replace(said, budget=replace(budget, stray=0))
        after = steps.looked(scene, left, look, Shows.ABSENT)
        yield who, "finds nothing, in a copy that trails behind", after
    if world.effects:
        yield who, "finds the effect", steps.looked(scene, said, look, Shows.APPLIED)
    elif world.work == WORK_GOES_ON:
        yield who, "finds the work going on", steps.looked(scene, said, look, Shows.IN_PROGRESS)
    elif world.work == WORK_FAILED:
        yield who, "finds the work failed", steps.looked(scene, said, look, Shows.NOT_APPLIED)


def _due(scene: Scene, world: World) -> Iterator[Event]:
    if _is_due(world):
        after = steps.advance(scene, world)
        if after is not world and after != world:
            opened = len(after.sendings) > len(world.sendings)
            what = f"opens attempt {len(after.sendings)}" if opened else "takes the next step"
            yield "dispatcher", "asks the look-up" if after.look else what, after


def _is_due(world: World) -> bool:
    due_ms = world.operation.due_ms
    if world.look is not None or world.state is State.EXECUTING:
        return False
    return due_ms is not None and due_ms <= world.now


# --- time ----------------------------------------------------------------------------------------


def _time(world: World, scene: Scene, *, due: bool) -> Iterator[Event]:
    for sending in world.sendings:
        if sending.stalled:
            continue
        if sending.worker in (OPENED, GATED):
            return
        if sending.worker == SENT:
            first_ms = sending.first_byte_ms or 0
            if world.now >= first_ms + scene.contract.timeout_ms:
                return
    look = world.look
    if look is not None and world.now >= look.begun_ms + scene.contract.lookups[0].timeout_ms:
        return
    later = replace(world, now=world.now + TICK)
    if due or _is_unrecovered(world):
        budget = world.budget
        if not budget.late:
            return
        later = replace(later, budget=replace(budget, late=budget.late - 1))
    yield "time", "passes", later


def _is_unrecovered(world: World) -> bool:
    """Whether a lease has run out that a worker in good health would take up now."""
    attempt = world.record.open_attempt
    if world.state is not State.EXECUTING or attempt is None:
        return False
    sending = world.sendings[attempt.number - 1]
    silent = sending.worker == DEAD or sending.stalled
    return silent and world.now >= attempt.lease_end_ms
