"""A primary that dies under load, and a standby that takes its place."""

import threading
import time
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
from tests.ledger.servers import POLL_S, WAITING, begin, in_background, wait_until

from doubtless import Call, Doubtless
from doubtless.errors import ForeignConnection, LedgerUnavailable
from doubtless.ledger import operations
from doubtless.ledger.group import IN_DOUBT, NOTHING
from doubtless.ledger.store import Ledger, open_ledger
from doubtless.testing.postgres_server import Server, address_of, scratch

CALLERS = 6
AHEAD = 40  # operations that are acknowledged before the primary dies, and after


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby for which every commit waits."""
    with (
        scratch() as folder,
        Server(folder / "a") as primary,
        Server(folder / "b") as standby,
    ):
        primary.create()
        standby.follow(primary)
        primary.set("synchronous_standby_names", "*")
        wait_until_synchronous(primary)
        yield primary, standby


@pytest.mark.proves("PG-2", "OUTBOX-10")
def test_standbys_share_no_transaction_and_if_no_commit_waits_for_them_are_warned_of(pair, caplog):
    open_ledger(address_of(*pair)).close()
    assert caplog.text == ""
    with Doubtless.sync(address_of(*pair), worker=False) as app:

        @app.tool(effect="write")
        def ship(call: Call) -> None:
            """Ship it."""

        with (
            psycopg.connect(pair[1].address()) as connection,
            pytest.raises(ForeignConnection, match="to a standby, which takes no writes"),
        ):
            app.prepare("ship", {}, connection=connection)
    pair[0].set("synchronous_standby_names", "")
    open_ledger(address_of(*pair)).close()
    assert "commits don't wait for any of them" in caplog.text


def wait_until_synchronous(primary: Server) -> None:
    asked = "select count(*) from pg_stat_replication where sync_state = 'sync'"
    deadline = time.monotonic() + 10
    with primary.connect() as connection:
        while connection.execute(asked).fetchone() != (1,):
            assert time.monotonic() < deadline
            time.sleep(POLL_S)


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
def test_a_primary_that_dies_under_load_loses_nothing_that_was_acknowledged(pair):
    primary, standby = pair
    with open_ledger(address_of(primary, standby)) as ledger:
        callers = [Caller(ledger, f"caller-{number}") for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        wait_for(callers, AHEAD)
        primary.kill()
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
def test_a_commit_that_its_primary_took_with_it_is_told_as_not_recorded(pair):
    primary, standby = pair
    with open_ledger(address_of(primary, standby)) as ledger:
        begin(ledger, "kept")
        standby.stop()
        with primary.connect() as watching, in_background(lambda: begin(ledger, "lost")) as found:
            wait_until(watching, "wait_event = 'SyncRep'")
            primary.kill()
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


CANCEL = WAITING.replace("count(*)", "pg_cancel_backend(pid)").format("wait_event = 'SyncRep'")


def cancel_the_waiting_commit(watching) -> None:
    wait_until(watching, "wait_event = 'SyncRep'")
    assert len(watching.execute(CANCEL).fetchall()) == 1


@pytest.mark.proves("PG-14")
def test_a_cancelled_commit_is_acknowledged_by_the_server_and_lost_with_it(pair):
    """The trap itself, without us: what the driver says is taken at its word."""
    primary, standby = pair

    def insert() -> str:
        with psycopg.connect(primary.address(), autocommit=True) as connection:
            return str(connection.execute("insert into effect values (1)").statusmessage)

    with primary.connect() as watching:
        watching.execute("create table effect (number int)")
        standby.stop()
        with in_background(insert) as found:
            cancel_the_waiting_commit(watching)
        assert found == ["INSERT 0 1"], "it was told as done"
        assert watching.execute("select number from effect").fetchall() == [(1,)]
    primary.kill()
    standby.start()
    standby.promote()
    with standby.connect() as connection:
        assert connection.execute("select number from effect").fetchall() == []


@pytest.mark.proves("PG-14")
def test_a_cancelled_commit_that_its_primary_takes_along_was_never_acknowledged_by_us(pair):
    primary, standby = pair
    with open_ledger(address_of(primary, standby)) as ledger:
        begin(ledger, "kept")
        standby.stop()
        with in_background(lambda: begin(ledger, "op")) as found:
            with primary.connect() as watching:
                cancel_the_waiting_commit(watching)
                wait_until(watching, "wait_event = 'SyncRep' and query = 'commit'")
                assert found == []
            primary.kill()
            standby.start()
            standby.promote()
        assert isinstance(found[0], LedgerUnavailable)
        assert NOTHING in str(found[0])
        for name, is_there in (("kept", True), ("op", False)):
            held = ledger.read(partial(operations.get, tenant="main", operation_id=name))
            assert (held is not None) is is_there
        begin(ledger, "op")  # as a repeat under the same id does
        assert ledger.read(partial(operations.get, tenant="main", operation_id="op")) is not None
