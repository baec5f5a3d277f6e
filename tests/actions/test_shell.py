"""Commands: run once, kept by a process that outlives us, and asked about by their markers."""

import json
import os
import signal
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from tests.actions.agent import eventually, state_of, until
from tests.actions.disks import disk

from doubtless import Doubtless
from doubtless.cli import cli
from doubtless.engine.contracts import parse_contracts
from doubtless.errors import BadArguments, ContractError, DecisionRefused

CONTRACT = """
[tools.run]
effect = "EFFECT"
timeout = "TIMEOUT"
in_flight_horizon = "100ms"
recovery_deadline = "30s"
on_absent = "resend"
retry = { attempts = 2, backoff = "10ms" }

[tools.run.arguments]
type = "object"
required = ["x"]
additionalProperties = false
properties.x = { type = "string" }

[tools.run.shell]
WHAT

[tools.run.shell.pace]
interval = "100ms"
interval_max = "200ms"
confirmations = 1
"""
MARKED = "marker = true\nexpect = { exit = [0] }\nfailed_exit = [9]"
ANSWER_S = 30
SCRIPT = 'echo "$1" >> ran; echo "did $1"'


def declare(
    folder: Path, script: str = SCRIPT, *, effect="shell_write", timeout="2s", more=MARKED
) -> str:
    argv = json.dumps(["sh", "-c", script, "--", "{args.x}"])
    text = CONTRACT.replace("WHAT", f"argv = {argv}\n{more}")
    text = text.replace("EFFECT", effect).replace("TIMEOUT", timeout)
    (folder / "contracts.toml").write_text(text, encoding="utf-8")
    return text


@pytest.fixture
def folder(tmp_path):
    declare(tmp_path)
    return tmp_path


def opened(folder: Path, **options) -> Doubtless:
    contracts = folder / "contracts.toml"
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts, **options)


async def run(app: Doubtless, x: str = "a", operation_id: str | None = "one"):
    return await app.call("run", {"x": x}, operation_id=operation_id)


async def comes_to(app: Doubtless, state: str):
    async def is_there() -> bool:
        return (await app.outcome("one")).state == state

    await eventually(is_there)
    return await app.outcome("one")


async def thread(work, *arguments):
    return await anyio.to_thread.run_sync(work, *arguments)


def runs(folder: Path) -> list[str]:
    log = folder / "ran"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def markers(folder: Path) -> list[Path]:
    return sorted((folder / ".doubtless/shell").glob("*/*"))


async def running(folder: Path) -> Path:
    """Return the marker of the only command, once it runs."""
    await thread(until, lambda: any((each / "running").exists() for each in markers(folder)))
    return markers(folder)[0]


# --- one run -------------------------------------------------------------------------------------


@pytest.mark.proves("SHELL-1")
async def test_a_command_runs_once_and_a_repeat_of_the_operation_runs_nothing(folder, monkeypatch):
    monkeypatch.setenv("DOUBTLESS_SECRET_KEY", "s3cret")
    monkeypatch.setenv("LEAKED", "yes")
    declare(folder, f"{SCRIPT}; cat; env", more=f'{MARKED}\nstdin = "in {{args.x}}\\n"')
    async with opened(folder) as app:
        first = await run(app)
        again = await run(app)
    assert (first.status, again.already_done) == ("succeeded", True)
    lines = first.result["stdout"].splitlines()
    assert lines[:2] == ["did a", "in a"]
    told = {line.partition("=")[0] for line in lines[2:]} - {"PWD", "_", "SHLVL", "OLDPWD"}
    assert told == {"PATH", "LC_ALL", "DOUBTLESS_OPERATION_ID", "DOUBTLESS_CORRELATION_ID"}
    assert "DOUBTLESS_OPERATION_ID=one" in lines
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-1")
async def test_two_processes_with_one_id_run_it_once(folder):
    async with opened(folder) as app, opened(folder) as other:
        async with anyio.create_task_group() as tasks:
            for each in (app, other, app, other):
                tasks.start_soon(run, each)
        assert (await app.wait("one", timeout=ANSWER_S)).status == "succeeded"
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-2")
@pytest.mark.parametrize(
    ("stops", "attempts"),
    [
        ("before doubtless.transports.shell.claimed", 2),
        ("before doubtless.transports.shell_run.Keeping.start", 2),
        ("behind doubtless.transports.shell_run.Keeping.start", 1),
        ("before doubtless.engine.steps.finish", 1),
    ],
)
async def test_a_process_that_is_killed_at_any_stage_leads_to_one_run(
    folder, agency, stops, attempts
):
    with agency.agent(folder, "run", {"x": "a"}, stops=stops) as child:
        await thread(child.stopped)
        child.kill()
    async with opened(folder) as app:
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", attempts)
    assert outcome.result["stdout"] == "did a\n"
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-2")
async def test_a_worker_that_was_stopped_past_its_lease_starts_nothing_when_it_wakes(
    folder, agency
):
    stops = "before doubtless.transports.shell_run.Keeping.start"
    with agency.agent(folder, "run", {"x": "a"}, stops=stops) as child:
        await thread(child.stopped)
        async with opened(folder) as app:
            await comes_to(app, "unknown")
            child.wake()
            await thread(child.ended)
            outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", 2)
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-3")
async def test_a_command_outlives_our_time_out_and_our_process_and_is_seen_running(folder, agency):
    declare(folder, f"{SCRIPT}; while [ ! -e go ]; do sleep 0.02; done", timeout="300ms")
    with agency.agent(folder, "run", {"x": "a"}) as child:
        await thread(until, lambda: runs(folder) == ["a"])
        child.kill()
    async with opened(folder) as app:
        seen = await comes_to(app, "accepted")
        assert seen.status == "pending"
        assert "it is still running, as process" in str(await app.timeline("one"))
        again = await run(app)
        assert again.status == "pending"
        (folder / "go").touch()
        outcome = await app.wait("one", timeout=ANSWER_S)
    assert (outcome.status, outcome.attempts) == ("succeeded", 1)
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-4")
@pytest.mark.parametrize(
    ("script", "more", "status"),
    [
        ("exit 9", MARKED, "failed"),
        ("exit 0", 'marker = true\nexpect = { stdout_contains = "ok" }', "manual_review"),
        ("exit 3", MARKED, "manual_review"),
        ("kill -9 $$", MARKED, "manual_review"),
        ("echo ok {{args.x}}", 'marker = true\nexpect = { stdout_contains = "ok" }', "succeeded"),
        ("exit 4", "marker = true\nexpect = { exit = [0, 4] }", "succeeded"),
    ],
)
async def test_an_exit_code_means_what_the_contract_says_and_any_other_is_for_a_person(
    folder, script, more, status
):
    declare(folder, f'echo "$1" >> ran; {script}', more=more)
    async with opened(folder) as app:
        await run(app)
        outcome = await comes_to(app, status)
    assert outcome.attempts == 1
    assert outcome.retry_allowed is False
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-5")
async def test_a_keeper_that_was_killed_leaves_what_only_a_person_can_decide(folder):
    declare(folder, f"{SCRIPT}; while [ ! -e go ]; do sleep 0.02; done", timeout="300ms")
    async with opened(folder) as app:
        await run(app)
        await comes_to(app, "accepted")
        marker = await running(folder)
        keeper = json.loads((marker / "begun").read_text(encoding="utf-8"))["keeper"]
        command = json.loads((marker / "running").read_text(encoding="utf-8"))
        os.kill(keeper["pid"], signal.SIGKILL)
        await thread(until, lambda: state_of(keeper["pid"]) == "")
        looks = len(await app.timeline("one"))

        async def is_looked_at() -> bool:
            return len(await app.timeline("one")) >= looks + 3

        await eventually(is_looked_at)
        assert (await app.outcome("one")).state in ("accepted", "reconciling")
        (folder / "go").touch()
        await thread(until, lambda: state_of(command["pid"]) == "")
        await comes_to(app, "manual_review")
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-6")
async def test_a_pid_that_is_another_process_by_now_is_not_taken_for_the_command(folder):
    declare(folder, f"{SCRIPT}; while [ ! -e go ]; do sleep 0.02; done", timeout="300ms")
    async with opened(folder, worker=False) as app:
        await run(app)
        marker = await running(folder)
        for name in ("begun", "running"):  # both ids are this very process's, which started before
            told = json.loads((marker / name).read_text(encoding="utf-8"))
            (told["keeper"] if name == "begun" else told)["pid"] = os.getpid()
            (marker / name).write_text(json.dumps(told), encoding="utf-8")
    async with opened(folder) as app:
        outcome = await comes_to(app, "manual_review")
        await app.stop("one", operator="ops", note="it hangs")
        assert "processes signalled: none; none is left" in str(await app.timeline("one"))
    (folder / "go").touch()
    assert outcome.attempts == 1


# --- stopping ------------------------------------------------------------------------------------


@pytest.mark.proves("SHELL-7")
async def test_stopping_ends_the_whole_tree_and_claims_nothing_about_the_effect(folder):
    stubborn = "trap '' TERM; while :; do sleep 0.05; done"
    script = f'echo "$1" >> ran; setsid sh -c "{stubborn}" & echo $! > child; sleep 600'
    declare(folder, script, timeout="300ms")
    async with opened(folder) as app:
        await run(app)
        await comes_to(app, "accepted")
        file = folder / "child"
        await thread(until, lambda: file.exists() and file.read_text(encoding="utf-8"))
        child = int(file.read_text(encoding="utf-8"))
        outcome = await app.stop("one", operator="ops", note="it hangs")
        assert state_of(child) == ""
        assert outcome.status in ("pending", "unknown_reconciliation_required")
        outcome = await comes_to(app, "manual_review")
        timeline = str(await app.timeline("one"))
    assert "was stopped by ops" in timeline
    assert "none is left" in timeline
    assert outcome.status == "unknown_reconciliation_required"
    assert runs(folder) == ["a"]


@pytest.mark.proves("SHELL-7")
async def test_what_does_not_run_here_is_not_stopped_and_the_command_line_says_so(
    folder, monkeypatch
):
    declare(folder, effect="shell_read", more="")
    async with opened(folder) as app:
        await run(app)
        with pytest.raises(DecisionRefused, match="without a marker"):
            await app.stop("one", operator="ops", note="it hangs")
    declare(folder)
    async with opened(folder) as app:
        await run(app, operation_id="two")
        monkeypatch.setattr("doubtless.transports.place._machine", lambda: "another")
        with pytest.raises(DecisionRefused, match="it began on the host"):
            await app.stop("two", operator="ops", note="it hangs")
    monkeypatch.undo()
    options = ["--ledger", f"sqlite:///{folder}/d.db", "--operator", "ops", "--note", "why"]
    ran = await thread(
        lambda: CliRunner().invoke(cli, ["operations", "stop", "two", *options], obj={})
    )
    assert ran.exit_code == 0, ran.output
    assert "two: succeeded." in ran.output


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
async def test_a_read_that_takes_too_long_is_ended_with_all_that_it_started(folder):
    script = "setsid sleep 600 & echo $! >> children; sleep 600"
    declare(folder, script, effect="shell_read", timeout="500ms", more="")
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
