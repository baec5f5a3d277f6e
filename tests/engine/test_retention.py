"""Upkeep of settled operations: what goes, when, and what is said of it afterwards."""

from contextlib import asynccontextmanager

import pytest
from tests.engine.functions import WRITE

from doubtless import Call, Doubtless
from doubtless.engine.retention import DAY_MS, Keep, Upkeep
from doubtless.errors import DecisionRefused, SettingsError
from doubtless.ledger import subscribers
from doubtless.ledger.retention import Task
from doubtless.ledger.store import open_ledger, wall_ms

KEEP = Keep(retention_ms=30 * DAY_MS, archive_after_ms=30 * DAY_MS)


class Clock:
    """The wall clock, and what is added to it."""

    def __init__(self) -> None:
        self.later_ms = 0

    def __call__(self) -> int:
        return wall_ms() + self.later_ms


class Shop:
    """An application whose tool counts its effects."""

    def __init__(self, app: Doubtless, clock: Clock, keep: Keep) -> None:
        self.app, self.clock, self.effects = app, clock, 0
        self.upkeep = Upkeep(app.ledger, app._opened.book, keep)  # noqa: SLF001

    async def buy(self, what: str = "tea", name: str | None = "o1"):
        return await self.app.call("buy", {"what": what}, operation_id=name, session_id="s")


@asynccontextmanager
async def shop(folder, keep: Keep = KEEP, **rules):
    clock = Clock()
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}", clock=clock) as ledger:
        app = Doubtless(ledger, worker=False)
        made: list[Shop] = []

        @app.tool(**{**WRITE, "business_key": ["what"], **rules})
        async def buy(_call: Call, what: str) -> dict[str, str]:
            made[0].effects += 1
            if what == "nothing":
                raise ConnectionRefusedError(what)
            return {"bought": what}

        async with app:
            made.append(Shop(app, clock, keep))
            yield made[0]


@pytest.mark.proves("SCALE-2")
async def test_nothing_is_emptied_or_archived_before_its_time(tmp_path):
    async with shop(tmp_path) as found:
        await found.buy()
        found.clock.later_ms = 29 * DAY_MS
        for task in Task:
            assert found.upkeep.preview(task) == 0
            assert await found.upkeep.all_of(task) == 0
        found.clock.later_ms = 31 * DAY_MS
        for task in Task:
            assert found.upkeep.preview(task) == 1
            assert await found.upkeep.all_of(task) == 1
            assert await found.upkeep.all_of(task) == 0


@pytest.mark.proves("SCALE-2")
async def test_without_a_time_a_worker_leaves_everything_where_it_is(tmp_path):
    async with shop(tmp_path, Keep()) as found:
        assert found.upkeep.tasks == ()
    for wrong in ("soon", "3h", ""):
        with pytest.raises(SettingsError, match="retention"):
            Doubtless("sqlite://", retention=wrong)
        with pytest.raises(SettingsError, match="archive_after"):
            Doubtless("sqlite://", archive_after=wrong)


@pytest.mark.proves("SCALE-2")
@pytest.mark.parametrize(
    ("rules", "days"), [({"dedupe_window": "60d"}, 60), ({"dedupe_window": "5d"}, 30)]
)
async def test_windows_of_a_tool_are_over_first(tmp_path, rules, days):
    async with shop(tmp_path, **rules) as found:
        await found.buy()
        found.clock.later_ms = days * DAY_MS - 60_000
        assert await found.upkeep.all_of(Task.RETENTION) == 0
        found.clock.later_ms = (days + 1) * DAY_MS
        assert await found.upkeep.all_of(Task.RETENTION) == 1


@pytest.mark.proves("SCALE-2")
async def test_what_is_open_keeps_all_it_has(tmp_path):
    async with shop(tmp_path) as found:
        open_one = await found.buy("nothing", "open")
        assert open_one.state not in ("succeeded", "failed", "rejected", "cancelled")
        await found.buy()
        found.clock.later_ms = 400 * DAY_MS
        assert await found.upkeep.all_of(Task.RETENTION) == 1
        book = found.app._opened.book  # noqa: SLF001
        kept = found.app.ledger.read(lambda tx: book.arguments(tx, "open"))
        assert kept == {"what": "nothing"}


@pytest.mark.proves("SCALE-2")
async def test_a_subscriber_is_told_before_what_it_is_told_of_is_emptied(tmp_path):
    async with shop(tmp_path) as found:
        await found.buy()

        def told(seq: int) -> None:
            found.app.ledger.write(
                lambda tx: subscribers.take(
                    tx, "main", "agent:local", "books", holder="h", until_ms=2**50, begins=0,
                    is_gone=lambda _: False,
                )
            )  # fmt: skip
            found.app.ledger.write(
                lambda tx: subscribers.advance(
                    tx, "main", "agent:local", "books", holder="h", seq=seq, until_ms=2**50
                )
            )

        told(0)
        found.clock.later_ms = 31 * DAY_MS
        assert await found.upkeep.all_of(Task.RETENTION) == 0
        assert found.upkeep.standing()["waits_for"] == {"subscriber": "books", "told": 0}
        told(1)
        assert await found.upkeep.all_of(Task.RETENTION) == 1
        assert "waits_for" not in found.upkeep.standing()


@pytest.mark.proves("SCALE-9")
async def test_a_repeat_of_what_is_gone_sends_nothing_and_says_so(tmp_path):
    async with shop(tmp_path) as found:
        first = await found.buy()
        timeline = await found.app.timeline("o1")
        found.clock.later_ms = 31 * DAY_MS
        for task in Task:
            assert await found.upkeep.all_of(task) == 1
            again = await found.buy()
            assert (again.already_done, again.result, again.attempts) == (True, None, 1)
            assert "Its result is not kept any more" in again.message
            assert await found.app.timeline("o1") == timeline
        other = await found.buy("coffee")
        assert other.error is not None
        assert other.error["code"] == "payload_mismatch"
        assert found.effects == 1
        (listed,) = await found.app.operations()
        assert (listed.operation_id, listed.payload_hash) == ("o1", first.payload_hash)


@pytest.mark.proves("SCALE-9")
async def test_nobody_can_make_it_again_from_what_is_gone(tmp_path):
    async with shop(tmp_path) as found:
        await found.buy()
        found.clock.later_ms = 31 * DAY_MS
        await found.upkeep.all_of(Task.RETENTION)
        with pytest.raises(DecisionRefused, match="not kept any more"):
            await found.app.resolve("o1", "again", operator="otto", note="lost")
        assert found.effects == 1
