"""A row of the user's and an effect outside, by the provider's own count, wherever it is killed."""

import random

import pytest
from tests.scenarios.processes import acting
from tests.scenarios.program import OUTBOX
from tests.scenarios.stories import Story

from doubtless import Doubtless

ORDERS = "select id from orders order by id"


async def rows(app: Doubtless) -> set[int]:
    async with app.transaction() as tx:
        return {int(str(row["id"])) for row in await tx.rows(ORDERS)}


async def both_or_neither(story: Story, asked: range) -> set[int]:
    """Let everything end, and hold rows, operations and effects against one another."""
    async with story.app() as app:
        there = await rows(app)
        for number in asked:
            name = f"order-{number}"
            assert await story.knows(app, name) is (number in there), name
        for number in there:
            last = await story.ends(app, "succeeded", f"order-{number}")
            assert len(story.effects(last)) == 1
        assert sum(story.provider.counts().values()) == len(there)
        assert await rows(app) == there
    return there


@pytest.mark.proves("OUTBOX-2")
@pytest.mark.parametrize("place", OUTBOX)
async def test_a_process_that_is_killed_in_its_transaction_leaves_both_or_neither(story, place):
    story.declare()
    stops = {"stops_in_the_outbox": place, "turn": 2}
    with acting(story, "outbox", 1, 3, worker=False, **stops) as child:
        child.expect("ready")
        child.tell("go")
        child.stopped()
        child.kill()
    there = await both_or_neither(story, range(1, 4))
    assert there == ({1, 2} if place == "after commit" else {1})


@pytest.mark.proves("OUTBOX-2")
@pytest.mark.parametrize("place", ["before the gate", "behind the gate", "before the record"])
async def test_a_process_that_is_killed_while_it_carries_it_out_leaves_one_effect(story, place):
    story.declare({"on_absent": "resend"})
    with acting(story, "outbox", 1, 1, stops=place, short_leases=True) as child:
        child.expect("ready")
        child.tell("go")
        child.expect("committed")
        child.stopped()
        child.kill()
    assert await both_or_neither(story, range(1, 2)) == {1}


@pytest.mark.proves("OUTBOX-2")
async def test_without_a_worker_what_is_committed_waits_for_one(story):
    story.declare()
    with acting(story, "outbox", 1, 2, worker=False) as child:
        child.expect("ready")
        child.tell("go")
        child.expect("committed")
        child.expect("committed")
        child.kill()
    assert story.sends() == []
    assert await both_or_neither(story, range(1, 3)) == {1, 2}


@pytest.mark.proves("OUTBOX-2")
async def test_wherever_a_busy_process_is_killed_nothing_is_lost_or_doubled(story):
    story.declare({"on_absent": "resend"})
    chance, per_life, lives = random.Random(4), 200, 6
    committed: set[int] = set()
    for life in range(lives):
        first = life * per_life
        with acting(story, "outbox", first, per_life, short_leases=True) as child:
            child.expect("ready")
            child.tell("go")
            for _ in range(chance.randint(1, 12)):
                committed.add(int(child.line()["order"]))
            child.kill()  # wherever it is by now
    there = await both_or_neither(story, range(lives * per_life))
    assert committed <= there, "what was said to be committed is there"
    assert len(there) < lives * per_life
