"""git push, over git's own daemon: what is pushed, refused, cut and settled. The server counts."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import anyio
import asyncssh
import pytest
from tests.actions import ssh_host
from tests.actions.git_server import (
    Cut,
    Server,
    bare,
    clone,
    commit,
    daemon,
    eventually,
    git,
    until,
)
from tests.actions.leases import short, stop

from doubtless import Doubtless
from doubtless.engine.contracts import load_contracts, parse_contracts
from doubtless.errors import BadArguments, ContractError

pytestmark = [
    pytest.mark.skipif(which("git") is None, reason="git is missing: install the package git"),
]

CONTRACT = """
[tools.push_branch]
effect = "publish"
timeout = "{timeout}"
in_flight_horizon = "{horizon}"
on_absent = "{on_absent}"
retry = {{ backoff = "100ms" }}

[tools.push_branch.arguments]
type = "object"
required = ["branch"]
additionalProperties = false
properties.branch = {{ type = "string" }}

[tools.push_branch.git_push]
repository = "work"
remote = "{remote}"
ref = "refs/heads/{{args.branch}}"

[tools.push_branch.git_push.pace]
interval = "200ms"
confirmations = 1
timeout = "3s"
"""
ANSWER_S = 25


@pytest.fixture
def server(tmp_path):
    with daemon(tmp_path) as running:
        clone(running, tmp_path / "work")
        yield running


@pytest.fixture
def short_leases(monkeypatch):
    """Leases that end within a second, here as in the processes that are started."""
    short(monkeypatch.setattr)


def contracts(
    folder: Path, *, remote="origin", timeout="5s", horizon="300ms", on_absent="resend"
) -> Path:
    file = folder / "contracts.toml"
    text = CONTRACT.format(remote=remote, timeout=timeout, horizon=horizon, on_absent=on_absent)
    file.write_text(text, encoding="utf-8")
    return file


def opened(folder: Path, **options) -> Doubtless:
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts(folder, **options))


def head(server: Server) -> str:
    return git(server.folder / "work", "rev-parse", "HEAD")


async def push(app: Doubtless, operation_id: str | None = None):
    return await app.call("push_branch", {"branch": "main"}, operation_id=operation_id)


def seen(outcome) -> str:
    """Return the class of what the last attempt saw."""
    assert outcome.observation is not None, outcome
    return str(outcome.observation["class"])


async def settled(app: Doubtless, operation_id: str):
    return await app.wait(operation_id, timeout=ANSWER_S)


@pytest.mark.proves("GIT-1")
async def test_a_commit_is_pushed_once_and_a_repeat_of_the_operation_pushes_nothing(server):
    async with opened(server.folder) as app:
        outcome = await push(app, "one")
        again = await push(app, "one")
    assert (outcome.status, again.already_done) == ("succeeded", True)
    assert outcome.result == {"ref": "refs/heads/main", "commit": head(server), "old": None}
    assert outcome.provider_operation_id == server.value() == head(server)
    assert len(server.changes()) == 1


@pytest.mark.proves("GIT-2")
@pytest.mark.parametrize("at", ["connect", "advertised", "commands", "report"])
async def test_a_link_that_is_cut_leads_to_one_change_wherever_it_was_cut(server, at):
    cut = Cut(int(server.url.split(":")[2].split("/")[0]), at)
    async with cut.serving() as port:
        remote = f"git://127.0.0.1:{port}/api.git"
        async with opened(server.folder, remote=remote) as app:
            first = await push(app, "one")
            outcome = await settled(app, "one")
    assert first.status == {
        "connect": "succeeded",  # proven not sent, and tried again
        "advertised": first.status,  # git may or may not have begun to send
    }.get(at, "unknown_reconciliation_required")
    assert cut.cuts == 1
    assert outcome.status == "succeeded", outcome
    assert [line.split()[1] for line in server.changes()] == [head(server)]


@pytest.mark.proves("GIT-2")
async def test_a_push_whose_report_was_lost_is_unknown_and_settled_by_reading_the_ref(server):
    cut = Cut(int(server.url.split(":")[2].split("/")[0]), "report")
    async with cut.serving() as port:
        remote = f"git://127.0.0.1:{port}/api.git"
        async with opened(server.folder, remote=remote) as app:
            outcome = await push(app, "one")
            assert outcome.status == "unknown_reconciliation_required"
            assert outcome.reconcile["request"].startswith("git ls-remote git://")
            outcome = await settled(app, "one")
    assert outcome.status == "succeeded"
    assert outcome.attempts == 1
    assert len(server.changes()) == 1


@pytest.mark.proves("GIT-3")
async def test_a_server_that_is_away_is_proof_that_nothing_was_sent(server):
    async with opened(server.folder, remote="git://127.0.0.1:1/api.git") as app:
        outcome = await push(app, "one")
    assert seen(outcome) == "not_sent", outcome
    assert "onnection refused" in outcome.transport_observation or "unable to connect" in (
        outcome.transport_observation
    )


@pytest.mark.proves("GIT-4")
async def test_a_hook_that_declines_is_a_refusal_and_not_unknown(server):
    server.hook("pre-receive", 'echo "no pushes on a Friday" >&2; exit 1')
    async with opened(server.folder) as app:
        outcome = await push(app, "one")
    assert outcome.status == "failed", outcome
    assert "declined" in outcome.transport_observation
    assert server.changes() == []


@pytest.mark.proves("GIT-5")
async def test_what_others_pushed_is_never_dropped(server):
    work = server.folder / "work"
    async with opened(server.folder) as app:
        await push(app, "one")
        git(work, "push", "--quiet", "origin", f"{_other(work)}:refs/heads/main", "--force")
        theirs = server.value()
        commit(work, "two")
        outcome = await push(app, "two")
    assert seen(outcome) == "not_sent"
    assert "does not hold" in outcome.transport_observation
    assert server.value() == theirs


def _other(work: Path) -> str:
    tree = git(work, "write-tree")
    return git(work, "commit-tree", tree, "-m", "somebody else's")


@pytest.mark.proves("GIT-5")
async def test_a_ref_that_is_neither_ours_nor_as_before_goes_to_a_person(server):
    held = server.hold("update")
    work = server.folder / "work"
    async with opened(server.folder, timeout="1s", horizon="60s") as app:
        outcome = await push(app, "one")
        assert outcome.outcome == "unknown"
        held.wait()
        theirs = _other(work)
        git(server.bare, "fetch", "--quiet", str(work), theirs)
        git(server.bare, "update-ref", "refs/heads/main", theirs)
        await eventually(lambda: app.outcome("one"), "manual_review")
        held.go.touch()
    assert server.value() == theirs


@pytest.mark.proves("GIT-6")
async def test_our_commit_under_somebody_elses_is_proof_that_it_arrived(server):
    cut = Cut(int(server.url.split(":")[2].split("/")[0]), "report")
    async with cut.serving() as port:
        remote = f"git://127.0.0.1:{port}/api.git"
        app = opened(server.folder, remote=remote, horizon="60s")
        app_without_worker = Doubtless(
            f"sqlite:///{server.folder}/d.db",
            contracts=server.folder / "contracts.toml",
            worker=False,
        )
        async with app_without_worker:
            assert (await push(app_without_worker, "one")).outcome == "unknown"
        other = server.folder / "other"
        git(server.folder, "clone", "--quiet", str(server.bare), str(other))
        commit(other, "on top")
        git(other, "push", "--quiet", "origin", "HEAD:main")
        async with app:
            outcome = await settled(app, "one")
    assert outcome.status == "succeeded"
    assert server.value() == git(other, "rev-parse", "HEAD")


@pytest.mark.proves("GIT-7")
async def test_two_processes_with_one_id_push_once(server):
    async with opened(server.folder) as app, opened(server.folder) as other:
        async with anyio.create_task_group() as tasks:
            for each in (app, other, app, other):
                tasks.start_soon(push, each, "one")
        assert (await settled(app, "one")).status == "succeeded"
    assert len(server.changes()) == 1


PROGRAM = """
import sys, anyio
from doubtless import Doubtless
from tests.actions.leases import short
short()
async def main():
    async with Doubtless(sys.argv[1], contracts=sys.argv[2]) as app:
        await app.call("push_branch", {"branch": "main"}, operation_id="one")
anyio.run(main)
"""


@contextmanager
def agent(server: Server):
    """An application in a process of its own, that pushes."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM,
            f"sqlite:///{server.folder}/d.db",
            str(server.folder / "contracts.toml"),
        ]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.proves("GIT-8")
async def test_a_process_that_is_killed_while_the_server_works_leaves_one_change(server):
    contracts(server.folder, timeout="10s", horizon="2s")
    held = server.hold()
    with agent(server) as process:
        await anyio.to_thread.run_sync(held.wait)
        process.send_signal(signal.SIGKILL)
    async with opened(server.folder, timeout="10s", horizon="2s") as app:
        assert (await app.outcome("one")).outcome in ("unknown", "pending")
        held.go.touch()
        outcome = await settled(app, "one")
    assert outcome.status == "succeeded"
    assert len(server.changes()) == 1


@pytest.mark.proves("GIT-8")
async def test_a_worker_that_was_stopped_past_its_lease_pushes_nothing_more_when_it_wakes(
    server, short_leases
):
    contracts(server.folder, timeout="1s", horizon="100ms")
    held = server.hold()
    with agent(server) as process:
        await anyio.to_thread.run_sync(held.wait)
        await anyio.to_thread.run_sync(lambda: stop(process.pid))
        async with opened(server.folder, timeout="1s", horizon="100ms") as app:
            held.go.touch()
            await anyio.to_thread.run_sync(lambda: until(lambda: bool(server.changes())))
            await settled(app, "one")
            process.send_signal(signal.SIGCONT)
            process.wait(ANSWER_S)
            assert (await app.outcome("one")).status == "succeeded"
    assert len(server.changes()) == 1


@pytest.mark.proves("GIT-9")
@pytest.mark.parametrize("branch", ["--force", "a..b", "", "x:y", "a b", "+main", "x\ny", "a.lock"])
async def test_an_argument_that_is_no_name_of_a_ref_is_refused_before_anything_is_run(
    server, branch
):
    async with opened(server.folder) as app:
        if branch in ("--force", "+main"):
            outcome = await app.call("push_branch", {"branch": branch})
            assert seen(outcome) == "not_sent"  # a fine name, which nothing has
        else:
            with pytest.raises(BadArguments, match="no name of a ref"):
                await app.call("push_branch", {"branch": branch})
    assert server.changes() == []


@pytest.mark.proves("GIT-9")
def test_a_block_that_can_not_be_meant_is_told_with_its_place(tmp_path):
    text = contracts(tmp_path).read_text(encoding="utf-8")
    text = text.replace('remote = "origin"', 'remote = "--upload-pack=x"')
    text = text.replace('"publish"', '"money"')
    with pytest.raises(ContractError) as caught:
        parse_contracts(text, str(tmp_path / "contracts.toml"))
    places = {(each.table, each.key) for each in caught.value.problems}
    assert ("tools.push_branch.git_push", "remote") in places
    assert ("tools.push_branch", "effect") in places


@pytest.mark.proves("GIT-1")
def test_the_object_of_a_push_is_its_ref(tmp_path):
    tool = load_contracts(contracts(tmp_path)).tools["push_branch"]
    assert tool.business_key == ("branch",)
    assert tool.action is not None
    assert tool.action["repository"] == str(tmp_path / "work")


@pytest.mark.proves("GIT-10")
async def test_a_credential_reaches_git_alone_and_no_place_where_it_would_stay(server, monkeypatch):
    """The password is what git's helper answers; no file, argument or ledger has it."""
    monkeypatch.setenv("DOUBTLESS_SECRET_GIT", "canary-password")
    file = contracts(server.folder)
    text = file.read_text(encoding="utf-8")
    text = text.replace('remote = "origin"', 'remote = "origin"\ncredential = "git"\nuser = "me"')
    file.write_text(text, encoding="utf-8")
    seen = server.folder / "seen"
    hook = server.folder / "work" / ".git" / "hooks" / "pre-push"
    fill = "printf 'protocol=https\\nhost=example.com\\n\\n' | git credential fill"
    hook.write_text(f"#!/bin/sh\n{fill} > {seen}\ncat /proc/$PPID/cmdline >> {seen}.argv\n")
    hook.chmod(0o755)
    async with Doubtless(f"sqlite:///{server.folder}/d.db", contracts=file) as app:
        assert (await push(app, "one")).status == "succeeded"
    assert "username=me\npassword=canary-password" in seen.read_text(encoding="utf-8")
    seen.unlink()
    kept = [each for each in server.folder.rglob("*") if each.is_file()]
    assert not [each for each in kept if b"canary" in each.read_bytes()]


@pytest.mark.proves("GIT-8")
async def test_a_process_that_is_killed_before_it_knew_what_the_ref_was_has_pushed_nothing(
    server, short_leases
):
    contracts(server.folder, timeout="3s", horizon="100ms")
    held = server.folder / "asked"
    upload = server.folder / "slow-upload-pack"
    upload.write_text(f'#!/bin/sh\ntouch "{held}"\nsleep 30\n', encoding="utf-8")
    upload.chmod(0o755)
    work = server.folder / "work"
    git(work, "config", "remote.origin.url", str(server.bare))
    git(work, "config", "remote.origin.uploadpack", str(upload))
    with agent(server) as process:
        await anyio.to_thread.run_sync(lambda: until(held.exists))
        process.kill()
    git(work, "config", "--unset", "remote.origin.uploadpack")
    async with opened(server.folder, timeout="3s", horizon="100ms") as app:
        outcome = await settled(app, "one")
    assert outcome is not None
    assert outcome.status == "succeeded", outcome
    assert len(server.changes()) == 1


@pytest.mark.proves("GIT-11")
async def test_a_push_that_a_person_settled_is_not_pushed_again_by_who_resumes_it(server):
    """The server is slow past our deadline; meanwhile a person says how it ended."""
    held = server.hold()
    async with opened(server.folder, timeout="1s", horizon="60s") as app:
        assert (await push(app, "one")).outcome == "unknown"
        held.wait()
        await app.resolve("one", "not_done", note="the server is down", operator="ops")
        held.go.touch()
        await anyio.to_thread.run_sync(lambda: until(lambda: server.value() == head(server)))
    async with opened(server.folder, timeout="1s", horizon="60s") as other:
        resumed = await push(other, "one")
    assert resumed.attempts == 1, resumed
    assert server.value() == head(server)


@pytest.mark.proves("GIT-10")
@pytest.mark.skipif(ssh_host.SSHD is None, reason="sshd is missing: install openssh-server")
async def test_over_ssh_only_the_pinned_host_key_is_trusted(tmp_path, monkeypatch):
    """The key is in the service alone: no agent, no file of the user's, and no known_hosts."""
    with ssh_host.sshd(tmp_path / "host") as host:
        bare(tmp_path)
        url = f"ssh://{host.host}{tmp_path}/api.git"
        server = Server(tmp_path, url)
        clone(server, tmp_path / "work")
        monkeypatch.setenv("DOUBTLESS_SECRET_DEPLOY", host.key)
        text = contracts(tmp_path).read_text(encoding="utf-8")
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        outcome = None
        for operation_id, host_key in (("wrong", other), ("right", host.host_key)):
            more = f'remote = "origin"\ncredential = "deploy"\nhost_key = "{host_key}"'
            file = tmp_path / "contracts.toml"
            file.write_text(text.replace('remote = "origin"', more), encoding="utf-8")
            async with Doubtless(f"sqlite:///{tmp_path}/d.db", contracts=file) as app:
                outcome = await push(app, operation_id)
            if operation_id == "wrong":
                assert seen(outcome) == "not_sent"
                assert server.changes() == []
    assert outcome is not None
    assert outcome.status == "succeeded", outcome
    assert len(server.changes()) == 1
