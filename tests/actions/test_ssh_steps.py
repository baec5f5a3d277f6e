"""Steps under the host's own status, locks, and what is done about them: on a real sshd."""

import time

import pytest

pytest.importorskip("asyncssh", reason="asyncssh is missing: install doubtless[ssh]")

from tests.actions import ssh_host
from tests.actions.git_server import until
from tests.actions.ssh_host import Host, processes_of, sshd
from tests.actions.ssh_stage import (
    ONE,
    SECRET,
    STATUS,
    STEPS,
    Stage,
    call,
    comes_to,
    ends,
    runs,
    told,
)
from tests.actions.told import observed, result

from doubtless.errors import DecisionRefused

pytestmark = [
    pytest.mark.skipif(ssh_host.SSHD is None, reason="sshd is missing: install openssh-server")
]

ALL = ["one downloaded r7", "one migrated r7", "one restarted r7"]
LOCK = 'lock = "release"\n'
TAKE_OVER = 'take_over = {{ lock = "release", held_by = "{{args.held_by}}" }}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd(tmp_path_factory.mktemp("sshd")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET, running.key)
        yield running


@pytest.fixture
def stage(server, tmp_path):
    return Stage(server=server, host=Host(server=server, folder=tmp_path / "h"), folder=tmp_path)


@pytest.mark.proves("SSH-10")
async def test_steps_run_in_order_each_under_a_marker_of_its_own(stage):
    stage.declare(STEPS + STATUS)
    async with stage.app() as app:
        outcome = await call(app)
    assert outcome.status == "succeeded", outcome
    assert result(outcome)["steps"] == ["downloaded", "migrated", "restarted"]
    assert stage.host.effects() == ALL
    run = stage.host.marker(outcome.ref) / "run.1"
    assert sorted(each.name for each in run.glob("step.*")) == [
        "step.00.downloaded",
        "step.01.migrated",
        "step.02.restarted",
    ]
    assert {(each / "exit").read_text() for each in run.glob("step.*")} == {"0\n"}


@pytest.mark.proves("SSH-10")
async def test_recovery_goes_on_after_the_phase_that_the_host_reports(stage):
    stage.host.set("hold.restarted")

    def fall(ref: str) -> None:  # the host, in the middle, and nobody has seen it at work
        link.cut()
        stage.kill(ref)

    async with stage.linked(STEPS + STATUS, timeout="4s") as link:
        async with stage.app(worker=False) as app:
            ref = await runs(stage, app, fall)
        (stage.host.folder / "hold.restarted").unlink()
        async with stage.app() as app:
            outcome = await ends(app)
    assert outcome.status == "succeeded", outcome
    assert stage.host.claims(ref) == ["run:1", "over:1", "run:2"]
    assert stage.host.effects() == [*ALL, "one restarted r7"]
    assert outcome.attempts == 2


@pytest.mark.proves("SSH-10")
async def test_what_died_after_it_was_seen_at_work_has_failed_and_a_new_operation_goes_on(stage):
    stage.host.set("hold.restarted")
    async with stage.linked(STEPS + STATUS) as link, stage.app() as app:
        ref = await runs(stage, app, lambda ref: link.cut())
        await told(app, "it runs on the host")
        stage.kill(ref)
        assert (await ends(app)).status == "failed"
        assert "it was seen at work; its process is gone" in str(await app.timeline("one"))
        (stage.host.folder / "hold.restarted").unlink()
        outcome = await call(app, "two")
    assert outcome.status == "succeeded", outcome
    assert stage.host.effects() == [*ALL, "two restarted r7"]


@pytest.mark.proves("SSH-10")
async def test_a_step_that_failed_is_a_failure_and_a_new_operation_goes_on_after_it(stage):
    stage.host.set("fail.migrated", "1")
    stage.declare(STEPS + STATUS)
    async with stage.app() as app:
        outcome = await call(app)
        assert outcome.status == "failed", outcome
        assert "migrated ended with 1; the host reports downloaded" in str(
            outcome.transport_observation
        )
        (stage.host.folder / "fail.migrated").unlink()
        outcome = await call(app, "two")
    assert outcome.status == "succeeded", outcome
    assert [line.split()[:2] for line in stage.host.effects()] == [
        ["one", "downloaded"],
        ["one", "migrated"],
        ["two", "migrated"],
        ["two", "restarted"],
    ]


@pytest.mark.proves("SSH-10")
async def test_what_the_host_reports_as_done_is_refused_and_nothing_is_run(stage):
    stage.host.say(release_id="r7", phase="restarted", active_revision="r7")
    stage.declare(STEPS + STATUS)
    async with stage.app() as app:
        outcome = await call(app)
    assert outcome.status == "failed"
    assert "it is done already; nothing was run" in str(outcome.transport_observation)
    assert stage.host.effects() == []


@pytest.mark.proves("SSH-10")
async def test_the_hosts_own_word_outweighs_the_exit_code(stage):
    stage.declare(STEPS + STATUS)
    release = stage.host.folder / "release"
    text = release.read_text(encoding="ascii") + '[ "$1" != restarted ] || exit 1\n'
    release.write_text(text, encoding="ascii")
    async with stage.app() as app:
        outcome = await call(app)
    assert outcome.status == "succeeded"
    assert result(outcome)["exit"] == 1


@pytest.mark.proves("SSH-11")
async def test_a_lock_that_another_operation_holds_is_told_and_nothing_is_run(stage):
    stage.host.set("hold.restarted")
    async with stage.linked(LOCK + ONE) as link, stage.app() as app:
        await runs(stage, app, lambda ref: link.cut())
        outcome = await call(app, "two", "r8")
        assert observed(outcome)["class"] == "not_sent", outcome
        assert "the lock is held by one, until" in str(outcome.transport_observation)
        stage.host.set("go")
        await ends(app)
        outcome = await ends(app, "two")
    assert outcome.status in ("succeeded", "failed_safe_to_retry")
    assert stage.host.effects()[0] == "one restarted r7"
    assert not (stage.host.markers / "locks" / "release").is_symlink()


@pytest.mark.proves("SSH-11")
async def test_a_stale_lock_stays_until_an_operation_of_its_own_takes_it_over(stage):
    stage.host.set("hold.restarted")
    stage.declare(LOCK + 'lock_for = "1s"\n' + ONE)
    async with stage.app() as app:
        ref = await runs(stage, app, stage.kill)
        await comes_to(app, "manual_review")
    lock = stage.host.markers / "locks" / "release"
    expires = int(str(lock.readlink()).split(":")[1])
    until(lambda: time.time() > expires + 1)
    stage.host.set("go")
    async with stage.app() as app:
        outcome = await call(app, "two", "r8")
        assert "take it over" in str(outcome.transport_observation), outcome
        await app.resolve("one", "not_done", note="it is down", operator="ops")
    assert lock.is_symlink()
    stage.declare(TAKE_OVER, effect="shell_write")
    async with stage.app() as app:
        refused = await call(app, "take-1", held_by="somebody-else")
        assert (refused.status, observed(refused)["class"]) == ("failed", "rejected")
        taken = await call(app, "take-2", held_by="one")
        assert taken.status == "succeeded", taken
        assert result(taken)["stdout"].startswith("taken over from one, whose time was over at")
    assert not lock.is_symlink()
    assert (stage.host.markers / "locks" / f"release.was.{ref}").is_symlink()
    stage.declare(LOCK + ONE)
    async with stage.app() as app:
        assert (await call(app, "three", "r9")).status == "succeeded"


@pytest.mark.proves("SSH-11")
async def test_a_lock_whose_holder_may_run_is_not_taken_over(stage):
    stage.host.set("hold.restarted")
    locked = LOCK + 'lock_for = "1s"\n' + ONE
    async with stage.linked(locked) as link, stage.app(worker=False) as app:
        await runs(stage, app, lambda ref: link.cut())
    lock = stage.host.markers / "locks" / "release"
    expires = int(str(lock.readlink()).split(":")[1])
    until(lambda: time.time() > expires + 1)
    stage.declare(TAKE_OVER, effect="shell_write")
    async with stage.app(worker=False) as app:
        refused = await call(app, "take", held_by="one")
        assert observed(refused)["class"] == "rejected"
    assert lock.is_symlink()
    stage.host.set("go")
    until(lambda: not lock.is_symlink())


@pytest.mark.proves("SSH-15")
async def test_what_runs_on_a_host_is_ended_by_a_person_and_settles_nothing(stage):
    stage.host.set("hold.restarted")
    async with stage.linked() as link, stage.app() as app:
        ref = await runs(stage, app, lambda ref: link.cut())
        leader = stage.host.leader(ref)
        assert processes_of(leader)
        await app.stop("one", operator="ops", note="the disk is full")
        assert not processes_of(leader)
        assert "it was stopped by ops" in str(await app.timeline("one"))
        await comes_to(app, "manual_review")
        with pytest.raises(DecisionRefused, match="nothing of it runs"):
            await app.stop("one", operator="ops", note="once more")
    assert stage.host.effects() == ["one restarted r7"]
