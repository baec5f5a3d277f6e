"""Parts of a longer action, by the provider's own count: with an unknown one, and when killed."""

import anyio
import pytest
from tests.scenarios.processes import acting
from tests.scenarios.stories import UNKNOWN, Story

from doubtless import Doubtless, Outcome

PARTS = 6
LOST = {"match": {"method": "POST", "nth": 3}, "then": {"action": "commit_then_rst"}}
NEVER = {
    "match": {"method": "POST", "nth": 3},
    "then": {"action": "commit_then_delay", "delay_s": 9},
}


async def part(story: Story, app: Doubtless, number: int) -> Outcome:
    """Ask for one part, after the one before it."""
    told = await app.call(
        "refund",
        {"charge": f"ch_{number}", "amount": 500},
        operation_id=f"part-{number}",
        after=[f"part-{number - 1}"] if number else [],
    )
    return story.heard(told)


async def every_part_is_done_once(story: Story, app: Doubtless) -> None:
    for number in range(PARTS):
        last = await story.ends(app, "succeeded", f"part-{number}")
        assert len(story.effects(last)) == 1
    assert len(story.sends()) == PARTS, "nothing was sent twice"
    order = [arrival.key for arrival in story.sends()]
    keys = [(await app.outcome(f"part-{number}")).idempotency_key for number in range(PARTS)]
    assert order == keys, "they were carried out in their order"


@pytest.mark.proves("SEQ-5")
async def test_an_unknown_part_repeats_none_that_is_done_and_loses_none_that_was_not_sent(story):
    story.declare()
    story.provider.configure([LOST])
    async with story.app() as app:
        told = [await part(story, app, number) for number in range(PARTS)]
        assert [each.status for each in told[:3]] == ["succeeded", "succeeded", UNKNOWN]
        again = [await part(story, app, number) for number in range(PARTS)]
        assert [each.already_done for each in again[:2]] == [True, True]
        await every_part_is_done_once(story, app)


@pytest.mark.proves("SEQ-5")
async def test_a_batch_that_is_killed_in_the_middle_goes_on_where_it_was(story):
    story.declare({"timeout": "20s", "recovery_deadline": "90s"})
    story.provider.configure([NEVER])
    with acting(story, "batch", PARTS) as child:
        child.expect("ready")
        child.tell("go")
        for _ in range(2):
            assert story.hear(child.outcome()).status == "succeeded"
        await story.seen(lambda provider: len(provider.effects()) == 3)
        child.kill()
    with acting(story, "batch", PARTS) as child:
        child.expect("ready")
        child.tell("go")
        told = [story.hear(child.outcome()) for _ in range(PARTS)]
        assert [each.already_done for each in told[:2]] == [True, True]
    async with story.app() as app:
        await every_part_is_done_once(story, app)


@pytest.mark.proves("SEQ-5")
@pytest.mark.parametrize("place", ["before the gate", "behind the gate", "before the record"])
async def test_a_batch_that_is_killed_at_the_gate_of_its_first_part_loses_nothing(story, place):
    story.declare({"on_absent": "resend"})
    with acting(story, "batch", PARTS, stops=place, short_leases=True) as child:
        child.expect("ready")
        child.tell("go")
        child.stopped()
        child.kill()
    async with story.app() as app:
        for number in range(PARTS):
            await part(story, app, number)
        await every_part_is_done_once(story, app)


@pytest.mark.proves("SEQ-2", "SEQ-5")
async def test_a_refused_part_rejects_those_after_it_and_nothing_of_them_is_sent(story):
    story.declare()
    story.provider.configure(
        [{"match": {"method": "POST", "nth": 2}, "then": {"action": "status", "status": 402}}]
    )
    async with story.app() as app:
        told = [await part(story, app, number) for number in range(4)]
        assert [each.state for each in told] == ["succeeded", "failed", "rejected", "rejected"]
        assert [each.error for each in told[2:]] == [
            {"code": "after_failed", "by": "part-1"},
            {"code": "after_failed", "by": "part-2"},
        ]
        assert len(story.sends()) == 2


# --- the latest wins -----------------------------------------------------------------------------


@pytest.mark.proves("SEQ-7")
async def test_the_latest_wins_after_the_older_unknown_is_settled_by_its_look_up(story):
    story.declare({"ordering": "latest_wins", "lookup.interval": "400ms"})
    story.provider.configure(
        [
            {"match": {"method": "POST", "nth": 1}, "then": {"action": "commit_then_rst"}},
            {"match": {"method": "GET", "nth": 1}, "then": {"action": "hang"}},
        ]
    )
    async with story.app() as app:

        async def deploys(version: int) -> None:
            await story.call(app, f"v{version}", amount=version)

        assert (await story.call(app, "v1", amount=1)).status == UNKNOWN
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deploys, 2)
            await story.begun(app, "v2")
            waits = await app.outcome("v2")
            assert (waits.status, waits.state) == ("pending", "prepared")
            tasks.start_soon(deploys, 3)
        overtaken = await story.ends(app, "rejected", "v2")
        assert overtaken.error == {"code": "overtaken", "by": "v3"}
        await story.ends(app, "succeeded", "v1")
        newest = await story.ends(app, "succeeded", "v3")
        assert len(story.effects(newest)) == 1
        assert story.effects(overtaken) == []
        asked = [arrival.method for arrival in story.provider.arrivals()]
        assert asked.count("POST") == 2
        assert "GET" in asked[1 : asked.index("POST", 1)], "it was looked up first"


@pytest.mark.proves("SEQ-7")
async def test_a_killed_deployment_is_looked_up_before_the_newer_one_is_sent(story):
    story.declare({"ordering": "latest_wins", "timeout": "20s", "recovery_deadline": "90s"})
    story.provider.configure(
        [
            {
                "match": {"method": "POST", "nth": 1},
                "then": {"action": "commit_then_delay", "delay_s": 9},
            }
        ]
    )
    with acting(story, "callers", 1, operation_id="v1") as child:
        child.expect("ready")
        child.tell("go")
        await story.seen(lambda provider: len(provider.effects()) == 1)
        child.kill()
    async with story.app() as app:
        await story.call(app, "v2", amount=2)
        await story.ends(app, "succeeded", "v1")
        await story.ends(app, "succeeded", "v2")
        asked = [arrival.method for arrival in story.provider.arrivals()]
        assert asked[0] == "POST"
        assert asked[1] == "GET"
        assert asked.count("POST") == 2
