"""What a call means: an intent of its own, one that exists already, or something to be refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.engine.functions import WITHIN_S, WRITE, application, comes_true, ends
from tests.engine.people import SLOW, Acts, asked, decides, entries, reviewed

from doubtless import Call, Doubtless, NotSent
from doubtless.errors import (
    BadArguments,
    BadOperationId,
    DecisionRefused,
    OperationNotFound,
    UnknownTool,
)
from doubtless.ledger.store import open_ledger


@asynccontextmanager
async def two_principals(folder, **changes: Any) -> AsyncIterator[tuple[Doubtless, Doubtless]]:
    """Yield two applications on one ledger, one principal each; the first answer is lost."""
    acts = Acts()
    async with (
        application(folder, principal="one") as one,
        application(folder, principal="two") as two,
    ):
        for app in (one, two):
            acts.declare(app, **{**SLOW, "business_key": ["what"], **changes})
        yield one, two


def journal_size(folder) -> int:
    with open_ledger(f"sqlite:///{folder / 'ledger.db'}", inline=True) as ledger:
        ((count,),) = ledger.read(lambda tx: tx.tuples("select count(*) from journal"))
    assert isinstance(count, int)
    return count


# --- sessions ------------------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-12")
async def test_a_session_tells_what_is_open_and_what_has_ended_and_what_to_do(tmp_path):
    async with application(tmp_path) as app:
        Acts(lost=2).declare(app)
        for number in range(4):
            name = f"o{number}"
            await app.call("act", {"what": name}, operation_id=name, session_id="s1")
        await app.call("act", {"what": "x"}, operation_id="elsewhere", session_id="s2")
    async with application(tmp_path, worker=False) as app:
        found = await app.session("s1")
        assert (await app.session()).unresolved == ()
    assert [told.operation_id for told in found.unresolved] == ["o1", "o0"]
    assert [told.operation_id for told in found.recent] == ["o3", "o2"]
    assert "2 operations are not settled" in found.message
    assert "Do not repeat them" in found.message
    told = found.to_json()
    assert (told["session_id"], told["principal"], told["message"]) == (
        "s1",
        "local",
        found.message,
    )
    assert told["unresolved"] == [each.to_json() for each in found.unresolved]


@pytest.mark.proves("ENGINE-12")
async def test_a_session_is_told_nothing_of_another_principal(tmp_path):
    async with two_principals(tmp_path) as (one, two):
        await one.call("act", {"what": "x"}, session_id="s1")
        assert len((await one.session("s1")).unresolved) == 1
        found = await two.session("s1")
    assert (found.unresolved, found.recent) == ((), ())
    assert found.message == "Nothing is open. 0 finished operations are listed."


# --- joining -------------------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-13")
async def test_the_same_call_without_an_id_joins_what_is_open_in_its_session_alone(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:
        acts.declare(app)
        first = await app.call("act", {"what": "x"}, session_id="s1")
        again = await app.call("act", {"what": "x"}, session_id="s1")
        assert (again.operation_id, again.state) == (first.operation_id, "manual_review")
        other = await app.call("act", {"what": "x"}, session_id="s2")
        implicit = await app.call("act", {"what": "x"})
        assert {other.status, implicit.status} == {"succeeded"}
        named = await app.call("act", {"what": "x"}, session_id="s1", operation_id="o2")
        assert named.error == {"code": "target_unresolved", "operation_id": first.operation_id}
    assert len({first.operation_id, other.operation_id, implicit.operation_id}) == 3
    assert len(acts.attempts) == 3


@pytest.mark.proves("ENGINE-13")
async def test_the_same_call_without_an_id_is_a_new_intent_once_the_first_has_ended(tmp_path):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app)
        told = [await asked(app, None, session_id="s1") for _ in range(2)]
    assert [each.already_done for each in told] == [False, False]
    assert len({each.operation_id for each in told}) == len(acts.attempts) == 2


@pytest.mark.proves("ENGINE-13")
async def test_within_its_window_a_success_answers_the_same_call_of_its_session(tmp_path):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app, dedupe_window="1h")
        first = await asked(app, None, session_id="s1")
        again = await asked(app, None, session_id="s1")
        assert (again.operation_id, again.result) == (first.operation_id, "done x")
        assert (first.already_done, again.already_done) == (False, True)
        for name, session in ((None, "s2"), ("o9", "s1")):
            told = await asked(app, name, session_id=session)
            assert (told.status, told.already_done) == ("succeeded", False)
        variant = await app.call("act", {"what": "y"}, session_id="s1")
        assert not variant.already_done
    assert len(acts.attempts) == 4


@pytest.mark.proves("ENGINE-13")
async def test_a_window_that_is_over_answers_nothing(tmp_path):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app, dedupe_window="1ms")
        await asked(app, None)

        async def acts_again() -> bool:
            await asked(app, None)
            return len(acts.attempts) > 1

        await comes_true(acts_again)


@pytest.mark.proves("ENGINE-13")
async def test_an_argument_that_is_declared_volatile_makes_no_other_intent(tmp_path):
    async with application(tmp_path) as app:

        @app.tool(**WRITE, volatile=["at"])
        async def act(call: Call, what: str, at: int) -> int:
            return at

        first = await app.call("act", {"what": "x", "at": 1}, operation_id="o1")
        again = await app.call("act", {"what": "x", "at": 2}, operation_id="o1")
    assert (first.result, again.result, again.already_done) == (1, 1, True)


@pytest.mark.proves("ENGINE-13")
async def test_only_a_call_that_sent_nothing_is_told_that_it_was_done_already(tmp_path):
    runs: list[int] = []
    async with application(tmp_path) as app:

        @app.tool(**{**WRITE, "retry": {"attempts": 1, "backoff": "20ms"}})
        async def act(call: Call, what: str) -> str:
            runs.append(call.attempt)
            if call.attempt == 1:
                raise NotSent("no route")
            return "done"

        assert (await asked(app)).status == "failed_safe_to_retry"
        assert runs == [1]
        acted = await asked(app)
        assert (acted.status, acted.already_done) == ("succeeded", False)
        repeat = await asked(app)
        assert (repeat.already_done, repeat.result) == (True, "done")
        assert "nothing was sent now" in repeat.message
        assert not (await app.outcome("o1")).already_done
    assert runs == [1, 2]


# --- refusing ------------------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-14")
async def test_an_object_that_is_held_refuses_a_variant_with_a_pointer(tmp_path):
    acts = Acts()
    async with application(tmp_path) as app:

        @app.tool(**SLOW, business_key=["what"], source="shop")
        async def other(call: Call, what: str) -> None: ...

        acts.declare(app, **SLOW, business_key=["what"], source="shop")
        await reviewed(app)
        told = await app.call("other", {"what": "x"})
        assert (told.status, told.retry_allowed) == ("rejected_by_policy", False)
        assert told.error == {"code": "target_unresolved", "operation_id": "o1"}
        assert "do not try a variant" in told.message
        assert told.target == {"source": "shop", "business_key": {"what": "x"}}
        (entry,) = await entries(app, "refusal")
        assert (entry["code"], entry["inputs"]["tool"]) == ("target_unresolved", "other")
        assert (await app.call("other", {"what": "y"})).status == "succeeded"
        await decides(app, "done")
        assert (await app.call("other", {"what": "x"})).status == "succeeded"


@pytest.mark.proves("ENGINE-14")
async def test_another_principal_is_told_no_more_than_that_the_object_is_held(tmp_path):
    async with two_principals(tmp_path) as (one, two):
        await reviewed(one)
        for operation_id in (None, "mine"):
            told = await asked(two, operation_id)
            assert told.error == {
                "code": "target_unresolved",
                "operation_id": None,
                "held_by": "another",
            }
            assert "o1" not in str(told.to_json())
            assert "held by another" in told.message
        await decides(one, "done")
        told = await asked(two, "mine")
        assert told.status == "succeeded"
        assert [e["kind"] for e in await two.timeline("mine")][:2] == ["refusal", "prepared"]


@pytest.mark.proves("ENGINE-14")
async def test_an_id_of_another_principal_is_taken_and_shows_nothing(tmp_path):
    async with two_principals(tmp_path) as (one, two):
        before = await reviewed(one)
        told = await two.call("act", {"what": "other"}, operation_id="o1")
        assert told.error == {"code": "operation_id_taken", "operation_id": None}
        assert (told.state, told.ref, told.attempts) == ("rejected", None, 0)
        (entry,) = await entries(one, "refusal")
        assert (entry["code"], entry["principal"]) == ("operation_id_taken", "two")
        assert (await one.outcome("o1")).version == before.version


@pytest.mark.proves("ENGINE-14")
@pytest.mark.parametrize("settled", [False, True])
async def test_an_id_with_another_payload_is_refused_and_leaves_a_record(tmp_path, settled):
    acts = Acts(lost=0 if settled else 1)
    async with application(tmp_path) as app:
        acts.declare(app)
        before = await asked(app)
        told = await app.call("act", {"what": "y"}, operation_id="o1", correlation_id="c1")
        assert told.error == {"code": "payload_mismatch", "operation_id": "o1"}
        assert (told.correlation_id, told.retry_allowed) == ("c1", False)
        (entry,) = await entries(app, "refusal")
        assert (entry["code"], entry["principal"], entry["role"]) == (
            "payload_mismatch",
            "local",
            "agent",
        )
        assert entry["inputs"]["payload_hash"] == told.payload_hash != before.payload_hash
        assert (await app.outcome("o1")).version == before.version
    assert len(acts.attempts) == 1


@pytest.mark.proves("ENGINE-15")
@pytest.mark.parametrize("operation_id", ["", "a b", "ä", "a/b", "x" * 129, "a\n"], ids=range(6))
async def test_an_id_that_may_not_be_used_records_nothing(tmp_path, operation_id):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app)
        with pytest.raises(BadOperationId):
            await asked(app, operation_id)
        assert await app.operations() == []
    assert acts.attempts == []
    assert journal_size(tmp_path) == 0


@pytest.mark.proves("ENGINE-15")
@pytest.mark.parametrize(
    "arguments",
    [{}, {"what": 1}, {"what": "x", "more": 1}, {"what": float("nan")}, {"what": "\ud800"}],
    ids=["none", "a type", "too many", "no number", "no text"],
)
async def test_arguments_that_do_not_fit_record_nothing(tmp_path, arguments):
    acts = Acts(lost=0)
    async with application(tmp_path) as app:
        acts.declare(app)
        with pytest.raises(BadArguments, match="arguments of act"):
            await app.call("act", arguments, operation_id="o1")
        with pytest.raises(UnknownTool, match=r"'acts' is declared\. Declared tools: act"):
            await app.call("acts", arguments, operation_id="o1")
        with pytest.raises(OperationNotFound):
            await app.outcome("o1")
    assert journal_size(tmp_path) == 0


# --- waiting and withdrawing ---------------------------------------------------------------------


@pytest.mark.proves("ENGINE-16")
async def test_a_call_that_does_not_wait_is_pending_and_is_carried_out(tmp_path):
    go = asyncio.Event()
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call, what: str) -> str:
            await go.wait()
            return call.correlation_id

        told = await asked(app, wait_s=0, correlation_id="c1")
        assert (told.status, told.state, told.correlation_id) == ("pending", "executing", "c1")
        assert told.acts["who"] == "worker"
        assert (await app.wait("o1", timeout=0)).status == "pending"
        go.set()
        last = await app.wait("o1", timeout=WITHIN_S)
    assert (last.status, last.result) == ("succeeded", "c1")


def declare_unreachable(app: Doubtless, **changes: Any) -> None:
    """Declare `act`, which is not sent, and waits long for its next attempt."""

    @app.tool(**{**WRITE, "retry": {"backoff": "20s"}, **changes})
    async def act(call: Call, what: str) -> None:
        raise NotSent("no route")


@pytest.mark.proves("ENGINE-17")
async def test_what_was_not_sent_can_be_withdrawn_and_lets_its_object_go(tmp_path):
    async with application(tmp_path) as app:
        declare_unreachable(app, business_key=["what"])
        await asked(app, wait_s=0)
        before = await ends(app, "prepared")
        told = await app.cancel("o1")
        assert (told.status, told.state, told.retry_allowed) == (
            "rejected_by_policy",
            "cancelled",
            False,
        )
        assert (told.error, told.version) == ({"code": "cancelled"}, before.version + 1)
        last = (await entries(app, "transition"))[-1]
        assert (last["reason"], last["principal"], last["role"]) == ("cancel", "local", "agent")
        assert (await asked(app)).state == "cancelled"
        assert (await asked(app, "o2", wait_s=0)).status == "pending"
        with pytest.raises(DecisionRefused, match="can't be cancelled while it is cancelled"):
            await app.cancel("o1")


@pytest.mark.proves("ENGINE-17")
async def test_what_may_have_been_sent_can_not_be_withdrawn(tmp_path):
    started, go = asyncio.Event(), asyncio.Event()
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call, what: str) -> None:
            started.set()
            await go.wait()
            raise OSError

        await asked(app, wait_s=0)
        await started.wait()
        for state in ("executing", "manual_review"):
            told = await ends(app, state)
            with pytest.raises(DecisionRefused, match=f"while it is {state}"):
                await app.cancel("o1")
            assert (await app.outcome("o1")).version == told.version
            go.set()


@pytest.mark.proves("ENGINE-17")
async def test_an_operation_of_another_principal_is_not_there_for_an_agent(tmp_path):
    async with application(tmp_path, principal="one") as one:
        declare_unreachable(one)
        await asked(one, wait_s=0)
        before = await ends(one, "prepared")
        async with application(tmp_path, principal="two", worker=False) as two:
            for operation_id in ("o1", "nothing"):
                with pytest.raises(OperationNotFound, match=f"no operation '{operation_id}'"):
                    await two.wait(operation_id, timeout=WITHIN_S)
                with pytest.raises(OperationNotFound):
                    await two.outcome(operation_id)
                with pytest.raises(OperationNotFound):
                    await two.cancel(operation_id)
        assert (await one.outcome("o1")).version == before.version
