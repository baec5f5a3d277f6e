"""What a function does is told as what is known of it: returned, refused, not sent, or unknown."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import anyio.lowlevel
import pytest
from tests.engine.functions import UNKNOWN, WRITE, application, kinds, states

from doubtless import Call, NotSent, Rejected
from doubtless.core.model import Evidence, Json
from doubtless.errors import BadArguments, ContractError, SettingsError
from doubtless.ledger import attempts
from doubtless.ledger.store import open_ledger


class Timid(Exception):
    """An exception of a library."""


class Hostile(Mapping[str, int]):
    """A mapping that can't be read."""

    def __getitem__(self, name: str) -> int:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


def declared(app, behaviour, *, in_thread: bool = False, **changes):
    """Declare `act`, which does what `behaviour` does with its call."""
    keys = {**WRITE, **changes}
    if in_thread:

        @app.tool(name="act", **keys)
        def act_in_thread(call: Call) -> object:
            return behaviour(call)

    else:

        @app.tool(name="act", **keys)
        async def act(call: Call) -> object:
            await anyio.lowlevel.checkpoint()
            return behaviour(call)


async def told_of(folder, behaviour, **changes):
    """Call `act` once, and return what is told of it."""
    async with application(folder) as app:
        declared(app, behaviour, **changes)
        return await app.call("act", {}, operation_id="o1", wait_s=5)


def raising(error: BaseException):
    def behaviour(call):
        raise error

    return behaviour


@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_returned_value_is_success_with_that_result(tmp_path, in_thread):
    value = {"id": "re_1", "parts": [1, 2.5, None, True]}
    told = await told_of(tmp_path, lambda _: value, in_thread=in_thread)
    assert (told.status, told.result, told.attempts) == ("succeeded", value, 1)
    assert not told.already_done


@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ConnectionResetError("hunter2"), "tool_error"),
        (TimeoutError("hunter2"), "timeout"),
        (StopIteration("hunter2"), "tool_error"),
        (AssertionError("hunter2"), "tool_error"),
    ],
    ids=lambda found: type(found).__name__,
)
async def test_an_exception_that_escapes_is_unknown_and_its_text_is_not_kept(
    tmp_path, error, cause, in_thread
):
    told = await told_of(tmp_path, raising(error), in_thread=in_thread)
    assert (told.status, told.state, told.attempts) == (UNKNOWN, "manual_review", 1)
    assert told.observation["cause"] == cause
    assert told.reconcile["none"]
    assert "hunter2" not in str(told)


@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), 2**60, {1: 2}, {1, 2}, "\ud800", datetime.now(UTC)],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_that_is_no_json_is_success_with_a_note(tmp_path, value):
    told = await told_of(tmp_path, lambda _: value)
    assert (told.status, told.result) == ("succeeded", None)
    assert "no JSON" in told.transport_observation


@pytest.mark.proves("TOOL-1")
async def test_bytes_are_no_json(tmp_path):
    told = await told_of(tmp_path, lambda _: b"ab")
    assert (told.status, told.result) == ("succeeded", None)


@pytest.mark.proves("TOOL-1")
async def test_a_value_that_cannot_be_read_is_success_with_a_note(tmp_path):
    told = await told_of(tmp_path, lambda _: Hostile())
    assert (told.status, told.result) == ("succeeded", None)


@pytest.mark.proves("TOOL-10")
async def test_a_generator_function_is_no_tool(tmp_path):
    ran: list[int] = []
    async with application(tmp_path) as app:
        with pytest.raises(SettingsError):

            @app.tool(**WRITE)
            async def act(call: Call):
                ran.append(1)
                yield 1

        with pytest.raises(SettingsError):

            @app.tool(name="other", **WRITE)
            def other(call: Call):
                ran.append(1)
                yield 1


# --- proof ---------------------------------------------------------------------------------------


@pytest.mark.proves("TOOL-2")
@pytest.mark.parametrize("error", [NotSent("no route"), Timid("no route")], ids=["ours", "theirs"])
async def test_what_was_not_sent_is_sent_again_within_its_budget_and_a_repeat_acts(tmp_path, error):
    keys: list[str] = []

    def behaviour(call):
        keys.append(call.idempotency_key)
        if len(keys) <= 2:
            raise error
        return "done"

    async with application(tmp_path) as app:
        retry = {"attempts": 2, "backoff": "20ms"}
        app.tool(name="act", not_sent=[Timid], **{**WRITE, "retry": retry})(_async(behaviour))
        first = await app.call("act", {}, operation_id="o1", wait_s=5)
        assert (first.status, first.error) == ("failed_safe_to_retry", {"code": "not_sent"})
        assert (first.attempts, first.retry_allowed, first.recovery) == (2, True, "safe_retry")
        second = await app.call("act", {}, operation_id="o1", wait_s=5)
        assert (second.status, second.result, second.attempts) == ("succeeded", "done", 3)
        assert not second.already_done
        third = await app.call("act", {}, operation_id="o1", wait_s=5)
        assert (third.already_done, third.result, third.attempts) == (True, "done", 3)
    assert len(keys) == 3
    assert len(set(keys)) == 1


def _async(behaviour):
    async def act(call: Call) -> object:
        await anyio.lowlevel.checkpoint()
        return behaviour(call)

    return act


@pytest.mark.proves("TOOL-2")
@pytest.mark.parametrize("error", [Rejected("no funds"), Timid("no funds")], ids=["ours", "theirs"])
async def test_a_declared_refusal_is_a_failure_that_no_repeat_tries_again(tmp_path, error):
    async with application(tmp_path) as app:
        app.tool(name="act", rejected=[Timid], **WRITE)(_async(raising(error)))
        told = await app.call("act", {}, operation_id="o1")
        assert (told.status, told.error) == ("failed", {"code": "refused"})
        again = await app.call("act", {}, operation_id="o1")
        assert (again.status, again.attempts, again.retry_allowed) == ("failed", 1, False)
    assert ("no funds" in str(told)) == isinstance(error, Rejected)


@pytest.mark.proves("TOOL-2")
async def test_an_exception_that_nobody_declared_proves_nothing(tmp_path):
    told = await told_of(tmp_path, raising(Timid()))
    assert told.status == UNKNOWN


# --- the point of no return ----------------------------------------------------------------------


@pytest.mark.proves("TOOL-3")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_applied_effect_stands_whatever_escapes_afterwards(tmp_path, in_thread):
    def behaviour(call):
        call.applied("re_1")
        raise OSError

    told = await told_of(tmp_path, behaviour, in_thread=in_thread)
    assert (told.status, told.provider_operation_id) == ("succeeded", "re_1")


@pytest.mark.proves("TOOL-3")
@pytest.mark.parametrize("error", [Rejected("the mail bounced"), NotSent("no mail")])
async def test_an_applied_effect_stands_whatever_is_proven_of_the_rest(tmp_path, error):
    def behaviour(call):
        call.applied("re_1")
        raise error

    told = await told_of(tmp_path, behaviour)
    assert (told.status, told.provider_operation_id) == ("succeeded", "re_1")


@pytest.mark.proves("TOOL-3")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_applied_is_durable_before_the_function_goes_on(tmp_path, in_thread):
    seen: list[Evidence] = []

    def behaviour(call):
        call.applied("re_1")
        with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", inline=True) as other:
            seen.extend(other.read(lambda tx: attempts.evidence_of(tx, "main", "o1")))
        return "done"

    told = await told_of(tmp_path, behaviour, in_thread=in_thread)
    assert (told.status, told.result) == ("succeeded", "done")
    assert [(item.shows, item.provider_operation_id) for item in seen] == [("applied", "re_1")]


# --- reads ---------------------------------------------------------------------------------------


@pytest.mark.proves("TOOL-1")
@pytest.mark.parametrize("effect", ["read", "compute"])
async def test_a_read_is_never_unknown_and_is_tried_within_its_budget(tmp_path, effect):
    retry = {"attempts": 2, "backoff": "20ms"}
    async with application(tmp_path) as app:
        keys = {name: value for name, value in WRITE.items() if name != "in_flight_horizon"}
        app.tool(name="act", **{**keys, "effect": effect, "retry": retry})(
            _async(raising(OSError()))
        )
        told = await app.call("act", {}, operation_id="o1", wait_s=5)
        assert (told.status, told.error, told.attempts) == (
            "failed_safe_to_retry",
            {"code": "no_effect"},
            2,
        )
        assert "unknown" not in await states(app)


# --- signatures ----------------------------------------------------------------------------------


async def no_parameter() -> None: ...
async def by_name_alone(*, call: Call) -> None: ...
async def variable(call: Call, *rest: int) -> None: ...
async def anything(call: Call, **rest: int) -> None: ...
async def strange(call: Call, when: Timid) -> None: ...
async def unresolved(call: Call, when: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.proves("TOOL-10")
@pytest.mark.parametrize(
    "function", [no_parameter, by_name_alone, variable, anything, strange, unresolved]
)
def test_a_signature_that_carries_no_tool_is_refused_by_its_name(tmp_path, function):
    app = application(tmp_path)
    with pytest.raises(SettingsError, match=function.__name__):
        app.tool(**WRITE)(function)


@pytest.mark.proves("TOOL-10")
def test_an_argument_may_be_called_json(tmp_path):
    async def post(call: Call, json: dict[str, int]) -> None: ...

    application(tmp_path).tool(**WRITE)(post)


@pytest.mark.proves("TOOL-10")
def test_two_tools_of_one_name_and_a_loose_contract_are_refused(tmp_path):
    app = application(tmp_path)
    declared(app, lambda _: None)
    with pytest.raises(SettingsError, match="two tools are called 'act'"):
        declared(app, lambda _: None)
    with pytest.raises(ContractError):
        app.tool(name="other", effect="money", on_absent="resend")(_async(lambda _: None))


@pytest.mark.proves("TOOL-10")
async def test_arguments_that_do_not_fit_the_signature_are_refused_with_their_place(tmp_path):
    async with application(tmp_path) as app:

        @app.tool(**WRITE)
        async def act(call: Call, to: list[str], amount: int, note: str = "") -> list[str]:
            return [*to, str(amount), note]

        cases: list[tuple[dict[str, Json], str]] = [
            ({"to": ["a", 1], "amount": 1}, "to.1"),
            ({"to": [], "amount": "1"}, "amount"),
            ({"to": [], "amount": True}, "amount"),
            ({"to": []}, ""),
            ({"to": [], "amount": 1, "more": 1}, ""),
        ]
        for bad, where in cases:
            with pytest.raises(BadArguments) as caught:
                await app.call("act", bad)
            assert (caught.value.tool, caught.value.where) == ("act", where)
        assert await app.operations() == []
        told = await act.with_id("mine")(to=["a"], amount=2)
        assert (told.operation_id, told.result) == ("mine", ["a", "2", ""])
        assert (await act(to=["a"], amount=2)).operation_id != "mine"
        assert (await kinds(app, "mine"))[0] == "prepared"
