"""Answers that say something else than they seem to."""

import pytest
from tests.scenarios.contracts import ANYBODYS, REPLAYED
from tests.scenarios.processes import acting
from tests.scenarios.stories import UNKNOWN

ONCE = {"method": "POST", "nth": 1}
TWICE = {"method": "POST", "nth": 2}
UNIQUE = {"unique_by": ["charge"], "key_mode": "off"}
SOMEBODY_ELSES = {"charge": "ch_1", "amount": 500, "metadata": {"operation": "somebody else's"}}


@pytest.mark.proves("ROW-K-1", "CASE-P-1")
async def test_the_first_request_still_runs_is_no_failure_but_a_reason_to_wait(story):
    times = {"timeout": "400ms", "in_flight_horizon": "100ms", "retry.backoff": "300ms"}
    story.declare({**REPLAYED, **times, "idempotency.in_progress": [409]})
    slow = {"action": "delay_then_commit", "delay_s": 1.1, "key_in_progress": True}
    story.provider.configure([{"match": ONCE, "then": slow}])
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        waiting = await story.until(
            app, lambda found: found.observation["cause"] == "key_in_progress"
        )
        assert waiting.status == UNKNOWN
        last = await story.ends(app, "succeeded")
        assert 409 in [sent.status for sent in story.sends()]
        story.happened(last, effects=1, sends=last.attempts)


# --- refusals that the first attempt caused ------------------------------------------------------


@pytest.mark.proves("ROW-L-1", "CASE-C-9")
@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "already_exists"), (422, "slot_taken"), (403, "already_used")],
)
async def test_a_refusal_that_our_own_first_attempt_caused_is_attributed_to_it(story, status, code):
    replay = {"effect": "idempotent_call", "on_absent": "resend", "business_key": None}
    story.declare({**replay, "lookup.lag": "1s", "retry.resend": 1})
    story.provider.configure(
        {
            "settings": {
                **UNIQUE,
                "unique_status": status,
                "unique_code": code,
                "unique_shows_object": False,
                "read_lag_s": 0.8,
            },
            "rules": [{"match": ONCE, "then": {"action": "commit_then_rst"}}],
        }
    )
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        last = await story.ends(app, "succeeded")
        assert set(story.told) <= {UNKNOWN, "pending", "succeeded"}
        assert [sent.status for sent in story.sends()] == [None, status]
        story.happened(last, effects=1, sends=2)


@pytest.mark.proves("ROW-M-1", "CASE-P-7")
async def test_an_object_that_may_be_somebody_else_s_goes_to_a_person_and_is_no_success(story):
    story.declare(ANYBODYS)
    story.provider.configure({"settings": UNIQUE})
    story.provider.seed("refunds", SOMEBODY_ELSES)
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, "unproven_status")
        last = await story.ends(app, "manual_review")
        assert last.status == UNKNOWN
        assert "escalate: not_attributed" in str(await app.timeline("r1"))
        story.happened(last, effects=0, sends=1)


@pytest.mark.proves("ROW-M-1", "CASE-P-7")
@pytest.mark.parametrize("status", [409, 422])
async def test_an_object_that_is_surely_somebody_else_s_is_no_success_either(story, status):
    story.provider.configure({"settings": {**UNIQUE, "unique_status": status}})
    story.provider.seed("refunds", SOMEBODY_ELSES)
    async with story.app() as app:
        await story.call(app)
        last = await story.ends(app, "failed")
        expected = "failed_safe_to_retry" if status == 409 else "failed"
        assert last.status == expected
        story.happened(last, effects=0, sends=1)


@pytest.mark.proves("ROW-M-1")
async def test_an_object_with_our_reference_but_another_amount_is_a_contradiction(story):
    story.provider.configure([{"match": ONCE, "then": {"action": "drop_before_commit"}}])
    async with story.app() as app:
        first = await story.call(app)
        other = {"charge": "ch_1", "amount": 999, "metadata": {"operation": first.ref}}
        story.provider.seed("refunds", other)
        last = await story.ends(app, "manual_review")
        assert "escalate: contradiction" in str(await app.timeline("r1"))
        story.happened(last, effects=0, sends=1)


# --- a 2xx that is not proof ---------------------------------------------------------------------

TWO_STEPS = {
    "lookup.in_progress": "status == 'pending'",
    "lookup.failed": "status == 'failed'",
    "lookup.applied": "status == 'succeeded'",
}


@pytest.mark.proves("ROW-P-1")
@pytest.mark.parametrize("ending", ["succeeded", "failed"])
async def test_accepted_work_is_pending_until_the_provider_says_how_it_ended(story, ending):
    story.declare(TWO_STEPS)
    story.provider.configure([{"match": ONCE, "then": {"action": "accept_pending"}}])
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.state) == ("pending", "accepted")
        assert first.last_confirmed["state"] == "in_progress"
        (item,) = story.provider.pending()
        assert first.provider_operation_id == item
        assert (await story.call(app)).status == "pending"
        story.provider.complete(item, ending)
        last = await story.ends(app, ending)
        assert last.status == ending
        story.happened(last, effects=int(ending == "succeeded"), sends=1)


@pytest.mark.proves("ROW-P-1")
async def test_an_error_inside_a_200_is_a_failure_where_the_contract_says_so(story):
    story.declare({"response.failed": "status == 'failed'"})
    story.provider.configure([{"match": ONCE, "then": {"action": "ok_with_error_inside"}}])
    async with story.app() as app:
        told = await story.call(app)
        assert (told.status, told.retry_allowed) == ("failed", False)
        assert (await story.call(app)).status == "failed"
        story.happened(told, effects=0, sends=1)


@pytest.mark.proves("ROW-Y-1")
async def test_work_that_stays_busy_for_too_long_goes_to_a_person_as_in_progress(story):
    story.declare({**TWO_STEPS, "response.completes_within": "1s"})
    story.provider.configure([{"match": ONCE, "then": {"action": "accept_pending"}}])
    async with story.app() as app:
        assert (await story.call(app)).status == "pending"
        late = await story.ends(app, "manual_review")
        assert late.status == UNKNOWN
        assert late.last_confirmed["state"] == "in_progress"
        assert late.last_confirmed["source"] == "lookup"
        assert (await story.call(app)).status == UNKNOWN
        story.provider.complete(story.provider.pending()[0])
        await app.resolve("r1", "look_again", operator="op", note="the provider says it is done")
        last = await story.ends(app, "succeeded")
        assert last.last_confirmed["state"] == "succeeded"
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-Y-1")
async def test_the_late_completion_of_overdue_work_settles_it_without_anybody_s_word(story):
    story.declare({**TWO_STEPS, "response.completes_within": "500ms"})
    story.provider.configure([{"match": ONCE, "then": {"action": "accept_pending"}}])
    with acting(story, "callers", 1, quick_reviews=True) as worker:
        worker.expect("ready")
        worker.tell("go")
        async with story.app(worker=False) as app:
            await story.begun(app)
            late = await story.ends(app, "manual_review")
            assert late.last_confirmed["state"] == "in_progress"
            story.provider.complete(story.provider.pending()[0])
            story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)


# --- not processed, and codes that lie -----------------------------------------------------------


@pytest.mark.proves("ROW-Q-1")
@pytest.mark.parametrize("status", [425, 429])
async def test_a_first_send_that_was_not_processed_is_sent_again_when_the_provider_asks(
    story, status
):
    told = {"action": "status", "status": status, "retry_after_s": 1}
    story.provider.configure([{"match": ONCE, "then": told}])
    async with story.app() as app:
        waiting = await story.call(app, wait_s=0.5)
        assert (waiting.status, waiting.observation["class"]) == ("pending", "not_processed")
        last = await story.ends(app, "succeeded")
        story.happened(last, effects=1, sends=2)
        first, again = story.sends()
        assert again.at - first.at >= 1


@pytest.mark.proves("ROW-Q-1")
@pytest.mark.parametrize("status", [425, 429])
async def test_not_processed_after_an_unknown_says_nothing_about_the_first_attempt(story, status):
    story.declare({**REPLAYED, "retry.backoff": "200ms"})
    story.provider.configure(
        [
            {"match": ONCE, "then": {"action": "commit_then_rst"}},
            {"match": TWICE, "then": {"action": "status", "status": status}},
        ]
    )
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        last = await story.ends(app, "succeeded")
        assert set(story.told) <= {UNKNOWN, "pending", "succeeded"}
        assert [sent.status for sent in story.sends()] == [None, status, 201]
        story.happened(last, effects=1, sends=3)


@pytest.mark.proves("CASE-M-6")
async def test_a_code_that_is_known_to_lie_is_unknown_and_not_a_refusal(story):
    story.declare({"response.unproven": [404]})
    story.provider.configure([{"match": ONCE, "then": {"action": "not_found_lie"}}])
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, "unproven_status")
        assert "known to prove nothing" in first.transport_observation
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)
