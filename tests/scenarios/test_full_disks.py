"""A ledger that can't be written: nothing is sent that isn't recorded."""

import asyncio
from itertools import count

import anyio
import apsw
import pytest
from tests.ledger.faults import failing_disk
from tests.scenarios.processes import acting
from tests.scenarios.stories import POLL_S, WITHIN_S

from doubtless.errors import LedgerUnavailable


@pytest.fixture
def disk(story):
    whole = story.ledger
    with failing_disk() as (found, vfs):
        story.ledger += f"?vfs={vfs}"
        yield found
    story.ledger = whole


@pytest.mark.proves("ROW-W-1")
@pytest.mark.parametrize("records", [False, True], ids=["", "sending is recorded"])
@pytest.mark.parametrize(
    ("error", "lasting"),
    [(apsw.FullError, True), (apsw.IOError, False)],
    ids=["full from then on", "one error"],
)
async def test_whichever_write_before_the_send_fails_nothing_is_sent_and_the_error_says_so(
    story, disk, error, lasting, records
):
    story.declare({"record_sending": records})
    refusals, shut_gates = 0, 0
    async with story.app() as app:
        for nth in count(1):
            name, before = f"r{nth}", len(story.sends())
            disk.fail(lambda n, nth=nth: n >= nth if lasting else n == nth, error=error)
            calling = asyncio.create_task(story.call(app, name, charge=name))
            went = await what_came_of_it(story, app, disk, calling, name, before)
            disk.heal()
            if went == "it was refused":
                refusals += 1
                with pytest.raises(LedgerUnavailable, match=r"^the ledger "):
                    await calling
                assert len(story.sends()) == before
                calling = asyncio.create_task(story.call(app, name, charge=name))
            assert (await calling).status == "succeeded"
            shut_gates += went == "its gate stayed shut"
            if went == "it was sent":
                break
    assert refusals > 2
    assert bool(shut_gates) == records
    assert set(story.provider.counts().values()) == {1}
    assert len(story.provider.counts()) == nth


async def what_came_of_it(story, app, disk, calling, name: str, before: int) -> str:
    """Wait until the call is refused, or its request arrives, or its gate could not be recorded."""
    with anyio.fail_after(WITHIN_S):
        while not calling.done():
            if len(story.sends()) > before:
                return "it was sent"
            if disk.failed and await story.knows(app, name):
                return "its gate stayed shut"
            await anyio.sleep(POLL_S)
    return "it was refused" if calling.exception() else "it was sent"


@pytest.mark.proves("ROW-W-1")
async def test_a_process_whose_disk_is_full_sends_nothing_and_goes_on_when_it_is_not(story):
    story.declare()
    with acting(story, "full_disk") as child:
        said = child.line()
        assert (said["event"], said["name"]) == ("error", "LedgerUnavailable")
        assert said["text"].startswith("the ledger ")
        assert story.provider.arrivals() == []
        child.tell("there is room again")
        told = story.hear(child.outcome())
        assert told.status == "succeeded"
        story.happened(told, effects=1, sends=1)
