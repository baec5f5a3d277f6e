"""The outbox on PostgreSQL, wherever a process is killed: ours, or a user's with its connection."""

from collections.abc import Iterator

import pytest
from tests.engine.shop import on_server
from tests.scenarios.processes import acting
from tests.scenarios.stories import Story
from tests.scenarios.test_outbox import both_or_neither

ORDERS = "create table if not exists orders (id integer primary key)"


@pytest.fixture
def story(provider, nursery, tmp_path, postgres) -> Iterator[Story]:
    found = Story(provider, tmp_path, nursery, ledger=on_server(postgres))
    yield found
    found.check_the_ledger()


@pytest.mark.proves("OUTBOX-2")
async def test_a_process_that_is_killed_in_its_transaction_leaves_nothing_of_it(story):
    story.declare()
    stops = {"stops_in_the_outbox": "before commit", "turn": 2}
    with acting(story, "outbox", 1, 3, worker=False, **stops) as child:
        child.expect("ready")
        child.tell("go")
        child.stopped()
        child.kill()
    assert await both_or_neither(story, range(1, 4)) == {1}


@pytest.mark.proves("OUTBOX-2", "OUTBOX-9")
@pytest.mark.parametrize(
    ("driver", "place"),
    [
        ("psycopg", "after prepare"),
        ("asyncpg", "after commit"),
    ],
)
async def test_a_users_process_that_is_killed_leaves_both_or_neither(story, driver, place):
    story.declare()
    async with story.app(worker=False) as app, app.transaction() as tx:
        await tx.run(ORDERS)
    with acting(story, "shared", driver, place, worker=False) as child:
        child.expect("ready")
        child.tell("go")
        child.stopped()
        async with story.app() as app:
            # It is open, and stopped: nobody else has to wait for it.
            assert (await story.call(app, "other", charge="ch_9")).status == "succeeded"
        child.kill()
    counted = 1
    async with story.app() as app:
        there = await story.knows(app, "order-1")
        assert there is (place == "after commit")
        if there:
            last = await story.ends(app, "succeeded", "order-1")
            assert len(story.effects(last)) == 1
            counted += 1
        async with app.transaction() as tx:
            assert await tx.rows("select id from orders") == ([{"id": 1}] if there else [])
    assert sum(story.provider.counts().values()) == counted
