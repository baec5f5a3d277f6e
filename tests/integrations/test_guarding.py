"""A framework's tools as operations: who executes them, in which context, and what is kept."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubtless import Doubtless, Effect
from doubtless.core import identity
from doubtless.core.outcome import Outcome
from doubtless.engine import dispatcher, registry
from doubtless.engine.contracts import Lookup, ToolKeys
from doubtless.engine.surroundings import new_id
from doubtless.engine.tools import Call
from doubtless.errors import (
    BadArguments,
    ContractError,
    NotSent,
    SettingsError,
    UnknownTool,
)
from doubtless.integrations import guarding
from doubtless.integrations.guarding import Guard, call_identity
from doubtless.integrations.performing import LEFT_MAX, performers_of

POLL_S = 0.005
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
ANY: dict[str, Any] = {"type": "object"}
WRITE: ToolKeys = {"effect": Effect.WRITE, "retry": {"backoff": "20ms"}, "review": "people"}


@pytest.fixture
async def app(tmp_path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


@pytest.fixture
def guard(app) -> Guard:
    found = Guard(app, scope="agent")
    found.declare("send", schema=ANY, description="Sends.", keys=WRITE)
    return found


class Far:
    """What a tool acts on: it counts its effects, and the tool does what it is told after them."""

    def __init__(self) -> None:
        self.effects: list[Any] = []
        self.then = asyncio.Event()
        self.began = asyncio.Event()

    async def at_once(self, call: Call) -> Any:
        self.effects.append(call.operation_id)
        return {"number": len(self.effects)}

    async def slowly(self, call: Call) -> Any:
        self.effects.append(call.operation_id)
        self.began.set()
        await self.then.wait()
        return {"number": len(self.effects)}

    async def and_fails(self, call: Call) -> Any:
        self.effects.append(call.operation_id)
        raise ConnectionError("the answer was lost")


@pytest.fixture
def far() -> Far:
    return Far()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not holds():  # noqa: ASYNC110 - what is counted rings no bell
            await anyio.sleep(POLL_S)


# --- one call, one effect ------------------------------------------------------------------------


@pytest.mark.proves("GUARD-1")
async def test_what_fails_after_its_effect_is_unknown_and_no_repeat_acts(guard, far):
    first = await guard.call("send", {"to": "a"}, far.and_fails, call_id="turn-1")
    again = await guard.call("send", {"to": "a"}, far.and_fails, call_id="turn-1")
    anew = await guard.call("send", {"to": "a"}, far.and_fails, call_id="turn-2")
    assert [each.outcome for each in (first, again, anew)] == ["unknown"] * 3
    assert {each.operation_id for each in (first, again, anew)} == {"turn-1"}
    assert far.effects == ["turn-1"]


@pytest.mark.proves("GUARD-1")
async def test_an_attempt_outlives_its_cancelled_caller_and_a_repeat_is_told_its_result(guard, far):
    asking = asyncio.create_task(guard.call("send", {}, far.slowly, call_id="turn-1"))
    await far.began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    again = asyncio.create_task(guard.call("send", {}, far.slowly, call_id="turn-1"))
    far.then.set()
    outcome = await again
    later = await guard.call("send", {}, far.slowly, call_id="turn-1")
    assert (outcome.outcome, outcome.result) == ("success", {"number": 1})
    assert (later.operation_id, later.result) == (outcome.operation_id, {"number": 1})
    assert far.effects == ["turn-1"]


@pytest.mark.proves("GUARD-1")
async def test_a_repeat_of_a_call_that_was_given_up_is_told_how_it_ended(guard, far):
    asking = asyncio.create_task(guard.call("send", {"n": 1}, far.slowly))
    await far.began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    far.then.set()
    await guard.app.wait(far.effects[0], timeout=20)
    again = await guard.call("send", {"n": 1}, far.slowly)
    assert (again.result, again.already_done) == ({"number": 1}, True)
    assert len(far.effects) == 1
    meant = await guard.call("send", {"n": 1}, far.slowly)
    assert (meant.result, len(far.effects)) == ({"number": 2}, 2)


@pytest.mark.proves("GUARD-1")
@pytest.mark.parametrize("ids", [("one", "one"), ("one", "two"), (None, None)])
async def test_two_tasks_that_make_one_call_at_once_make_one_effect(guard, far, ids):
    asking = [
        asyncio.create_task(guard.call("send", {"n": 1}, far.slowly, call_id=each)) for each in ids
    ]
    await far.began.wait()
    far.then.set()
    outcomes = await asyncio.gather(*asking)
    assert [each.outcome for each in outcomes] == ["success", "success"]
    assert len({each.operation_id for each in outcomes}) == len(far.effects) == 1


@pytest.mark.proves("GUARD-2")
async def test_one_call_id_with_other_arguments_or_for_another_tool_is_refused(guard, far):
    guard.declare("post", schema=ANY, keys=WRITE)
    first = await guard.call("send", {"n": 1}, far.at_once, call_id="turn-1")
    other = await guard.call("send", {"n": 2}, far.at_once, call_id="turn-1")
    tool = await guard.call("post", {"n": 1}, far.at_once, call_id="turn-1")
    assert first.outcome == "success"
    for refused in (other, tool):
        assert refused.outcome == "rejected"
        assert refused.error == {"code": "payload_mismatch", "operation_id": "turn-1"}
    assert far.effects == ["turn-1"]
    assert not len(performers_of(guard.app))


@pytest.mark.proves("GUARD-2")
async def test_a_refused_call_takes_no_other_calls_place(guard, far):
    wrong = Far()
    tried = 0

    async def not_yet(call: Call) -> Any:
        nonlocal tried
        tried += 1
        if tried == 1:
            far.began.set()
            raise NotSent("busy")
        return await far.at_once(call)

    asking = asyncio.create_task(guard.call("send", {"n": 1}, not_yet, call_id="turn-1"))
    await far.began.wait()
    refused = await guard.call("send", {"n": 2}, wrong.at_once, call_id="turn-1")
    assert refused.outcome == "rejected"
    assert (await asking).outcome == "success"
    assert (tried, len(far.effects), wrong.effects) == (2, 1, [])


@dataclass(frozen=True)
class Step:
    """One call of a run: what is asked for, under which name, and how the tool behaves."""

    number: int
    name: str | None
    session: str
    then: str
    gives_up: bool


steps = st.builds(
    Step,
    number=st.integers(0, 1),
    name=st.sampled_from([None, "turn-1", "turn-2"]),
    session=st.sampled_from(["agent", "other"]),
    then=st.sampled_from(["answers", "fails", "is busy"]),
    gives_up=st.booleans(),
)


async def take(guard: Guard, step: Step, effects: list[str]) -> Outcome | None:
    """Make a call, and give it up at once where the step says so."""

    async def perform(call: Call) -> Any:
        if step.then == "is busy":
            raise NotSent("busy")
        effects.append(call.operation_id)
        await checkpoint()
        if step.then == "fails":
            raise ConnectionError
        return {"number": step.number}

    asking = asyncio.create_task(
        guard.call("send", {"n": step.number}, perform, call_id=step.name, session_id=step.session)
    )
    if step.gives_up:
        await checkpoint()
        asking.cancel()
    try:
        return await asking
    except asyncio.CancelledError:
        return None


@pytest.mark.proves("GUARD-1")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=2, max_size=7))
async def test_whatever_a_run_does_no_operation_has_two_effects(tmp_path, run):
    effects: list[str] = []
    bound: dict[str, tuple[int, str]] = {}
    async with Doubtless(f"sqlite:///{tmp_path / new_id()}.db") as app:
        guard = Guard(app)
        once: ToolKeys = {"effect": Effect.WRITE, "retry": {"attempts": 1}}
        guard.declare("send", schema=ANY, keys=once)
        for step in run:
            outcome = await take(guard, step, effects)
            if outcome is None:
                continue
            if outcome.outcome == "success":
                assert outcome.result == {"number": step.number}
                assert outcome.operation_id in effects
            if outcome.retry_allowed:
                assert outcome.operation_id not in effects
            if step.name is not None and outcome.version:
                meant = bound.setdefault(step.name, (step.number, outcome.operation_id))
                assert meant == (step.number, outcome.operation_id)
    assert len(effects) == len(set(effects))


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.proves("GUARD-3")
async def test_what_was_proven_not_sent_begins_again_by_itself(guard, far):
    attempts = []

    async def third_time(call: Call) -> Any:
        attempts.append((call.attempt, call.idempotency_key))
        if call.attempt < 3:
            raise NotSent("no connection")
        return await far.at_once(call)

    outcome = await guard.call("send", {}, third_time, call_id="turn-1")
    assert (outcome.outcome, outcome.attempts) == ("success", 3)
    assert [number for number, _ in attempts] == [1, 2, 3]
    assert len({key for _, key in attempts}) == 1
    assert far.effects == ["turn-1"]


@pytest.mark.proves("GUARD-3")
async def test_another_process_leaves_an_operation_to_the_run_that_asked_for_it(tmp_path, far):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    asks: ToolKeys = {"effect": Effect.WRITE, "approval": {}}
    async with Doubtless(ledger) as one, Doubtless(ledger) as other:
        for app in (one, other):
            Guard(app).declare("send", schema=ANY, keys=asks)
        waits = await Guard(one).call("send", {}, far.at_once, call_id="turn-1")
        assert waits.state == "awaiting_approval"
        shown = str(waits.payload_hash)
        # The other one hears of it first, because it is told there.
        await other.approve("turn-1", operator="ann", note="yes", payload_hash=shown)
        outcome = await one.wait("turn-1", timeout=20)
    assert (outcome.outcome, outcome.attempts, far.effects) == ("success", 1, ["turn-1"])


@pytest.mark.proves("GUARD-3")
async def test_what_a_run_that_has_ended_asked_for_is_not_executed_by_another(
    tmp_path, far, monkeypatch
):
    monkeypatch.setattr(registry, "LEFT_TO_ITS_RUN_MS", 20)
    monkeypatch.setattr(dispatcher, "SOMEWHERE_ELSE_S", 0.02)
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    keys = ToolKeys(effect=Effect.WRITE, retry={"backoff": "100ms"})

    async def never(call: Call) -> Any:
        far.began.set()
        raise NotSent("no connection")

    async with Doubtless(ledger) as first:
        guard = Guard(first)
        guard.declare("send", schema=ANY, keys=keys)
        asking = asyncio.create_task(guard.call("send", {}, never, call_id="turn-1"))
        await far.began.wait()
        await until(lambda: not asking.done())
        asking.cancel()
    async with Doubtless(ledger) as second:
        guard = Guard(second)
        guard.declare("send", schema=ANY, keys=keys)
        outcome = await second.wait("turn-1", timeout=20)
        assert outcome.status == "failed_safe_to_retry"
        assert "has ended, and nothing" in str(outcome.transport_observation)
        assert far.effects == []
        anew = await guard.call("send", {}, far.at_once, call_id="turn-2")
        assert (anew.outcome, len(far.effects)) == ("success", 1)


@pytest.mark.proves("GUARD-3")
async def test_a_resumed_run_that_repeats_its_call_carries_on_what_was_never_sent(tmp_path, far):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    keys = ToolKeys(effect=Effect.WRITE, retry={"backoff": "2s"})

    async def never(call: Call) -> Any:
        far.began.set()
        raise NotSent("no connection")

    async with Doubtless(ledger) as first:
        guard = Guard(first)
        guard.declare("send", schema=ANY, keys=keys)
        asking = asyncio.create_task(guard.call("send", {}, never, call_id="turn-1"))
        await far.began.wait()
        asking.cancel()
    async with Doubtless(ledger) as second:
        guard = Guard(second)
        guard.declare("send", schema=ANY, keys=keys)
        outcome = await guard.call("send", {}, far.at_once, call_id="turn-1")
        assert (outcome.operation_id, outcome.outcome) == ("turn-1", "success")
    assert far.effects == ["turn-1"]


LATE: ToolKeys = {"effect": Effect.TIME_SENSITIVE, "valid_for": "1h", "timeout": "50ms"}


@pytest.mark.proves("GUARD-4")
@pytest.mark.parametrize("blocks", [False, True])
async def test_an_answer_after_the_time_out_settles_what_was_unknown(app, far, blocks):
    guard = Guard(app)
    guard.declare("late", schema=ANY, keys=LATE)
    go_on = threading.Event()

    def blocking(call: Call) -> Any:
        far.effects.append(call.operation_id)
        go_on.wait(20)
        return {"number": 1}

    outcome = await guard.call("late", {}, blocking if blocks else far.slowly, call_id="turn-1")
    assert (outcome.status, outcome.state) == ("unknown_reconciliation_required", "manual_review")
    go_on.set()
    far.then.set()
    settled = await app.wait("turn-1", timeout=20)
    assert (settled.outcome, settled.result) == ("success", {"number": 1})
    assert far.effects == ["turn-1"]


@pytest.mark.proves("GUARD-4")
@pytest.mark.parametrize("blocks", [False, True])
async def test_nothing_is_sent_again_while_the_first_may_still_act(app, blocks):
    effects: list[int] = []
    asked: list[str] = []
    go_on, over = threading.Event(), asyncio.Event()

    def absent(call: object, **_: object) -> str:
        asked.append("absent")
        return "absent" if not effects else "present"

    guard = Guard(app)
    look = Lookup(
        absent, authoritative=True, lag="0s", confirmations=1, interval="20ms", interval_max="20ms"
    )
    keys = ToolKeys(
        effect=Effect.WRITE,
        timeout="50ms",
        in_flight_horizon="20s" if not blocks else "20ms",
        on_absent="resend",
        lookup=look,
    )
    guard.declare("slow", schema=ANY, keys=keys)

    def blocking(call: Call) -> Any:
        go_on.wait(20)
        effects.append(call.attempt)

    async def awaiting(call: Call) -> Any:
        await over.wait()
        effects.append(call.attempt)

    first = await guard.call("slow", {}, blocking if blocks else awaiting, call_id="turn-1")
    assert first.outcome == "unknown"
    await until(lambda: len(asked) >= 3)
    go_on.set()
    over.set()
    settled = await app.wait("turn-1", timeout=20)
    assert settled.outcome == "success"
    assert effects == [1]


@pytest.mark.proves("GUARD-4")
async def test_what_never_returns_is_given_up_when_nothing_of_it_can_arrive(app):
    ended = asyncio.Event()

    async def hangs(call: Call) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    guard = Guard(app)
    guard.declare("hang", schema=ANY, keys={**LATE, "in_flight_horizon": "50ms"})
    outcome = await guard.call("hang", {}, hangs, call_id="turn-1")
    assert outcome.outcome == "unknown"
    with anyio.fail_after(20):
        await ended.wait()
    assert (await app.outcome("turn-1")).outcome == "unknown"


@pytest.mark.proves("GUARD-4")
async def test_a_tool_that_cancels_itself_proves_nothing(guard, far):
    async def cancels(call: Call) -> Any:
        await far.at_once(call)
        raise asyncio.CancelledError

    outcome = await guard.call("send", {}, cancels)
    assert (outcome.outcome, len(far.effects)) == ("unknown", 1)


class Odd(BaseException):
    """Something that means to end more than its tool."""


@pytest.mark.proves("GUARD-4")
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("error", [SystemExit, Odd])
async def test_a_tool_that_means_to_end_the_program_ends_itself_alone(guard, far, blocks, error):
    async def exits(call: Call) -> Any:
        await far.at_once(call)
        raise error

    def exits_at_once(call: Call) -> Any:
        far.effects.append(call.operation_id)
        raise error

    outcome = await guard.call("send", {}, exits_at_once if blocks else exits)
    assert (outcome.outcome, len(far.effects)) == ("unknown", 1)
    assert (await guard.call("send", {"n": 2}, far.at_once)).outcome == "success"


# --- in whose context ----------------------------------------------------------------------------


async def _who(call: Call) -> Any:
    return [WHO.get(), threading.current_thread() is threading.main_thread()]


class Calls:
    """A way of executing that is neither a function nor a coroutine function."""

    async def __call__(self, call: Call) -> Any:
        return await _who(call)


def _returns_what_is_awaited(call: Call) -> Any:
    return _who(call)


def _blocking(call: Call) -> Any:
    asyncio.run(checkpoint())
    anyio.run(checkpoint)  # no event loop runs in its thread, and no library says so
    return [WHO.get(), threading.current_thread() is threading.main_thread()]


@pytest.mark.proves("GUARD-5")
@pytest.mark.parametrize(
    ("perform", "on_the_loop"),
    [(_who, True), (_returns_what_is_awaited, True), (Calls(), True), (_blocking, False)],
)
async def test_a_tool_is_executed_in_the_context_of_whoever_asked(guard, perform, on_the_loop):
    for who in ("ann", "bob"):
        WHO.set(who)
        outcome = await guard.call("send", {"who": who}, perform)
        assert outcome.result == [who, on_the_loop]


@pytest.mark.proves("GUARD-5")
async def test_two_executions_at_once_don_t_share_a_context(guard):
    seen: list[str] = []
    first = asyncio.Event()

    async def marks(call: Call) -> Any:
        seen.append(WHO.get())
        WHO.set(f"{WHO.get()}!")
        first.set()
        await checkpoint()

    await asyncio.gather(*(guard.call("send", {"n": n}, marks) for n in range(5)))
    assert seen == ["nobody"] * 5
    assert WHO.get() == "nobody"


@pytest.mark.proves("GUARD-5")
async def test_arguments_may_have_any_name(guard, far):
    arguments = {"call": 1, "self": 2, "tool": 3, "arguments": 4, "perform": 5}
    outcome = await guard.call("send", arguments, far.at_once)
    assert (outcome.outcome, len(far.effects)) == ("success", 1)


@pytest.mark.proves("GUARD-5")
async def test_a_result_that_is_no_json_is_a_success_whose_value_is_not_kept(guard, far):
    async def odd(call: Call) -> Any:
        await far.at_once(call)
        return {1, 2}

    outcome = await guard.call("send", {}, odd)
    assert (outcome.outcome, outcome.result, len(far.effects)) == ("success", None, 1)
    assert "not kept" in str(outcome.transport_observation)


@pytest.mark.proves("GUARD-5")
@pytest.mark.parametrize("text", ["run 1", "Grüße", "a\r\nX-Evil: 1", "x" * 500, "", "\ud800"])
async def test_a_correlation_id_can_always_travel_in_a_header(guard, far, text):
    outcome = await guard.call("send", {}, far.at_once, correlation_id=text)
    found = str(outcome.correlation_id)
    assert 0 < len(found) <= 128
    assert all("!" <= each <= "~" for each in found)


# --- declaring -----------------------------------------------------------------------------------

SCHEMAS: dict[str, Any] = {
    "none": None,
    "empty": {},
    "default null": {"type": "object", "properties": {"a": {"type": "integer", "default": None}}},
    "a reference": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "integer"}},
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "definitions": {"A": {"type": "integer"}},
    },
    "draft 7 with a tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"items": [{"type": "string"}]}},
    },
    "draft 4": {"type": "object", "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
    "no type": {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "a wrong type": {"type": "objekt", "properties": {"a": {}}, "required": ["a", 7, "b"]},
    "an array": {"type": "array"},
    "a reference elsewhere": {"type": "object", "properties": {"a": {"$ref": "https://a.example"}}},
    "a dangling reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}},
    "no pattern": {"type": "object", "properties": {"b": {"type": "string", "pattern": "(?<"}}},
    "infinity": {"type": "object", "properties": {"a": {"maximum": float("inf")}}},
    "a large number": {"type": "object", "properties": {"a": {"maximum": 2**70}}},
    "half a character": {"type": "object", "properties": {"\ud800": {}, "a": {}}},
    "odd properties": {"type": "object", "properties": ["a"]},
}


@pytest.mark.proves("GUARD-6")
async def test_no_schema_keeps_a_tool_from_being_called(app, far):
    guard = Guard(app)
    for number, (name, schema) in enumerate(SCHEMAS.items()):
        assert guard.declare(name, schema=schema) is Effect.TIME_SENSITIVE
        outcome = await guard.call(name, {"a": 1}, far.at_once)
        assert (outcome.outcome, len(far.effects)) == ("success", number + 1), name
    for name in ("default null", "a reference", "draft 7", "no type"):  # those are checked by
        with pytest.raises(BadArguments):
            await guard.call(name, {"a": "one"}, far.at_once)
    assert len(far.effects) == len(SCHEMAS)
    assert not len(performers_of(app))


@pytest.mark.proves("GUARD-6")
async def test_a_business_key_is_held_against_a_schema_that_is_not_understood_too(app):
    guard = Guard(app)
    for schema in (None, SCHEMAS["a wrong type"]):
        guard.declare(f"pay {schema is None}", schema=schema, keys={**WRITE, "business_key": ["a"]})
    with pytest.raises(ContractError, match="no declared argument"):
        guard.declare(
            "typo", schema=SCHEMAS["a wrong type"], keys={**WRITE, "business_key": ["aa"]}
        )


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128).filter(
    str.strip
)


@pytest.mark.proves("GUARD-6")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.from_regex(r"[A-Za-z0-9_./-]{1,128}", fullmatch=True) | names)
def test_a_tool_may_have_any_name_that_mcp_allows_and_more(name):
    guard = Guard(Doubtless("sqlite:///never-opened.db"))
    assert guard.declare(name, schema=ANY) is Effect.TIME_SENSITIVE
    assert guard.is_ours(name)
    assert guard.app.registry.tool(name).contract.tool == name


@pytest.mark.proves("GUARD-7")
async def test_guards_of_one_application_share_its_tools(app, far):
    one, two = Guard(app, scope="agent"), Guard(app, scope="agent")
    assert one.declare("send", schema=ANY, keys=WRITE) is Effect.WRITE
    assert two.declare("send", schema=ANY, keys=WRITE) is Effect.WRITE
    first = await one.call("send", {}, far.and_fails)
    again = await two.call("send", {}, far.and_fails)
    assert (again.operation_id, len(far.effects)) == (first.operation_id, 1)


@pytest.mark.proves("GUARD-7")
async def test_the_newest_schema_counts_and_no_other_contract_does(app, far):
    guard = Guard(app)
    number: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
    guard.declare("send", schema=number, description="Old.", keys=WRITE)
    guard.declare("send", schema=text, description="New.", keys=WRITE)
    assert (await guard.call("send", {"a": "x"}, far.at_once)).outcome == "success"
    with pytest.raises(BadArguments):
        await guard.call("send", {"a": 1}, far.at_once)
    assert app.registry.tool("send").contract.description == "New."
    longer: ToolKeys = {**WRITE, "timeout": "5s"}
    for other in (None, ToolKeys(effect=Effect.READ), longer):
        with pytest.raises(SettingsError, match="another contract"):
            guard.declare("send", schema=text, keys=other)
    assert app.registry.tool("send").contract.effect is Effect.WRITE


@pytest.mark.proves("GUARD-7")
@pytest.mark.parametrize("reads_first", [True, False])
async def test_of_two_claims_the_stricter_counts(app, reads_first):
    guard = Guard(app)
    guard.declare("list", schema=ANY, is_read=reads_first)
    guard.declare("list", schema=ANY, is_read=not reads_first)
    assert guard.declare("list", schema=ANY, is_read=True) is Effect.TIME_SENSITIVE


@pytest.mark.proves("GUARD-7")
async def test_a_tool_of_the_application_is_not_taken_for_the_framework_s(app, far):
    @app.tool(effect=Effect.WRITE)
    async def ours(call: Call) -> Any:
        raise AssertionError("the guard would have executed another function")

    guard = Guard(app)
    with pytest.raises(SettingsError, match="already"):
        guard.declare("ours", schema=ANY)
    with pytest.raises(SettingsError, match="not declared here"):
        await guard.call("ours", {}, far.at_once)
    with pytest.raises(UnknownTool):
        await guard.call("theirs", {}, far.at_once)
    assert [each.name for each in await guarding.offers(app)] == ["ours"]


@pytest.mark.proves("GUARD-7")
def test_only_an_application_of_this_process_can_be_guarded(tmp_path):
    with pytest.raises(SettingsError, match="service"):
        Guard(Doubtless("https://doubtless.example", token="t"))
    blocking: Any = Doubtless.sync(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(SettingsError, match="blocking"):
        Guard(blocking)


# --- what is kept --------------------------------------------------------------------------------


@pytest.mark.proves("GUARD-8")
async def test_what_is_over_is_let_go(guard, far):
    kept = performers_of(guard.app)
    for number in range(5):
        await guard.call("send", {"n": number}, far.at_once)
    assert len(kept) == 0
    asking = asyncio.create_task(guard.call("send", {}, far.slowly, call_id="turn-1"))
    await far.began.wait()
    asking.cancel()
    unknown = await guard.call("send", {"n": -1}, far.and_fails)
    assert len(kept) == 2
    far.then.set()
    await guard.app.wait("turn-1", timeout=20)
    for number in range(3):
        await guard.call("send", {"n": number}, far.at_once)
    assert len(kept) == 1, "what is unknown may have to begin again"
    await guard.app.outcome(unknown.operation_id)


@pytest.mark.proves("GUARD-8")
def test_what_nobody_waits_for_is_limited():
    kept = performers_of(Doubtless("sqlite:///never-opened.db"))
    for number in range(LEFT_MAX + 10):
        kept.leave(kept.ask(f"turn-{number}", "send", {}, lambda call: None))
    assert len(kept) == LEFT_MAX


@pytest.mark.proves("GUARD-8")
async def test_the_ledger_is_asked_and_nothing_else_for_what_is_unresolved(guard, far):
    unknown = await guard.call("send", {}, far.and_fails)
    listed = await guarding.unresolved(guard.app, "agent")
    assert [each["operation_id"] for each in listed] == [unknown.operation_id]
    told = await guarding.status(guard.app, unknown.operation_id)
    assert (told["outcome"], told["message"]) == ("unknown", listed[0]["message"])
    for invented in ("op-17", "no id\n", "x" * 200, ""):
        answer = await guarding.status(guard.app, invented)
        assert answer["operation_id"] == invented
        assert "outcome" not in answer
    assert len(far.effects) == 1


parts = st.lists(st.text(max_size=8), max_size=4)
frameworks = st.sampled_from(["openai-agents", "langgraph"])


@pytest.mark.proves("GUARD-9")
@given(frameworks, parts, frameworks, parts)
def test_two_calls_have_one_identity_only_if_all_parts_are_the_same(one, these, two, those):
    first, second = call_identity(one, *these), call_identity(two, *those)
    assert (first == second) == ((one, these) == (two, those))
    assert identity.is_operation_id(first)
