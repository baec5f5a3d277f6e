"""Explore every reachable state of the lifecycle, breadth first, against the real rules.

Every scene is one search, which ends exhausted or with the story of a violation. A mutant is a rule
switched off: its search has to end with a story. Effects with the very same rules have all their
families of faults explored for the first of them, and a few for each of the others.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from doubtless.core.model import Effect
from doubtless.testing.explore_families import ALIKE, SCENES
from doubtless.testing.explore_mutants import MUTANTS, switched_off
from doubtless.testing.explore_pairs import PAIRS, pair_model
from doubtless.testing.explore_scenes import model, tuned
from doubtless.testing.explore_search import Result, search

Ending = tuple[str, int]  # of a search: its name, and how many states it found

TWINS = "compare the futures of all worlds that count as one; takes more than twice as long"


def explored(name: str, *, twins: bool = False) -> Result:
    """Search one scene of one operation, or of two."""
    with tuned():
        if name in PAIRS:
            return search(pair_model(PAIRS[name]), twins=twins)
        return search(model(SCENES[name]), twins=twins)


def missed(name: str) -> Result:
    """Search for what goes wrong with one rule switched off."""
    mutant = MUTANTS[name]
    with tuned(), switched_off(mutant):
        return search(model(mutant.scene))


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore what is asked for; 1 where something is violated, or a mutant is not caught."""
    options = _parser().parse_args(arguments)
    scenes = [
        name
        for name in (*PAIRS, *SCENES)  # the longest first
        if options.all or name.partition("/")[0] in options.effect or name in options.scene
    ]
    mutants = list(MUTANTS) if options.all else options.mutant
    if options.list:
        print(*SCENES, *PAIRS, sep="\n")
        print(*(f"{name:20} without {mutant.drops}" for name, mutant in MUTANTS.items()), sep="\n")
    began, context = time.monotonic(), get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        held = _run(pool, partial(explored, twins=options.twins), scenes, _held)
        caught = _run(pool, missed, mutants, _caught)
    if options.all:
        print(*(f"{effect} has the rules of {first}" for effect, first in ALIKE.items()), sep="; ")
    if scenes or mutants:
        print(_summary(held, caught, time.monotonic() - began))
    return 0 if all((*held.values(), *caught.values())) else 1


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="explore", description=__doc__, formatter_class=form)
    groups = [*(effect.value for effect in Effect), "pair"]
    parser.add_argument("--effect", nargs="+", choices=groups, default=[], help="all its scenes")
    parser.add_argument("--scene", nargs="+", choices=[*SCENES, *PAIRS], default=[], metavar="NAME")
    parser.add_argument("--mutant", nargs="+", choices=list(MUTANTS), default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every scene and every mutant")
    parser.add_argument("--list", action="store_true", help="name the scenes and the mutants")
    parser.add_argument("--twins", action="store_true", help=TWINS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="searches at a time")
    return parser


def _held(name: str, found: Result) -> bool:
    del name
    return found.exhausted


def _caught(name: str, found: Result) -> bool:
    return found.broken.startswith(f"{MUTANTS[name].breaks}:")


def _run(
    pool: ProcessPoolExecutor,
    each: Callable[[str], Result],
    names: Sequence[str],
    good: Callable[[str, Result], bool],
) -> dict[Ending, bool]:
    """Report each search as it comes to its turn, and say of each whether it ended as it must."""
    ends = {}
    for name, found in zip(names, pool.map(each, names), strict=True):
        print(report(name, found), flush=True)
        ends[name, found.states] = good(name, found)
    return ends


def _summary(held: Mapping[Ending, bool], caught: Mapping[Ending, bool], seconds: float) -> str:
    states = sum(each for _, each in held)
    return (
        f"{sum(held.values())} of {len(held)} scenes exhausted without a violation, "
        f"{states:,} states; {sum(caught.values())} of {len(caught)} mutants caught; "
        f"{seconds:.0f} s"
    )


def report(name: str, result: Result) -> str:
    """Return one line of figures, and the story of a violation."""
    ends = "exhausted" if result.exhausted else result.broken or "cut"
    line = (
        f"{name:30} {result.states:9,} states {result.transitions:10,} transitions "
        f"depth {result.depth:3} {result.seconds:6.1f} s  {ends}"
    )
    return "\n".join([line, *result.story])


if __name__ == "__main__":
    sys.exit(main())
