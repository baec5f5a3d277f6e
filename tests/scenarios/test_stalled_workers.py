"""Workers that are stopped past their lease while others go on, and are then woken."""

import signal

import pytest
from tests.scenarios.processes import acting
from tests.scenarios.stories import UNKNOWN

ONCE = {"method": "POST", "nth": 1}
# Absence orders a resend here: whoever believes it too early makes a second effect.
TEMPTING = {"timeout": "500ms", "on_absent": "resend"}


@pytest.mark.proves("ROW-U-1")
@pytest.mark.parametrize("records", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("place", ["before the gate", "behind the gate"])
async def test_a_worker_that_slept_through_its_lease_writes_no_byte_when_it_wakes(
    story, place, records
):
    story.declare({**TEMPTING, "record_sending": records})
    with acting(story, "callers", 1, stops=place, short_leases=True) as sleeper:
        sleeper.expect("ready")
        sleeper.tell("go")
        sleeper.stopped()
        async with story.app() as app:
            if records and place == "before the gate":
                # The missing record proves it: the sleeper's fence is gone, and its gate closed.
                await story.ends(app, "succeeded")
            else:
                await story.ends(app, "unknown")
                await story.until_told(app, "'shows': 'absent'")
                assert story.sends() == [], "the sleeper may still write: nobody else may"
            sleeper.wake()
            told = story.hear(sleeper.outcome())
            assert told.status in ("succeeded", UNKNOWN)
            last = await story.ends(app, "succeeded")
            story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-U-1")
@pytest.mark.parametrize("answered_s", [1.0, 20.0], ids=["answered", "not answered"])
async def test_what_a_worker_sent_before_it_was_stopped_is_looked_up_by_another(story, answered_s):
    story.declare(TEMPTING)
    slow = {"action": "commit_then_delay", "delay_s": answered_s}
    story.provider.configure([{"match": ONCE, "then": slow}])
    with acting(story, "callers", 1, short_leases=True) as sleeper:
        sleeper.expect("ready")
        sleeper.tell("go")
        await story.seen(lambda provider: len(provider.effects()) == 1)
        sleeper.signal(signal.SIGSTOP)
        sleeper.stopped()
        async with story.app() as app:
            await story.ends(app, "succeeded")
            assert UNKNOWN in story.told
            sleeper.wake()
            assert story.hear(sleeper.outcome()).status == "succeeded"
            last = await story.ends(app, "succeeded")
            story.happened(last, effects=1, sends=1)
