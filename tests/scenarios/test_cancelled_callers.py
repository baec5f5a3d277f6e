"""The caller's framework gives up in mid-flight. The attempt does not."""

import asyncio

import anyio
import pytest
from tests.scenarios.stories import UNKNOWN

ONCE = {"method": "POST", "nth": 1}


async def by_its_task(story, app) -> None:
    calling = asyncio.create_task(story.call(app))
    await story.seen(lambda provider: bool(provider.arrivals()))
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def by_a_scope(story, app) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(story.call, app)
            await story.seen(lambda provider: bool(provider.arrivals()))
            scope.cancel()


async def by_its_patience(story, app) -> None:
    patience_s = 0.2
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(story.call(app), timeout=patience_s)


@pytest.mark.proves("ROW-T-1")
@pytest.mark.parametrize("give_up", [by_its_task, by_a_scope, by_its_patience])
async def test_an_attempt_runs_on_without_its_caller_and_a_repeat_joins_it(story, give_up):
    story.provider.configure({"settings": {"work_s": 0.5}})
    async with story.app() as app:
        await give_up(story, app)
        assert story.heard(await app.outcome("r1")).state == "executing"
        assert story.provider.effects() == []
        last = await story.call(app)
        assert (last.status, last.attempts) == ("succeeded", 1)
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-T-1")
async def test_an_answer_that_is_lost_after_its_caller_gave_up_is_recorded_as_unknown(story):
    story.provider.configure(
        {
            "settings": {"work_s": 0.5},
            "rules": [{"match": ONCE, "then": {"action": "commit_then_rst"}}],
        }
    )
    story.declare({"lookup.interval": "1s"})
    async with story.app() as app:
        await by_its_task(story, app)
        joined = await story.call(app)
        assert (joined.status, joined.attempts) == (UNKNOWN, 1)
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)


@pytest.mark.proves("ROW-T-1")
async def test_an_application_that_closes_in_mid_flight_waits_for_the_answer(story):
    story.provider.configure({"settings": {"work_s": 0.5}})
    async with story.app() as app:
        await by_its_task(story, app)
    async with story.app() as app:
        told = story.heard(await app.outcome("r1"))
        assert (told.status, told.attempts) == ("succeeded", 1)
        story.happened(told, effects=1, sends=1)
