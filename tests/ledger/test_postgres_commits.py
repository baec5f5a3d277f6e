"""Commits to a server whose end was not told: settled before anybody is answered."""

import threading
from contextlib import contextmanager
from functools import partial

import pytest
from tests.ledger import samples
from tests.ledger.cutting import Cutter
from tests.ledger.servers import WAITING, begin, holds, in_background, wait_until
from tests.postgres import Postgres

from doubtless.errors import LedgerUnavailable
from doubtless.ledger import group
from doubtless.ledger.group import IN_DOUBT, NOTHING
from doubtless.ledger.store import open_ledger


@pytest.fixture
def cutter(own, tmp_path):
    """A way to the own server that can be cut."""
    found = Cutter(tmp_path, own.socket)
    yield found
    found.close()


def through(cutter: Cutter, url: str) -> str:
    """Return the address of a ledger by way of the cutter."""
    base, _, query = url.partition("?")
    schema = query.rpartition("schema=")[2]
    return f"{base}?host={cutter.folder}&schema={schema}"


def begin_and_cut(cutter: Cutter, how: str, name: str):
    """Return a unit that begins an operation, and has the connection cut at its commit."""

    def work(tx) -> str:
        cutter.at_commit = how
        return samples.begin(tx, samples.operation(name)).id

    return work


@pytest.mark.proves("PG-8")
@pytest.mark.parametrize("how", ["lose", "deafen"])
def test_a_connection_lost_during_commit_is_settled_before_anybody_is_answered(own, cutter, how):
    url = own.empty()
    answers: dict[str, object] = {}
    done = threading.Semaphore(0)

    def answer(name: str, value: object, error: BaseException | None) -> None:
        answers[name] = error or value
        done.release()

    with open_ledger(through(cutter, url)) as ledger:
        begin(ledger, "before")
        with samples.held(ledger):
            for name in ("a", "b"):
                ledger.submit(begin_and_cut(cutter, how, name), partial(answer, name))
        assert done.acquire(timeout=20)
        assert done.acquire(timeout=20)
        begin(ledger, "after")
    assert cutter.cut.is_set()
    for name in ("a", "b"):
        if how == "deafen":
            assert answers[name] == name
        else:
            assert isinstance(answers[name], LedgerUnavailable)
            assert NOTHING in str(answers[name])
        assert holds(url, name) is (how == "deafen")


@contextmanager
def a_standby_that_never_answers(server: Postgres):
    """Let every commit wait for a standby that isn't there; yield what ends that."""

    def set_to(name: str) -> None:
        with server.connect() as connection:
            # By itself it would wait as well.
            connection.execute("set synchronous_commit = local")
            connection.execute(f"alter system set synchronous_standby_names = '{name}'")
            connection.execute("select pg_reload_conf()")

    set_to("ghost")
    try:
        yield lambda: set_to("")
    finally:
        set_to("")


WAITS = "wait_event = 'SyncRep'"


@pytest.mark.proves("PG-8")
def test_a_commit_that_goes_on_after_its_connection_was_lost_is_waited_for(own, cutter):
    url = own.empty()
    with (
        open_ledger(through(cutter, url)) as ledger,
        own.connect() as watching,
        a_standby_that_never_answers(own) as relieve,
    ):
        work = begin_and_cut(cutter, "cut", "op")
        with in_background(lambda: ledger.write(work)) as found:
            wait_until(watching, WAITS)
            # The old connection waits for the standby; whoever asks about it waits for the turn.
            wait_until(watching, "wait_event_type = 'Lock'")
            assert found == []
            relieve()
        assert found == ["op"]
    assert holds(url, "op")


@pytest.mark.proves("PG-8")
def test_a_wait_for_a_standby_that_was_broken_off_is_no_commit_until_a_later_one_is(own):
    url = own.empty()
    cancel = WAITING.replace("count(*)", "pg_cancel_backend(pid)").format(WAITS)
    with (
        open_ledger(url) as ledger,
        own.connect() as watching,
        a_standby_that_never_answers(own) as relieve,
    ):
        with in_background(lambda: begin(ledger, "op").id) as found:
            wait_until(watching, WAITS)
            assert len(watching.execute(cancel).fetchall()) == 1
            # It stands on this server alone: another commit has to reach the standby after it.
            wait_until(watching, f"{WAITS} and query = 'commit'")
            assert found == []
            relieve()
        assert found == ["op"]
    assert holds(url, "op")


@pytest.mark.proves("PG-8")
def test_a_commit_of_which_nobody_can_tell_is_told_as_unknown(own, cutter, monkeypatch):
    monkeypatch.setattr(group, "SETTLE_S", 0.2)
    url = own.empty()
    with open_ledger(through(cutter, url)) as ledger:
        begin(ledger, "before")

        def crash(tx) -> None:
            begin_and_cut(cutter, "cut", "op")(tx)
            stopping.start()

        def stop() -> None:
            assert cutter.cut.wait(20)
            own.crash()

        stopping = threading.Thread(target=stop)
        real = group.Group._reopen  # noqa: SLF001 - nobody asks before the server is gone

        def reopen(self) -> bool:
            stopping.join()
            return real(self)

        monkeypatch.setattr(group.Group, "_reopen", reopen)
        with pytest.raises(LedgerUnavailable, match=IN_DOUBT):
            ledger.write(crash)
        monkeypatch.undo()
        own.restart()
        begin(ledger, "after")
