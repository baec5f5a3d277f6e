"""Commands on a real sshd: what a broken link, a dead process and a wrong host lead to."""

import hashlib
import os
import shutil
import signal
import subprocess
from contextlib import suppress

import anyio
import pytest

pytest.importorskip("asyncssh", reason="asyncssh is missing: install doubtless[ssh]")

from tests.actions import ssh_host
from tests.actions.disks import disk
from tests.actions.ssh_host import Host, processes_of, sshd
from tests.actions.ssh_stage import ONE, SECRET, Stage, call, comes_to, ends, off, runs, told
from tests.actions.told import observed, result

from doubtless.core.model import Json
from doubtless.errors import BadArguments

pytestmark = [
    pytest.mark.skipif(ssh_host.SSHD is None, reason="sshd is missing: install openssh-server")
]

UNKNOWN = "unknown_reconciliation_required"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd(tmp_path_factory.mktemp("sshd")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, running.key)
        yield running


@pytest.fixture
def stage(server, tmp_path):
    found = Stage(server=server, host=Host(server=server, folder=tmp_path / "h"), folder=tmp_path)
    found.declare()
    return found


@pytest.mark.proves("SSH-1", "SSH-12")
async def test_a_command_runs_once_and_its_marker_tells_machines_and_people(stage):
    async with stage.app() as app:
        outcome = await call(app)
        again = await call(app)
    assert (outcome.status, again.already_done) == ("succeeded", True)
    assert result(outcome)["stdout"] == "out of restarted\n"
    assert result(outcome)["stderr"] == "err of restarted\n"
    assert stage.host.effects() == ["one restarted r7"]
    status = stage.host.status(outcome.ref)
    assert status["operation"] == "one"
    assert (status["phase"], status["step"], status["exit"]) == ("ended", "command", 0)
    assert status["output"] == result(outcome)["digest"]
    digest = hashlib.sha256(b"out of restarted\n").hexdigest()
    assert status["output"] == f"sha256:{digest}"
    assert outcome.provider_operation_id == str(stage.host.marker(outcome.ref))


@pytest.mark.proves("SSH-2", "ROW-AA-1")
async def test_a_command_that_left_a_child_is_found_done_after_the_link_broke(stage):
    stage.host.set("child.restarted")
    stage.host.set("hold.restarted")
    async with stage.linked() as link, stage.app() as app:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, app)
            await off(stage.host.reached, "restarted")
            link.mute = True  # the last output is swallowed
            stage.host.set("go")
            ref = (await app.outcome("one")).ref
            await off(stage.host.ended, ref)
            link.cut()
            link.mute = False
        await told(app, "'cause': 'connection_reset'")
        outcome = await ends(app)
        timeline = str(await app.timeline("one"))
    leader = stage.host.leader(outcome.ref)
    children = processes_of(leader)
    assert children, "the child outlives the link, and its command"
    os.killpg(leader, signal.SIGKILL)
    assert outcome.status == "succeeded"
    assert (outcome.attempts, stage.host.effects()) == (1, ["one restarted r7"])
    assert "'source': 'marker'" in timeline
    assert UNKNOWN in timeline or "'state': 'unknown'" in timeline


@pytest.mark.proves("SSH-2")
async def test_a_link_that_breaks_before_anything_was_ordered_is_proven_not_sent(stage):
    async with stage.linked(attempts=2) as link:
        link.refuses = 1
        async with stage.app() as app:
            await call(app)
            outcome = await ends(app)
            assert "'seen': 'not_sent'" in str(await app.timeline("one"))
    assert (outcome.status, outcome.attempts) == ("succeeded", 2)
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-2")
async def test_a_command_that_runs_past_its_deadline_is_under_way_and_then_done(stage):
    stage.host.set("hold.restarted")
    stage.declare(timeout="4s")
    async with stage.app() as app:
        outcome = await call(app)
        assert outcome.outcome in ("unknown", "pending")
        await told(app, "it runs on the host")
        stage.host.set("go")
        outcome = await ends(app)
    assert (outcome.status, outcome.attempts) == ("succeeded", 1)
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-3")
async def test_a_host_whose_disk_is_full_runs_nothing_and_one_that_fills_up_meanwhile_is_unknown(
    stage,
):
    with disk(stage.host.markers, "size=64k") as small:
        filler = small / "filler"
        async with stage.app() as app:
            _fill(filler)
            full = await call(app)
            assert observed(full)["class"] == "not_sent", full
            assert stage.host.effects() == []
            filler.unlink()
            stage.host.set("hold.restarted")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: call(app, "two"))
                await off(stage.host.reached, "restarted")
                _fill(filler)
                stage.host.set("go")
            outcome = await app.outcome("two")
            # Its end could not be written down: nobody believes that it failed, or runs it again.
            assert outcome.status == UNKNOWN, outcome
            filler.unlink()
            again = await call(app, "two")
            assert again.status == UNKNOWN, again
    assert stage.host.effects() == ["two restarted r7"]


def _fill(file):
    """Take all the room that there is."""
    with suppress(OSError), file.open("wb", buffering=0) as taken:
        while taken.write(b"x" * 512):
            pass


@pytest.mark.proves("SSH-3")
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("another host key", "shows another host key"),
        ("no such user key", "does not let"),
        ("no key at all", "there is no secret"),
        ("no private key", "is no private key"),
        ("nobody there", "can't be reached"),
        ("unwritable", "can't be written to"),
        ("no program", "has no program"),
    ],
)
async def test_what_is_in_the_way_is_told_and_nothing_was_done(stage, monkeypatch, how, words):
    import asyncssh  # noqa: PLC0415 - only where it is installed

    other = asyncssh.generate_private_key("ssh-ed25519")
    if how == "another host key":
        stage.declare(host_key=other.export_public_key().decode().strip())
    elif how == "no such user key":
        monkeypatch.setenv(SECRET, other.export_private_key().decode())
    elif how == "no private key":
        monkeypatch.setenv(SECRET, "correct horse battery staple")
    elif how == "nobody there":
        stage.declare(host=stage.through(1))
    elif how == "unwritable":
        stage.host.set("markers", "a file is in the place of the folder")
    elif how == "no program":
        (stage.host.folder / "release").unlink()
    async with stage.app() as app:
        if how == "no key at all":
            monkeypatch.delenv(SECRET)
        outcome = await call(app)
        assert observed(outcome)["class"] == "not_sent", outcome
        assert words in str(outcome.transport_observation)
        assert "horse" not in str(outcome)
    assert stage.host.effects() == []


@pytest.mark.proves("SSH-3")
async def test_a_host_that_changed_its_key_is_never_asked_and_never_believed(stage, tmp_path):
    folder = tmp_path / "own"
    with sshd(folder) as own, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, own.key)
        stage.declare(host=own.host, host_key=own.host_key)
        stage.host.set("hold.restarted")
        async with stage.app(worker=False) as app, anyio.create_task_group() as tasks:
            tasks.start_soon(call, app)
            await off(stage.host.reached, "restarted")
            tasks.cancel_scope.cancel()
    (folder / "host_key").unlink()
    with sshd(folder, port=own.port) as impostor, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, impostor.key)
        assert impostor.host_key != own.host_key
        async with stage.app() as app:
            await told(app, "shows another host key")
            assert (await app.outcome("one")).status == UNKNOWN
    stage.host.set("go")
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-4")
@pytest.mark.long
async def test_what_never_began_is_ruled_out_on_the_host_before_it_is_called_absent(stage):
    async with stage.linked(timeout="4s", on_absent="report") as link, stage.app() as app:
        # The order to go is lost with the link, after it was handed over.
        stage_link(app, link)
        await call(app)
        outcome = await ends(app)
        assert outcome.status == "failed_safe_to_retry", outcome
        assert stage.host.claims(outcome.ref) == ["void:1"]
        assert late_job(stage, str(outcome.ref), attempt=1) == 10
        assert stage.host.effects() == []
        outcome = await call(app)
    assert outcome.status == "succeeded"
    assert stage.host.claims(outcome.ref) == ["void:1", "run:2"]
    assert late_job(stage, str(outcome.ref), attempt=1) == 10
    assert late_job(stage, str(outcome.ref), attempt=3) == 12
    assert stage.host.effects() == ["one restarted r7"]


def stage_link(app, link):
    """Cut the link at the very moment at which the first order to go is given."""
    from doubtless.transports.ssh_link import Conversation  # noqa: PLC0415 - needs asyncssh

    real, turns = Conversation.order, iter([1])

    def order(talk, *words):
        if words[0] == "go" and next(turns, None):
            link.cut()
            return
        real(talk, *words)

    pytest.MonkeyPatch().setattr(Conversation, "order", order)


def late_job(stage, ref: str, *, attempt: int, env: dict[str, str] | None = None) -> int:
    """Run the job of an attempt as if it had come late, and return how it ended."""
    from doubtless.core.contract import Kind  # noqa: PLC0415
    from doubtless.transports.base import Action, Errand  # noqa: PLC0415
    from doubtless.transports.ssh_script import program  # noqa: PLC0415

    async def keep(name: str, content: bytes) -> None:
        raise AssertionError

    argv = [f"{stage.host.folder}/release", "restarted", "r7"]
    members: dict[str, Json] = {
        "markers": str(stage.host.markers),
        "steps": [{"name": "command", "argv": argv}],
    }
    errand = Errand(
        operation_id="one",
        ref=ref,
        tool="deploy",
        action=Action(kind=Kind.SSH, members=members),
        arguments={},
        attempt=attempt,
        keep=keep,
    )
    shell = (env or {}).get("SHELL_UNDER_TEST", "sh").split()
    written, pipe = program(errand), subprocess.PIPE
    with subprocess.Popen(shell, stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(written.text)
        assert process.stdout.readline().decode().split() == [written.nonce, "doubtless", "1"]
        said, _ = process.communicate(b"prepare\ngo 0 60\nbye\n", timeout=20)
    ran = [line for line in said.decode().splitlines() if line.startswith("ran ")]
    return int(ran[0].split()[1])


@pytest.mark.proves("SSH-13")
@pytest.mark.parametrize("shell", ["dash", "bash", "bash --posix", "busybox sh", "mksh"])
def test_what_is_sent_to_a_host_runs_in_any_posix_shell(stage, shell):
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell.split()[0]} is missing: install the package {shell.split()[0]}")
    ref = "0" * 26
    assert late_job(stage, ref, attempt=1, env={"SHELL_UNDER_TEST": shell}) == 0
    assert late_job(stage, ref, attempt=2, env={"SHELL_UNDER_TEST": shell}) == 12
    assert stage.host.effects() == ["one restarted r7"]
    assert stage.host.status(ref)["exit"] == 0


@pytest.mark.proves("SSH-5")
async def test_a_command_whose_process_is_gone_goes_to_a_person_and_runs_never_again(stage):
    stage.host.set("hold.restarted")
    async with stage.app() as app:
        await runs(stage, app, stage.kill)
        await comes_to(app, "manual_review")
        assert (await app.outcome("one")).status == UNKNOWN
        assert "its process is gone without an exit code" in str(await app.timeline("one"))
        await app.resolve("one", "retry", note="try", operator="ops")
        await told(app, "attempt 1 has begun there, and is not run again")
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-5")
async def test_markers_that_are_gone_prove_nothing(stage):
    stage.host.set("hold.restarted")
    async with stage.linked() as link:
        async with stage.app(worker=False) as app:
            await runs(stage, app, lambda ref: link.cut())
        shutil.move(stage.host.markers, stage.host.folder / "elsewhere")
        async with stage.app() as app:
            await told(app, "is gone: it can't say what was run there")
            assert (await app.outcome("one")).status == UNKNOWN
            shutil.move(stage.host.folder / "elsewhere", stage.host.markers)
            stage.host.set("go")
            outcome = await ends(app)
    assert outcome.status == "succeeded"
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-5")
@pytest.mark.long
async def test_an_exit_code_that_is_not_declared_says_nothing_of_the_effect(stage):
    stage.host.set("fail.restarted", "3")
    stage.declare(timeout="4s")
    async with stage.app() as app:
        await call(app)
        await comes_to(app, "manual_review")
        assert "ended with 3, which does not say whether it had an effect" in str(
            await app.timeline("one")
        )
        assert (await app.outcome("one")).status == UNKNOWN
    stage.declare(ONE + "failed_exit = [3]\n")
    async with stage.app() as app:
        outcome = await call(app, "two", "r8")
    assert outcome.status == "failed"
    assert "it ended with 3" in str(outcome.transport_observation)


@pytest.mark.proves("SSH-6")
async def test_two_processes_with_one_id_run_it_once(stage):
    async with stage.app() as app, stage.app() as other:
        async with anyio.create_task_group() as tasks:
            for each in (app, other, app, other):
                tasks.start_soon(call, each)
        assert (await ends(app)).status == "succeeded"
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-7")
@pytest.mark.parametrize(
    ("place", "effects"),
    [
        ("before doubtless.transports.ssh.talking", 1),
        ("before doubtless.engine.acting.Gate.__call__", 1),
        ("before doubtless.engine.steps.finish", 1),
    ],
)
async def test_a_process_that_is_killed_anywhere_leaves_one_effect(stage, agency, place, effects):
    stage.declare(timeout="3s", attempts=3)
    stage.hand_out_the_key()
    with agency.agent(stage.folder, "deploy", {"release": "r7"}, stops=place) as agent:
        await off(agent.stopped)
        agent.kill()
    async with stage.app() as app:
        outcome = await ends(app)
    assert outcome.status == "succeeded"
    assert len(stage.host.effects()) == effects


@pytest.mark.proves("SSH-7")
async def test_a_process_that_is_killed_while_the_command_runs_leaves_it_running(stage, agency):
    stage.host.set("hold.restarted")
    stage.declare(timeout="9s")
    stage.hand_out_the_key()
    with agency.agent(stage.folder, "deploy", {"release": "r7"}) as agent:
        await off(stage.host.reached, "restarted")
        agent.kill()
    async with stage.app() as app:
        await told(app, "it runs on the host")
        stage.host.set("go")
        outcome = await ends(app)
    assert (outcome.status, outcome.attempts) == ("succeeded", 1)
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-7")
@pytest.mark.long
async def test_a_worker_that_slept_behind_the_gate_runs_nothing_when_it_wakes(stage, agency):
    stage.declare(timeout="5s", attempts=3)
    stops = "behind doubtless.engine.steps.open_gate"
    stage.hand_out_the_key()
    with agency.agent(stage.folder, "deploy", {"release": "r7"}, stops=stops) as sleeper:
        await off(sleeper.stopped)
        async with stage.app() as app:
            await told(app, "it never began there")
            sleeper.wake()
            await off(sleeper.ended)
            outcome = await ends(app)
    assert outcome.status == "succeeded"
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-7")
async def test_a_settled_operation_is_told_to_whoever_comes_back_to_it(stage):
    stage.host.set("hold.restarted")
    async with stage.linked() as link, stage.app(worker=False) as app:
        await runs(stage, app, lambda ref: link.cut())
        await app.resolve("one", "done", note="seen on the host", operator="ops")
    stage.host.set("go")
    async with stage.app() as app:
        outcome = await call(app)
    assert (outcome.status, outcome.already_done) == ("succeeded", True)
    assert stage.host.effects() == ["one restarted r7"]


@pytest.mark.proves("SSH-8")
async def test_an_argument_is_one_word_whatever_it_holds(stage):
    odd = "a  b'c\"d $(touch pwned) `touch pwned` ; touch pwned \\ * ~ \n&| é\t"
    async with stage.app() as app:
        assert (await call(app, release=odd)).status == "succeeded"
        with pytest.raises(BadArguments, match="NUL"):
            await call(app, "nul", "a\0b")
        with pytest.raises(BadArguments, match="taken for an option"):
            await call(app, "option", "--force")
        with pytest.raises(BadArguments, match="bytes"):
            await call(app, "long", "x" * 120_000)
    assert "\n".join(stage.host.effects()) == f"one restarted {odd}"
    assert not list(stage.folder.rglob("pwned"))
    assert not (stage.server.folder / "home" / "pwned").exists()


@pytest.mark.proves("SSH-9")
async def test_the_private_key_is_in_no_file_and_no_place_that_shows_it(stage, capfd):
    async with stage.app() as app:
        outcome = await call(app)
        shown = str(outcome) + str(await app.timeline("one"))
    secret = stage.server.key.splitlines()[2]
    assert secret not in shown + "".join(capfd.readouterr())
    for each in stage.folder.rglob("*"):
        if each.is_file():
            assert secret.encode() not in each.read_bytes(), each
