"""The worker: what it takes up, from whom, and what it does when clock or ledger fail."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.functions import WITHIN_S, WRITE, application, comes_true, ends, looks
from tests.engine.people import Acts, asked, entries

from doubtless import Absent, Call, Doubtless, Key, NotSent, Operation
from doubtless.core.progress import Liveness
from doubtless.engine import steps
from doubtless.engine.dispatcher import ClockWatch
from doubtless.engine.owner import liveness, this_process
from doubtless.engine.surroundings import Surroundings, boot_s, wall_ms
from doubtless.errors import LedgerUnavailable
from doubtless.ledger import meta
from doubtless.ledger.store import open_ledger

NEVER = {**WRITE, "timeout": "20m", "recovery_deadline": "40m"}

# --- what others left ----------------------------------------------------------------------------


async def leave_prepared(folder, count: int) -> None:
    """Prepare operations that were not sent, and close the application before they are again."""
    async with application(folder, worker=False) as app:

        @app.tool(**WRITE)
        async def act(call: Call, what: str) -> None:
            raise NotSent("no route")

        for number in range(count):
            await app.call("act", {"what": f"{number}"}, operation_id=f"o{number}", wait_s=0)
        for number in range(count):
            await ends(app, "prepared", f"o{number}")


@pytest.mark.proves("ENGINE-18")
async def test_what_a_closed_application_left_prepared_is_carried_out_by_the_next(tmp_path):
    acts = Acts(lost=0)
    await leave_prepared(tmp_path, 3)
    async with application(tmp_path) as app:
        acts.declare(app)
        for number in range(3):
            told = await app.wait(f"o{number}", timeout=WITHIN_S)
            assert (told.status, told.result) == ("succeeded", f"done {number}")
        assert (await entries(app, "attempt", "o0"))[-1]["principal"] == "worker"
    assert sorted((name, number) for name, number, _ in acts.attempts) == [
        (f"o{number}", 2) for number in range(3)
    ]


@pytest.mark.proves("ENGINE-18")
async def test_without_a_worker_nothing_is_taken_up(tmp_path):
    acts = Acts(lost=0)
    await leave_prepared(tmp_path, 1)
    async with application(tmp_path, worker=False) as app:
        acts.declare(app)
        assert (await app.wait("o0", timeout=0.3)).state == "prepared"
    assert acts.attempts == []


@pytest.mark.proves("ENGINE-18")
async def test_two_workers_on_one_ledger_share_the_work_and_double_nothing(tmp_path):
    count = 30
    acts = Acts(lost=0)
    await leave_prepared(tmp_path, count)
    async with application(tmp_path) as one, application(tmp_path) as two:
        for app in (one, two):
            acts.declare(app)
        for number in range(count):
            told = await two.wait(f"o{number}", timeout=WITHIN_S)
            assert (told.status, told.attempts) == ("succeeded", 2)
    assert sorted(name for name, _, _ in acts.attempts) == sorted(f"o{n}" for n in range(count))


# --- the dead ------------------------------------------------------------------------------------

ELSEWHERE = json.dumps({**json.loads(this_process()), "host": "elsewhere"})
GONE = json.dumps({**json.loads(this_process()), "boot": "another"})


async def leave_executing(folder, monkeypatch, owner: str) -> None:
    """Leave an attempt open under a lease of an hour, as a process does that is killed."""
    monkeypatch.setattr("doubtless.engine.app.GRACE_S", 0.01)
    started = asyncio.Event()
    surroundings = Surroundings(owner=owner)

    def no_record(*_: object) -> None:
        raise ValueError("it was killed by then")

    with monkeypatch.context() as killed:
        killed.setattr("doubtless.engine.steps.finish", no_record)
        async with application(folder, worker=False, surroundings=surroundings) as app:

            @app.tool(**NEVER)
            async def act(call: Call, what: str) -> None:
                started.set()
                await asyncio.Event().wait()

            await asked(app, wait_s=0)
            await started.wait()
    async with application(folder, worker=False) as app:
        assert (await app.outcome("o1")).state == "executing"


@pytest.mark.proves("ENGINE-19")
async def test_what_a_dead_process_held_is_taken_up_at_start_without_waiting_for_its_lease(
    tmp_path, monkeypatch
):
    await leave_executing(tmp_path, monkeypatch, GONE)
    async with application(tmp_path) as app:
        told = await ends(app, "manual_review")
        assert told.observation is not None
        assert (told.observation["class"], told.observation["cause"]) == ("unknown", "crash")
        assert told.attempts == 1
        (seen,) = await entries(app, "observation")
        assert (seen["principal"], seen["role"]) == ("worker", "worker")
        assert "dead" in seen["attempt"]["observation"]["detail"]


@pytest.mark.proves("ENGINE-19")
@pytest.mark.parametrize("owner", [ELSEWHERE, this_process()], ids=["elsewhere", "alive"])
async def test_what_may_still_be_held_is_left_to_its_lease(tmp_path, monkeypatch, owner):
    monkeypatch.setattr("doubtless.engine.dispatcher.OWNERS_S", 0.05)
    monkeypatch.setattr("doubtless.engine.dispatcher.POLL_S", 0.05)
    looked: list[str] = []

    def known(text: str) -> Liveness:
        looked.append(text)
        return liveness(text)

    await leave_executing(tmp_path, monkeypatch, owner)
    surroundings = Surroundings(owner=GONE, liveness=known)
    async with application(tmp_path, surroundings=surroundings) as app:
        await comes_true(lambda: len(looked) > 3)
        assert (await app.outcome("o1")).state == "executing"
    assert set(looked) == {owner}


# --- clocks --------------------------------------------------------------------------------------


class Clocks:
    """The real clocks; the wall clock can be set."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def surroundings(self) -> Surroundings:
        return replace(Surroundings(), wall_ms=lambda: wall_ms() + self.ahead_ms)


@pytest.mark.proves("ENGINE-20")
@pytest.mark.parametrize(
    ("wall", "boot", "ledger", "slipped"),
    [
        (10_000, 10, 10_000, False),
        (12_000, 10, 12_000, False),
        (12_001, 10, 12_001, True),
        (7_999, 10, 7_999, True),
        (10_000, 12.1, 10_000, True),
        (10_000, 10, 12_000, False),
        (10_000, 10, 12_001, True),
        (3_600_000, 3_600, 3_600_000, False),
    ],
)
def test_clocks_part_when_they_differ_by_more_than_two_seconds(wall, boot, ledger, slipped):
    told = iter([(0, 0.0), (wall, float(boot)), (wall, float(boot))])
    now = [next(told)]
    watch = ClockWatch(lambda: now[0][0], lambda: now[0][1])
    now[0] = next(told)
    assert watch.slipped(ledger) is slipped
    assert watch.slipped(wall) is False  # it is compared with the last time only


@pytest.mark.proves("ENGINE-20")
@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000], ids=["ahead", "back"])
async def test_a_wall_clock_that_is_set_is_recorded_as_a_break(tmp_path, monkeypatch, ahead_ms):
    monkeypatch.setattr("doubtless.engine.dispatcher.POLL_S", 0.05)
    clocks = Clocks()
    surroundings = clocks.surroundings()
    ledger_path = f"sqlite:///{tmp_path / 'ledger.db'}"
    with open_ledger(ledger_path, clock=surroundings.wall_ms) as ledger:
        async with Doubtless(ledger, surroundings=surroundings) as app:
            Acts(lost=0).declare(app)
            await asked(app)
            before_ms = ledger.read(meta.clock_break)
            clocks.ahead_ms = ahead_ms
            await comes_true(lambda: ledger.read(meta.clock_break) > before_ms)


@pytest.mark.proves("ENGINE-20")
async def test_absence_is_counted_anew_after_a_break(tmp_path):
    asks: list[int] = []
    clocks = Clocks()

    async def find(operation: Operation) -> Absent:
        asks.append(1)
        if len(asks) == 1:
            clocks.ahead_ms = 5_000  # as far as the horizon, and no nearer to the truth
        return Absent()

    keys: dict[str, Any] = {
        "in_flight_horizon": "1s",
        "lookup": looks(find, in_flight_horizon="1s", confirmations=2),
        "recovery_deadline": "60s",
    }
    async with application(tmp_path, surroundings=clocks.surroundings()) as app:
        Acts().declare(app, **keys)
        started_s = boot_s()
        await asked(app, wait_s=0)
        told = await ends(app, "failed")
        took_s = boot_s() - started_s
    assert told.error == {"code": "confirmed_absent"}
    assert took_s >= 1.0  # the real clock's horizon, whatever the wall clock said
    assert len(asks) > 2


@pytest.mark.proves("ENGINE-20")
async def test_after_a_break_nothing_is_sent_again_under_its_key(tmp_path):
    clocks = Clocks()
    ledger_path = f"sqlite:///{tmp_path / 'ledger.db'}"
    acts = Acts()
    with open_ledger(ledger_path, clock=clocks.surroundings().wall_ms) as ledger:
        async with Doubtless(ledger, surroundings=clocks.surroundings()) as app:
            acts.declare(
                app,
                effect="idempotent_call",
                idempotency=Key(ttl="24h", stores="all"),
                retry={"backoff": "20s"},
            )
            told = await asked(app)
            assert told.state == "unknown"
            clocks.ahead_ms = 30_000  # the pause is over, by this clock
            told = await ends(app, "manual_review")
    assert told.recovery == "needs_operator"
    assert len(acts.attempts) == 1


# --- a ledger that fails -------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-21")
@pytest.mark.parametrize("what", ["read", "commit"])
async def test_a_ledger_that_fails_for_a_while_does_not_end_the_worker(tmp_path, monkeypatch, what):
    monkeypatch.setattr("doubtless.engine.dispatcher.POLL_S", 0.05)
    await leave_prepared(tmp_path, 1)
    fails, failed = [True], []
    acts = Acts(lost=0)
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        works = getattr(ledger, what)

        def broken(*arguments: Any, **options: Any) -> Any:
            if fails[0]:
                failed.append(1)
                raise LedgerUnavailable("the disk is away")
            return works(*arguments, **options)

        monkeypatch.setattr(ledger, what, broken)
        async with Doubtless(ledger) as app:
            acts.declare(app)
            await comes_true(lambda: len(failed) > 3)
            assert acts.attempts == []
            fails[0] = False
            told = await app.wait("o0", timeout=WITHIN_S)
    assert (told.status, told.attempts) == ("succeeded", 2)


@pytest.mark.proves("ENGINE-21")
async def test_an_operation_that_can_not_be_moved_on_does_not_stop_the_others(
    tmp_path, monkeypatch
):
    advance = steps.advance

    def breaks(book: Any, tx: Any, operation_id: str) -> Any:
        if operation_id == "o0":
            raise RuntimeError("a fault of ours")
        return advance(book, tx, operation_id)

    acts = Acts(lost=0)
    await leave_prepared(tmp_path, 3)
    monkeypatch.setattr(steps, "advance", breaks)
    async with application(tmp_path) as app:
        acts.declare(app)
        for number in (1, 2):
            told = await app.wait(f"o{number}", timeout=WITHIN_S)
            assert told.status == "succeeded"
        assert (await app.outcome("o0")).state == "prepared"
