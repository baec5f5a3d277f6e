"""Commands: those that only read, those that are not started, and blocks that can't be meant."""

import pytest
from tests.actions.agent import eventually, state_of
from tests.actions.disks import disk
from tests.actions.shell_tools import (
    ANSWER_S,
    CONTRACT,
    MARKED,
    SCRIPT,
    declare,
    opened,
    prepared,
    run,
    runs,
    thread,
)

from doubtless.engine.contracts import parse_contracts
from doubtless.errors import BadArguments, ContractError


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.proves("SHELL-8")
async def test_a_read_runs_once_more_if_its_result_is_not_as_expected(folder):
    expect = 'expect = { stdout_contains = "ok" }'
    once = 'echo "$1" >> ran; [ "$(wc -l < ran)" -gt 1 ] && echo ok'
    declare(folder, once, effect="shell_read", more=expect)
    async with opened(folder) as app:
        outcome = await run(app)
        if outcome.status == "pending":
            outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", 2)
    (folder / "ran").unlink()
    declare(folder, 'echo "$1" >> ran; exit 1', effect="shell_read", more=expect)
    async with opened(folder) as app:
        await run(app, operation_id="two")
        outcome = await app.wait("two", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("failed", 2)
    assert runs(folder) == ["a", "a"]


@pytest.mark.proves("SHELL-8")
@pytest.mark.long
async def test_a_read_that_takes_too_long_is_ended_with_all_that_it_started(folder):
    script = "setsid sleep 60 & echo $! >> children; sleep 60"
    declare(folder, script, effect="shell_read", timeout="2s", more="")
    async with opened(folder) as app:
        await run(app)
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert outcome.status == "failed", outcome
    children = (folder / "children").read_text(encoding="utf-8").split()
    assert len(children) == 2
    assert [state_of(int(child)) for child in children] == ["", ""]


# --- nothing started, and the reason said --------------------------------------------------------


@pytest.mark.proves("SHELL-9")
async def test_what_can_not_be_started_is_proven_not_started(folder):
    text = declare(folder).replace('"sh"', '"no-such-program"')
    (folder / "contracts.toml").write_text(text, encoding="utf-8")
    async with opened(folder) as app:
        outcome = await run(app)
    assert outcome.observation["class"] == "not_sent"
    assert "there is no program 'no-such-program'" in outcome.transport_observation
    broken = folder / "broken"
    broken.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    broken.chmod(0o755)
    text = text.replace('"no-such-program"', f'"{broken}"')
    (folder / "contracts.toml").write_text(text, encoding="utf-8")
    async with opened(folder) as app:
        outcome = await run(app, operation_id="two")
        assert outcome.observation["class"] == "not_sent", outcome
        assert "No such file" in outcome.transport_observation
        broken.write_text('#!/bin/sh\necho "$4" >> ran\n', encoding="utf-8")
        outcome = await run(app, operation_id="two")
        assert outcome.status in ("succeeded", "failed_safe_to_retry"), outcome
    assert runs(folder) in (["a"], [])


@pytest.mark.proves("SHELL-9")
async def test_a_full_disk_starts_nothing_and_one_that_fills_up_later_loses_no_end(folder):
    with disk(folder / "markers", "size=64k") as small:
        fill = f"{SCRIPT}; head -c 1000000 /dev/zero > markers/filler"
        declare(folder, f"{fill}; exit 0", more=f'{MARKED}\nmarkers = "markers"')
        async with opened(folder) as app:
            filled = await run(app)
            assert filled.status == "succeeded", filled
            full = await run(app, "b", operation_id="two")
            assert full.observation["class"] == "not_sent", full
            assert "o space left" in full.transport_observation
            (small / "filler").unlink()
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-9")
async def test_markers_that_can_not_be_kept_start_nothing(folder):
    declare(folder, more=f'{MARKED}\nmarkers = "markers"')
    with disk(folder / "markers", "ro"):
        async with opened(folder) as app:
            outcome = await run(app)
    assert outcome.observation["class"] == "not_sent"
    assert "name a folder that can be written" in outcome.transport_observation
    assert runs(folder) == []


@pytest.mark.proves("SHELL-9")
async def test_markers_that_are_not_those_of_that_time_prove_no_absence(folder, agency):
    stops = "before doubtless.engine.steps.finish"
    with agency.agent(folder, "run", {"x": "a"}, stops=stops) as child:
        await thread(child.stopped)
        child.kill()
    (folder / ".doubtless").rename(folder / "away")
    async with opened(folder) as app:

        async def is_told() -> bool:
            return "does not hold the markers of that time" in str(await app.timeline("one"))

        await eventually(is_told)
        (folder / "away").rename(folder / ".doubtless")
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", 1)
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-10")
async def test_an_argument_is_one_argument_whatever_is_in_it(folder):
    declare(folder, 'printf "%s" "$1"; touch ran')
    async with opened(folder) as app:
        for number, text in enumerate(["; rm -rf x", "$(id)", "--help", "a b\n'c'", "*", ""]):
            outcome = await run(app, text, operation_id=f"n{number}")
            assert outcome.result["stdout"] == text
        with pytest.raises(BadArguments, match="zero byte"):
            await run(app, "a\0b", operation_id="zero")


# --- the block -----------------------------------------------------------------------------------


@pytest.mark.proves("SHELL-11")
@pytest.mark.parametrize(
    ("effect", "what", "key"),
    [
        ("shell_write", 'argv = ["ls"]', "marker"),
        ("shell_write", "argv = []\nmarker = true", "argv"),
        ("shell_write", 'argv = ["{args.x}"]\nmarker = true', "argv"),
        ("shell_read", 'argv = ["ls"]\nmarker = true', "marker"),
        ("shell_read", 'argv = ["ls"]\nenv = { "A B" = "x" }', "env"),
        ("shell_read", 'argv = ["ls"]\nfailed_exit = [0]', "failed_exit"),
        ("shell_read", 'argv = ["ls"]\nenv = { A = "x" }\nsecrets = { A = "y" }', "secrets"),
    ],
)
def test_a_block_that_can_not_be_meant_is_told_with_its_place(tmp_path, effect, what, key):
    text = CONTRACT.replace("WHAT", what).replace("EFFECT", effect).replace("TIMEOUT", "2s")
    with pytest.raises(ContractError) as caught:
        parse_contracts(text, str(tmp_path / "contracts.toml"))
    found = [(each.table, each.key) for each in caught.value.problems]
    assert ("tools.run.shell", key) in found


@pytest.mark.proves("SHELL-11")
def test_an_argument_that_could_be_an_option_is_warned_of(tmp_path):
    what = 'argv = ["git", "show", "{args.x}"]'
    text = CONTRACT.replace("WHAT", what).replace("EFFECT", "shell_read").replace("TIMEOUT", "2s")
    found = parse_contracts(text, str(tmp_path / "contracts.toml"))
    assert any("option" in each.wrong for each in found.warnings)
    declared = parse_contracts(declare(tmp_path), str(tmp_path / "contracts.toml"))
    assert not any("option" in each.wrong for each in declared.warnings)
