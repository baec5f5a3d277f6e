"""Files: written once and whole, and never over what is somebody else's."""

import os

import anyio
import pytest
from tests.actions.agent import eventually
from tests.actions.file_tools import (
    ANSWER_S,
    TEXT,
    WRITES,
    declare,
    kept,
    meanwhile,
    names,
    opened,
    prepared,
    report,
    reviewed,
    save,
)
from tests.actions.told import reconcile, result


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


# --- one effect ----------------------------------------------------------------------------------


@pytest.mark.proves("FILE-1")
async def test_a_file_is_written_once_and_a_repeat_of_the_operation_writes_nothing(folder):
    async with opened(folder) as app:
        first = await save(app)
        made = kept(folder)
        again = await save(app)
    assert (first.status, first.result["changed"]) == ("succeeded", True)
    assert first.already_done is False
    assert (again.status, again.already_done) == ("succeeded", True)
    assert report(folder).read_text(encoding="utf-8") == TEXT
    assert kept(folder) == made
    assert names(folder) == ["q3.md"]


@pytest.mark.proves("FILE-1")
async def test_a_file_that_was_equal_before_is_done_and_not_written(folder):
    report(folder).write_text(TEXT, encoding="utf-8")
    before = kept(folder)
    async with opened(folder) as app:
        outcome = await save(app)
    assert (outcome.status, outcome.result["changed"]) == ("succeeded", False)
    assert kept(folder) == before


@pytest.mark.proves("FILE-1")
async def test_two_processes_with_one_id_write_once(folder):
    async with opened(folder) as app, opened(folder) as other:
        async with anyio.create_task_group() as tasks:
            for each in (app, other, app, other):
                tasks.start_soon(save, each)
        assert (await app.wait("one", timeout=ANSWER_S)).status == "succeeded"
        assert (await app.outcome("one")).attempts == 1


@pytest.mark.proves("FILE-2")
@pytest.mark.parametrize(
    ("stops", "attempts"),
    [
        ("before doubtless.transports.files_write.Draft.write", 2),
        ("behind doubtless.transports.files_write.Draft.write", 2),
        ("before os.link", 2),
        ("behind os.link", 1),
        ("before doubtless.engine.steps.finish", 1),
    ],
)
async def test_a_process_that_is_killed_at_any_stage_leads_to_one_whole_file(
    folder, agency, stops, attempts
):
    with agency.agent(folder, "save", {"name": "q3", "text": TEXT}, stops=stops) as child:
        await anyio.to_thread.run_sync(child.stopped)
        child.kill()
    there = report(folder).exists()
    async with opened(folder) as app:
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", attempts)
    assert there == (attempts == 1)
    assert report(folder).read_text(encoding="utf-8") == TEXT
    assert report(folder).stat().st_nlink == 1 or stops == "behind os.link"


@pytest.mark.proves("FILE-2")
async def test_a_worker_that_was_stopped_past_its_lease_writes_nothing_when_it_wakes(
    folder, agency
):
    stops = "before doubtless.transports.files_write.Draft.put"
    with agency.agent(folder, "save", {"name": "q3", "text": TEXT}, stops=stops) as child:
        await anyio.to_thread.run_sync(child.stopped)
        async with opened(folder) as app:

            async def is_given_up() -> bool:
                return (await app.outcome("one")).state != "executing"

            await eventually(is_given_up)
            report(folder).write_text("somebody else's", encoding="utf-8")
            child.wake()
            await anyio.to_thread.run_sync(child.ended)

            async def is_settled() -> bool:  # by its late word, or by a person
                return (await app.outcome("one")).state in ("failed", "manual_review")

            await eventually(is_settled)
    assert report(folder).read_text(encoding="utf-8") == "somebody else's"
    assert names(folder) == ["q3.md"]


# --- what is somebody else's ---------------------------------------------------------------------


@pytest.mark.proves("FILE-3")
@pytest.mark.parametrize("step", ["write", "put"])
@pytest.mark.parametrize("before", [None, "old\n"], ids=["absent", "there"])
async def test_what_somebody_wrote_meanwhile_is_not_written_over(folder, monkeypatch, step, before):
    if before is not None:
        report(folder).write_text(before, encoding="utf-8")

    def intrude():
        report(folder).write_text("theirs", encoding="utf-8")

    with meanwhile(monkeypatch, step, intrude):
        async with opened(folder) as app:
            outcome = await save(app)
    assert (outcome.status, outcome.observation["class"]) == ("failed", "rejected")
    assert "not written over" in outcome.transport_observation
    assert report(folder).read_text(encoding="utf-8") == "theirs"
    assert names(folder) == ["q3.md"]


@pytest.mark.proves("FILE-3")
async def test_an_unknown_that_meets_other_content_goes_to_a_person(folder, agency):
    stops = "before os.link"
    with agency.agent(folder, "save", {"name": "q3", "text": TEXT}, stops=stops) as child:
        await anyio.to_thread.run_sync(child.stopped)
        child.kill()
    report(folder).write_text("theirs", encoding="utf-8")
    async with opened(folder) as app:
        await reviewed(app)
        outcome = await app.outcome("one")
    assert reconcile(outcome)["request"] == f"sha256sum {report(folder)}"
    assert report(folder).read_text(encoding="utf-8") == "theirs"


@pytest.mark.proves("FILE-4")
async def test_a_replaced_file_keeps_its_mode_and_a_new_one_gets_the_one_said(folder):
    report(folder).write_text("old", encoding="utf-8")
    report(folder).chmod(0o604)
    declare(folder, f'{WRITES}\nmode = "0640"')
    async with opened(folder) as app:
        await save(app)
        await save(app, "two", name="new")
    assert report(folder).read_text(encoding="utf-8") == TEXT
    assert (report(folder).stat().st_mode & 0o777) == 0o604
    assert (report(folder, "new").stat().st_mode & 0o777) == 0o640


@pytest.mark.proves("FILE-5")
async def test_where_existence_counts_what_is_there_is_done_and_stays(folder):
    declare(folder, f'{WRITES}\ncompare = "exists"')
    report(folder).write_text("theirs", encoding="utf-8")
    async with opened(folder) as app:
        outcome = await save(app)
        other = await save(app, "two", name="new")
    assert (outcome.status, outcome.result) == (
        "succeeded",
        {"path": "reports/q3.md", "changed": False},
    )
    assert report(folder).read_text(encoding="utf-8") == "theirs"
    assert other.result["changed"] is True
    assert report(folder, "new").read_text(encoding="utf-8") == TEXT


@pytest.mark.proves("FILE-5")
async def test_a_file_is_copied_as_it_was_and_folders_are_made_down_to_the_last(folder):
    declare(folder, 'copy = { from = "in.bin", to = "reports/{args.name}" }')
    content = os.urandom(1 << 20)
    (folder / "files" / "in.bin").write_bytes(content)
    async with opened(folder) as app:
        outcome = await app.call("save", {"name": "out.bin"})
    assert outcome.status == "succeeded", outcome
    assert result(outcome)["bytes"] == len(content)
    assert (folder / "files/reports/out.bin").read_bytes() == content
    declare(folder, 'make_directory = "{args.name}"')
    async with opened(folder) as app:
        made = await app.call("save", {"name": "a/b/c"})
        again = await app.call("save", {"name": "a/b/c"}, operation_id="other")
    assert (result(made)["changed"], result(again)["changed"]) == (True, False)
    assert (folder / "files/a/b/c").is_dir()
