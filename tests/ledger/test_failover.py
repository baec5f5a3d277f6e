"""A primary that dies under load, and a standby that takes its place."""

import threading
import time
import uuid
from functools import partial
from pathlib import Path

import pytest
from tests.ledger.servers import POLL_S, begin, in_background, wait_until
from tests.postgres import Postgres, Standby, folder_of_run

from doubtless.errors import LedgerUnavailable
from doubtless.ledger import operations
from doubtless.ledger.group import IN_DOUBT, NOTHING
from doubtless.ledger.store import Ledger, open_ledger

CALLERS = 6
AHEAD = 40  # operations that are acknowledged before the primary dies, and after


@pytest.fixture
def primary():
    server = Postgres(folder_of_run(uuid.uuid4().hex[:12]), "main")
    yield server
    server.stop()


@pytest.fixture
def standby(primary):
    folder = folder_of_run(uuid.uuid4().hex[:12])
    with primary.standby(folder) as found:
        with primary.connect() as connection:
            wait_until_synchronous(connection)
        yield found


@pytest.mark.proves("PG-2")
def test_standbys_that_no_commit_waits_for_are_warned_of(primary, standby, caplog):
    open_ledger(of_both(primary, standby)).close()
    assert caplog.text == ""
    with primary.connect() as connection:
        connection.execute("alter system set synchronous_standby_names = ''")
        connection.execute("select pg_reload_conf()")
        deadline = time.monotonic() + 10
        while connection.execute("show synchronous_standby_names").fetchone() != ("",):
            assert time.monotonic() < deadline
            time.sleep(POLL_S)
    open_ledger(of_both(primary, standby)).close()
    assert "commits don't wait for any of them" in caplog.text


def wait_until_synchronous(connection) -> None:
    asked = "select count(*) from pg_stat_replication where sync_state = 'sync'"
    deadline = time.monotonic() + 10
    while connection.execute(asked).fetchone() != (1,):
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


def of_both(primary: Postgres, standby: Standby) -> str:
    """Return the address of the ledger on whichever of them is the primary."""
    first = Path(primary.socket).parent
    return f"postgresql://postgres@/postgres?host={first},{standby.folder}&schema=t_main"


class Caller(threading.Thread):
    """Begins operations one after another, and keeps what it was told of each."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__()
        self._ledger, self._called = ledger, name
        self.ends = threading.Event()
        self.told: dict[str, str] = {}

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            name = f"{self._called}-{number}"
            number += 1
            try:
                begin(self._ledger, name)
            except LedgerUnavailable as error:
                self.told[name] = str(error)
                self.ends.wait(0.01)
            else:
                self.told[name] = "recorded"

    def recorded(self) -> int:
        return list(self.told.values()).count("recorded")


def wait_for(callers: list[Caller], count: int) -> None:
    deadline = time.monotonic() + 30
    while sum(caller.recorded() for caller in callers) < count:
        assert time.monotonic() < deadline, [caller.told for caller in callers]
        time.sleep(POLL_S)


@pytest.mark.proves("PG-13")
def test_a_primary_that_dies_under_load_loses_nothing_that_was_acknowledged(primary, standby):
    with open_ledger(of_both(primary, standby)) as ledger:
        callers = [Caller(ledger, f"caller-{number}") for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        wait_for(callers, AHEAD)
        primary.crash()
        standby.promote()
        so_far = sum(caller.recorded() for caller in callers)
        wait_for(callers, so_far + AHEAD)
        for caller in callers:
            caller.ends.set()
        for caller in callers:
            caller.join()
        found = {
            str(name) for (name,) in ledger.read(lambda tx: tx.tuples("select id from operation"))
        }
    told = {name: said for caller in callers for name, said in caller.told.items()}
    for name, said in told.items():
        if said == "recorded":
            assert name in found
        elif NOTHING in said:
            assert name not in found
        else:
            assert IN_DOUBT in said, said
    assert found <= set(told)


@pytest.mark.proves("PG-8", "PG-13")
def test_a_commit_that_its_primary_took_with_it_is_told_as_not_recorded(primary, standby):
    with open_ledger(of_both(primary, standby)) as ledger:
        begin(ledger, "kept")
        standby.ctl("stop", "-m", "fast")
        with primary.connect() as watching, in_background(lambda: begin(ledger, "lost")) as found:
            wait_until(watching, "wait_event = 'SyncRep'")
            primary.crash()
            standby.start()
            standby.promote()
            # The new primary gives the ids of transactions that it never saw to others: asked about
            # that of the lost commit, it would say that it was committed.
            for number in range(20):
                begin(ledger, f"later-{number}")
        assert isinstance(found[0], LedgerUnavailable)
        assert NOTHING in str(found[0])
        for name, is_there in (("kept", True), ("lost", False), ("later-0", True)):
            held = ledger.read(partial(operations.get, tenant="main", operation_id=name))
            assert (held is not None) is is_there
