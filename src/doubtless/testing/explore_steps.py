"""What the engine does with the core, as units of work: each mirrors one transaction.

Nothing here decides. The functions of the core are called through their modules, so that a mutant
that replaces one of them is met here too.
"""

from collections.abc import Sequence
from dataclasses import replace

from doubtless.core import answers, permission, policy, progress, settling
from doubtless.core.answers import Answer
from doubtless.core.contract import Contract
from doubtless.core.evidence import unproven
from doubtless.core.lifecycle import Need, leads_to
from doubtless.core.model import (
    Evidence,
    Observation,
    Operation,
    Record,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
)
from doubtless.core.progress import Liveness
from doubtless.core.steps import LookUp, Send
from doubtless.testing.explore_world import GATED, GONE, Look, Scene, Sending, World


class Broken(AssertionError):
    """An invariant doesn't hold. The first word of the text names it."""


def settled(scene: Scene, world: World, record: Record) -> World:
    """Apply what policy chooses, and replay the changes as the journal would."""
    operation = record.operation
    for step in settling.settle(record, scene.contract, world.clock):
        if step.before != operation:
            raise Broken("replay: a change doesn't start where the one before it ended")
        operation = stepped(operation, step.after)
    return replace(world, record=replace(record, operation=operation))


def stepped(before: Operation, after: Operation) -> Operation:
    """Check one stored step against the table and the fence, and return where it led."""
    if after.state is not before.state and after.state not in leads_to(before.state):
        raise Broken(f"table: {before.state} → {after.state} is not listed")
    if before.state is State.EXECUTING is not after.state and after.fence <= before.fence:
        raise Broken("fence: a step out of executing didn't raise it")
    kept = (before.key, before.payload_hash, before.request_digest, before.id)
    if kept != (after.key, after.payload_hash, after.request_digest, after.id):
        raise Broken("identity: the key, the payload or the request changed")
    return after


def begin(scene: Scene, world: World, *, resend: bool, by: Need = Need.PERMITTED) -> World:
    """Open an attempt."""
    record = world.record
    operation, attempt = progress.begin(
        record,
        scene.contract,
        world.clock,
        owner=f"worker {len(record.attempts) + 1}",
        correlation_id="",
        resend=resend,
        by=by,
    )
    stepped(record.operation, operation)
    opened = replace(record, operation=operation, attempts=(*record.attempts, attempt))
    return replace(world, record=opened, sendings=(*world.sendings, Sending()))


def ask_gate(scene: Scene, world: World, index: int) -> World:
    """Ask for permission to write the first byte; where it is refused, the attempt ends unsent."""
    attempt = world.record.attempts[index]
    found = permission.gate(
        world.record, scene.contract, world.clock, attempt=attempt.number, fence=attempt.fence
    )
    if isinstance(found, str):
        return finish(scene, world, index, stopped(found))
    record = world.record
    if scene.contract.record_sending:
        marked = replace(attempt, sent_by_ms=found.sent_by_ms)
        kept = (*record.attempts[:index], marked, *record.attempts[index + 1 :])
        record = replace(record, attempts=kept)
    opened = replace(
        world.sendings[index],
        worker=GATED,
        stalled=False,
        gate_ms=world.now,
        write_by_ms=found.write_by_ms,
    )
    return replace(world, record=record).with_sending(index, opened)


def stopped(why: str) -> Observation:
    """Return what an attempt saw that was stopped at the gate."""
    return Observation(seen=Seen.NOT_SENT, stage=Stage.GATE, detail=why)


def finish(scene: Scene, world: World, index: int, seen: Observation) -> World:
    """Record how an attempt ended; whoever lost the lease meanwhile adds evidence only."""
    sending = world.sendings[index]
    gone = replace(sending, worker=GONE, stalled=False, answer="")
    world = world.with_sending(index, gone)
    record, attempt = world.record, world.record.attempts[index]
    if attempt.ended_ms is not None or record.operation.fence != attempt.fence:
        return late(scene, world, index, seen)
    ended, _, _ = progress.end(
        record,
        scene.contract,
        world.clock,
        seen,
        sent_by_ms=sent_by(sending),
        closed_ms=world.now,
    )
    return settled(scene, world, ended)


def sent_by(sending: Sending) -> int | None:
    """Return what a live worker reports: the clock after its first byte had left."""
    return sending.first_byte_ms


def late(scene: Scene, world: World, index: int, seen: Observation) -> World:
    """Add what came after an attempt had been closed by recovery."""
    record, attempt = world.record, world.record.attempts[index]
    if attempt.closed_ms is None:
        closed = replace(attempt, closed_ms=world.now)
        kept = (*record.attempts[:index], closed, *record.attempts[index + 1 :])
        record = replace(record, attempts=kept)
    if seen.seen is Seen.UNKNOWN and not seen.key_in_progress:
        return settled(scene, world, record)
    item = progress.witnessed(record, scene.contract, world.clock, seen, attempt=index + 1)
    return weighed(scene, replace(world, record=record), [item], seen)


def weighed(
    scene: Scene, world: World, items: Sequence[Evidence], seen: Observation | None = None
) -> World:
    """Append evidence, and take the steps that follow."""
    record = world.record
    operation = record.operation
    for item in items:
        operation = progress.absorb(operation, item, seen)
    kept = replace(record, operation=operation, evidence=(*record.evidence, *items))
    return settled(scene, world, kept)


def recover(scene: Scene, world: World, liveness: Liveness) -> World:
    """Close the attempt of a worker that is gone or silent."""
    record, _, _ = progress.recover(world.record, scene.contract, world.clock, liveness)
    return settled(scene, world, record)


def advance(scene: Scene, world: World) -> World:
    """Take the next step of an operation that is due."""
    world = settled(scene, world, reclosed(world))
    record, contract = world.record, scene.contract
    match policy.decide(record, contract, world.clock).step:
        case Send(resend=resend):
            return begin(scene, world, resend=resend)
        case LookUp(at_ms=at_ms) if at_ms <= world.now:
            return look(scene, world)
        case _:
            return world


def reclosed(world: World) -> Record:
    """Close attempts whose silent owner is known to be dead by now."""
    dead = [sending.worker == "dead" for sending in world.sendings]
    kept = tuple(
        progress.reclosed(attempt, world.clock, Liveness.DEAD if gone else Liveness.ALIVE)
        for attempt, gone in zip(world.record.attempts, dead, strict=True)
    )
    return replace(world.record, attempts=kept)


def look(scene: Scene, world: World) -> World:
    """Take the lease and ask. What a read begun now may say of the past is fixed here."""
    operation = progress.look(world.record, scene.contract, world.clock, owner="reconciler")
    if world.state is not State.RECONCILING:  # then its worker was lost: unknown in between
        stepped(world.operation, operation)
    absent = world.sign_ms is None or world.now < world.sign_ms + scene.contract.lag_ms
    asked = Look(begun_ms=world.now, absent=absent, fence=operation.fence)
    return replace(world, record=replace(world.record, operation=operation), look=asked)


def looked(scene: Scene, world: World, begun: Look, shows: Shows) -> World:
    """Record what the look-up said; whoever lost the lease adds evidence only."""
    item = fact(world, Source.LOOKUP, shows, begun_ms=speaks_for(world, begun), by="status")
    ours = world.operation.fence == begun.fence
    if not (ours and world.state in (State.RECONCILING, State.MANUAL_REVIEW)):
        return weighed(scene, world, [item])
    return settled(scene, world, progress.looked(world.record, (item,)))


def speaks_for(world: World, look: Look) -> int:  # noqa: ARG001 — a mutant reads the clock
    """Return the moment that a look-up speaks for: when it began."""
    return look.begun_ms


def fact(
    world: World,
    source: Source,
    shows: Shows,
    *,
    by: str,
    begun_ms: int | None = None,
    occurred_ms: int | None = None,
    strength: Strength = Strength.AUTHORITATIVE,
) -> Evidence:
    """Return one item, authoritative unless it is said to be less."""
    return Evidence(
        number=len(world.record.evidence) + 1,
        source=source,
        shows=shows,
        strength=strength,
        at_ms=world.now,
        begun_ms=world.now if begun_ms is None else begun_ms,
        by=by,
        occurred_ms=occurred_ms,
    )


def answer(
    contract: Contract, status: int, *, replayed: bool = False, numbered: bool = False
) -> Observation:
    """Classify a complete answer."""
    came = Answer(
        stage=Stage.READ,
        status=status,
        complete=True,
        replayed=replayed,
        provider_operation_id="work" if status == 202 or numbered else None,
    )
    return answers.classify(came, contract)


def is_doubtful(scene: Scene, world: World) -> bool:
    """Whether some attempt is not proven not done."""
    return bool(unproven(world.record, scene.contract))
