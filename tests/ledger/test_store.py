"""Opening, group commit, and who is answered when."""

import asyncio
import stat
import threading
from itertools import pairwise

import anyio
import pytest
from tests.ledger import samples

from doubtless.errors import LedgerError, LedgerUnavailable, LedgerUnsafe
from doubtless.ledger import operations, sqlite
from doubtless.ledger.store import BATCH_UNITS_MAX, READERS_MAX, open_ledger

COUNT = "select count(*) from contract where tenant = 'main'"
ADD = "insert into contract (tenant, digest, content, at_ms) values ('main', :digest, '{}', 0)"


def add(name: str):
    return lambda tx: tx.run(ADD, digest=name)


def counted(tx):
    return tx.tuples(COUNT)[0][0]


@pytest.mark.parametrize(
    "url",
    [
        "ledger.db",
        "mysql://here",
        "sqlite://server/ledger.db",
        "sqlite:///ledger.db#part",
        "sqlite:///ledger.db?mode=ro",
        "sqlite:///file:ledger.db",
        "sqlite://///server/share/ledger.db",
        "sqlite:///nowhere/ledger.db",
        "sqlite:///a%00b",
        "postgresql://host:port:5432/ledger",
        "postgresql://host/ledger?unheard_of=1",
        "postgresql://host/ledger?schema=Not%20One",
    ],
)
def test_an_address_that_is_none_is_refused_with_the_reason(url):
    with pytest.raises(LedgerError, match="ledger"):
        open_ledger(url)


def test_a_relative_address_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_ledger("sqlite:///relative.db").close()
    assert (tmp_path / "relative.db").stat().st_size > 0


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "_file_system", lambda folder: "nfs4")
    with pytest.raises(LedgerUnsafe, match="nfs4"):
        open_ledger(f"sqlite:///{tmp_path}/ledger.db")


def test_a_path_with_signs_that_mean_something_in_addresses_works(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path}/a%20b%3Fc%25d.db") as ledger:
        ledger.write(add("one"))
    assert (tmp_path / "a b?c%d.db").exists()


@samples.ON_SQLITE
def test_a_new_ledger_belongs_to_its_owner_alone(ledger, path):
    ledger.write(add("one"))
    for name in (path, path.with_name("ledger.db-wal"), path.with_name("ledger.db-shm")):
        assert stat.S_IMODE(name.stat().st_mode) == 0o600


@samples.ON_SQLITE
def test_every_connection_is_in_wal_mode_with_full_synchronisation(ledger, url):
    with open_ledger(url, inline=True) as inline:
        for run in (ledger.read, ledger.write, inline.read):
            assert run(lambda tx: tx.tuples("pragma journal_mode")) == [("wal",)]
            assert run(lambda tx: tx.tuples("pragma synchronous")) == [(2,)]
            assert run(lambda tx: tx.tuples("pragma foreign_keys")) == [(1,)]


def test_a_database_that_does_not_take_the_wal_is_unsafe(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite.Connection, "_turn_on_wal", lambda self: "delete")
    with pytest.raises(LedgerUnsafe, match="delete"):
        open_ledger(f"sqlite:///{tmp_path}/ledger.db")


def test_the_id_of_a_ledger_is_16_given_bytes_and_stays(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    asked = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return bytes(range(size))

    with open_ledger(url, entropy=entropy) as ledger:
        assert ledger.id == bytes(range(16))
    with open_ledger(url) as ledger:
        assert ledger.id == bytes(range(16))
    assert asked == [16]


def test_what_a_unit_returns_is_answered_and_what_it_raises_is_raised(ledger):
    assert ledger.write(lambda tx: "value") == "value"
    with pytest.raises(KeyError, match="mine"):
        ledger.write(lambda tx: dict[str, int]()["mine"])


def test_a_unit_that_fails_is_taken_back_alone(ledger):
    answers: dict[str, tuple[object, BaseException | None]] = {}

    def failing(tx) -> None:
        add("failing")(tx)
        raise RuntimeError("changed my mind")

    with samples.held(ledger):
        for name, work in (("a", add("a")), ("failing", failing), ("b", add("b"))):
            ledger.submit(
                work,
                lambda value, error, name=name: answers.__setitem__(name, (value, error)),
            )
    assert ledger.write(counted) == 2
    assert answers["a"] == (1, None)
    assert answers["b"] == (1, None)
    assert isinstance(answers["failing"][1], RuntimeError)


def test_a_constraint_that_says_no_fails_one_unit_with_a_ledger_error(ledger):
    ledger.write(add("one"))
    with pytest.raises(LedgerError, match="refused") as caught:
        ledger.write(add("one"))
    assert not isinstance(caught.value, LedgerUnavailable)
    ledger.write(add("two"))
    assert ledger.read(counted) == 2


def test_concurrent_units_are_committed_together_within_bounds(ledger):
    before = ledger.stats.batches
    done = threading.Semaphore(0)
    with samples.held(ledger):
        for number in range(BATCH_UNITS_MAX + 10):
            ledger.submit(add(str(number)), lambda value, error: done.release())
    for _ in range(BATCH_UNITS_MAX + 10):
        assert done.acquire(timeout=10)
    assert ledger.stats.batches - before < 20
    assert max(ledger.stats.sizes) <= BATCH_UNITS_MAX
    assert sum(size * count for size, count in ledger.stats.sizes.items()) == ledger.stats.units


async def test_one_batch_is_handed_to_an_event_loop_in_one_call(ledger, monkeypatch):
    loop = asyncio.get_running_loop()
    calls = []
    original = loop.call_soon_threadsafe

    def call(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", call)
    with samples.held(ledger):
        waiting = [asyncio.create_task(ledger.commit(add(str(n)))) for n in range(5)]
        await anyio.wait_all_tasks_blocked()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert len(calls) == 1


async def test_what_a_unit_raises_reaches_the_coroutine_that_waits(ledger):
    with pytest.raises(ZeroDivisionError):
        await ledger.commit(lambda tx: 1 // 0)
    assert await ledger.commit(add("one")) == 1


async def test_a_cancelled_scope_takes_effect_after_the_commit(ledger):
    answers = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        answers.append(await ledger.commit(add("one")))
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert answers == [1]
    assert ledger.read(counted) == 1


async def test_a_cancelled_task_leaves_and_its_unit_is_committed_as_a_whole(ledger):
    def work(tx) -> None:
        add("one")(tx)
        add("two")(tx)

    with samples.held(ledger):
        task = asyncio.create_task(ledger.commit(work))
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await ledger.commit(counted) == 2


def test_a_reader_sees_all_that_was_acknowledged(ledger):
    for number in range(50):
        ledger.write(add(str(number)))
        assert ledger.read(counted) == number + 1


def test_a_reader_sees_one_moment_throughout(ledger):
    def work(tx) -> tuple[int, int]:
        first = counted(tx)
        ledger.write(add("meanwhile"))
        return first, counted(tx)

    assert ledger.read(work) == (0, 0)
    assert ledger.read(counted) == 1


@samples.ON_SQLITE
def test_a_lock_that_another_connection_keeps_is_waited_for_and_then_told(ledger, url, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    other = sqlite.Connection(sqlite.parse(url))
    other.begin(write=True)
    for _ in range(2):
        with pytest.raises(LedgerUnavailable, match=r"locked by another process.*nothing"):
            ledger.write(add("waiting"))
    assert ledger.read(counted) == 0
    other.rollback()
    ledger.write(add("one"))
    assert ledger.read(counted) == 1
    other.close()


def test_a_unit_that_waits_for_another_one_is_told_instead_of_hanging(ledger):
    with pytest.raises(LedgerError, match="wait"):
        ledger.write(lambda tx: ledger.write(counted))
    assert ledger.write(counted) == 0


@samples.ON_SQLITE
def test_a_clock_that_fails_refuses_units_and_stops_nothing(url):
    times: list[int] = [1]
    with open_ledger(url, clock=lambda: times[0]) as ledger:
        times.clear()
        with pytest.raises(LedgerUnavailable, match="nothing of this was recorded"):
            ledger.write(add("one"))
        times.append(2)
        assert ledger.write(add("one")) == 1


@samples.ON_SQLITE
def test_an_interrupted_inline_unit_leaves_nothing_behind(url):
    def interrupt() -> int:
        raise KeyboardInterrupt

    clock = [lambda: 1]

    def tick() -> int:
        return clock[0]()

    with open_ledger(url, clock=tick, inline=True) as ledger:
        clock[0] = interrupt
        with pytest.raises(KeyboardInterrupt):
            ledger.write(add("one"))
        clock[0] = lambda: 2
        assert ledger.write(add("one")) == 1


def test_many_readers_at_once_leave_few_connections_behind(ledger):
    barrier = threading.Barrier(READERS_MAX + 4)
    found = []

    def read() -> None:
        found.append(ledger.read(lambda tx: (barrier.wait(10), counted(tx))[1]))

    threads = [threading.Thread(target=read) for _ in range(READERS_MAX + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * (READERS_MAX + 4)
    assert len(ledger._readers) <= READERS_MAX  # noqa: SLF001


@pytest.mark.parametrize("inline", [False, True])
def test_a_ledger_in_memory_answers_reads_and_writes(inline):
    with open_ledger("sqlite:///:memory:", inline=inline) as ledger:
        ledger.write(add("one"))
        assert ledger.read(counted) == 1


def test_an_inline_ledger_runs_units_at_once_in_the_calling_thread(url):
    before = threading.active_count()
    with open_ledger(url, inline=True) as ledger:
        seen = []
        ledger.submit(lambda tx: threading.get_ident(), lambda value, error: seen.append(value))
        assert seen == [threading.get_ident()]
        assert asyncio.run(ledger.commit(add("one"))) == 1
        assert threading.active_count() == before


def test_closing_finishes_what_was_submitted_and_then_refuses(url):
    ledger = open_ledger(url)
    answers = []
    with samples.held(ledger):
        for number in range(BATCH_UNITS_MAX * 2):
            ledger.submit(add(str(number)), lambda value, error: answers.append(error))
        closing = threading.Thread(target=ledger.close)
        closing.start()
    closing.join()
    ledger.close()
    assert answers == [None] * (BATCH_UNITS_MAX * 2)
    with pytest.raises(LedgerUnavailable, match="closed"):
        ledger.write(counted)
    with pytest.raises(LedgerUnavailable, match="closed"):
        ledger.read(counted)
    with open_ledger(url) as again:
        assert again.read(counted) == BATCH_UNITS_MAX * 2


def test_an_answer_that_its_caller_cannot_take_stops_nobody_else(ledger, caplog):
    def refuse(value, error) -> None:
        raise RuntimeError("not now")

    ledger.submit(add("one"), refuse)
    ledger.write(add("two"))
    assert "could not take its answer" in caplog.text


def test_rows_come_by_column_name(ledger):
    ledger.write(add("one"))
    row = "select digest, at_ms from contract where tenant = 'main' and digest = :digest"
    assert ledger.read(lambda tx: tx.row(row, digest="one")) == {"digest": "one", "at_ms": 0}
    assert ledger.read(lambda tx: tx.row(row, digest="two")) is None
    assert ledger.read(lambda tx: tx.rows(row, digest="one")) == [{"digest": "one", "at_ms": 0}]


@samples.ON_SQLITE
def test_the_clock_never_goes_back_even_when_the_wall_clock_does(url):
    wall = iter([5_000, 5_000, 9_000, 2_000, 2_000, 3_000, 10_000])
    with open_ledger(url, clock=lambda: next(wall), inline=True) as ledger:
        times = [ledger.write(lambda tx: (tx.now_ms, tx.wall_ms)) for _ in range(3)]
        assert times == [(5_000, 5_000), (9_000, 9_000), (9_000, 2_000)]
    with open_ledger(url, clock=lambda: next(wall), inline=True) as ledger:
        assert ledger.read(lambda tx: (tx.now_ms, tx.wall_ms)) == (9_000, 3_000)
        assert ledger.write(lambda tx: tx.now_ms) == 10_000


def test_a_due_time_or_a_lease_never_moves_the_clock(url):
    with open_ledger(url, inline=True) as ledger:
        late = 2**52
        made = samples.operation("op", due_ms=late, valid_until_ms=late)
        ledger.write(lambda tx: samples.begin(tx, made))
        assert ledger.write(lambda tx: tx.now_ms - tx.wall_ms) == 0


def test_times_only_grow_over_concurrent_writers(ledger):
    times = []

    def write() -> None:
        for _ in range(20):
            ledger.write(lambda tx: times.append(tx.now_ms))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(earlier <= later for earlier, later in pairwise(times))


@pytest.mark.parametrize(
    ("value", "error"),
    [(2**63, ValueError), ("\ud800", ValueError), (object(), TypeError)],
)
def test_a_value_that_the_database_cannot_hold_is_refused_and_nothing_is_recorded(
    ledger, value, error
):
    with pytest.raises(error):
        ledger.write(lambda tx: (add("one")(tx), tx.run(ADD, digest=value)))
    assert ledger.read(counted) == 0


@pytest.mark.parametrize("number", [2**53, -(2**53), float("nan"), float("inf")])
def test_a_number_that_json_does_not_carry_exactly_is_refused_wherever_it_hides(memory, number):
    made = samples.operation("op")
    for change in ({"valid_until_ms": number}, {"looks": number}):
        with pytest.raises((ValueError, LedgerError), match=r"JSON|INTEGER|NULL|bigint"):
            memory.write(
                lambda tx, change=change: samples.begin(tx, samples.operation("op", **change))
            )
    with pytest.raises(ValueError, match="JSON"):
        memory.write(
            lambda tx: operations.insert(
                tx,
                made,
                bodies={},
                contract_json="{}",
                principal=samples.AGENT,
                inputs={"deep": [{"er": (number,)}]},
            )
        )
    assert memory.read(lambda tx: operations.get(tx, "main", "op")) is None
