"""Explore every reachable state of the lifecycle, breadth first, against the real rules.

Every scene is one search, which ends exhausted or with the story of a violation. A mutant is a rule
switched off: its search has to end with a story.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from doubtless.core.model import Effect
from doubtless.testing.explore_families import SCENES
from doubtless.testing.explore_mutants import MUTANTS, switched_off
from doubtless.testing.explore_pairs import PAIRS, pair_model
from doubtless.testing.explore_scenes import model, tuned
from doubtless.testing.explore_search import Result, search


def explored(name: str) -> Result:
    """Search one scene of one operation, or of two."""
    with tuned():
        if name in PAIRS:
            return search(pair_model(PAIRS[name]))
        return search(model(SCENES[name]))


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
        for name in (*SCENES, *PAIRS)
        if options.all or name.partition("/")[0] in options.effect or name in options.scene
    ]
    mutants = list(MUTANTS) if options.all else options.mutant
    if options.list:
        print(*SCENES, *PAIRS, sep="\n")
        print(*(f"{name:20} without {mutant.drops}" for name, mutant in MUTANTS.items()), sep="\n")
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        bad = _run(pool, explored, scenes, _held)
        bad += _run(pool, missed, mutants, _caught)
    return min(bad, 1)


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="explore", description=__doc__, formatter_class=form)
    groups = [*(effect.value for effect in Effect), "pair"]
    parser.add_argument("--effect", nargs="+", choices=groups, default=[], help="all its scenes")
    parser.add_argument("--scene", nargs="+", choices=[*SCENES, *PAIRS], default=[], metavar="NAME")
    parser.add_argument("--mutant", nargs="+", choices=list(MUTANTS), default=[], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every scene and every mutant")
    parser.add_argument("--list", action="store_true", help="name the scenes and the mutants")
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
) -> int:
    """Report each search as it comes to its turn, and return how many did not end as they must."""
    bad = 0
    for name, found in zip(names, pool.map(each, names), strict=True):
        print(report(name, found), flush=True)
        bad += not good(name, found)
    return bad


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
