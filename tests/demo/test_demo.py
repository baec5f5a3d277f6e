"""The demonstration runs, its figures are the provider's, and it can fail."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from tests.cli.shell import environment, too_wide

from doubtless.testing import demo, demo_scenes
from doubtless.testing.demo_scenes import Scene
from doubtless.testing.demo_stage import Stage

LINES_MAX = 48


def run_demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "doubtless.cli", "demo", *words],
        cwd=folder,
        env=environment(TMPDIR=str(folder)),
        capture_output=True,
        encoding="utf-8",
        timeout=55,
        check=False,
    )


def plain(text: str) -> list[str]:
    """Return lines without what differs from run to run."""
    return [" ".join(re.sub(r"pid \d+", "pid", line).split()) for line in text.splitlines()]


def shown_in_the_readme() -> list[str]:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    return plain(text.partition("```text\n")[2].partition("```")[0])


@pytest.mark.proves("DEMO-1", "DEMO-2", "DEMO-4", "DOCS-1")
def test_it_fits_one_screen_says_what_the_provider_counted_and_leaves_nothing(tmp_path):
    found = run_demo(tmp_path)
    assert (found.returncode, found.stderr) == (0, ""), found.stdout
    assert too_wide(found.stdout) == []
    assert len(found.stdout.splitlines()) <= LINES_MAX
    assert "A simulator of a payment API of ours" in found.stdout
    counts = [line.strip() for line in found.stdout.splitlines() if "provider counts" in line]
    assert counts == [
        "the provider counts 2 refunds, from 2 requests",
        "the provider counts 1 refund, from 1 request",
        "the provider counts 1 refund, from 1 request",
        "the provider counts 1 bid, from 1 request",
    ]
    assert [line for line in shown_in_the_readme() if line not in plain(found.stdout)] == []
    assert list(tmp_path.iterdir()) == []
    pid = found.stdout.partition("as process ")[2].partition(".")[0]
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.proves("DEMO-3")
@pytest.mark.parametrize("as_json", [False, True])
def test_one_effect_more_than_claimed_makes_it_fail(capsys, as_json):
    def meddled(stage: Stage):
        *lines, _ = demo_scenes.naive(stage)
        httpx2.post(f"{stage.provider.url}/v1/refunds", json={"charge": "ch_1", "amount": 1})
        yield from lines
        yield stage.counted("naive", "refund", effects=2, requests=2)

    code = demo.run(as_json=as_json, scenes=[Scene(title="Meddled with", play=meddled)])
    assert code == 1
    out = capsys.readouterr().out
    if as_json:
        found = json.loads(out)
        assert not found["ok"]
        broken = [figure for figure in found["figures"] if not figure["holds"]]
        assert [(each["claimed"], each["found"]) for each in broken] == [(2, 3), (2, 3)]
    else:
        assert "the provider counts 3 refunds, from 3 requests: NOT AS CLAIMED" in out
        assert "2 of 4 claims do not hold." in out


@pytest.mark.proves("DEMO-1", "DEMO-3")
def test_programs_get_every_figure(capsys):
    assert demo.run(as_json=True, scenes=demo_scenes.SCENES[:2]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    figures = {(each["scene"], each["what"]): each["found"] for each in found["figures"]}
    assert figures["naive", "refunds"] == 2
    assert figures["lost answer", "refunds"] == 1
