"""Explore every reachable state of the lifecycle, breadth first, against the real rules."""

import argparse
import sys
from collections.abc import Sequence

from doubtless.testing.explore_scenes import SCENES, model, tuned
from doubtless.testing.explore_search import Result, search


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore what is asked for; 1 where something is violated."""
    parser = argparse.ArgumentParser(prog="explore", description=__doc__)
    parser.add_argument("--effect", nargs="+", choices=sorted(SCENES), default=[])
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args(arguments)
    names = list(SCENES) if options.all else options.effect
    bad = 0
    with tuned():
        for name in names:
            result = search(model(SCENES[name]))
            print(report(name, result), flush=True)
            bad += not result.exhausted
    return min(bad, 1)


def report(name: str, result: Result) -> str:
    """Return one line of figures, and the story of a violation."""
    ends = "exhausted" if result.exhausted else result.broken or "cut"
    line = (
        f"{name:20} {result.states:9,} states {result.transitions:10,} transitions "
        f"depth {result.depth:3} {result.seconds:6.1f} s  {ends}"
    )
    return "\n".join([line, *result.story])


if __name__ == "__main__":
    sys.exit(main())
