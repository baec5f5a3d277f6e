"""A new operation in place of one that nobody can be sure of, and evidence that comes too late."""

import threading
from typing import Any

import anyio.to_thread
import pytest
from tests.engine.functions import WITHIN_S, application, comes_true, ends, looks, states
from tests.engine.people import (
    QUICK,
    SLOW,
    Acts,
    asked,
    by_operator,
    decides,
    entries,
    reviewed,
)
from tests.transports.http_peer import serving

from doubtless import Absent, Call, CouldNotAsk, Doubtless, Key, Operation, Present, Rejected
from doubtless.errors import DecisionRefused

# --- again ---------------------------------------------------------------------------------------


async def birth(app: Doubtless, operation_id: str) -> dict[str, Any]:
    """Return an operation as it was prepared."""
    (entry,) = await entries(app, "prepared", operation_id)
    found: dict[str, Any] = entry["operation"]
    return found


@pytest.mark.proves("DECIDE-7")
@pytest.mark.parametrize("mark", [False, True], ids=["not done", "unsure"])
async def test_again_closes_the_operation_and_carries_out_a_new_one_linked_both_ways(
    tmp_path, mark
):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app, **SLOW, business_key=["what"], idempotency=Key(ttl="24h"))
        first = await reviewed(app)
        told = await decides(app, "again", mark_duplicate=mark)
        old = await app.outcome("o1")
        assert (told.status, told.result, told.attempts) == ("succeeded", "done x", 1)
        assert (old.status, old.retry_allowed) == ("failed", False)
        assert old.error == {"code": "operator_unsure" if mark else "operator_not_done"}
        assert old.superseded_by == told.operation_id
        born = await birth(app, told.operation_id)
        assert born["supersedes"] == "o1"
        assert born.get("duplicate_of") == ("o1" if mark else None)
        assert (await asked(app)).state == "failed"
    assert told.operation_id != "o1"
    assert told.idempotency_key != first.idempotency_key
    assert told.ref != first.ref
    assert [(name, number) for name, number, _ in acts.attempts] == [
        ("o1", 1),
        (told.operation_id, 1),
    ]


@pytest.mark.proves("DECIDE-7")
async def test_again_hands_the_object_over_without_a_gap(tmp_path):
    acts = Acts(lost=2)
    async with application(tmp_path) as app:
        acts.declare(app, **SLOW, business_key=["what"])
        await reviewed(app)
        told = await decides(app, "again")
        assert told.state == "manual_review"
        refused = await asked(app, "o3")
        assert refused.error == {"code": "target_unresolved", "operation_id": told.operation_id}
        joined = await asked(app, None)
        assert joined.operation_id == told.operation_id
    assert len(acts.attempts) == 2


@pytest.mark.proves("DECIDE-7")
async def test_again_says_whose_decision_it_was_and_closes_for_good(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app, **SLOW)
        await reviewed(app)
        told = await decides(app, "again", mark_duplicate=True)
        old = await app.outcome("o1")
        assert "without certainty" in old.message
        assert "Do not repeat" in old.message
        entry = (await by_operator(app))[-1]
        assert (entry["principal"], entry["reason"]) == ("ops", "superseded")
        assert entry["inputs"] == {"decision": "again", "note": "looked there"}
        assert (await birth(app, told.operation_id))["principal"] == "local"
        for word in ("not_done", "retry", "done", "again"):
            with pytest.raises(DecisionRefused):
                await decides(app, word)


@pytest.mark.proves("DECIDE-7")
async def test_again_in_a_process_that_lacks_the_tool_changes_nothing(tmp_path):
    async with application(tmp_path) as app:
        Acts().declare(app)
        first = await reviewed(app)
    async with application(tmp_path) as other:
        with pytest.raises(Exception, match="act"):
            await decides(other, "again")
        assert (await other.outcome("o1")).version == first.version


HTTP = """
[sources.shop]
base_url = "http://127.0.0.1:{port}"
[tools.act]
effect = "write"
source = "shop"
timeout = "2s"
in_flight_horizon = "1h"
[tools.act.arguments]
type = "object"
required = ["what"]
properties = {{ what = {{ type = "string" }} }}
[tools.act.request]
method = "POST"
path = "/orders"
json = {{ what = "{{args.what}}", duplicate_of = "{{operation.duplicate_of}}" }}
"""


@pytest.mark.proves("DECIDE-7")
@pytest.mark.parametrize("mark", [False, True], ids=["not done", "a possible duplicate"])
async def test_a_possible_duplicate_says_so_in_its_request_and_nothing_else_does(tmp_path, mark):
    async def answers_the_second(wire):
        await wire.request()
        if len(wire.truth.bodies) > 1:
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with serving(answers_the_second) as peer:
        path = tmp_path / "contracts.toml"
        path.write_text(HTTP.format(port=peer.port), encoding="utf-8")
        async with application(tmp_path, contracts=path) as app:
            await reviewed(app)
            told = await decides(app, "again", mark_duplicate=mark)
    assert told.status == "succeeded"
    marked = b'{"duplicate_of":"o1","what":"x"}' if mark else b'{"what":"x"}'
    assert peer.truth.bodies == [b'{"what":"x"}', marked]


# --- what comes too late -------------------------------------------------------------------------


class Late:
    """A thread that outlives its attempt: it applies, and ends, when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self._applies, self._ends = threading.Event(), threading.Event()
        self._error, self.applied = error, False

    def declare(self, app: Doubtless, **changes: Any) -> None:
        @app.tool(**{**QUICK, **changes})
        def act(call: Call, what: str) -> str:
            self._applies.wait(WITHIN_S)
            if self.applied:
                call.applied()
            self._ends.wait(WITHIN_S)
            if self._error is not None:
                raise self._error
            return "late"

    def apply(self) -> None:
        self.applied = True
        self._applies.set()

    def end(self) -> None:
        self._applies.set()
        self._ends.set()


@pytest.mark.proves("DECIDE-8")
async def test_a_late_answer_settles_a_review_that_had_only_run_out_of_time(tmp_path):
    async def find(operation: Operation) -> CouldNotAsk:
        return CouldNotAsk(why="it is down")

    late = Late()
    async with application(tmp_path) as app:
        try:
            late.declare(app, lookup=looks(find, timeout="50ms"), recovery_deadline="600ms")
            await asked(app)
            review = await ends(app, "manual_review")
            assert "escalate: deadline" in str(await app.timeline("o1"))
        finally:
            late.end()
        told = await ends(app, "succeeded")
        assert told.result == "late"
        with pytest.raises(DecisionRefused, match="now: look again"):
            await decides(app, "not_done", version=review.version)
        assert await by_operator(app) == []


@pytest.mark.proves("DECIDE-8")
async def test_a_contradiction_is_settled_by_nobody_but_a_person(tmp_path):
    late = Late()
    async with application(tmp_path) as app:
        try:
            late.declare(app, **SLOW)
            await reviewed(app)
            await decides(app, "not_done")
            late.apply()
            await ends(app, "manual_review")
            assert "escalate: contradiction" in str(await app.timeline("o1"))
            count = len(await entries(app, "evidence"))
        finally:
            late.end()

        async def told_more() -> bool:
            return len(await entries(app, "evidence")) > count

        await comes_true(told_more)
        assert (await app.outcome("o1")).state == "manual_review"
        told = await decides(app, "done")
    assert (told.status, told.last_confirmed["source"]) == ("succeeded", "operator")


@pytest.mark.proves("DECIDE-8")
async def test_a_success_that_is_contradicted_goes_to_a_person(tmp_path):
    late = Late(Rejected("there is no such order"))
    async with application(tmp_path) as app:
        try:
            late.declare(app)
            await reviewed(app)
            assert (await decides(app, "done")).status == "succeeded"
        finally:
            late.end()
        told = await ends(app, "manual_review")
        assert told.status == "unknown_reconciliation_required"
        assert "escalate: contradiction" in str(await app.timeline("o1"))
        assert (await states(app))[-2:] == ["succeeded", "manual_review"]


@pytest.mark.proves("DECIDE-8")
async def test_a_look_up_that_agrees_late_opens_nothing_again(tmp_path):
    asks, there = threading.Event(), anyio.Event()

    async def find(operation: Operation) -> Present:
        asks.set()
        await there.wait()
        return Present(provider_operation_id="re_1")

    async with application(tmp_path) as app:
        Acts().declare(app, lookup=looks(find, timeout="5s"), recovery_deadline="20s")
        await asked(app)
        await anyio.to_thread.run_sync(asks.wait, WITHIN_S)
        assert (await decides(app, "done")).status == "succeeded"
        there.set()

        async def told_more() -> bool:
            return len(await entries(app, "evidence")) > 2

        await comes_true(told_more)
        assert (await app.outcome("o1")).state == "succeeded"


@pytest.mark.proves("DECIDE-8")
async def test_a_look_up_that_found_the_effect_is_held_against_a_not_done(tmp_path):
    asks, there = threading.Event(), anyio.Event()

    async def find(operation: Operation) -> Present | Absent:
        asks.set()
        await there.wait()
        return Present(provider_operation_id="re_1")

    async with application(tmp_path) as app:
        Acts().declare(app, lookup=looks(find, timeout="5s"), recovery_deadline="20s")
        await asked(app)
        await anyio.to_thread.run_sync(asks.wait, WITHIN_S)
        assert (await decides(app, "not_done")).status == "failed"
        there.set()
        await ends(app, "manual_review")
        assert "escalate: contradiction" in str(await app.timeline("o1"))


# --- the timeline --------------------------------------------------------------------------------


@pytest.mark.proves("DECIDE-9")
async def test_the_timeline_names_who_did_each_step_and_what_it_was_made_from(tmp_path):
    async with application(tmp_path, principal="agent-7") as app:
        Acts().declare(app)
        await reviewed(app)
        await decides(app, "unsure")
        await decides(app, "done", provider_operation_id="re_1")
        told: list[dict[str, Any]] = await app.timeline("o1")
    assert [(entry["kind"], entry["principal"], entry["role"]) for entry in told] == [
        ("prepared", "agent-7", "agent"),
        ("transition", "agent-7", "agent"),
        ("attempt", "agent-7", "agent"),
        ("observation", "worker", "worker"),
        ("evidence", "worker", "worker"),
        ("transition", "worker", "worker"),
        ("transition", "worker", "worker"),
        ("decision", "ops", "operator"),
        ("evidence", "ops", "operator"),
        ("transition", "ops", "operator"),
    ]
    assert [entry["at"] for entry in told] == sorted(entry["at"] for entry in told)
    escalated, settled = told[6], told[9]
    assert escalated["reason"] == "escalate: nothing_left"
    wanted = {"effect", "stage", "verdict", "key", "key_life_left_ms", "time_left_ms"}
    for entry in (told[5], escalated, settled):
        assert wanted | {"attempts", "resends_left", "review_allowed"} <= set(entry["inputs"])
    word = told[8]["evidence"]
    assert (word["source"], word["shows"], word["by"]) == ("operator", "applied", "ops")
    assert (word["detail"], word["provider_operation_id"]) == ("looked there", "re_1")
    assert settled["reason"] == "settle: operator_done"
    assert settled["inputs"]["evidence"] == [word["number"]]
