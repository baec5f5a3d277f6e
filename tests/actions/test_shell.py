"""Commands: run once, kept by a process that outlives us, and asked about by their markers."""

import json
import os
import signal

import anyio
import pytest
from click.testing import CliRunner
from tests.actions.agent import eventually, state_of, until
from tests.actions.shell_tools import (
    ANSWER_S,
    MARKED,
    SCRIPT,
    WAITS,
    comes_to,
    declare,
    opened,
    prepared,
    run,
    running,
    runs,
    thread,
)
from tests.actions.told import result

from doubtless.cli import cli
from doubtless.errors import DecisionRefused


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


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
    assert result(outcome)["stdout"] == "did a\n"
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
    declare(folder, f"{SCRIPT}; {WAITS}", timeout="2s")
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
@pytest.mark.long
async def test_a_keeper_that_was_killed_leaves_what_only_a_person_can_decide(folder):
    declare(folder, f"{SCRIPT}; {WAITS}", timeout="2s")
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
    declare(folder, f"{SCRIPT}; {WAITS}", timeout="2s")
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
    stubborn = "trap '' TERM; for i in $(seq 1200); do sleep 0.05; done"
    script = f'echo "$1" >> ran; setsid sh -c "{stubborn}" & echo $! > child; sleep 60'
    declare(folder, script, timeout="2s")
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
async def test_what_a_command_left_running_is_told_and_can_be_stopped_after_its_end(folder):
    declare(folder, f"{SCRIPT}; setsid sleep 60 > /dev/null & echo $! > child")
    async with opened(folder) as app:
        outcome = await run(app)
        child = int((folder / "child").read_text(encoding="utf-8"))
        assert outcome.status == "succeeded"
        assert outcome.result["left_running"] == 1
        assert state_of(child) != ""
        outcome = await app.stop("one", operator="ops", note="not needed")
    assert outcome.status == "succeeded"
    assert state_of(child) == ""


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
