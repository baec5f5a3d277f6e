"""The story of the documents: a report is written to a file, then sent through a web page.

Two operations, the second after the first, prepared by one process and carried out by whoever is
there. Processes are killed by SIGKILL; files are looked at, and the site counts what it got.
"""

from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import parse_qs

import anyio
import pytest
from tests.actions.agent import eventually
from tests.actions.file_tools import CONTRACT, TEXT, WRITES, opened, report
from tests.actions.form_server import Forms

from doubtless import Doubtless

pytestmark = pytest.mark.skipif(
    which("chromium") is None, reason="chromium is missing: install the package chromium"
)
WAIT_S = 50
MODES = {"done": "late", "undone": "held", "unsure": "late"}
SUBMIT = """
[tools.submit]
effect = "browser"
timeout = "40s"

[tools.submit.arguments]
type = "object"
required = ["id", "name", "mode"]
properties.id = { type = "string" }
properties.name = { type = "string" }
properties.mode = { type = "string" }

[tools.submit.browser]
script = "tests.actions.story_scripts:submit"
start_url = "URL/form?mode={args.mode}&id={args.id}"
"""


@pytest.fixture(scope="module")
def forms():
    with Forms() as found:
        yield found


@pytest.fixture
def folder(tmp_path, forms):
    (tmp_path / "files" / "reports").mkdir(parents=True)
    text = CONTRACT.replace("WHAT", WRITES) + SUBMIT.replace("URL", forms.url)
    (tmp_path / "contracts.toml").write_text(text, encoding="utf-8")
    return tmp_path


def story(name: str, mode: str = "ok") -> list[dict[str, Any]]:
    """Return the two steps of one report, with the words of `prepare`."""
    return [
        {
            "tool": "save",
            "arguments": {"name": name, "text": TEXT},
            "operation_id": f"save-{name}",
        },
        {
            "tool": "submit",
            "arguments": {"id": name, "name": f"report {name}", "mode": mode},
            "operation_id": f"submit-{name}",
            "after": [f"save-{name}"],
        },
    ]


async def comes_to(app: Doubtless, operation_id: str, state: str) -> None:
    async def is_there() -> bool:
        return (await app.outcome(operation_id)).state == state

    await eventually(is_there)


@pytest.mark.proves("STORY-1")
@pytest.mark.parametrize(
    ("stops", "name", "attempts"), [("before os.link", "early", 2), ("behind os.link", "late", 1)]
)
async def test_killed_in_step_1_the_file_is_seen_or_written_once_and_step_2_goes_on(
    folder, forms, agency, stops, name, attempts
):
    with agency.planner(folder, story(name), stops=stops) as agent:
        await anyio.to_thread.run_sync(agent.stopped)
        agent.kill()
    assert report(folder, name).exists() == (attempts == 1)
    assert forms.count(name) == 0
    async with opened(folder) as app:
        sent = await app.wait(f"submit-{name}", timeout=WAIT_S)
        saved = await app.outcome(f"save-{name}")
    assert (saved.status, saved.attempts) == ("succeeded", attempts)
    assert report(folder, name).read_text(encoding="utf-8") == TEXT
    assert (sent.status, sent.attempts, forms.count(name)) == ("succeeded", 1, 1)
    assert sent.result == {"receipt": f"Thank you. Receipt R-{name}"}


async def killed_in_step_2(folder: Path, forms: Forms, agency) -> None:
    """Three stories in one process, which dies while all three forms are being sent."""
    steps = [step for name, mode in MODES.items() for step in story(name, mode)]
    with agency.planner(folder, steps) as agent:
        for name in ("done", "unsure"):
            await anyio.to_thread.run_sync(forms.arrived, name)
        async with opened(folder, worker=False) as watching:

            async def is_at_the_click() -> bool:
                found = await watching.exhibits("submit-undone")
                return "before.jpg" in {each.name for each in found}

            await eventually(is_at_the_click)
        agent.kill()


@pytest.mark.proves("STORY-2", "STORY-3")
async def test_killed_in_step_2_a_person_is_asked_and_each_answer_leads_where_it_says(
    folder, forms, agency
):
    await killed_in_step_2(folder, forms, agency)
    counted = {"done": 1, "undone": 0, "unsure": 1}
    async with opened(folder) as app:
        for name in counted:
            await comes_to(app, f"submit-{name}", "manual_review")
        assert {name: forms.count(name) for name in counted} == counted
        for name in counted:
            asked = await app.call(**story(name, MODES[name])[1])
            assert (asked.status, asked.attempts) == ("unknown_reconciliation_required", 1)
            assert asked.retry_allowed is False
            assert (await app.outcome(f"save-{name}")).status == "succeeded"
        forms.go = True
        forms.release()
        await answered_done(app, forms)
        await answered_not_done(app, forms)
        await answered_unsure(app, forms)


async def answered_done(app: Doubtless, forms: Forms) -> None:
    closed = await app.resolve("submit-done", "done", operator="ann", note="it is in the inbox")
    assert (closed.status, closed.attempts) == ("succeeded", 1)
    assert forms.count("done") == 1


async def answered_not_done(app: Doubtless, forms: Forms) -> None:
    closed = await app.resolve("submit-undone", "again", operator="ann", note="there is none")
    first = await app.outcome("submit-undone")
    assert first.superseded_by not in (None, "submit-undone")
    assert (first.status, first.attempts) != ("succeeded", 2)
    again = await app.wait(str(first.superseded_by), timeout=WAIT_S)
    assert closed.operation_id in (first.operation_id, again.operation_id)
    assert (again.status, again.attempts) == ("succeeded", 1)
    assert again.ref != first.ref
    assert forms.count("undone") == 1


async def answered_unsure(app: Doubtless, forms: Forms) -> None:
    still = await app.resolve("submit-unsure", "unsure", operator="ann", note="nobody can tell")
    assert still.state == "manual_review"
    await app.resolve(
        "submit-unsure", "again", operator="ann", note="better twice", mark_duplicate=True
    )
    first = await app.outcome("submit-unsure")
    again = await app.wait(str(first.superseded_by), timeout=WAIT_S)
    assert (again.status, again.attempts) == ("succeeded", 1)
    assert "without certainty" in first.message
    assert forms.count("unsure") == 2
    names = [parse_qs(body.decode())["name"] for body in forms.bodies if b"unsure" in body]
    assert names == [
        ["report unsure"],
        ["report unsure (possible duplicate of submit-unsure)"],
    ]
