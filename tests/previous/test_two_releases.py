"""The release before and this one on one ledger, each as real processes."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import environment
from tests.ledger import made_up
from tests.previous.pack import ARCHIVE, unpack

import doubtless
from doubtless.ledger import migrate
from doubtless.ledger.at_work import OlderAtWork
from doubtless.ledger.migrate import Migration
from doubtless.testing.demo_stage import contracts
from doubtless.testing.provider import ProviderProcess, spawn_provider

FLEET = Path(__file__).with_name("fleet.py")
OURS = Path(doubtless.__file__).parent
LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]
OPEN = {"unknown_reconciliation_required", "pending"}
POST = 2  # of the made-up steps


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Path:
    """The code of the release before."""
    folder = Path(tmp_path_factory.mktemp("old"))
    unpack(folder)
    return folder


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Path:
    """The code of this release, with made-up steps after its own: there is always something new."""
    folder = Path(tmp_path_factory.mktemp("new"))
    left_out = shutil.ignore_patterns("__pycache__", "testing", "integrations")
    shutil.copytree(OURS, folder / "doubtless", ignore=left_out)
    for database in ("sqlite", "postgres"):
        for step in made_up.steps(database):
            where = folder / "doubtless" / "ledger" / "migrations" / database / step.name
            where.write_text(step.text, encoding="utf-8")
    return folder


class Member:
    """A process of the fleet."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def __call__(self, word: str, operation_id: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(word, operation_id, file=self.process.stdin, flush=True)
        return self.answer()


@contextmanager
def member(code: Path, url: str, file: Path) -> Iterator[Member]:
    with subprocess.Popen(
        [sys.executable, str(FLEET), url, str(file)],
        env=environment(PYTHONPATH=str(code), DOUBTLESS_SECRET_PAY="s3cret"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Member(process)
            process.communicate(timeout=30)  # its input ends
        finally:
            process.kill()


def is_ready(found: Member, code: Path) -> None:
    """Wait until it is at work, with the code that it should have."""
    ready = found.answer()
    assert Path(ready.get("ready", str(ready))).is_relative_to(code), ready


@pytest.fixture
def upgrade(monkeypatch):
    """What `doubtless migrate` of the new release does; in this process, which is quicker."""
    known = migrate.known

    def released(kind: str) -> tuple[Migration, ...]:
        return (*known(kind), *made_up.steps(kind, after=known(kind)[-1].number))

    def run(url: str, **options: bool) -> list[str]:
        with monkeypatch.context() as patched:
            patched.setattr(migrate, "known", released)
            return migrate.migrate(url, **options)

    return run


def test_the_release_before_is_one_whose_schema_this_one_goes_on_from(old):
    assert len((old / "COMMIT").read_text(encoding="utf-8").strip()) == 40
    assert ARCHIVE.stat().st_size < 400_000
    for database in ("sqlite", "postgres"):
        kept = old / "doubtless" / "ledger" / "migrations" / database
        ours = {migration.name: migration.text for migration in migrate.known(database)}
        for file in kept.iterdir():
            assert ours[file.name] == file.read_text(encoding="utf-8"), "a released file changed"


@pytest.mark.proves("MIGRATE-8", "MIGRATE-2", "MIGRATE-3", "MIGRATE-4")
@pytest.mark.timeout(180)  # four processes, and a machine may be busy
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def test_a_fleet_is_upgraded_while_it_works(
    database, request, tmp_path, provider, old, new, upgrade
):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if database == "postgres":
        url = request.getfixturevalue("postgres").fresh()
    file = tmp_path / "contracts.toml"
    file.write_text(contracts(provider.url, timeout_ms=2000), encoding="utf-8")
    provider.configure(LOST)
    provider.reset()
    steps = [step.name for step in made_up.steps(database)]
    with member(old, url, file) as theirs, member(old, url, file) as late:
        is_ready(theirs, old)
        is_ready(late, old)
        assert theirs("call", "before")["status"] in OPEN
        assert upgrade(url)[-2:] == steps[:POST]
        with member(new, url, file) as ours:
            is_ready(ours, new)
            beside_each_other(theirs, ours, late, provider)
            late.process.send_signal(signal.SIGKILL)
            late.process.wait(30)
            with pytest.raises(OlderAtWork, match=steps[POST]):
                upgrade(url, post=True)  # one is left
            assert upgrade(url, post=True, force=True) == [steps[POST]]
            shut_out(theirs, ours, provider)
    with member(old, url, file) as theirs:
        told = theirs.answer()
        assert told["error"] == "LedgerOutdated"
        assert "upgrade doubtless" in told["told"]


def beside_each_other(theirs: Member, ours: Member, late: Member, provider) -> None:
    """Call by each, ask by another one: one effect each, though answers are lost."""
    assert ours("outcome", "before")["status"] == "succeeded"
    assert ours("call", "lost")["status"] in OPEN
    assert theirs("outcome", "lost")["status"] == "succeeded"
    provider.configure({})
    for caller, asked, name in ((theirs, ours, "a"), (ours, late, "b"), (late, ours, "c")):
        caller("call", name)
        assert caller("outcome", name)["status"] == "succeeded"
        assert asked("call", name) == {"status": "succeeded", "already_done": True}
    assert len(provider.effects()) == 5


def shut_out(theirs: Member, ours: Member, provider) -> None:
    """See that one of the old, at work when the post step was forced, sends nothing more."""
    told = theirs("call", "shut-out")
    assert told["error"] == "LedgerUnavailable"
    assert "upgrade doubtless" in told["told"]
    assert len(provider.effects()) == 5
    ours("call", "shut-out")
    assert ours("outcome", "shut-out")["status"] == "succeeded"
    assert len(provider.effects()) == 6
