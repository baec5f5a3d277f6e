"""Files: nowhere but below their root, and nothing done where it is said that nothing was."""

import anyio
import pytest
from tests.actions.agent import eventually
from tests.actions.disks import disk
from tests.actions.file_tools import (
    ANSWER_S,
    CONTRACT,
    TEXT,
    WRITES,
    declare,
    meanwhile,
    names,
    opened,
    prepared,
    report,
    save,
)
from tests.actions.told import action

from doubtless import Doubtless
from doubtless.engine.contracts import load_contracts, parse_contracts
from doubtless.errors import BadArguments, ContractError


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


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
@pytest.mark.long
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
    assert action(tool)["path"] == ["reports", "{args.name}.md"]
    assert action(tool)["root"] == f"{tmp_path}/odd {{{{name}}}}/files"
