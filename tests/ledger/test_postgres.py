"""What only a server can do to a ledger: lose connections, roll back, stall, answer half."""

import threading
import time

import pytest
from tests.ledger import samples
from tests.ledger.servers import begin, holds, in_background, wait_until, wait_until_gone

from doubtless.errors import LedgerError, LedgerUnavailable, LedgerUnsafe
from doubtless.ledger import operations, postgres
from doubtless.ledger.codec import Value
from doubtless.ledger.group import NOTHING
from doubtless.ledger.postgres_text import SETTINGS
from doubtless.ledger.store import Transaction, open_ledger

FLOOR = "update meta set clock_floor_ms = clock_floor_ms + 3600000 where tenant = 'main'"


@pytest.fixture
def database() -> str:
    return "postgres"


# --- who may open it -----------------------------------------------------------------------------


@pytest.mark.proves("PG-2")
def test_a_session_that_would_not_wait_for_its_commits_is_refused(url):
    with pytest.raises(LedgerUnsafe, match="synchronous_commit is off"):
        open_ledger(f"{url}&options=-csynchronous_commit%3Doff")


@pytest.mark.proves("PG-2")
@pytest.mark.parametrize("setting", ["local", "remote_write", "on", "remote_apply"])
def test_a_session_waits_for_its_commits_at_least_until_they_are_on_disk(url, setting):
    with open_ledger(f"{url}&options=-csynchronous_commit%3D{setting}") as ledger:
        for run in (ledger.write, ledger.read):
            found = run(lambda tx: tx.tuples("select current_setting('synchronous_commit')"))
            assert found == [("remote_apply" if setting == "remote_apply" else "on",)]


@pytest.mark.proves("PG-2")
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_what_it_wrote_is_refused(own, setting):
    url = own.empty()

    def set_to(value: str) -> None:
        with own.connect() as connection:
            connection.execute(f"alter system set {setting} = {value}")
            connection.execute("select pg_reload_conf()")
        deadline = time.monotonic() + 10
        found = None
        while found != value:
            assert time.monotonic() < deadline
            with own.connect() as connection:
                found = connection.execute(f"show {setting}").fetchone()[0]

    set_to("off")
    try:
        with pytest.raises(LedgerUnsafe, match=f"{setting} is off"):
            open_ledger(url)
    finally:
        set_to("on")


@pytest.mark.proves("PG-3")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@127.0.0.1:1/ledger",
        "postgresql://127.0.0.1:1/ledger?user=app&password=hunter2",
        "postgresql://app:hunter2@127.0.0.1:1/ledger?unheard_of=1",
        "postgresql://app:hunter2@127.0.0.1:1/ledger?schema=No%20Name",
        "mysql://app:hunter2@127.0.0.1/ledger",
    ],
)
def test_no_error_holds_a_password(url):
    with pytest.raises(LedgerError) as caught:
        open_ledger(url)
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "hunter2" not in f"{seen} {seen!r} {seen.args}"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def test_a_schema_with_other_tables_is_refused_and_left_as_it_was(absent, postgres):
    schema = absent.rpartition("schema=")[2]
    with postgres.connect() as connection:
        connection.execute(f"create schema {schema}")
        connection.execute(f"create table {schema}.operation (theirs text)")
        with pytest.raises(LedgerError, match="not a ledger"):
            open_ledger(absent)
        tables = "select count(*) from information_schema.tables where table_schema = %s"
        assert connection.execute(tables, (schema,)).fetchone() == (1,)


# --- its clock -----------------------------------------------------------------------------------


@pytest.mark.proves("PG-4")
def test_the_clock_is_the_servers_whatever_a_client_believes(url, postgres):
    asked = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint"
    with (
        open_ledger(url, clock=lambda: 5) as ledger,
        postgres.connect() as connection,
    ):
        for run in (ledger.write, ledger.read):
            before = connection.execute(asked).fetchone()[0]
            now_ms, wall_ms = run(lambda tx: (tx.now_ms, tx.wall_ms))
            after = connection.execute(asked).fetchone()[0]
            assert before <= wall_ms <= now_ms <= after


@pytest.mark.proves("PG-4")
def test_the_clock_never_goes_back_even_when_the_servers_does(url, postgres):
    with open_ledger(url) as ledger, postgres.connect() as connection:
        before = ledger.write(lambda tx: tx.now_ms)
        connection.execute(FLOOR)  # as after an hour that the server's clock then lost
        times = [run(lambda tx: (tx.now_ms, tx.wall_ms)) for run in (ledger.write, ledger.read)]
    for now_ms, wall_ms in times:
        assert now_ms == before + 3_600_000
        assert wall_ms < now_ms - 3_500_000


# --- others at the same rows ---------------------------------------------------------------------


@pytest.mark.proves("PG-5")
def test_a_group_that_meets_a_deadlock_is_run_again_unit_by_unit(url, postgres):
    runs: list[str] = []
    answers: list[object] = []
    done = threading.Semaphore(0)
    url = f"{url}&options=-cdeadlock_timeout%3D20ms"  # so that it is ours which is given up
    with (
        open_ledger(url) as ledger,
        postgres.connect() as theirs,
        postgres.connect() as watching,
    ):
        made = begin(ledger, "op")
        theirs.execute("set deadlock_timeout = '30s'")
        theirs.execute("begin")
        theirs.execute("select 1 from operation where id = 'op' for update")

        def lock_meta() -> None:
            theirs.execute("select 1 from meta for update")
            theirs.execute("commit")

        def first(tx) -> str:
            runs.append("first")
            return "first"

        def second(tx) -> str:
            runs.append("second")
            if runs.count("second") == 1:
                blocked.start()
                wait_until(watching, "wait_event_type = 'Lock' and query like '%from meta for%'")
            found = operations.get(tx, "main", "op")
            assert found is not None
            samples.save(tx, found, looks=made.looks + 1)
            return "second"

        def take(value, error) -> None:
            answers.append(error or value)
            done.release()

        blocked = threading.Thread(target=lock_meta)
        with samples.held(ledger):
            ledger.submit(first, take)
            ledger.submit(second, take)
        for _ in range(2):
            assert done.acquire(timeout=20)
        blocked.join()
        assert answers == ["first", "second"]
        assert runs == ["first", "second", "first", "second"]
        found = ledger.read(lambda tx: operations.get(tx, "main", "op"))
    assert found is not None
    assert found.looks == made.looks + 1


@pytest.mark.proves("PG-6")
def test_a_process_that_is_stopped_in_its_turn_loses_it_and_records_nothing(url, monkeypatch):
    impatient = SETTINGS.replace("'5s'", "'100ms'")
    assert impatient != SETTINGS
    with monkeypatch.context() as patched:
        patched.setattr("doubtless.ledger.postgres_text.SETTINGS", impatient)
        stalled = open_ledger(url)
    written = threading.Event()
    entered = threading.Event()

    def stall(tx) -> None:
        samples.insert(tx, samples.operation("stalled"))
        entered.set()
        assert written.wait(20)

    with stalled, open_ledger(url) as other, in_background(lambda: stalled.write(stall)) as found:
        assert entered.wait(20)
        begin(other, "other")  # waits for the turn, and gets it
        written.set()
    assert isinstance(found[0], LedgerUnavailable)
    assert NOTHING in str(found[0])
    assert holds(url, "other")
    assert not holds(url, "stalled")


def test_a_turn_that_does_not_come_is_told(url, postgres):
    with open_ledger(url) as ledger, postgres.connect() as theirs:
        ledger.write(lambda tx: tx.run("set lock_timeout = '50ms'"))
        theirs.execute("begin")
        theirs.execute("select 1 from meta for update")
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=r"locked by another process.*nothing"):
                begin(ledger, "op")
        theirs.execute("rollback")
        begin(ledger, "op")


def test_a_unit_that_swallows_the_failure_of_a_statement_is_not_kept(ledger):
    def swallow(tx) -> str:
        samples.insert(tx, samples.operation("op"))
        try:
            samples.insert(tx, samples.operation("op"))
        except LedgerError:
            return "all is well"
        return "no"

    with pytest.raises(LedgerError, match="failed"):
        ledger.write(swallow)
    begin(ledger, "op")


# --- connections that are lost -------------------------------------------------------------------

TERMINATE = """
    select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'doubtless'
"""


@pytest.mark.proves("PG-7")
def test_connections_that_were_lost_while_idle_are_replaced_without_a_word(own):
    with open_ledger(own.empty()) as ledger:
        begin(ledger, "first")
        ledger.read(lambda tx: None)
        with own.connect() as connection:
            assert len(connection.execute(TERMINATE).fetchall()) >= 2
            wait_until_gone(connection)
        assert ledger.read(lambda tx: operations.get(tx, "main", "first")) is not None
        begin(ledger, "second")


@pytest.mark.proves("PG-7")
def test_a_connection_that_is_lost_before_its_commit_has_recorded_nothing(own):
    url = own.empty()

    def work(tx) -> None:
        samples.insert(tx, samples.operation("op"))
        with own.connect() as connection:
            connection.execute(TERMINATE)
            wait_until_gone(connection)

    with open_ledger(url) as ledger:
        with pytest.raises(LedgerUnavailable, match=NOTHING):
            ledger.write(work)
        begin(ledger, "op")


@pytest.mark.proves("PG-7")
def test_a_server_that_crashes_and_comes_back_has_all_that_was_acknowledged(own):
    url = own.empty()
    with open_ledger(url) as ledger:
        begin(ledger, "before")
        own.crash()
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=r"connection|opened|written"):
                begin(ledger, "meanwhile")
            with pytest.raises(LedgerUnavailable):
                ledger.read(lambda tx: None)
        own.restart()
        begin(ledger, "after")
        assert ledger.read(lambda tx: operations.get(tx, "main", "before")) is not None
    assert not holds(url, "meanwhile")


ONE: tuple[str, dict[str, Value]] = ("select cast(cast(:n as bigint) as text) || 'a'", {"n": 1})
TWO: tuple[str, dict[str, Value]] = ("select 2 where cast(:n as bigint) = 0", {"n": 1})
THREE: tuple[str, dict[str, Value]] = ("select 3 / cast(:n as bigint)", {"n": 1})


def test_selects_that_are_asked_together_are_each_answered_as_alone(memory, monkeypatch):
    monkeypatch.setattr(postgres, "STATEMENTS_MAX", 16)
    expected = [[("1a",)], [], [(3,)]]
    assert memory.read(lambda tx: tx.together(ONE, TWO, THREE)) == expected

    def crowded(tx: Transaction) -> None:
        for number in range(40):  # statements are forgotten again and again
            tx.tuples(f"select {number}")
            assert tx.together(ONE, TWO, THREE) == expected

    memory.write(crowded)


def test_a_unit_is_taken_back_if_one_of_the_selects_that_it_asked_together_fails(memory):
    def failing(tx: Transaction) -> None:
        samples.begin(tx, samples.operation("op"))
        with pytest.raises(ValueError, match="division by zero"):
            tx.together(ONE, ("select 3 / cast(:n as bigint)", {"n": 0}), TWO)

    with pytest.raises(LedgerError):
        memory.write(failing)
    assert memory.read(lambda tx: operations.get(tx, "main", "op")) is None
    memory.write(lambda tx: samples.begin(tx, samples.operation("op")))
