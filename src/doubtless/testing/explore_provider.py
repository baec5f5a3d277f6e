"""The provider: it keeps its contract, and nothing more.

A request takes effect at once, late, up to the in-flight horizon, or never; keys are honoured as
`stores` says until they expire. Accepted work ends at any time, well or badly.
"""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core.contract import Stores
from doubtless.core.model import Shows, Source, Strength
from doubtless.testing import explore_steps as steps
from doubtless.testing.explore_world import (
    ACCEPTED,
    BUSY,
    IN_PROGRESS,
    NUMBERED,
    OLD_REFUSAL,
    OVER,
    REFUSED,
    REPLAY,
    RUNNING,
    SENT,
    SUCCESS,
    WORK_DONE,
    WORK_FAILED,
    WORK_GOES_ON,
    Event,
    Scene,
    Sending,
    World,
    key_lives,
)


def requests(scene: Scene, world: World, index: int, sending: Sending) -> Iterator[Event]:
    """Yield what the provider may do with a request that can still take effect."""
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
        if scene.numbers:
            told = _effect(scene, _answered(world, index, NUMBERED))
            yield who, "takes effect, which a number in a 500 tells", told
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


def work(scene: Scene, world: World) -> Iterator[Event]:
    """Yield how accepted work may end."""
    if world.work == WORK_GOES_ON:
        done = replace(_effect(scene, world), work=WORK_DONE, work_ended_ms=world.now)
        yield "provider", "finishes the accepted work: it takes effect", done
        failed = replace(world, work=WORK_FAILED, work_ended_ms=world.now)
        yield "provider", "gives the accepted work up: no effect", failed


def webhook(scene: Scene, world: World) -> Iterator[Event]:
    """Yield what the provider may say of itself: early, late or twice, and always true."""
    if scene.contract.events is None or not world.budget.hooks:
        return
    if world.effects:
        after = _told(scene, world, Shows.APPLIED, world.committed_ms)
        yield "webhook", "says that it was done", after
    elif world.work == WORK_FAILED:
        after = _told(scene, world, Shows.NOT_APPLIED, world.work_ended_ms)
        yield "webhook", "says that the work failed", after


def _told(scene: Scene, world: World, shows: Shows, occurred_ms: int | None) -> World:
    rules = scene.contract.events
    proves = rules is None or rules.authoritative
    strength = Strength.AUTHORITATIVE if proves else Strength.ADVISORY
    left = replace(world, budget=replace(world.budget, hooks=world.budget.hooks - 1))
    item = steps.fact(
        world, Source.WEBHOOK, shows, by="hook", occurred_ms=occurred_ms, strength=strength
    )
    return steps.weighed(scene, left, [item])
