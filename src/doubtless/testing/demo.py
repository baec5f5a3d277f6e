"""The demonstration, `doubtless demo`: a real provider process loses answers, and counts effects.

Every figure is the provider's own, asked from its admin route at the end of each scene. The exit
code is 1 if one of them is not what is claimed.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from doubtless.testing.demo_scenes import SCENES, Scene
from doubtless.testing.demo_stage import ANSWER_S, Claim, Stage
from doubtless.testing.provider import spawn_provider

COLUMNS = 100
LIFETIME_S = 120.0  # the provider ends then, whatever happens to us


def run(*, as_json: bool = False, scenes: Sequence[Scene] = SCENES) -> int:
    """Play the scenes and return the exit code: 0 if every claim holds."""
    began_s = time.monotonic()
    width = min(shutil.get_terminal_size((COLUMNS, 24)).columns, COLUMNS)
    with (
        tempfile.TemporaryDirectory(prefix="doubtless-demo-") as folder,
        spawn_provider(lifetime_s=LIFETIME_S) as provider,
    ):
        stage = Stage(provider=provider, folder=Path(folder), width=width - 3)
        if not as_json:
            _say(
                f"A simulator of a payment API of ours runs on loopback, as process {provider.pid}."
                f"\nIt does what it is asked, and its answer comes {ANSWER_S:g} s later: too late."
                "\nEvery count below is its own."
            )
        for number, scene in enumerate(scenes, 1):
            if not as_json:
                click.echo()
                _say(f"{number}  {scene.title}", bold=True)
            for line in scene.play(stage):
                if not as_json:
                    _line(line)
    return report(stage.claims, seconds=time.monotonic() - began_s, as_json=as_json)


def report(claims: Sequence[Claim], *, seconds: float, as_json: bool) -> int:
    """Say whether all claims hold, and return the exit code."""
    broken = [claim for claim in claims if not claim.holds]
    if as_json:
        figures = [{**asdict(claim), "holds": claim.holds} for claim in claims]
        found = {"ok": not broken, "seconds": round(seconds, 1), "figures": figures}
        click.echo(json.dumps(found, indent=2))
        return 1 if broken else 0
    click.echo()
    for claim in broken:
        _say(
            f"{claim.scene}: {claim.what}: claimed {claim.claimed}, found {claim.found}",
            fg="red",
            bold=True,
        )
    if broken:
        _say(f"{len(broken)} of {len(claims)} claims do not hold.", fg="red", bold=True)
        return 1
    _say(f"All {len(claims)} claims hold, in {seconds:.0f} s. Nothing is left behind.", fg="green")
    return 0


def _line(text: str) -> None:
    """Print a line of a scene; the provider's counts stand out."""
    if text.startswith("the provider counts"):
        _say(f"   {text}", bold=True, fg="red" if "NOT AS CLAIMED" in text else "cyan")
    elif text.startswith("$ "):
        _say(f"   {text}", dim=True)
    else:
        _say(f"   {text}")


def _say(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> None:
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(click.style(text, fg=fg, bold=bold or None, dim=dim or None), color=colour)


if __name__ == "__main__":
    sys.exit(run(as_json="--json" in sys.argv[1:]))
