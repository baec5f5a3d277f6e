"""Workers of several processes on one server: each operation is taken once, and news wakes them."""

import logging
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from psycopg import Notify
from tests.engine import sharing
from tests.engine.functions import WITHIN_S, WRITE, comes_true

from doubtless import Call, Doubtless
from doubtless.engine import steps
from doubtless.engine.dispatcher import CONCURRENT_MAX
from doubtless.ledger.postgres_text import LISTENERS, channel

ROOT = Path(__file__).parents[2]
NEVER_S = 300.0  # longer than any test may take
LISTENING = """
    select pid
      from pg_locks
     where locktype = 'advisory' and classid = %s and granted
       and objid::bigint = hashtext(%s)::bigint & 4294967295
"""

UNSETTLED = "select count(*) from operation where open = 1"
ENDED = "select state, count(*) from operation group by state"


@pytest.fixture
def url(postgres) -> str:
    return str(postgres.empty())


@pytest.fixture
def no_polls(monkeypatch):
    """What is found within a test was not found by polling."""
    monkeypatch.setattr("doubtless.engine.dispatcher.POLL_S", NEVER_S)
    monkeypatch.setattr("doubtless.engine.deliveries.POLL_S", NEVER_S)
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MIN_S", NEVER_S)
    monkeypatch.setattr("doubtless.engine.waiting.POLL_MAX_S", NEVER_S)


def opened(url: str, **options) -> Doubtless:
    app = Doubtless(url, **options)

    @app.tool(**WRITE)
    async def act(call: Call, what: str) -> str:
        return what

    return app


async def prepare(app: Doubtless, count: int, first: int = 0) -> list[str]:
    names = [f"o{number}" for number in range(first, first + count)]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(partial(app.prepare, "act", {"what": name}, operation_id=name))
    return names


def listeners(postgres, url: str) -> list[int]:
    with postgres.connect() as connection:
        schema = url.rpartition("schema=")[2]
        return [row[0] for row in connection.execute(LISTENING, (LISTENERS, schema)).fetchall()]


async def all_listen(postgres, url: str, count: int) -> None:
    await comes_true(lambda: len(listeners(postgres, url)) == count)


async def all_settled(app: Doubtless) -> None:
    left: object = -1
    while left:
        await anyio.sleep(sharing.PAUSE_S)
        ((left,),) = app.ledger.read(lambda tx: tx.tuples(UNSETTLED))


# --- sharing -------------------------------------------------------------------------------------


@contextmanager
def worker(url: str, effects: Path, processes: int):
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.sharing", url, str(effects), str(processes)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
            child.communicate("\n", timeout=20)
        finally:
            child.kill()


@pytest.mark.proves("PG-20")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["postgres", pytest.param("sqlite", marks=pytest.mark.long)])
async def test_processes_share_what_is_due_and_each_operation_has_one_effect(
    request, tmp_path, kind
):
    count = CONCURRENT_MAX + 16  # more than one process carries out at once
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    url = request.getfixturevalue("url") if kind == "postgres" else ledger
    effects, processes = tmp_path / "effects", 2
    app = Doubtless(url, worker=False)
    sharing.declare(app, effects, processes)
    async with app:
        with ExitStack() as stack:
            children = [
                stack.enter_context(worker(url, effects, processes)) for _ in range(processes)
            ]
            for child in children:
                assert child.stdout.readline() == "ready\n"
            names = await prepare(app, count)
            with anyio.fail_after(90):
                await all_settled(app)
            (ended,) = app.ledger.read(lambda tx: tx.tuples(ENDED))
            assert ended == ("succeeded", count)
    whose = [line.split() for line in sharing.lines(effects)]
    assert sorted(what for _, what in whose) == sorted(names)
    assert len({process for process, _ in whose}) == processes


@pytest.mark.proves("PG-20")
async def test_no_worker_tries_what_another_one_has_taken(url, monkeypatch):
    tried: Counter[str] = Counter()
    advance = steps.advance

    def counted(book, tx, operation_id):
        tried[operation_id] += 1
        return advance(book, tx, operation_id)

    monkeypatch.setattr("doubtless.engine.steps.advance", counted)
    async with opened(url, worker=False) as app:
        names = await prepare(app, 60)
        async with opened(url), opened(url), opened(url):
            for name in names:
                assert (await app.wait(name, timeout=WITHIN_S)).status == "succeeded"
    assert tried == dict.fromkeys(names, 1)


@pytest.mark.proves("PG-20")
async def test_what_somebody_else_has_locked_keeps_no_worker_from_the_rest(url, postgres):
    async with opened(url, worker=False) as app:
        held, free = await prepare(app, 2)
        with postgres.connect() as theirs:
            theirs.execute("begin")
            theirs.execute("select 1 from operation where id = %s for update", (held,))
            async with opened(url):
                assert (await app.wait(free, timeout=WITHIN_S)).status == "succeeded"
                assert (await app.outcome(held)).state == "prepared"
                theirs.execute("rollback")
                assert (await app.wait(held, timeout=WITHIN_S)).status == "succeeded"


@pytest.mark.proves("PG-20")
async def test_one_operation_that_fails_keeps_its_batch_from_nothing(url, monkeypatch, caplog):
    advance = steps.advance

    def failing(book, tx, operation_id):
        if operation_id == "o1":
            raise ValueError("this one can't be moved on")
        return advance(book, tx, operation_id)

    monkeypatch.setattr("doubtless.engine.steps.advance", failing)
    async with opened(url, worker=False) as app:
        bad = (await prepare(app, 3))[1]
        with caplog.at_level(logging.CRITICAL, "doubtless.worker"):
            async with opened(url):
                for name in ("o0", "o2"):
                    assert (await app.wait(name, timeout=WITHIN_S)).status == "succeeded"
                assert (await app.outcome(bad)).state == "prepared"


@pytest.mark.proves("PG-20")
async def test_a_turn_that_found_nothing_waits_for_no_disk(url):
    def nothing(tx):
        raise ValueError("nothing is due")

    async with opened(url, worker=False) as app:
        before = app.ledger.stats.batches
        with pytest.raises(ValueError, match="nothing is due"):
            await app.ledger.commit(nothing)
        assert app.ledger.stats.batches == before
        await prepare(app, 1)
        assert app.ledger.stats.batches == before + 1


# --- waking --------------------------------------------------------------------------------------


@pytest.mark.proves("PG-21")
async def test_what_one_process_makes_due_another_takes_up_before_it_would_have_looked(
    url, postgres, no_polls
):
    told = anyio.Event()
    async with opened(url, worker=False) as app, opened(url), opened(url, worker=False) as third:
        third.on_settled(lambda settlement: told.set(), name="billing")
        await all_listen(postgres, url, 3)
        (name,) = await prepare(app, 1)
        assert (await app.wait(name, timeout=WITHIN_S)).status == "succeeded"
        with anyio.fail_after(WITHIN_S):
            await told.wait()


@pytest.mark.proves("PG-21")
async def test_whoever_waits_in_another_process_is_woken_by_each_answer(url, postgres, no_polls):
    async with opened(url) as app, opened(url, worker=False) as other:
        await all_listen(postgres, url, 2)
        started, may_end = anyio.Event(), anyio.Event()

        @app.tool(name="slow", **WRITE)
        async def slow(call: Call, what: str) -> str:
            started.set()
            await may_end.wait()
            return what

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: app.call("slow", {"what": "x"}, operation_id="s1"))
            await started.wait()
            tasks.start_soon(waits_for, other, "s1")
            await comes_true(lambda: "s1" in other._opened.waiting._waiters)  # noqa: SLF001
            may_end.set()


async def waits_for(app: Doubtless, name: str) -> None:
    assert (await app.wait(name, timeout=WITHIN_S)).status == "succeeded"


@pytest.mark.proves("PG-21")
async def test_nobody_is_told_where_nobody_listens_and_no_payload_names_an_operation(url, postgres):
    heard: list[Notify] = []
    name = channel(url.rpartition("schema=")[2])
    async with opened(url) as app:
        await comes_true(lambda: app.ledger.is_alone)
        with postgres.connect() as spy:
            spy.add_notify_handler(heard.append)
            spy.execute(f'listen "{name}"')
            await app.call("act", {"what": "quiet"}, operation_id="quiet-1")
            spy.execute("select 1")
            assert heard == []
            async with opened(url, worker=False):
                await comes_true(lambda: not app.ledger.is_alone)
                await app.call("act", {"what": "loud"}, operation_id="loud-1")
            spy.execute("select 1")
    assert len(heard) >= 2
    assert not [each for each in heard if "loud" in each.payload or len(each.payload) > 100]


@pytest.mark.proves("PG-21")
async def test_one_process_delivers_and_the_others_see_it_without_a_turn(url):
    async with opened(url, worker=False) as one, opened(url, worker=False) as other:
        first = one.position("billing", holder="one")
        second = other.position("billing", holder="other")
        assert await first.take() == 0
        before = other.ledger.stats.batches
        assert await second.take() is None
        assert other.ledger.stats.batches == before
        await first.release()
        assert await second.take() == 0


# --- news that doesn't come ----------------------------------------------------------------------


def cut(postgres, url: str) -> None:
    with postgres.connect() as connection:
        for pid in listeners(postgres, url):
            connection.execute("select pg_terminate_backend(%s)", (pid,))


@pytest.mark.proves("PG-22")
async def test_without_news_what_is_due_is_found_by_polling(url, postgres, monkeypatch):
    monkeypatch.setattr("doubtless.ledger.postgres_listener.PAUSE_MIN_S", NEVER_S)
    monkeypatch.setattr("doubtless.engine.dispatcher.POLL_S", 0.05)
    async with opened(url, worker=False) as app, opened(url):
        await all_listen(postgres, url, 2)
        cut(postgres, url)
        await all_listen(postgres, url, 0)
        (name,) = await prepare(app, 1)
        assert (await app.wait(name, timeout=WITHIN_S)).status == "succeeded"


@pytest.mark.proves("PG-22")
async def test_a_connection_that_was_lost_is_replaced_and_what_was_missed_is_looked_for(
    url, postgres, no_polls, monkeypatch
):
    monkeypatch.setattr("doubtless.ledger.postgres_listener.PAUSE_MIN_S", 0.3)
    async with opened(url, worker=False) as app, opened(url):
        await all_listen(postgres, url, 2)
        before = set(listeners(postgres, url))
        cut(postgres, url)
        await all_listen(postgres, url, 0)
        missed, later = await prepare(app, 1), []
        assert (await app.wait(missed[0], timeout=WITHIN_S)).status == "succeeded"
        await all_listen(postgres, url, 2)
        assert not before & set(listeners(postgres, url))
        later = await prepare(app, 1, first=1)
        assert (await app.wait(later[0], timeout=WITHIN_S)).status == "succeeded"
