"""Files: written once and whole, never over somebody else's, and nowhere but below a root."""

import os
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from tests.actions.agent import eventually
from tests.actions.disks import disk

from doubtless import Doubtless
from doubtless.engine.contracts import load_contracts, parse_contracts
from doubtless.errors import BadArguments, ContractError
from doubtless.transports import files_write

CONTRACT = """
[files]
root = "files"

[tools.save]
effect = "file"
timeout = "2s"
in_flight_horizon = "100ms"
recovery_deadline = "30s"
retry = { attempts = 1 }

[tools.save.arguments]
type = "object"
required = ["name"]
additionalProperties = false
properties.name = { type = "string" }
properties.text = { type = "string" }

[tools.save.file]
WHAT

[tools.save.file.pace]
interval = "200ms"
"""
WRITES = 'path = "reports/{args.name}.md"\ncontent = "{args.text}"'
ANSWER_S = 25
TEXT = "the report\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files" / "reports").mkdir(parents=True)
    declare(tmp_path, WRITES)
    return tmp_path


def declare(folder: Path, what: str) -> None:
    text = CONTRACT.replace("WHAT", what)
    (folder / "contracts.toml").write_text(text, encoding="utf-8")


def opened(folder: Path, **options) -> Doubtless:
    contracts = folder / "contracts.toml"
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts, **options)


async def save(app: Doubtless, operation_id: str | None = "one", text: str = TEXT, name="q3"):
    return await app.call("save", {"name": name, "text": text}, operation_id=operation_id)


async def reviewed(app: Doubtless) -> None:
    async def is_reviewed() -> bool:
        return (await app.outcome("one")).state == "manual_review"

    await eventually(is_reviewed)


def report(folder: Path, name: str = "q3") -> Path:
    return folder / "files" / "reports" / f"{name}.md"


def kept(folder: Path) -> tuple[int, int]:
    """Return what changes with each write of a report."""
    found = report(folder).stat()
    return found.st_ino, found.st_mtime_ns


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "files" / "reports").iterdir())


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


@contextmanager
def meanwhile(monkeypatch, step: str, act):
    """Let somebody act right before a step of ours."""
    real = getattr(files_write.Draft, step)

    def bent(*arguments):
        monkeypatch.setattr(files_write.Draft, step, real)
        act()
        return real(*arguments)

    monkeypatch.setattr(files_write.Draft, step, bent)
    yield


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
    assert outcome.reconcile["request"] == f"sha256sum {report(folder)}"
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
    assert outcome.result["bytes"] == len(content)
    assert (folder / "files/reports/out.bin").read_bytes() == content
    declare(folder, 'make_directory = "{args.name}"')
    async with opened(folder) as app:
        made = await app.call("save", {"name": "a/b/c"})
        again = await app.call("save", {"name": "a/b/c"}, operation_id="other")
    assert (made.result["changed"], again.result["changed"]) == (True, False)
    assert (folder / "files/a/b/c").is_dir()


# --- nowhere but below the root ------------------------------------------------------------------


@pytest.mark.proves("FILE-6")
@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x", "x\ny", "x\0y", "x" * 300])
async def test_an_argument_within_a_path_stays_in_its_segment(folder, name):
    async with opened(folder) as app:
        with pytest.raises(BadArguments, match="path: "):
            await save(app, name=name)
    assert names(folder) == []


@pytest.mark.proves("FILE-6")
@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", ".", "a//b", ".doubtless-x"])
async def test_an_argument_that_is_the_path_may_name_folders_below_the_root_alone(folder, name):
    declare(folder, 'path = "{args.name}"\ncontent = "{args.text}"')
    async with opened(folder) as app:
        with pytest.raises(BadArguments, match="path: "):
            await save(app, name=name)
        assert (await save(app, name="reports/ok.md")).status == "succeeded"
    assert names(folder) == ["ok.md"]


@pytest.mark.proves("FILE-6")
@pytest.mark.parametrize("link", ["the file", "its folder"])
async def test_no_link_is_followed(folder, link):
    outside = folder / "outside"
    outside.mkdir()
    (outside / "q3.md").write_text("precious", encoding="utf-8")
    if link == "the file":
        report(folder).symlink_to(outside / "q3.md")
    else:
        (folder / "files" / "reports").rmdir()
        (folder / "files" / "reports").symlink_to(outside)
    async with opened(folder) as app:
        outcome = await save(app)
    assert outcome.observation["class"] == "not_sent", outcome
    assert "link" in outcome.transport_observation
    assert (outside / "q3.md").read_text(encoding="utf-8") == "precious"
    assert sorted(each.name for each in outside.iterdir()) == ["q3.md"]


@pytest.mark.proves("FILE-6")
@pytest.mark.parametrize("step", ["write", "put"])
async def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(
    folder, monkeypatch, step
):
    outside = folder / "outside"
    outside.mkdir()

    def swap():
        (folder / "files" / "reports").rename(folder / "moved")
        (folder / "files" / "reports").symlink_to(outside)

    with meanwhile(monkeypatch, step, swap):
        async with opened(folder) as app:
            outcome = await save(app)
    assert outcome.observation["class"] in ("not_sent", "rejected")
    assert list(outside.iterdir()) == []
    assert list((folder / "moved").iterdir()) == []


# --- nothing done, and the reason said -----------------------------------------------------------


@pytest.mark.proves("FILE-7")
async def test_a_full_disk_leaves_nothing_behind_and_says_so(folder):
    with disk(folder / "files" / "reports", "size=64k"):
        async with opened(folder) as app:
            outcome = await save(app, text="x" * 100_000)
            assert names(folder) == []
            small = await save(app, "two", name="small")
    assert outcome.status == "failed_safe_to_retry"
    assert "the disk is full: make room" in outcome.transport_observation
    assert small.status == "succeeded"


@pytest.mark.proves("FILE-7")
async def test_a_file_system_that_is_read_only_and_a_folder_that_is_missing_are_told(folder):
    with disk(folder / "files" / "reports", "ro"):
        async with opened(folder) as app:
            outcome = await save(app)
    assert outcome.status == "failed_safe_to_retry"
    assert "the file system is read-only" in outcome.transport_observation
    report(folder).parent.rmdir()
    async with opened(folder) as app:
        missing = await save(app, "two")
        assert "there is no such folder: make it first" in missing.transport_observation
        report(folder).parent.mkdir()
        assert (await save(app, "two")).status == "succeeded"


@pytest.mark.proves("FILE-8")
async def test_another_host_and_another_disk_can_not_tell(folder, agency, monkeypatch):
    stops = "before os.link"
    with agency.agent(folder, "save", {"name": "q3", "text": TEXT}, stops=stops) as child:
        await anyio.to_thread.run_sync(child.stopped)
        child.kill()
    (folder / "files").rename(folder / "before")
    (folder / "files" / "reports").mkdir(parents=True)
    async with opened(folder) as app:
        await eventually(lambda: could_not_ask(app, "is it mounted?"))
        (folder / "files" / "reports").rmdir()
        (folder / "files").rmdir()
        (folder / "before").rename(folder / "files")
        monkeypatch.setattr("doubtless.transports.place._machine", lambda: "another")
        await eventually(lambda: could_not_ask(app, "it began on the host"))
        assert not report(folder).exists()
        monkeypatch.undo()
        assert (await app.wait("one", timeout=ANSWER_S)).status == "succeeded"


async def could_not_ask(app: Doubtless, why: str) -> bool:
    timeline = await app.timeline("one")
    return any(why in str(entry) for entry in timeline)


# --- the block -----------------------------------------------------------------------------------


@pytest.mark.proves("FILE-9")
@pytest.mark.parametrize(
    ("what", "key"),
    [
        ('path = "a"', "content"),
        ('path = "a"\ncontent = "b"\nmake_directory = "c"', ""),
        ('compare = "exists"', ""),
        ('path = "../a"\ncontent = "b"', "path"),
        ('copy = { from = "/etc/passwd", to = "b" }', "copy.from"),
        ('path = "a"\ncontent = "b"\nmode = "rw"', "mode"),
    ],
)
def test_a_block_that_can_not_be_meant_is_told_with_its_place(tmp_path, what, key):
    with pytest.raises(ContractError) as caught:
        parse_contracts(CONTRACT.replace("WHAT", what), str(tmp_path / "contracts.toml"))
    assert [(each.table, each.key) for each in caught.value.problems] == [("tools.save.file", key)]


@pytest.mark.proves("FILE-9")
def test_the_object_of_a_file_is_its_path_and_braces_of_a_folder_are_kept(tmp_path):
    folder = tmp_path / "odd {name}"
    folder.mkdir()
    declare(folder, WRITES)
    tool = load_contracts(folder / "contracts.toml").tools["save"]
    assert tool.business_key == ("name",)
    assert tool.action["path"] == ["reports", "{args.name}.md"]
    assert tool.action["root"] == f"{tmp_path}/odd {{{{name}}}}/files"
