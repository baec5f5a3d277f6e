"""The stream of settlements, and who is told of it."""

import subprocess
import sys
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.functions import WRITE, application, comes_true
from tests.engine.people import Acts, book_of, decides, reviewed

from doubtless import Call, Doubtless
from doubtless.core.model import Evidence, Principal, Role, Shows, Source, Strength
from doubtless.core.progress import Liveness
from doubtless.engine import deliveries, settlements, steps
from doubtless.engine.owner import liveness
from doubtless.errors import LedgerUnavailable, SettingsError
from doubtless.ledger.store import open_ledger


def noting(app: Doubtless) -> None:
    @app.tool(**WRITE)
    async def note(call: Call, number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return number


async def notes(app: Any, *numbers: int) -> None:
    for number in numbers:
        told = await app.call("note", {"number": number}, operation_id=f"n{number}")
        assert told.status == "succeeded"


class Told:
    """A subscriber that remembers what it was told."""

    def __init__(self, fails: int = 0) -> None:
        self.ids: list[int] = []
        self.operations: list[str] = []
        self.fails, self.calls, self.under_way, self.most = fails, 0, 0, 0

    async def __call__(self, settlement) -> None:
        self.calls += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await anyio.lowlevel.checkpoint()
        self.under_way -= 1
        if self.calls <= self.fails:
            raise OSError("the other end is not there")
        self.ids.append(settlement.id)
        self.operations.append(settlement.outcome.operation_id)


# --- the stream ----------------------------------------------------------------------------------


@pytest.mark.proves("STREAM-1")
async def test_settlements_come_in_order_page_by_page(tmp_path):
    async with application(tmp_path) as app:
        noting(app)
        await notes(app, 1, 2, 3)
        first = await app.settlements(limit=2)
        rest = await app.settlements(first.after)
        end = await app.settlements(rest.after)
    found = [*first.settlements, *rest.settlements]
    assert [each.outcome.operation_id for each in found] == ["n1", "n2", "n3"]
    assert [each.state for each in found] == ["succeeded"] * 3
    assert [each.outcome.result for each in found] == [1, 2, 3]
    ids = [each.id for each in found]
    assert ids == sorted(set(ids))
    assert (end.settlements, end.after) == ((), rest.after)


@pytest.mark.proves("STREAM-1")
async def test_what_settles_twice_is_told_twice_under_ids_of_their_own(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        await reviewed(app)
        await decides(app, "done")
        contradicts = Evidence(
            number=0,
            source=Source.LOOKUP,
            shows=Shows.NOT_APPLIED,
            strength=Strength.AUTHORITATIVE,
            at_ms=0,
            begun_ms=0,
            by="a later look",
        )
        app.ledger.write(lambda tx: steps.add(book_of(app), tx, "o1", contradicts))
        reopened = await app.settlements()
        assert [each.state for each in reopened.settlements] == ["succeeded"]
        assert reopened.settlements[0].outcome.state == "manual_review"
        await decides(app, "done")
        page = await app.settlements()
    assert [each.state for each in page.settlements] == ["succeeded", "succeeded"]
    first, second = page.settlements
    assert first.id < second.id
    assert first.version < second.version


@pytest.mark.proves("STREAM-2")
async def test_an_agent_is_shown_its_own_and_an_operator_everybody_s(tmp_path):
    async with application(tmp_path) as app:
        noting(app)
        one, two = (app.actor(Principal(name=name, role=Role.AGENT)) for name in ("one", "two"))
        ops = app.actor(Principal(name="ops", role=Role.OPERATOR))
        await notes(one, 1)
        await notes(two, 2)
        await notes(one, 3)
        seen = {
            name: [each.outcome.operation_id for each in (await hands.settlements()).settlements]
            for name, hands in (("one", one), ("two", two), ("ops", ops))
        }
        assert seen == {"one": ["n1", "n3"], "two": ["n2"], "ops": ["n1", "n2", "n3"]}
        told = Told()
        two.on_settled(told, name="mine")
        await comes_true(lambda: told.operations == ["n2"])
        await notes(one, 4)
        await notes(two, 5)
        await comes_true(lambda: told.operations == ["n2", "n5"])


@pytest.mark.proves("STREAM-2")
async def test_what_others_settled_is_passed_over_without_being_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("doubtless.engine.settlements.SCAN_MAX", 2)
    async with application(tmp_path) as app:
        noting(app)
        one, two = (app.actor(Principal(name=name, role=Role.AGENT)) for name in ("one", "two"))
        await notes(one, 1, 2, 3)
        await notes(two, 4)
        page = await two.settlements()
        assert (page.settlements, page.after) == ((), 2)
        page = await two.settlements(page.after)
    assert [each.outcome.operation_id for each in page.settlements] == ["n4"]


# --- who is told ---------------------------------------------------------------------------------


@pytest.mark.proves("STREAM-3")
async def test_a_subscriber_goes_on_after_a_restart_where_it_was(tmp_path):
    first, second = Told(), Told()
    app = application(tmp_path)
    noting(app)
    app.on_settled(first, name="billing")
    async with app:
        await notes(app, 1, 2)
        await comes_true(lambda: first.operations == ["n1", "n2"])
        await position_is(app, first.ids[-1])
    async with application(tmp_path) as app:
        noting(app)
        await notes(app, 3)
        app.on_settled(second, name="billing")
        await comes_true(lambda: bool(second.operations))
        await notes(app, 4)
        await comes_true(lambda: len(second.operations) > 1)
    assert second.operations == ["n3", "n4"]


async def position_is(app: Doubtless, seq: int, name: str = "billing") -> None:
    async def there() -> bool:
        return await app.position(name, holder="nobody").read() == seq

    await comes_true(there)


@pytest.mark.proves("STREAM-3")
async def test_what_was_told_but_not_noted_is_told_again(tmp_path):
    began, told = anyio.Event(), Told()

    async def stuck(settlement) -> None:
        began.set()
        await anyio.sleep_forever()

    app = application(tmp_path)
    noting(app)
    app.on_settled(stuck, name="billing")
    async with app:
        await notes(app, 1)
        await began.wait()
    app = application(tmp_path)
    app.on_settled(told, name="billing")
    async with app:
        await comes_true(lambda: told.operations == ["n1"])


@pytest.mark.proves("STREAM-4")
async def test_a_subscriber_that_raises_is_told_again_in_order_and_holds_up_nobody(tmp_path):
    failing, healthy = Told(fails=3), Told()
    async with application(tmp_path) as app:
        noting(app)
        app.on_settled(failing, name="failing")
        app.on_settled(healthy, name="healthy")
        await notes(app, 1, 2)
        await comes_true(lambda: healthy.operations == ["n1", "n2"])
        await comes_true(lambda: failing.operations == ["n1", "n2"])
    assert failing.calls == 5
    assert (failing.most, healthy.most) == (1, 1)


@pytest.mark.proves("STREAM-4")
async def test_a_cancellation_that_escapes_from_a_subscriber_is_its_failure(tmp_path):
    told, calls = Told(), 0

    async def cancels(settlement) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise anyio.get_cancelled_exc_class()
        await told(settlement)

    async with application(tmp_path) as app:
        noting(app)
        app.on_settled(cancels, name="cancels")
        await notes(app, 1)
        await comes_true(lambda: told.operations == ["n1"])


@pytest.mark.proves("STREAM-5")
async def test_a_plain_function_is_told_in_a_thread(tmp_path):
    threads: list[threading.Thread] = []

    def told(settlement) -> None:
        threads.append(threading.current_thread())

    async with application(tmp_path) as app:
        noting(app)
        app.on_settled(told, name="plain")
        await notes(app, 1)
        await comes_true(lambda: len(threads) == 1)
    assert threads[0] is not threading.current_thread()


@pytest.mark.proves("STREAM-6")
async def test_of_two_processes_with_one_name_only_one_delivers_until_it_is_gone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(deliveries, "POLL_S", 0.05)
    one, two = Told(), Told()
    first, second = application(tmp_path), application(tmp_path, worker=False)
    noting(first)
    async with first, second:
        await notes(first, 1)
        ours = first.position("billing", holder="a process#1")
        assert await ours.take() == 0
        second.on_settled(two, name="billing")
        await notes(first, 2)
        assert await second.position("billing", holder="a process#2").take() is None
        assert two.operations == []
        await ours.advance(0)
        await ours.release()
        await comes_true(lambda: two.operations == ["n1", "n2"])
        first.on_settled(one, name="billing")
        await notes(first, 3, 4, 5)
        await comes_true(lambda: len(one.operations + two.operations) == 5)
        await comes_true(lambda: max(one.operations + two.operations) == "n5")
    assert sorted(one.operations + two.operations) == ["n1", "n2", "n3", "n4", "n5"]


@pytest.mark.proves("STREAM-6")
async def test_what_a_dead_process_held_is_taken_over_at_once(tmp_path):
    told = Told()
    async with application(tmp_path) as app:
        noting(app)
        dead = dead_owner()
        assert liveness(dead) is Liveness.DEAD
        assert await app.position("billing", holder=f"{dead}#1").take() == 0
        await notes(app, 1)
        app.on_settled(told, name="billing")
        await comes_true(lambda: told.operations == ["n1"])


def dead_owner() -> str:
    """Return the name of a process of this host that has ended."""
    code = "from doubtless.engine.owner import this_process; print(this_process())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.proves("STREAM-3")
async def test_a_position_only_grows_and_only_for_its_holder(tmp_path):
    async with application(tmp_path) as app:
        ours, other = (app.position("billing", holder=name) for name in ("a#1", "b#1"))
        assert not await other.advance(7), "nobody has taken it yet"
        assert await ours.take() == 0
        assert await ours.advance(7)
        assert await ours.advance(3)
        assert not await other.advance(9)
        assert await other.read() == 7


@pytest.mark.proves("STREAM-3")
async def test_a_subscriber_has_a_name_of_its_own(tmp_path):
    app = application(tmp_path)
    app.on_settled(print, name="billing")
    with pytest.raises(SettingsError, match="already"):
        app.on_settled(print, name="billing")
    for wrong in ("", "x" * 201, "a\nb"):
        with pytest.raises(SettingsError, match="name"):
            app.on_settled(print, name=wrong)


@pytest.mark.proves("STREAM-3")
async def test_a_new_name_may_begin_after_what_is_known_already(tmp_path):
    told = Told()
    async with application(tmp_path) as app:
        noting(app)
        await notes(app, 1)
        known = (await app.settlements()).after
        app.on_settled(told, name="late", after=known)
        await notes(app, 2)
        await comes_true(lambda: told.operations == ["n2"])


@pytest.mark.proves("STREAM-1")
async def test_a_settlement_is_committed_with_its_change_of_state(tmp_path):
    app = application(tmp_path)
    noting(app)
    async with app:
        await notes(app, 1)
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as ledger:
        found = ledger.read(
            lambda tx: tx.tuples(
                "select operation.id, operation.state, operation.version, settlement.version"
                " from settlement join operation on operation.id = settlement.operation_id"
            )
        )
    assert found == [("n1", "succeeded", 3, 3)]


@pytest.mark.proves("STREAM-4")
async def test_a_stream_that_can_t_be_read_for_a_while_ends_neither_it_nor_the_application(
    tmp_path, monkeypatch
):
    told, reads = Told(), 0
    real = settlements.page

    def broken(*arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads <= 2:
            raise (LedgerUnavailable("the disk is away"), KeyError("a fault of ours"))[reads - 1]
        return real(*arguments, **options)

    monkeypatch.setattr(settlements, "page", broken)
    async with application(tmp_path) as app:
        noting(app)
        app.on_settled(told, name="billing")
        await notes(app, 1)
        await comes_true(lambda: told.operations == ["n1"])
    assert reads > 2
