"""Two operations: the same id or object, one after the other, and the latest that wins.

Each is explored as one operation is; only what stands between them is added: the calls that may
mean the first one, and what the ledger tells each of the other. Both stand before a provider that
neither refuses nor answers 429, and of faults there are lost connections, late arrivals, and one
repeat of the first one. Not multiplied in: crashes, stops, events, an operator.

What either of them may do next is worked out once for each of its worlds and what the ledger tells
it of the other, for the same world stands beside many of the other's.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from doubtless.core import identity, progress
from doubtless.core.identity import Asked, Join, Known, New, Refuse
from doubtless.core.model import Blocker, Cause, Effect, State
from doubtless.testing.explore_canonical import canonical
from doubtless.testing.explore_checks import RESTS, check
from doubtless.testing.explore_events import events
from doubtless.testing.explore_families import plain
from doubtless.testing.explore_scenes import hurried, start
from doubtless.testing.explore_search import Model
from doubtless.testing.explore_steps import Broken
from doubtless.testing.explore_world import GATED, START, Budget, Event, Scene, World


@dataclass(frozen=True, slots=True)
class Pair:
    """Two operations at the same instant; the second may not exist yet."""

    first: World
    second: World | None = None
    calls: int = 1

    @property
    def both(self) -> tuple[World, ...]:
        """Those that exist, in the order of creation."""
        return (self.first,) if self.second is None else (self.first, self.second)


PairEvent = tuple[str, str, Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScene:
    """What stands between two operations."""

    scene: Scene
    starts_together: bool
    links: Callable[[Scene, Pair], tuple[World, ...]]  # what the ledger tells each of the other
    calls: Callable[[Scene, Pair], Iterator[PairEvent]]
    passes: Callable[[Pair, int], None]  # what must hold when either of them passes its gate
    wakes: bool = False  # a step of the first one makes the second one due, if it waits


Part = tuple[int, bool]  # which of the two, and whether there are two


@dataclass(frozen=True, slots=True)
class _Members:
    """Every world of one operation that stands in some pair: one object for all with one key."""

    scene: Scene
    known: dict[Hashable, World] = field(default_factory=dict)
    keys: dict[int, Hashable] = field(default_factory=dict)
    next: dict[Hashable, list[Event]] = field(default_factory=dict)

    def one(self, world: World, part: Part) -> World:
        """Return the one that stands for `world`."""
        key = canonical(self.scene, world)
        kept = self.known.setdefault((part, world.now, key), world)
        self.keys[id(kept)] = key
        return kept

    def pair(self, world: Pair) -> Pair:
        """Return a pair of such."""
        two = world.second is not None
        first, *others = (self.one(each, (n, two)) for n, each in enumerate(world.both))
        return replace(world, first=first, second=others[0] if others else None)

    def key(self, kept: World) -> Hashable:
        """Return the key of one that was kept."""
        return self.keys[id(kept)]

    def events(self, kept: World, linked: World, part: Part) -> list[Event]:
        """Return what may happen to one that was kept, as the ledger told it of the other."""
        record = linked.record
        told = (record.blockers, record.newer_twin, record.overtaken_by)
        place = (id(kept), *told, record.waits_for, record.object_taken_by)
        found = self.next.get(place)
        if found is None:
            happens = events(self.scene, linked)
            found = [(who, what, self.one(after, part)) for who, what, after in happens]
            self.next[place] = found
        return found


def pair_model(pair: PairScene) -> Model[Pair]:
    """Return what is searched for two operations. Made inside `tuned`."""
    scene = pair.scene
    members = _Members(scene)

    def key(world: Pair) -> Hashable:
        return (world.calls, *(members.key(member) for member in world.both))

    def tell(world: Pair) -> tuple[float, str]:
        stands = "; ".join(f"{each.state}, {each.effects} effects" for each in world.both)
        return (world.first.now - START) / 1000, stands

    def judge(world: Pair) -> None:
        for member in pair.links(scene, world):
            check(scene, member)

    first = start(scene)
    second = _second(scene, first) if pair.starts_together else None
    return Model(
        start=members.pair(Pair(first, second, calls=0 if pair.starts_together else 1)),
        events=lambda world: _events(pair, members, world),
        check=judge,
        key=key,
        tell=tell,
        rests=lambda world: all(member.state in RESTS for member in world.both),
    )


def _second(scene: Scene, first: World) -> World:
    """Return another operation, prepared now, with no faults of its own."""
    made = start(scene, now=first.now, operation_id="op-2")
    return replace(made, budget=Budget())


def _events(pair: PairScene, members: _Members, world: Pair) -> Iterator[PairEvent]:
    scene, two, later = pair.scene, world.second is not None, []
    for index, linked in enumerate(pair.links(scene, world)):
        for who, what, after in members.events(world.both[index], linked, (index, two)):
            if who == "time":
                later.append(after)
                continue
            if what == "passes the gate":
                pair.passes(world, index)
            name = f"op-{index + 1}: {who}"
            moved = _with(world, index, after)
            if pair.wakes and index == 0 and after.state is not world.first.state:
                moved = members.pair(_woken(moved))
            yield name, what, moved
    if world.calls:
        for who, what, met in pair.calls(scene, world):
            yield who, what, members.pair(met)
    if len(later) == len(world.both):  # time is the same for both
        yield "time", "passes", Pair(later[0], later[1] if later[1:] else None, world.calls)


def _with(world: Pair, index: int, after: World) -> Pair:
    return replace(world, first=after) if index == 0 else replace(world, second=after)


def _woken(world: Pair) -> Pair:
    """Make the second one due, as whoever moves the first one on does in the same transaction."""
    second = world.second
    if second is None or second.state is not State.PREPARED:
        return world
    operation = replace(second.operation, due_ms=second.now)
    return replace(
        world, second=replace(second, record=replace(second.record, operation=operation))
    )


def holds_object(scene: Scene, world: World) -> bool:
    """Whether an operation still has the claim on its object."""
    until_ms = progress.claim_until_ms(world.record, scene.contract, world.clock)
    return until_ms is None or until_ms > world.now


def may_arrive(world: World) -> bool:
    """Whether a request of it can take effect later than now, or be written."""
    return any(
        (world.may_act(sending) and world.now < sending.until_ms) or sending.worker == GATED
        for sending in world.sendings
    )


def _no_calls(scene: Scene, world: Pair) -> Iterator[PairEvent]:
    del scene, world
    yield from ()


# --- the same id, the same object ----------------------------------------------------------------


CALLS: Final[tuple[Asked, ...]] = tuple(
    Asked(tool="", principal=principal, payload_hash=payload, operation_id=said)
    for principal in ("agent", "other agent")
    for payload in ("sha256:payload", "sha256:variant")
    for said in (None, "op-1", "op-2")
)
"""Every call that may mean the first operation, or its object."""


def _asks(scene: Scene, world: Pair) -> Iterator[PairEvent]:
    first, made = world.first, world.first.operation
    known = Known(
        id=made.id,
        tool=made.tool,
        principal=made.principal,
        payload_hash=made.payload_hash,
        state=made.state,
    )
    holder = known if holds_object(scene, first) else None
    for call in CALLS:
        asked = replace(call, tool=made.tool)
        same_id = known if call.operation_id == made.id else None
        met = identity.meet(asked, same_id=same_id, holder=holder, twin=None)
        said = f"{call.payload_hash.partition(':')[2]} as {call.operation_id or 'no id'}"
        who, left = call.principal, replace(world, calls=world.calls - 1)
        match met:
            case Join(operation_id=joined):
                if (joined, asked.principal, asked.payload_hash) != (
                    known.id,
                    known.principal,
                    known.payload_hash,
                ):
                    raise Broken(f"identity: {who}'s {said} joined what it doesn't mean")
                yield who, f"asks for {said}: joins", left
            case Refuse(code=code, by=by):
                _check_refusal(known, asked, code, by)
                yield who, f"asks for {said}: {code}", left
            case New():
                yield who, f"asks for {said}: new", _created(scene, left, said, same_id)


def _check_refusal(known: Known, asked: Asked, code: Cause, by: str | None) -> None:
    if by is not None and asked.principal != known.principal:
        raise Broken(f"identity: {asked.principal} was shown {by}, which is another's ({code})")


def _created(scene: Scene, world: Pair, said: str, same_id: Known | None) -> Pair:
    if same_id is not None:
        raise Broken(f"identity: {said} made a second operation of one id")
    if not world.first.state.ends or may_arrive(world.first):
        raise Broken(f"object: {said} made a second operation while the first may still act")
    return replace(world, second=_second(scene, world.first))


def _meeting(scene: Scene, world: Pair) -> tuple[World, ...]:
    if world.second is None:
        return world.both
    taken = "op-2" if holds_object(scene, world.second) else None
    record = replace(world.first.record, object_taken_by=taken, newer_twin="op-2")
    return replace(world.first, record=record), world.second


def _alone(world: Pair, index: int) -> None:
    if index == 0 and world.second is not None:
        raise Broken("object: the first one is sent after a newer one on its object was made")


# --- after ---------------------------------------------------------------------------------------


def _after(*, goes_on: bool) -> Callable[[Scene, Pair], tuple[World, ...]]:
    def links(scene: Scene, world: Pair) -> tuple[World, ...]:
        del scene
        if world.second is None:
            return world.both
        blocker = Blocker(operation_id="op-1", state=world.first.state)
        record = world.second.record
        on_unknown = "continue" if goes_on else "stop"
        operation = replace(record.operation, on_unknown=on_unknown)
        told = replace(record, operation=operation, blockers=(blocker,))
        return world.first, replace(world.second, record=told)

    return links


UNDECIDED = frozenset({State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW})


def _in_turn(*, goes_on: bool) -> Callable[[Pair, int], None]:
    def passes(world: Pair, index: int) -> None:
        state = world.first.state
        if index == 1 and state is not State.SUCCEEDED and not (goes_on and state in UNDECIDED):
            raise Broken(f"after: sent while the one before it is {state}")

    return passes


# --- the latest wins -----------------------------------------------------------------------------


def _newer(scene: Scene, world: Pair) -> Iterator[PairEvent]:
    made = replace(world, second=_second(scene, world.first), calls=world.calls - 1)
    yield "agent", "asks for a newer state of the same target", made


def _siblings(scene: Scene, world: Pair) -> tuple[World, ...]:
    if world.second is None:
        return world.both
    first = replace(world.first, record=replace(world.first.record, overtaken_by="op-2"))
    waits_for = "op-1" if holds_object(scene, world.first) else None
    record = replace(world.second.record, waits_for=waits_for)
    return first, replace(world.second, record=record)


def _in_order(world: Pair, index: int) -> None:
    if index == 0 and world.second is not None:
        raise Broken("order: the older one is sent although a newer one exists")
    if index == 1 and may_arrive(world.first):
        raise Broken("order: the newer one is sent while the older one may still arrive")


def _member(name: str, **faults: int) -> Scene:
    scene = replace(plain(Effect.WRITE), name=f"pair/{name}", refuses=False, busy=False)
    return replace(scene, contract=hurried(scene.contract), budget=Budget(**faults))


PAIRS: Final[Mapping[str, PairScene]] = {
    "pair/meet": PairScene(
        scene=_member("meet", repeats=1),
        starts_together=False,
        links=_meeting,
        calls=_asks,
        passes=_alone,
    ),
    "pair/after": PairScene(
        scene=_member("after", repeats=1),
        starts_together=True,
        links=_after(goes_on=False),
        calls=_no_calls,
        passes=_in_turn(goes_on=False),
        wakes=True,
    ),
    "pair/after-or-unknown": PairScene(
        scene=_member("after-or-unknown"),
        starts_together=True,
        links=_after(goes_on=True),
        calls=_no_calls,
        passes=_in_turn(goes_on=True),
        wakes=True,
    ),
    "pair/latest-wins": PairScene(
        scene=_member("latest-wins", repeats=1),
        starts_together=False,
        links=_siblings,
        calls=_newer,
        passes=_in_order,
    ),
}
"""Every scene of two operations by its name."""
