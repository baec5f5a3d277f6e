"""One intent, one operation: who asks again, with what, and after whose decision."""

import pytest
from tests.scenarios.processes import acting
from tests.scenarios.stories import UNKNOWN

POST = {"method": "POST"}
ONCE = {"method": "POST", "nth": 1}


@pytest.mark.proves("ROW-F-1")
async def test_eight_callers_in_two_processes_make_one_effect_and_are_told_the_same(story):
    story.declare()
    story.provider.configure({"settings": {"work_s": 0.3}})
    with acting(story, "callers", 4) as first, acting(story, "callers", 4) as second:
        for child in (first, second):
            child.expect("ready")
        for child in (first, second):
            child.tell("go")
        told = [story.hear(child.outcome()) for child in (first, second) for _ in range(4)]
    assert {outcome.status for outcome in told} == {"succeeded"}
    assert len({(found.operation_id, found.provider_operation_id) for found in told}) == 1
    story.happened(told[0], effects=1, sends=1)


@pytest.mark.proves("CASE-T-4")
async def test_three_processes_with_one_business_key_and_no_id_make_one_effect(story):
    story.declare()
    story.provider.configure({"settings": {"work_s": 0.3}})
    with (
        acting(story, "callers", 1, operation_id=None) as first,
        acting(story, "callers", 1, operation_id=None) as second,
        acting(story, "callers", 1, operation_id=None) as third,
    ):
        children = (first, second, third)
        for child in children:
            child.expect("ready")
        for child in children:
            child.tell("go")
        told = [story.hear(child.outcome()) for child in children]
    assert {outcome.status for outcome in told} == {"succeeded"}
    assert len({outcome.operation_id for outcome in told}) == 1
    story.happened(told[0], effects=1, sends=1)


@pytest.mark.proves("ROW-G-1")
async def test_the_same_id_with_another_payload_is_refused_and_nothing_is_sent(story):
    async with story.app() as app:
        first = await story.call(app)
        refused = await story.call(app, amount=501)
        assert refused.status == "rejected_by_policy"
        assert refused.error["code"] == "payload_mismatch"
        assert "Nothing was sent" in refused.message
        assert (await story.call(app)).already_done
        story.happened(first, effects=1, sends=1)


@pytest.mark.proves("CASE-P-2", "CASE-A-3")
@pytest.mark.parametrize("other", [{"amount": 501}, {}], ids=["a variant", "another id"])
async def test_a_variant_of_what_is_not_known_yet_is_refused_and_not_sent(story, other):
    story.provider.configure([{"match": ONCE, "then": {"action": "commit_then_rst"}}])
    story.declare({"lookup.interval": "7s"})
    async with story.app() as app:
        first = await story.call(app)
        assert first.status == UNKNOWN
        refused = await story.call(app, "r2", **other)
        assert refused.status == "rejected_by_policy"
        assert refused.error == {"code": "target_unresolved", "operation_id": "r1"}
        story.happened(first, effects=1, sends=1)


@pytest.mark.proves("CASE-P-7")
async def test_two_equal_refunds_under_two_ids_are_both_done_after_one_another(story):
    async with story.app() as app:
        first = await story.call(app, "r1")
        second = await story.call(app, "r2")
    assert (first.status, second.status) == ("succeeded", "succeeded")
    assert not second.already_done
    assert len(story.provider.effects()) == 2
    assert len({sent.key for sent in story.sends()}) == 2


@pytest.mark.proves("CASE-A-11")
async def test_a_repeat_with_the_id_is_told_the_result_and_one_without_is_a_new_intent(story):
    async with story.app() as app:
        first = await story.call(app, "r1")
        for _ in range(5):
            again = await story.call(app, "r1")
            assert (again.already_done, again.result) == (True, first.result)
            assert again.recovery == "already_done"
        story.happened(first, effects=1, sends=1)
        on_purpose = await story.call(app, None)
        assert (on_purpose.status, on_purpose.already_done) == ("succeeded", False)
        assert len(story.provider.effects()) == 2


@pytest.mark.proves("CASE-A-11")
async def test_a_repeat_without_an_id_is_told_the_result_within_the_declared_window(story):
    story.declare({"dedupe_window": "1h"})
    async with story.app() as app:
        first = await story.call(app, None)
        again = await story.call(app, None)
        assert (again.operation_id, again.already_done) == (first.operation_id, True)
        story.happened(first, effects=1, sends=1)


@pytest.mark.proves("CASE-A-11")
async def test_a_repeat_without_an_id_joins_what_is_not_known_yet(story):
    story.provider.configure([{"match": ONCE, "then": {"action": "commit_then_rst"}}])
    async with story.app() as app:
        first = await story.call(app, None)
        assert first.status == UNKNOWN
        again = await story.call(app, None)
        assert again.operation_id == first.operation_id
        last = await story.ends(app, "succeeded", first.operation_id)
        story.happened(last, effects=1, sends=1)


# --- a person's word -----------------------------------------------------------------------------

TO_A_PERSON = {"lookup": None, "effect": "write"}


@pytest.mark.proves("ROW-Z-1")
@pytest.mark.parametrize("decision", ["done", "not_done"])
async def test_an_agent_that_resumes_after_a_person_s_decision_is_told_it_and_sends_nothing(
    story, decision
):
    story.declare(TO_A_PERSON)
    lost = "commit_then_rst" if decision == "done" else "drop_before_commit"
    story.provider.configure([{"match": ONCE, "then": {"action": lost}}])
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.recovery) == (UNKNOWN, "needs_operator")
        await app.resolve("r1", decision, operator="op", note="looked at the provider's own list")
        last = await story.call(app)
        if decision == "done":
            assert (last.status, last.already_done) == ("succeeded", True)
            assert last.last_confirmed["source"] == "operator"
        else:
            # Something of it may still arrive: until then the same call sends nothing either.
            assert (last.status, last.retry_allowed) == ("failed", False)
            assert last.acts["by"] is not None
        story.happened(last, effects=int(decision == "done"), sends=1)


@pytest.mark.proves("ROW-Z-1")
async def test_a_decision_that_the_provider_s_late_answer_contradicts_goes_back_to_a_person(story):
    story.declare({**TO_A_PERSON, "timeout": "300ms", "in_flight_horizon": "5s"})
    slow = {"action": "delay_then_commit", "delay_s": 0.8}
    story.provider.configure([{"match": ONCE, "then": slow}])
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        await app.resolve("r1", "not_done", operator="op", note="not in the list, too early")
        told = await story.call(app)
        assert (told.status, told.retry_allowed) == ("failed", False)
        last = await story.ends(app, "manual_review")
        assert "escalate: contradiction" in str(await app.timeline("r1"))
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-Z-1")
async def test_an_agent_that_was_suspended_in_its_call_is_told_what_a_person_decided(story):
    story.declare({**TO_A_PERSON, "recovery_deadline": "1s", "timeout": "500ms"})
    with acting(story, "callers", 1, stops="before the gate", short_leases=True) as agent:
        agent.expect("ready")
        agent.tell("go")
        agent.stopped()
        async with story.app() as app:
            review = await story.ends(app, "manual_review")
            assert story.heard(review).status == UNKNOWN
            await app.resolve("r1", "not_done", operator="op", note="never arrived there")
            agent.wake()
            told = story.hear(agent.outcome())
            assert told.state == "failed"
            assert told.error == {"code": "operator_not_done"}
            story.happened(told, effects=0, sends=0)
