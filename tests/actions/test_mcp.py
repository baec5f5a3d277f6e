"""Tools of upstream MCP servers on pipes: each call once, and what a broken one is taken for.

The servers are real ones, written with the SDK, and count in a table of their own what they did.
"""

import ast
import json
import os
import signal

import anyio
import pytest
from tests.actions.agent import state_of, until
from tests.actions.mcp_program import Book
from tests.actions.mcp_stage import POLL_S, Nursery, declare, opened
from tests.actions.told import observed, result

from doubtless.core.contract import Kind
from doubtless.engine.contracts import load_contracts
from doubtless.transports.mcp import RESULT

WAIT_S = 20


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    found = Nursery(tmp_path_factory.mktemp("n"))
    yield found
    found.close()


@pytest.fixture
def book(tmp_path):
    return Book(str(tmp_path / "far.db"))


@pytest.fixture
def starts(tmp_path):
    """Return which processes were started, and what they found in their environment."""

    def found() -> list[list[str]]:
        lines = (tmp_path / "far.db.starts").read_text(encoding="utf-8").splitlines()
        return [line.split() for line in lines]

    return found


@pytest.fixture
def pay(nursery, book, tmp_path):
    """Declare the tool, and return how to open an application that has it."""

    def declared(server="", **said):
        declare(tmp_path, f"{nursery.said(tmp_path / 'far.db')}\n{server}", **said)
        return opened(tmp_path)

    return declared


async def charge(app, how="answer", operation_id="one", charge="ch_1"):
    return await app.call("charge", {"charge": charge, "how": how}, operation_id=operation_id)


@pytest.mark.proves("MCP-1")
@pytest.mark.parametrize("server", ["", "handshake = true"])
async def test_a_tool_of_a_server_is_called_once_and_a_repeat_calls_nothing(
    pay, book, starts, tmp_path, server
):
    async with pay(server) as app:
        outcome = await charge(app)
        again = await charge(app)
        server_rules = load_contracts(tmp_path / "contracts.toml").servers["pay"]
        spoken = await app.actions.transport(Kind.MCP).upstreams.protocol(server_rules)
    assert spoken == ("2025-11-25" if server else "2026-07-28")
    assert (outcome.status, result(outcome)) == ("succeeded", {"number": 1})
    assert again.already_done
    assert len(book.rows()) == len(starts()) == 1
    meta = ast.literal_eval(book.metas()[0])
    assert meta["doubtless.dev/operation-id"] == "one"
    assert meta["doubtless.dev/idempotency-key"] == meta["example.com/key"]
    assert book.rows()[0]["memo"] == outcome.ref


@pytest.mark.proves("MCP-3")
@pytest.mark.parametrize(
    ("how", "cause", "effects"),
    [
        ("die after", "connection_reset", 1),
        ("die before", "connection_reset", 0),
        ("nonsense", "connection_reset", 1),
        ("error", "tool_error", 1),
        ("protocol error", "tool_error", 1),
        ("refuse", "tool_error", 0),
        ("hang", "timeout", 1),
    ],
)
async def test_what_is_not_answered_whole_is_unknown_until_another_tool_finds_it(
    pay, book, how, cause, effects
):
    async with pay(timeout="1500ms") as app:
        first = await charge(app, how)
        assert first.status == "unknown_reconciliation_required"
        assert observed(first)["cause"] == cause
        last = await app.wait("one", timeout=WAIT_S)
    assert last.status == ("succeeded" if effects else "failed_safe_to_retry")
    assert last.attempts == 1
    assert len(book.rows()) == effects
    assert last.provider_operation_id == ("1" if effects else None)


@pytest.mark.proves("MCP-3")
async def test_without_a_look_up_a_person_is_asked_and_nothing_is_repeated(pay, book):
    async with pay(more="") as app:
        await charge(app, "die after")
        again = await charge(app, "die after")
        assert again.status == "unknown_reconciliation_required"
        variant = await charge(app, "answer", "two")
    assert variant.error is not None
    assert len(book.rows()) == 1


@pytest.mark.proves("MCP-4")
async def test_an_error_is_a_refusal_only_where_that_is_declared(pay, book):
    async with pay('errors = "definitive"', more="") as app:
        refused = await charge(app, "refuse")
        doubtful = await charge(app, "protocol error", "two", "ch_2")
        kept = json.loads(await app.exhibit("one", RESULT))
    assert refused.status == "failed"
    assert kept["content"] == [{"type": "text", "text": "no such charge"}]
    assert kept["isError"]
    # A proxy behind it may have made that up.
    assert doubtful.status == "unknown_reconciliation_required"
    assert len(book.rows()) == 1


@pytest.mark.proves("MCP-5")
async def test_a_success_that_does_not_fit_its_own_schema_is_one(pay, book):
    async with pay() as app:
        outcome = await charge(app, "misfit")
        kept = json.loads(await app.exhibit("one", RESULT))
    assert (outcome.status, result(outcome)) == ("succeeded", {"number": "not a number"})
    assert kept["content"] == [{"type": "text", "text": "done"}]
    assert kept["structuredContent"] == {"number": "not a number"}
    assert len(book.rows()) == 1


@pytest.mark.proves("MCP-6")
async def test_a_server_that_was_killed_is_started_again_for_the_next_call(pay, book, starts):
    async with pay() as app:
        await charge(app)
        pid = int(starts()[0][0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: state_of(pid) == "")
        outcome = await charge(app, "answer", "two", "ch_2")
    assert outcome.status == "succeeded"
    assert len(starts()) == 2
    assert len(book.rows()) == 2


@pytest.mark.proves("MCP-6")
async def test_calls_share_one_server_and_go_on_beside_one_that_hangs(pay, book, starts):
    async def one(number):
        assert (await charge(app, "answer", f"o{number}", f"ch_{number}")).status == "succeeded"

    async with pay() as app, anyio.create_task_group() as tasks:
        tasks.start_soon(charge, app, "hang", "stuck", "stuck")
        with anyio.fail_after(WAIT_S):
            while not book.rows():  # noqa: ASYNC110 - another process brings it about
                await anyio.sleep(POLL_S)
        async with anyio.create_task_group() as others:
            for number in range(20):
                others.start_soon(one, number)
        tasks.cancel_scope.cancel()
    assert len(starts()) == 1
    assert len(book.rows()) == 21


@pytest.mark.proves("MCP-2")
@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/nowhere/to/be/found"], "No such file"),
        (["false"], "did not agree to talk"),
        (["sleep", "60"], "within 0.3 s"),
    ],
)
async def test_a_server_that_can_not_be_started_was_sent_nothing(tmp_path, command, why):
    declare(tmp_path, f'command = {json.dumps(command)}\ntimeout = "300ms"', more="")
    async with opened(tmp_path) as app:
        outcome = await charge(app)
    assert outcome.status == "failed_safe_to_retry"
    assert observed(outcome)["class"] == "not_sent"
    assert why in observed(outcome)["detail"]


@pytest.mark.proves("MCP-10")
async def test_a_secret_reaches_the_server_alone(pay, starts, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBTLESS_SECRET_PAY", "s3cret-token")
    async with pay('env = { PAY_TOKEN = { credential = "pay" } }') as app:
        outcome = await charge(app, "echo")
    assert outcome.result == [{"type": "text", "text": "I am [redacted]"}]
    assert starts()[0][1:] == ["s3cret-token"]
    for file in tmp_path.glob("d.db*"):
        assert b"s3cret-token" not in file.read_bytes()


@pytest.mark.proves("MCP-10")
async def test_a_secret_that_is_missing_is_told_before_anything_is_started(pay, tmp_path):
    with pytest.raises(Exception, match=r"no secret 'pay'.*wanted by charge"):
        async with pay('env = { PAY_TOKEN = { credential = "pay" } }'):
            pass
    assert not (tmp_path / "far.db.starts").exists()


# --- our own process ------------------------------------------------------------------------------


@pytest.mark.proves("MCP-9")
@pytest.mark.parametrize(
    ("stops", "effects"),
    [
        ("before doubtless.transports.mcp_ticket.Ticket.count", 1),
        ("before doubtless.transports.mcp_ticket.Ticket.check", 0),
    ],
)
async def test_a_killed_process_of_ours_leaves_one_effect_at_most_and_it_is_found(
    pay, book, agency, tmp_path, stops, effects
):
    pay(timeout="4s")
    with agency.agent(tmp_path, "charge", {"charge": "ch_1"}, stops=stops) as agent:
        agent.stopped()
        until(lambda: len(book.rows()) == effects)
        agent.kill()
    async with opened(tmp_path) as app:
        outcome = await app.wait("one", timeout=3 * WAIT_S)
    assert outcome.status == ("succeeded" if effects else "failed_safe_to_retry")
    assert len(book.rows()) == effects
