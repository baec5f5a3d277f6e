"""Everything that may happen next to one operation: the adversarial environment.

The provider keeps its contract and nothing more. A request takes effect at once, late, up to the
in-flight horizon, or never; keys are honoured as `stores` says until they expire; reads trail by up
to `lag`. Workers crash, stop anywhere and wake up again, never longer than the stall margin between
the check of `write_by` and the write. The operator is honest: no word contradicts what is there.
"""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core import decisions, permission
from doubtless.core.contract import STALL_MARGIN_MS, Stores
from doubtless.core.decisions import Word
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, Observation, Seen, Shows, Source, Stage, State
from doubtless.core.progress import Liveness
from doubtless.errors import DecisionRefused
from doubtless.testing import explore_steps as steps
from doubtless.testing.explore_steps import Broken
from doubtless.testing.explore_world import (
    ACCEPTED,
    BUSY,
    DEAD,
    FLYING,
    GATED,
    GONE,
    IN_PROGRESS,
    OLD_REFUSAL,
    OPENED,
    OVER,
    REFUSED,
    REPLAY,
    RUNNING,
    SENT,
    SUCCESS,
    TICK,
    WORK_DONE,
    WORK_FAILED,
    WORK_GOES_ON,
    Look,
    Scene,
    Sending,
    World,
    key_lives,
)

Event = tuple[str, str, World]  # who, what, and the world after it

STATUS = {SUCCESS: 201, REPLAY: 201, REFUSED: 422, OLD_REFUSAL: 422, BUSY: 429}


def events(scene: Scene, world: World) -> Iterator[Event]:
    """Yield everything that may happen next."""
    for index, sending in enumerate(world.sendings):
        if sending.worker not in (GONE, DEAD):
            yield from _worker(scene, world, index, sending)
        if world.may_act(sending):
            yield from _request(scene, world, index, sending)
    yield from _work(scene, world)
    yield from _recovery(scene, world)
    if world.look is not None:
        yield from _looking(scene, world, world.look)
    yield from _due(scene, world)
    yield from _webhook(scene, world)
    yield from _agent(scene, world)
    yield from _operator(scene, world)
    yield from _time(scene, world)


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
    return steps.answer(scene.contract, STATUS[answer], replayed=replayed)


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


# --- the provider --------------------------------------------------------------------------------


def _request(scene: Scene, world: World, index: int, sending: Sending) -> Iterator[Event]:
    who = f"provider, request {index + 1}"
    if sending.request == RUNNING:
        yield who, "takes effect", _commit(scene, world, index)
        if scene.refuses:
            yield who, "is refused", _answered(world, index, REFUSED, stored=REFUSED)
        return
    if key_lives(world, scene) and not scene.harmless:
        known = _known_key(scene, world, index)
        if known is not None:
            yield who, f"meets the key: {known.sendings[index].answer}", known
            return
    if scene.same_object and world.effects:
        yield who, "meets what is there: refused", _answered(world, index, REFUSED)
        return
    if scene.same_object and world.work == WORK_GOES_ON:
        yield who, "meets the accepted work: refused", _answered(world, index, REFUSED)
        return
    yield from _arrival(scene, world, index, sending, who)


def _arrival(scene: Scene, world: World, index: int, sending: Sending, who: str) -> Iterator[Event]:
    if scene.busy:
        yield who, "is answered 429: not processed", _answered(world, index, BUSY)
    if scene.keyed:
        seen_ms = world.now if world.key_seen_ms is None else world.key_seen_ms
        taken = replace(world, key_seen_ms=seen_ms)
        yield who, "is taken up", taken.with_sending(index, replace(sending, request=RUNNING))
    else:
        yield who, "takes effect", _commit(scene, world, index)
        if scene.refuses:
            yield who, "is refused", _answered(world, index, REFUSED)
    if scene.accepts and not world.work:
        sign_ms = world.now if world.sign_ms is None else world.sign_ms
        seen_ms = world.now if world.key_seen_ms is None else world.key_seen_ms
        taken = replace(
            world, work=WORK_GOES_ON, sign_ms=sign_ms, key_seen_ms=seen_ms, stored=ACCEPTED
        )
        yield who, "is accepted; the work goes on", _answered(taken, index, ACCEPTED)


def _known_key(scene: Scene, world: World, index: int) -> World | None:
    """Answer a request whose key is known; None where it is carried out like a new one."""
    running = [
        number
        for number, other in enumerate(world.sendings)
        if other.request == RUNNING and world.may_act(other)
    ]
    stores_all = scene.contract.key is not None and scene.contract.key.stores is Stores.ALL
    if world.stored == SUCCESS:
        return _answered(world, index, REPLAY)
    if world.stored == ACCEPTED:
        return _answered(world, index, ACCEPTED)
    if world.stored == REFUSED and stores_all:
        return _answered(world, index, OLD_REFUSAL)
    if running and scene.locks:
        # What is seen running may go on for as long as the request that saw it may.
        first = world.sendings[running[0]]
        until_ms = max(first.until_ms, world.sendings[index].until_ms)
        world = world.with_sending(running[0], replace(first, until_ms=until_ms))
        return _answered(world, index, IN_PROGRESS)
    return None


def _answered(world: World, index: int, answer: str, *, stored: str = "") -> World:
    sending = world.sendings[index]
    hears = sending.worker == SENT
    after = replace(sending, request=OVER, answer=answer if hears else "")
    if stored and world.stored != SUCCESS:
        world = replace(world, stored=stored)
    return world.with_sending(index, after)


def _commit(scene: Scene, world: World, index: int) -> World:
    after = _answered(world, index, SUCCESS)
    return _effect(scene, after)


def _effect(scene: Scene, world: World) -> World:
    if scene.harmless:
        return world
    return replace(
        world,
        effects=1 if scene.repeatable else world.effects + 1,
        committed_ms=world.now,
        sign_ms=world.now if world.sign_ms is None else world.sign_ms,
        stored=SUCCESS,
    )


def _work(scene: Scene, world: World) -> Iterator[Event]:
    if world.work == WORK_GOES_ON:
        done = replace(_effect(scene, world), work=WORK_DONE, work_ended_ms=world.now)
        yield "provider", "finishes the accepted work: it takes effect", done
        failed = replace(world, work=WORK_FAILED, work_ended_ms=world.now)
        yield "provider", "gives the accepted work up: no effect", failed


def _webhook(scene: Scene, world: World) -> Iterator[Event]:
    if scene.contract.events is None or not world.budget.hooks:
        return
    left = replace(world, budget=replace(world.budget, hooks=world.budget.hooks - 1))
    if world.effects:
        item = steps.fact(
            world, Source.WEBHOOK, Shows.APPLIED, by="hook", occurred_ms=world.committed_ms
        )
        yield "webhook", "says that it was done", steps.weighed(scene, left, [item])
    elif world.work == WORK_FAILED:
        item = steps.fact(
            world, Source.WEBHOOK, Shows.NOT_APPLIED, by="hook", occurred_ms=world.work_ended_ms
        )
        yield "webhook", "says that the work failed", steps.weighed(scene, left, [item])


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


# --- people --------------------------------------------------------------------------------------


def _agent(scene: Scene, world: World) -> Iterator[Event]:
    if not world.budget.repeats or world.state is not State.FAILED:
        return
    if permission.may_repeat(world.record, scene.contract, world.clock).allowed:
        left = replace(world, budget=replace(world.budget, repeats=world.budget.repeats - 1))
        resend = world.operation.cause is Cause.CONFIRMED_ABSENT
        after = steps.begin(scene, left, resend=resend)
        if after.record.evidence != world.record.evidence or after.state is not State.EXECUTING:
            raise Broken("agent: a call of the agent settled something")
        yield "agent", "repeats the call: a new attempt is opened", after


def _operator(scene: Scene, world: World) -> Iterator[Event]:
    if not world.budget.words or world.state not in (State.MANUAL_REVIEW, State.FAILED):
        return
    left = replace(world, budget=replace(world.budget, words=world.budget.words - 1))
    acting = any(_may_still_act(world, sending) for sending in world.sendings)
    honest = {
        Word.DONE: world.effects > 0,
        Word.NOT_DONE: world.effects == 0
        and (scene.hasty or not acting)
        and world.work != WORK_GOES_ON,
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


# --- time ----------------------------------------------------------------------------------------


def _time(scene: Scene, world: World) -> Iterator[Event]:
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
    if _has_work(scene, world):
        budget = world.budget
        if not budget.late:
            return
        later = replace(later, budget=replace(budget, late=budget.late - 1))
    yield "time", "passes", later


def _has_work(scene: Scene, world: World) -> bool:
    """Whether something is due that a worker in good health would take up now."""
    attempt = world.record.open_attempt
    if world.state is State.EXECUTING and attempt is not None:
        sending = world.sendings[attempt.number - 1]
        silent = sending.worker == DEAD or sending.stalled
        return silent and world.now >= attempt.lease_end_ms
    return next(_due(scene, world), None) is not None
