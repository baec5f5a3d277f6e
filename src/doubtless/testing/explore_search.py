"""Breadth-first search over all worlds, until none is new; and the story of what went wrong.

Worlds with the same key count as one. Whether they may is itself looked into, where asked for: each
world that was passed over for another one must have the very same future one event further on.
"""

import gc
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from doubtless.errors import IllegalTransition
from doubtless.testing.explore_steps import Broken

W = TypeVar("W")


@dataclass(slots=True)
class Model(Generic[W]):
    """What is searched: where it starts, what may happen, what must hold, and how it is told."""

    start: W
    events: Callable[[W], Iterator[tuple[str, str, W]]]
    check: Callable[[W], None]
    key: Callable[[W], Hashable]
    tell: Callable[[W], tuple[float, str]]  # seconds since the start, and where it stands
    rests: Callable[[W], bool]  # whether it may stay so for ever


@dataclass(slots=True)
class Result:
    """What a search found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    broken: str = ""  # the invariant, first word its name
    story: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)  # how often each event happened


@dataclass(slots=True)
class _Twins(Generic[W]):
    """The worlds that were visited, and those that were passed over for one of them."""

    visited: list[W]
    passed: list[tuple[int, W]] = field(default_factory=list)

    def met(self, known: int, world: W) -> None:
        if known == len(self.visited):
            self.visited.append(world)
        elif world != self.visited[known]:
            self.passed.append((known, world))


@dataclass(slots=True)
class _Tree:
    """How each world was reached first."""

    parents: list[int] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    told: list[tuple[float, str]] = field(default_factory=list)
    rests: list[bool] = field(default_factory=list)
    leads: list[list[int]] = field(default_factory=list)

    def add(self, parent: int, event: tuple[str, str], told: tuple[float, str], rest: bool) -> int:
        self.parents.append(parent)
        self.events.append(event)
        self.told.append(told)
        self.rests.append(rest)
        self.leads.append([])
        return len(self.parents) - 1

    def story(self, last: int) -> list[str]:
        """Return the numbered lines that lead to a world."""
        path = []
        while last >= 0:
            path.append(last)
            last = self.parents[last]
        lines = []
        for number, index in enumerate(reversed(path), 1):
            (seconds, stands), (who, what) = self.told[index], self.events[index]
            lines.append(f"{number:3}. {seconds:5.0f} s  {who} {what}  [{stands}]")
        return lines


def search(model: Model[W], *, states_max: int = 2_000_000, twins: bool = False) -> Result:
    """Visit every world that can be reached; stop at the first one that breaks an invariant.

    Args:
        model: What is searched.
        states_max: Where it is cut, at the end of a level.
        twins: Whether to compare worlds with one key, too: twice the time.
    """
    began = time.monotonic()
    result, tree = Result(), _Tree()
    met = _Twins([model.start]) if twins else None
    collects = gc.isenabled()
    gc.disable()  # nothing here refers to itself, and walking millions of live objects is slow
    try:
        seen = _visit(model, result, tree, states_max, met)
        if result.exhausted:
            _check_progress(tree)
        if result.exhausted and met is not None:
            _check_twins(model, tree, seen, met)
    except _Found as found:
        result.broken, result.story, result.exhausted = found.why, found.story, False
    finally:
        if collects:
            gc.enable()
    result.states = len(tree.parents)
    result.seconds = time.monotonic() - began
    return result


class _Found(Exception):
    def __init__(self, why: str, story: list[str]) -> None:
        super().__init__(why)
        self.why, self.story = why, [*story, f"     violated: {why}"]


def _visit(
    model: Model[W], result: Result, tree: _Tree, states_max: int, met: _Twins[W] | None
) -> dict[Hashable, int]:
    first = tree.add(-1, ("caller", "asks for the operation"), model.tell(model.start), False)
    seen = {model.key(model.start): first}
    level = [(first, model.start)]
    while level:
        following: list[tuple[int, W]] = []
        for index, world in level:
            _expand(model, result, tree, seen, met, index, world, following)
        if len(seen) > states_max:
            return seen
        result.depth += 1
        level = following
    result.exhausted = True
    return seen


def _expand(
    model: Model[W],
    result: Result,
    tree: _Tree,
    seen: dict[Hashable, int],
    met: _Twins[W] | None,
    index: int,
    world: W,
    following: list[tuple[int, W]],
) -> None:
    arrow = ("then", "…")
    try:
        for who, what, after in model.events(world):
            arrow = (who, what)
            result.transitions += 1
            result.kinds[what] = result.kinds.get(what, 0) + 1
            key = model.key(after)
            known = seen.get(key)
            if known is None:
                known = tree.add(index, arrow, model.tell(after), model.rests(after))
                seen[key] = known
                following.append((known, after))
                arrow = ("", "")
                model.check(after)
            tree.leads[index].append(known)
            if met is not None:
                met.met(known, after)
    except Broken as broken:
        last = len(tree.parents) - 1 if arrow == ("", "") else index
        raise _Found(str(broken), tree.story(last)) from broken
    except IllegalTransition as broken:
        raise _Found(f"table: {broken}", tree.story(index)) from broken


def _check_twins(model: Model[W], tree: _Tree, seen: dict[Hashable, int], met: _Twins[W]) -> None:
    """No world may be passed over for one with another future."""

    def future(world: W) -> set[tuple[str, str, int | None]]:
        return {(who, what, seen.get(model.key(after))) for who, what, after in model.events(world)}

    for known, twin in met.passed:
        same = model.rests(twin) == tree.rests[known] or known == 0
        if not same or future(twin) != future(met.visited[known]):
            why = "canonical: worlds with one key have two futures"
            raise _Found(why, tree.story(known))


def _check_progress(tree: _Tree) -> None:
    """No world that is not at rest may come back to itself, or lead nowhere.

    Deadlines count down in every key, so that an operation that is taken further never meets the
    same world twice; one that nobody takes further does.
    """
    for index, leads in enumerate(tree.leads):
        if not leads and not tree.rests[index]:
            why = "progress: nothing can ever happen to it any more"
            raise _Found(why, tree.story(index))
    for index in _for_ever(tree):
        why = "progress: time goes by for ever, and nobody takes it further"
        raise _Found(why, tree.story(index))


def _for_ever(tree: _Tree) -> list[int]:
    """Return the worlds on a cycle that no resting world is part of, first reached first."""
    leads = [
        [] if tree.rests[index] else [target for target in targets if not tree.rests[target]]
        for index, targets in enumerate(tree.leads)
    ]
    into: list[list[int]] = [[] for _ in leads]
    for index, targets in enumerate(leads):
        for target in targets:
            into[target].append(index)
    # What leads to no cycle goes, and then what is reached from none.
    kept = _trimmed(range(len(leads)), leads, into)
    return sorted(_trimmed(kept, into, leads))


def _trimmed(
    kept: Iterable[int], leads: Sequence[Sequence[int]], into: Sequence[Sequence[int]]
) -> set[int]:
    """Drop what leads to nothing that is kept, until all that is left leads on."""
    left = set(kept)
    counts = {index: sum(target in left for target in leads[index]) for index in left}
    free = [index for index, count in counts.items() if count == 0]
    while free:
        gone = free.pop()
        left.discard(gone)
        for source in into[gone]:
            if source in left:
                counts[source] -= 1
                if counts[source] == 0:
                    free.append(source)
    return left
