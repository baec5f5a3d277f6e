"""What an operator decides about an operation, and what the agent is told of it afterwards."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.functions import WITHIN_S, application, ends, looks
from tests.engine.people import (
    SLOW,
    Acts,
    arrived,
    asked,
    by_operator,
    decides,
    entries,
    reviewed,
)

from doubtless import Call, CouldNotAsk, Key, NotSent, Operation, Present, Rejected
from doubtless.errors import DecisionRefused, OperationNotFound, SettingsError, StaleVersion

# --- done, and not done --------------------------------------------------------------------------


@pytest.mark.proves("DECIDE-1")
async def test_done_settles_as_success_and_who_repeats_the_call_is_told_so(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        await reviewed(app)
        told = await decides(app, "done", provider_operation_id="re_1")
        assert (told.status, told.provider_operation_id) == ("succeeded", "re_1")
        assert told.last_confirmed["source"] == "operator"
        repeat = await asked(app)
    assert (repeat.status, repeat.already_done, repeat.recovery) == (
        "succeeded",
        True,
        "already_done",
    )
    assert [number for _, number, _ in acts.attempts] == [1]


@pytest.mark.proves("DECIDE-2")
async def test_not_done_while_something_may_arrive_keeps_the_object_and_shows_until_when(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app, **SLOW, business_key=["what"])
        await reviewed(app)
        told = await decides(app, "not-done")
        assert (told.status, told.retry_allowed) == ("failed", False)
        assert told.error == {"code": "operator_not_done"}
        assert told.acts["who"] == "caller"
        assert str(told.acts["by"]) in told.message
        assert (await asked(app)).status == "failed"
        other = await asked(app, "o2")
        assert other.error == {"code": "target_unresolved", "operation_id": "o1"}
    assert len(acts.attempts) == 1


@pytest.mark.proves("DECIDE-2")
async def test_not_done_once_nothing_can_arrive_permits_the_repeat_to_act(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        await arrived(await reviewed(app))
        told = await decides(app, "not_done")
        assert (told.status, told.retry_allowed) == ("failed_safe_to_retry", True)
        assert told.acts == {"who": "caller", "by": None}
        repeat = await asked(app)
    assert (repeat.status, repeat.result, repeat.already_done) == ("succeeded", "done x", False)
    assert [number for _, number, _ in acts.attempts] == [1, 2]


@pytest.mark.proves("DECIDE-2")
async def test_a_hasty_not_done_permits_no_repeat_until_it_is_said_again(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        first = await reviewed(app)
        await decides(app, "not_done")
        await arrived(first)
        repeat = await asked(app)
        assert (repeat.status, repeat.retry_allowed) == ("failed", False)
        with pytest.raises(DecisionRefused, match="look again"):
            await decides(app, "retry")
        told = await decides(app, "not_done")
        assert told.status == "failed_safe_to_retry"
        assert (await asked(app)).status == "succeeded"
    assert len(acts.attempts) == 2


@pytest.mark.proves("DECIDE-2")
async def test_what_was_decided_to_be_not_done_is_confirmed_by_the_operator(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        await reviewed(app)
        told = await decides(app, "not_done")
    assert (told.last_confirmed["state"], told.last_confirmed["source"]) == (
        "not_applied",
        "operator",
    )


# --- unsure, and retry ---------------------------------------------------------------------------


@pytest.mark.proves("DECIDE-3")
async def test_unsure_keeps_the_review_and_is_recorded_with_a_new_version(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        before = await reviewed(app)
        told = await decides(app, "unsure", version=before.version)
        assert (told.state, told.version) == ("manual_review", before.version + 1)
        assert told.acts == {"who": "operator", "by": None}
        (entry,) = await by_operator(app)
    assert (entry["kind"], entry["principal"]) == ("decision", "ops")
    assert entry["inputs"] == {"decision": "unsure", "note": "looked there"}


@pytest.mark.proves("DECIDE-4")
async def test_retry_of_a_review_sends_the_same_operation_under_the_same_key(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app, idempotency=Key(ttl="24h"))
        first = await reviewed(app)
        told = await decides(app, "retry")
        assert (told.status, told.result, told.attempts) == ("succeeded", "done x", 2)
        assert (told.operation_id, told.ref) == ("o1", first.ref)
        sends = [e for e in await by_operator(app) if e["kind"] == "attempt"]
    assert acts.attempts == [("o1", number, first.idempotency_key) for number in (1, 2)]
    assert [entry["attempt"]["resend"] for entry in sends] == [True]


@pytest.mark.proves("DECIDE-4")
async def test_a_retry_that_is_lost_again_goes_to_a_person_again(tmp_path):
    acts = Acts(lost=2)
    async with application(tmp_path) as app:
        acts.declare(app)
        await reviewed(app)
        assert (await decides(app, "retry")).state == "manual_review"
        assert (await decides(app, "retry")).status == "succeeded"
    assert [number for _, number, _ in acts.attempts] == [1, 2, 3]


@pytest.mark.proves("DECIDE-4")
async def test_retry_of_a_failure_acts_only_where_nothing_was_done(tmp_path):
    errors: list[Exception] = [NotSent("no route"), Rejected("no such order")]
    async with application(tmp_path) as app:

        @app.tool(**{**SLOW, "retry": {"attempts": 1, "backoff": "20ms"}})
        async def act(call: Call, what: str) -> None:
            raise errors.pop(0)

        told = await asked(app)
        assert told.status == "failed_safe_to_retry"
        told = await decides(app, "retry")
        assert (told.status, told.attempts) == ("failed", 2)
        with pytest.raises(DecisionRefused, match="it can't be sent again"):
            await decides(app, "retry")
        assert (await app.outcome("o1")).version == told.version
    assert errors == []


@pytest.mark.proves("DECIDE-4")
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"idempotency": Key(ttl="1s")}, "forgotten its key"),
        ({"idempotency": Key()}, "forgotten its key"),
        ({"valid_for": "400ms"}, "its intent is void"),
    ],
    ids=["a short life", "an unknown life", "void"],
)
async def test_retry_is_refused_under_a_forgotten_key_and_for_a_void_intent(
    tmp_path, changes: dict[str, Any], why: str
):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app, **changes)
        first = await reviewed(app)
        await arrived(first)
        with pytest.raises(DecisionRefused, match=why):
            await decides(app, "retry")
        told = await app.outcome("o1")
    assert (told.state, told.version) == ("manual_review", first.version)
    assert len(acts.attempts) == 1


@pytest.mark.proves("DECIDE-4")
async def test_retry_is_refused_where_the_tool_is_not_registered(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        first = await reviewed(app)
    async with application(tmp_path) as other:
        with pytest.raises(DecisionRefused, match="not registered in this process"):
            await decides(other, "retry")
        assert (await other.outcome("o1")).version == first.version


# --- look again ----------------------------------------------------------------------------------


@pytest.mark.proves("DECIDE-5")
async def test_look_again_really_asks_the_look_ups_and_starts_a_new_deadline(tmp_path):
    seen: list[Operation] = []
    there: list[str] = []

    async def find(operation: Operation) -> Present | CouldNotAsk:
        seen.append(operation)
        return Present(provider_operation_id=there[0]) if there else CouldNotAsk(why="it is down")

    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app, lookup=looks(find, timeout="50ms"), recovery_deadline="600ms")
        await asked(app)
        review = await ends(app, "manual_review")
        assert review.reconcile is not None
        count = len(seen)
        assert count > 0
        told = await decides(app, "look_again")
        assert told.status in ("unknown_reconciliation_required", "succeeded")
        if told.reconcile is not None and told.state != "manual_review":
            assert str(told.reconcile["deadline"]) > str(review.reconcile["deadline"])
        review = await ends(app, "manual_review")
        assert len(seen) > count
        there.append("re_1")
        await decides(app, "look-again")
        last = await ends(app, "succeeded")
    assert (last.provider_operation_id, last.last_confirmed["source"]) == ("re_1", "lookup")
    assert len(acts.attempts) == 1


@pytest.mark.proves("DECIDE-5")
async def test_look_again_is_refused_where_there_is_nothing_to_ask(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        first = await reviewed(app)
        with pytest.raises(DecisionRefused, match="declares no look-up"):
            await decides(app, "look_again")
        assert (await app.outcome("o1")).version == first.version


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.proves("DECIDE-6")
@pytest.mark.parametrize("word", ["done", "not_done", "unsure", "retry", "look_again", "again"])
async def test_nothing_is_decided_about_a_success(tmp_path, word):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app)
        told = await asked(app)
        with pytest.raises(DecisionRefused, match=r"not possible while it is succeeded"):
            await decides(app, word)
        after = await app.outcome("o1")
        assert await by_operator(app) == []
    assert (after.state, after.version) == ("succeeded", told.version)
    assert len(acts.attempts) == 1


@pytest.mark.proves("DECIDE-6")
@pytest.mark.parametrize("word", ["done", "unsure", "look_again", "again"])
async def test_what_is_closed_as_not_done_is_open_to_few_words(tmp_path, word):
    async with application(tmp_path) as app:
        Acts().declare(app)
        await reviewed(app)
        told = await decides(app, "not_done")
        with pytest.raises(DecisionRefused, match=r"not possible while it is failed"):
            await decides(app, word)
        assert (await app.outcome("o1")).version == told.version


@pytest.mark.proves("DECIDE-6")
async def test_a_decision_on_a_stale_version_is_refused_with_the_current_one(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        first = await reviewed(app)
        second = await decides(app, "unsure", version=first.version)
        for word in ("done", "not_done", "retry", "again", "unsure"):
            with pytest.raises(StaleVersion) as caught:
                await decides(app, word, version=first.version)
            assert (caught.value.expected, caught.value.version) == (first.version, second.version)
        assert (await decides(app, "done", version=second.version)).status == "succeeded"
        assert len(await entries(app, "decision")) == 1
    assert len(acts.attempts) == 1


@pytest.mark.proves("DECIDE-6")
async def test_a_word_that_is_none_is_told_with_those_that_are(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        first = await reviewed(app)
        with pytest.raises(SettingsError, match=r"'perhaps'.*done, not_done, unsure"):
            await decides(app, "perhaps")
        assert (await app.outcome("o1")).version == first.version


@pytest.mark.proves("DECIDE-6")
@pytest.mark.parametrize("word", ["done", "retry", "again"])
async def test_nothing_is_decided_about_what_is_not_there(tmp_path, word):
    async with application(tmp_path) as app:
        with pytest.raises(OperationNotFound):
            await decides(app, word, "nothing")


@pytest.mark.proves("DECIDE-1")
async def test_who_waits_is_told_of_a_decision_at_once(tmp_path):
    async with application(tmp_path, worker=False) as app:
        Acts().declare(app)
        await reviewed(app)
        found: list[str] = []

        async def waits() -> None:
            found.append((await app.wait("o1", timeout=WITHIN_S)).status)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waits)
            await anyio.lowlevel.checkpoint()
            await decides(app, "done")
    assert found == ["succeeded"]
