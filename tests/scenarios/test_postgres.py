"""The stories that matter most, once more on a PostgreSQL ledger, with processes that share it."""

from collections.abc import Iterator

import pytest
from tests.scenarios import test_crashes, test_identity, test_lost_answers, test_stalled_workers
from tests.scenarios.stories import Story


@pytest.fixture
def story(provider, nursery, tmp_path, postgres) -> Iterator[Story]:
    found = Story(provider, tmp_path, nursery, ledger=postgres.empty())
    yield found
    found.check_the_ledger()


@pytest.mark.proves("PG-9")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "dropped"])
async def test_a_lost_answer_is_settled_by_a_look_up(story, committed):
    again = test_lost_answers.test_the_same_exception_leads_to_what_the_provider_s_evidence_says
    await again(story, committed, "rst", "resend")


@pytest.mark.proves("PG-9")
async def test_eight_callers_in_two_processes_make_one_effect(story):
    again = test_identity.test_eight_callers_in_two_processes_make_one_effect_and_are_told_the_same
    await again(story)


@pytest.mark.proves("PG-9")
async def test_another_worker_takes_over_from_one_that_was_killed(story):
    again = test_crashes.test_a_process_that_was_killed_after_the_effect_is_followed_by_a_look_up
    await again(story, "before the record")


@pytest.mark.proves("PG-9")
async def test_a_worker_that_slept_through_its_lease_writes_no_byte_when_it_wakes(story):
    again = (
        test_stalled_workers.test_a_worker_that_slept_through_its_lease_writes_no_byte_when_it_wakes
    )
    await again(story, "behind the gate", records=True)
