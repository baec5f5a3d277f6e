"""Operations that come after others: on one ledger, with function tools."""

import asyncio
import time
from functools import partial
from typing import Any

import anyio
import pytest
from tests.engine.functions import WRITE, application, comes_true, ends, states

from doubtless import Call, Doubtless
from doubtless.errors import BadSequence
from doubtless.ledger import operations
from doubtless.ledger.store import open_ledger

QUICK: dict[str, Any] = {**WRITE, "timeout": "500ms"}
PROMPT_S = 0.6  # a poll would take longer


class Parts:
    """What `part` was called for, and what becomes of each."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.loses: set[str] = set()
        self.refuses: set[str] = set()
        self.held = anyio.Event()
        self.holds: set[str] = set()

    def declare(self, app: Doubtless, **keys: Any) -> None:
        """Declare `part`."""

        @app.tool(**{**QUICK, **keys}, rejected=[PermissionError])
        async def part(call: Call, name: str) -> str:
            self.done.append(name)
            if name in self.holds:
                await self.held.wait()
            if name in self.loses:
                raise OSError
            if name in self.refuses:
                raise PermissionError(name)
            return name


@pytest.fixture
def parts() -> Parts:
    return Parts()


async def asks(app: Doubtless, name: str, *after: str, **said: Any):
    return await app.call("part", {"name": name}, operation_id=name, after=after, **said)


# --- what may be named ---------------------------------------------------------------------------


@pytest.mark.proves("SEQ-1")
async def test_what_is_not_there_or_somebody_elses_is_refused_and_shows_nothing(tmp_path, parts):
    other = application(tmp_path, principal="other")
    parts.declare(other)
    async with other:
        await other.call("part", {"name": "theirs"}, operation_id="theirs")
    app = application(tmp_path)
    parts.declare(app)
    async with app:
        told = []
        for name in ("nothing", "theirs", "a"):
            with pytest.raises(BadSequence, match=f"you have no operation '{name}'") as refused:
                await asks(app, "a", name)
            assert refused.value.operation_id == name
            told.append(str(refused.value).replace(f"'{name}'", "…"))
        assert len(set(told)) == 1, "whose it is can't be told"
        with pytest.raises(BadSequence, match="supersedes: you have no operation 'theirs'"):
            await asks(app, "a", supersedes="theirs")
        assert await app.operations(tool="part", limit=9) != []
        assert parts.done == ["theirs"]


@pytest.mark.proves("SEQ-1")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"after": "first"}, "list of operation ids"),
        ({"after": ["no id!"]}, "is no operation id"),
        ({"after": [f"o{n}" for n in range(101)]}, "100 are the most"),
        ({"on_unknown": "hope"}, "neither stop nor continue"),
        ({"supersedes": "no id!"}, "is no operation id"),
    ],
)
async def test_what_can_not_be_meant_is_refused(tmp_path, parts, said, why):
    app = application(tmp_path)
    parts.declare(app)
    async with app:
        with pytest.raises(BadSequence, match=why):
            await app.call("part", {"name": "a"}, **said)
        assert parts.done == []


@pytest.mark.proves("SEQ-8")
async def test_a_link_to_what_it_supersedes_loosens_nothing(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app, business_key=["name"])
    parts.loses = {"a"}
    async with app:
        assert (await asks(app, "a")).status.startswith("unknown")
        told = await app.call("part", {"name": "a"}, operation_id="b", supersedes="a")
        assert (told.error or {})["code"] == "target_unresolved"
        told = await app.call("part", {"name": "c"}, operation_id="c", supersedes="a")
        assert told.status == "succeeded"
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as ledger:
        found = ledger.read(lambda tx: operations.get(tx, "main", "c"))
        assert found is not None
        assert found.supersedes == "a"


# --- waiting and waking --------------------------------------------------------------------------


@pytest.mark.proves("SEQ-2", "SEQ-3")
async def test_it_waits_says_for_what_and_goes_on_at_once(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.holds = {"a"}
    async with app:
        first = asyncio.create_task(asks(app, "a"))
        await comes_true(lambda: parts.done == ["a"])
        told = await asks(app, "b", "a", wait_s=0)
        assert (told.status, told.state) == ("pending", "prepared")
        assert "waits for its turn after operation a, which is executing" in told.message
        parts.held.set()
        await first
        since = time.monotonic()
        assert (await app.wait("b", timeout=5)).status == "succeeded"
        assert time.monotonic() - since < PROMPT_S
        assert parts.done == ["a", "b"]


@pytest.mark.proves("SEQ-3")
async def test_nobody_looks_at_it_before_its_turn(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.loses = {"a"}
    async with app:
        await asks(app, "a")
        await asks(app, "b", "a")
        waits = app.ledger.read(lambda tx: operations.get(tx, "main", "b"))
        assert waits is not None
        assert waits.due_ms == waits.valid_until_ms


@pytest.mark.proves("SEQ-2")
async def test_a_call_behind_what_rests_returns_at_once(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.loses = {"a"}
    async with app:
        await asks(app, "a")
        since = time.monotonic()
        told = await asks(app, "b", "a")
        assert time.monotonic() - since < PROMPT_S
        assert (told.status, told.acts["who"]) == ("pending", "worker")
        assert "waits for its turn after operation a, which is manual_review" in told.message


@pytest.mark.proves("SEQ-2", "SEQ-3")
async def test_a_blocker_that_ended_otherwise_rejects_all_that_follows(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.refuses = {"a"}
    async with app:
        assert (await asks(app, "a")).status == "failed"
        told = await asks(app, "b", "a")
        assert (told.status, told.error) == (
            "rejected_by_policy",
            {"code": "after_failed", "by": "a"},
        )
        told = await asks(app, "c", "b")
        assert told.error == {"code": "after_failed", "by": "b"}
        assert parts.done == ["a"]


@pytest.mark.proves("SEQ-3", "SEQ-4")
async def test_an_unknown_blocker_is_waited_for_until_a_person_settles_it(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.loses = {"a"}
    async with app:
        await asks(app, "a")
        for name, before in (("b", "a"), ("c", "b")):
            assert (await asks(app, name, before, wait_s=0)).status == "pending"
        since = time.monotonic()
        await app.resolve("a", "done", operator="ann", note="found it")
        assert (await app.wait("c", timeout=5)).status == "succeeded"
        assert time.monotonic() - since < 2 * PROMPT_S
        assert parts.done == ["a", "b", "c"]


@pytest.mark.proves("SEQ-3", "SEQ-4")
async def test_a_blocker_that_a_person_finds_not_done_rejects_it(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.loses = {"a"}
    async with app:
        await asks(app, "a")
        await asks(app, "b", "a", wait_s=0)
        await app.resolve("a", "not_done", operator="ann", note="not there")
        last = await ends(app, "rejected", "b")
        assert last.error == {"code": "after_failed", "by": "a"}
        assert parts.done == ["a"]


@pytest.mark.proves("SEQ-4")
async def test_continue_goes_on_after_an_unknown(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.holds, parts.loses = {"a"}, {"a"}
    async with app:
        first = asyncio.create_task(asks(app, "a"))
        await comes_true(lambda: parts.done == ["a"])
        told = await asks(app, "b", "a", on_unknown="continue", wait_s=0)
        assert told.status == "pending"
        parts.held.set()
        await first
        since = time.monotonic()
        assert (await app.wait("b", timeout=5)).status == "succeeded"
        assert time.monotonic() - since < PROMPT_S


@pytest.mark.proves("SEQ-3")
async def test_a_cancelled_blocker_rejects_what_follows(tmp_path, parts):
    app = application(tmp_path)
    parts.declare(app)
    parts.loses = {"a"}
    async with app:
        await asks(app, "a")
        await asks(app, "b", "a", wait_s=0)
        await asks(app, "c", "b", wait_s=0)
        await app.cancel("b")
        assert (await ends(app, "rejected", "c")).error == {"code": "after_failed", "by": "b"}


@pytest.mark.proves("SEQ-3")
async def test_what_settles_in_another_process_wakes_it_here(tmp_path, parts):
    app, other = application(tmp_path), application(tmp_path, worker=False)
    parts.declare(app)
    parts.loses = {"a"}
    async with app, other:
        await asks(app, "a")
        await asks(app, "b", "a", wait_s=0)
        await other.resolve("a", "done", operator="ann", note="found it")
        assert (await app.wait("b", timeout=5)).status == "succeeded"


@pytest.mark.proves("SEQ-2")
async def test_it_is_valid_for_a_day_unless_its_contract_says_how_long(tmp_path, parts):
    app = application(tmp_path, worker=False)
    parts.declare(app)

    @app.tool(**{**QUICK, "valid_for": "2h"})
    async def short(call: Call, name: str) -> str:
        return name

    async with app:
        await asks(app, "a")
        await asks(app, "b", "a")
        await app.call("short", {"name": "c"}, operation_id="c", after=["a"], wait_s=0)
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as ledger:
        valid_h = {}
        for name in "abc":
            found = ledger.read(partial(operations.get, tenant="main", operation_id=name))
            assert found is not None
            valid_h[name] = (found.valid_until_ms - found.created_ms) / 3_600_000
    assert valid_h == {"a": 1, "b": 24, "c": 2}


# --- the same object -----------------------------------------------------------------------------


async def steps(app: Doubtless, name: str, *after: str, **said: Any):
    """Do one of several steps on the same object."""
    arguments = {"name": name, "target": "x"}
    return await app.call("step", arguments, operation_id=name, after=after, **said)


def stepping(app: Doubtless, parts: Parts, **keys: Any) -> None:
    @app.tool(**{**QUICK, "business_key": ["target"], **keys})
    async def step(call: Call, name: str, target: str) -> str:
        parts.done.append(name)
        if name in parts.holds:
            await parts.held.wait()
        if name in parts.loses:
            raise OSError
        return target


@pytest.mark.proves("SEQ-6")
async def test_steps_on_one_object_follow_one_another_and_nobody_comes_between(tmp_path, parts):
    app = application(tmp_path)
    stepping(app, parts)
    parts.holds = {"a"}
    async with app:
        first = asyncio.create_task(steps(app, "a"))
        await comes_true(lambda: parts.done == ["a"])
        assert (await steps(app, "b", "a", wait_s=0)).status == "pending"
        assert (await steps(app, "c", "b", wait_s=0)).status == "pending"
        barred = await steps(app, "d", wait_s=0)
        assert (barred.error or {})["code"] == "target_unresolved"
        parts.held.set()
        await first
        barred = await steps(app, "e", wait_s=0)
        assert barred.status == "rejected_by_policy" or parts.done[-1:] == ["c"]
        assert (await app.wait("c", timeout=5)).status == "succeeded"
        assert [name for name in parts.done if name in "abc"] == ["a", "b", "c"]
        assert (await steps(app, "f")).status == "succeeded"


@pytest.mark.proves("SEQ-6")
async def test_the_object_goes_to_the_next_one_in_the_transaction_that_lets_it_go(tmp_path, parts):
    app = application(tmp_path, worker=False)
    stepping(app, parts)
    async with app:
        parts.holds = {"a"}
        first = asyncio.create_task(steps(app, "a"))
        await comes_true(lambda: parts.done == ["a"])
        await steps(app, "b", "a", wait_s=0)
        parts.held.set()
        await first
        barred = await steps(app, "d", wait_s=0)
        assert barred.error == {"code": "target_unresolved", "operation_id": "b"}
        assert (await app.outcome("b")).state == "prepared"


@pytest.mark.proves("SEQ-4", "SEQ-6")
async def test_continue_does_not_go_on_with_an_object_that_is_in_doubt(tmp_path, parts):
    app = application(tmp_path)
    stepping(app, parts)
    parts.loses = {"a"}
    async with app:
        await steps(app, "a")
        told = await steps(app, "b", "a", on_unknown="continue", wait_s=0)
        assert "still under way on the same object" in told.message
        await comes_true(lambda: _looked_at(app, "b"))
        assert parts.done == ["a"]
        await app.resolve("a", "done", operator="ann", note="found it")
        assert (await app.wait("b", timeout=5)).status == "succeeded"


async def _looked_at(app: Doubtless, operation_id: str) -> bool:
    return (
        len([each for each in await app.timeline(operation_id) if each["kind"] == "decision"]) > 1
    )


@pytest.mark.proves("SEQ-6")
async def test_what_will_be_rejected_does_not_inherit_the_object(tmp_path, parts):
    app = application(tmp_path)
    stepping(app, parts)
    parts.loses = {"a"}
    async with app:
        await steps(app, "a")
        await steps(app, "b", "a", wait_s=0)
        await steps(app, "c", "b", wait_s=0)
        parts.loses.clear()
        again = await app.resolve("a", "again", operator="ann", note="it is not there")
        assert again.operation_id not in "abc"
        assert again.status == "succeeded"
        assert (await ends(app, "rejected", "c")).error == {"code": "after_failed", "by": "b"}


@pytest.mark.proves("SEQ-6")
async def test_what_only_waits_for_the_object_gets_it_whatever_became_of_its_holder(
    tmp_path, parts
):
    app = application(tmp_path)
    stepping(app, parts)
    parts.holds, parts.loses = {"a"}, {"b"}
    async with app:
        first = asyncio.create_task(steps(app, "a"))
        await comes_true(lambda: parts.done == ["a"])
        await steps(app, "b", "a", wait_s=0)
        await steps(app, "d", "a", wait_s=0)
        parts.held.set()
        await first
        await ends(app, "manual_review", "b")
        assert parts.done == ["a", "b"]
        told = await app.outcome("b")
        await app.resolve("b", "not_done", operator="ann", note="it is not there")
        assert told.operation_id == "b"
        assert (await app.wait("d", timeout=8)).status == "succeeded"


# --- the latest wins -----------------------------------------------------------------------------


@pytest.mark.proves("SEQ-7")
async def test_of_many_newer_ones_only_the_newest_is_carried_out(tmp_path, parts):
    app = application(tmp_path)
    stepping(app, parts, ordering="latest_wins")
    parts.holds = {"v1"}
    async with app:
        first = asyncio.create_task(steps(app, "v1"))
        await comes_true(lambda: parts.done == ["v1"])
        second = asyncio.create_task(steps(app, "v2"))
        await comes_true(lambda: _is(app, "v2", "prepared"))
        since = time.monotonic()
        third = asyncio.create_task(steps(app, "v3"))
        await second
        told = await ends(app, "rejected", "v2")
        assert told.error == {"code": "overtaken", "by": "v3"}
        assert time.monotonic() - since < PROMPT_S
        assert (await app.outcome("v3")).status == "pending"
        parts.held.set()
        await first
        await third
        assert (await app.wait("v3", timeout=5)).status == "succeeded"
        assert parts.done == ["v1", "v3"]
        assert "overtaken" not in str(await states(app, "v1"))


async def _is(app: Doubtless, operation_id: str, state: str) -> bool:
    found = await app.operations(limit=20)
    return (operation_id, state) in {(each.operation_id, each.state) for each in found}


@pytest.mark.proves("APPROVAL-7", "SEQ-7")
async def test_a_newer_one_overtakes_what_still_waits_for_approval(tmp_path, parts):
    app = application(tmp_path)
    stepping(app, parts, ordering="latest_wins", approval={"when": "args.name == 'v1'"})
    async with app:
        assert (await steps(app, "v1")).state == "awaiting_approval"
        assert (await steps(app, "v2")).status == "succeeded"
        assert (await app.outcome("v1")).error == {"code": "overtaken", "by": "v2"}
        assert parts.done == ["v2"]
