"""Tools of openai-agents: its default beside ours, with scripted models and no network."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
from agents import Agent, RunConfig, Runner, RunState, SQLiteSession, function_tool
from agents.exceptions import ModelBehaviorError
from agents.mcp import MCPServerStdio
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from mcp.client._memory import InMemoryTransport
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, ToolAnnotations
from mcp_types import Tool as MCPTool
from pydantic import AfterValidator
from tests.integrations import examples
from tests.integrations.children import Nursery, eventually
from tests.integrations.openai_agents_child import tool as paying
from tests.scenarios.contracts import written
from tests.service.serving import staged

from doubtless import Doubtless, Effect, Outcome
from doubtless.engine.contracts import ToolKeys
from doubtless.errors import SettingsError
from doubtless.integrations import telling
from doubtless.integrations.guarding import Guard
from doubtless.integrations.openai_agents import guarded, reading, tools
from doubtless.integrations.openai_agents_mcp import GuardedServer

CONFIG = RunConfig(group_id="chat", tracing_disabled=True)
SLOW_S = 0.2  # how long a slow tool takes
DONE = [assistant_message("done")]
UNKNOWN = "[unknown_reconciliation_required]"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


class Till:
    """The far side: what was charged, by a tool that answers, fails, hangs or refuses."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.then: Callable[[], Any] = lambda: "charged"

    def tool(self, **options: Any) -> Any:
        @function_tool(**options)
        async def charge(amount: int) -> Any:
            """Charge an amount."""
            self.charged.append(amount)
            found = self.then()
            return await found if asyncio.iscoroutine(found) else found

        return charge


@pytest.fixture
def till() -> Till:
    return Till()


def even(amount: int) -> int:
    if amount % 2:
        raise ValueError("it must be even")
    return amount


def lost() -> Any:
    raise ConnectionError("the answer was lost")


def calls(*amounts: int, name: str = "charge") -> list[Any]:
    """Return one turn for each amount, each with an id of its own."""
    return [
        [function_call(name, {"amount": amount}, call_id=f"{name}_{number}")]
        for number, amount in enumerate(amounts, 1)
    ]


def outputs(found: Any) -> list[Any]:
    """Return what the model was told of its calls."""
    return [item.output for item in found.new_items if item.type == "tool_call_output_item"]


async def told(steps: list[Any], *given: Any, config: RunConfig = CONFIG) -> list[Any]:
    agent = Agent(name="shop", model=ScriptedModel([*steps, DONE]), tools=list(given))
    return outputs(await Runner.run(agent, "charge 5", run_config=config))


async def only(app: Doubtless) -> Outcome:
    (found,) = await app.operations()
    return found


@pytest.mark.proves("AGENTS-OPENAI-1")
async def test_a_lost_answer_is_told_as_unknown_where_the_default_says_please_try_again(app, till):
    till.then = lost
    default = await told(calls(5, 5), till.tool())
    assert (till.charged, default[0][-17:]) == ([5, 5], "Please try again.")
    till.charged.clear()
    charge = guarded(app, till.tool())
    assert charge.description == telling.described("Charge an amount.", Effect.TIME_SENSITIVE)
    ours = await told(calls(5, 5, 5), charge)
    assert till.charged == [5]
    assert all(each.startswith(UNKNOWN) and "try again" not in each for each in ours)


@pytest.mark.proves("AGENTS-OPENAI-1")
async def test_a_person_settles_it_later_and_the_model_reads_that(app, till):
    till.then = lost
    charge = guarded(app, till.tool(), effect="money", valid_for="1h")
    await told(calls(5), charge)
    name = (await only(app)).operation_id

    def status(_: ModelCall) -> Any:
        return [function_call(telling.STATUS_TOOL, {"operation_id": name}, call_id="call_8")]

    listing = [function_call(telling.UNRESOLVED_TOOL, {}, call_id="call_9")]
    before = await told([listing], charge, *reading(app))
    assert [each["operation_id"] for each in json.loads(before[0])] == [name]
    await app.resolve(name, "done", operator="night-shift", note="seen in the till")
    after = await told([ModelStep.respond(status), listing], charge, *reading(app))
    assert json.loads(after[0])["status"] == "succeeded"
    assert json.loads(after[1]) == []
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-OPENAI-2")
async def test_the_timeout_of_a_tool_is_no_failure(app, till):
    async def hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    till.then = hangs
    default = await told(calls(5, 5), till.tool(timeout=0.05))
    assert (till.charged, default[0]) == ([5, 5], "Tool 'charge' timed out after 0.05 seconds.")
    till.charged.clear()
    for behavior in ("error_as_result", "raise_exception"):
        charge = guarded(app, till.tool(timeout=0.05, timeout_behavior=behavior))
        ours = await told(calls(5, 5), charge)
        assert all(each.startswith(UNKNOWN) for each in ours)
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-OPENAI-3")
async def test_an_approved_call_of_a_stored_run_acts_once_however_often_it_is_resumed(app, till):
    async def resumed(charge: Any) -> list[Any]:
        agent = Agent(name="shop", model=ScriptedModel([*calls(5)]), tools=[charge])
        state = (await Runner.run(agent, "charge 5", run_config=CONFIG)).to_state()
        state.approve(state.get_interruptions()[0])
        stored = state.to_json()
        found = []
        for _ in range(2):
            agent = Agent(name="shop", model=ScriptedModel([DONE]), tools=[charge])
            again = await RunState.from_json(agent, stored)
            found += outputs(await Runner.run(agent, again, run_config=CONFIG))[-1:]
        return found

    assert await resumed(till.tool(needs_approval=True)) == ["charged", "charged"]
    assert till.charged == [5, 5]
    till.charged.clear()
    charge = guarded(app, till.tool(needs_approval=True))
    assert await resumed(charge) == ["charged", "charged"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-OPENAI-3")
async def test_what_a_policy_for_approvals_must_not_judge_waits_for_a_person_as_before(app):
    charged: list[int] = []

    async def needless(*_: Any) -> bool:
        return False

    @function_tool(strict_mode=False, needs_approval=needless)
    async def charge(amount: int = 5) -> str:
        charged.append(amount)
        return "charged"

    for given in (charge, guarded(app, charge)):
        for arguments, waits in (({}, 1), ({"amount": 6}, 0)):
            asked = [function_call("charge", arguments, call_id="call_1")]
            agent = Agent(name="shop", model=ScriptedModel([asked, DONE]), tools=[given])
            found = await Runner.run(agent, "charge", run_config=CONFIG)
            assert len(found.interruptions) == waits
    assert charged == [6, 6]


@pytest.mark.proves("AGENTS-OPENAI-4")
@pytest.mark.timeout(150)  # a process imports the framework
async def test_a_process_that_died_in_a_tool_is_not_repeated_by_the_next_run(
    tmp_path: Path, nursery: Nursery
):
    effects, names = tmp_path / "effects", ("plain", "ours", "approved_plain", "approved_ours")
    for name in names:
        is_ours = name.endswith("ours")
        child = nursery.bear(
            "openai_agents_child", tool=name, folder=str(tmp_path), is_ours=is_ours
        )
        await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{child.pid}").exists())  # noqa: B023
    session = SQLiteSession("chat", tmp_path / "session.db")
    kept = [item for item in await session.get_items() if item.get("role") != "user"]
    assert {item.get("name") for item in kept} <= set(names[2:])  # those that died are lost
    found = []
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        for name in names:
            made = paying(name, effects)
            given = guarded(app, made) if name.endswith("ours") else made
            if not name.startswith("approved"):
                found += await told(calls(5, name=name), given)
                continue
            agent = Agent(name="shop", model=ScriptedModel([DONE]), tools=[given])
            stored = json.loads((tmp_path / f"{name}.json").read_text())
            again = await RunState.from_json(agent, stored)
            found += outputs(await Runner.run(agent, again, run_config=CONFIG))[-1:]
    assert [each[:6] for each in found] == ["paid 5", UNKNOWN[:6]] * 2
    acted = Counter(effects.read_text().splitlines())
    assert acted == {f"{name} 5": 1 if name.endswith("ours") else 2 for name in names}


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_what_a_tool_returns_reaches_the_model_as_before(app, till):
    ours = await told(calls(5), guarded(app, till.tool()))
    assert ours == ["charged"]
    till.then = lambda: {"id": "ch_1", "amount": 6}
    assert await told(calls(6), guarded(app, till.tool())) == [{"id": "ch_1", "amount": 6}]


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_wrong_arguments_are_told_as_nothing_done_and_recorded_nowhere(app, till):
    charge = guarded(app, till.tool())
    broken = [[function_call("charge", '{"amount":', call_id="call_1")]]
    ours = await told(broken, charge)
    other = [[function_call("charge", {"amount": "much"}, call_id="call_1")]]
    ours += await told(other, charge)
    assert all(each.startswith("[not_done]") for each in ours)
    assert (till.charged, await app.operations()) == ([], [])


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_a_check_of_arguments_proves_that_a_tool_never_ran_and_its_own_words_do_not(app):
    paid: list[int] = []

    @function_tool
    async def pay(amount: Annotated[int, AfterValidator(even)]) -> str:
        paid.append(amount)
        raise ModelBehaviorError("Invalid JSON input for tool pay")

    ours = await told(calls(3, 4, name="pay"), guarded(app, pay))
    assert [each.split("]")[0] for each in ours] == ["[failed", UNKNOWN[:-1]]
    assert paid == [4]


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_two_equal_calls_of_one_turn_are_one_and_two_runs_of_other_groups_are_two(app, till):
    async def slowly() -> str:
        await asyncio.sleep(SLOW_S)
        return "charged"

    till.then = slowly
    (first,), (second,) = calls(5, 5)
    await told([[first, second]], till.tool())
    assert till.charged == [5, 5]
    till.charged.clear()
    charge = guarded(app, till.tool())
    ours = await told([[first, second]], charge)
    assert till.charged == [5]
    assert sorted(str(each)[:9] for each in ours) == ["[succeede", "charged"]
    till.then = lost
    for group in ("one", "other"):
        config = RunConfig(group_id=group, tracing_disabled=True)
        await told(calls(7, 7), charge, config=config)
    assert till.charged == [5, 7, 7]


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_an_agent_that_is_built_anew_for_each_run_has_the_same_tools(app, till):
    for amount in (5, 6):
        assert await told(calls(amount), guarded(app, till.tool())) == ["charged"]
    with pytest.raises(SettingsError, match="guard the tools of that agent"):
        guarded(app, Agent(name="other").as_tool("other", "does it"))


@pytest.mark.proves("AGENTS-OPENAI-6")
async def test_the_tools_of_an_application_are_tools_of_an_agent(app):
    charged: list[int] = []

    @app.tool(effect="time_sensitive", valid_for="1h", description="Refund an amount.")
    async def refund(call: Any, amount: int) -> str:
        charged.append(amount)
        raise ConnectionError

    given = await tools(app, scope="chat")
    assert [each.name for each in given] == ["refund", "operation_status", "list_unresolved"]
    ours = await told(calls(5, 5, name="refund"), *given)
    assert charged == [5]
    assert all(each.startswith(UNKNOWN) for each in ours)


@pytest.mark.proves("AGENTS-OPENAI-6")
async def test_the_tools_of_a_service_are_tools_of_an_agent(provider, tmp_path):
    provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
    )
    nobody_knows: Any = {"effect": "write", "lookup": None, "on_absent": None}
    refund = [
        [function_call("refund", {"charge": "ch_1", "amount": 5}, call_id=f"call_{number}")]
        for number in range(2)
    ]
    listing = [function_call(telling.UNRESOLVED_TOOL, {}, call_id="call_9")]
    with staged(tmp_path, written(provider.url, nobody_knows)) as stage:
        async with Doubtless(stage.serving.url, token=stage.tokens["agent"]) as app:
            *ours, waiting = await told([*refund, listing], *await tools(app))
            with pytest.raises(SettingsError, match="the service's own tools"):
                guarded(app, Till().tool())
    assert all(each.startswith(UNKNOWN) for each in ours)
    assert [each["tool"] for each in json.loads(waiting)] == ["refund"]
    assert len(provider.effects()) == 1


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_a_run_that_is_cancelled_leaves_the_call_and_the_next_one_is_told(app, till):
    begun = asyncio.Event()

    async def slowly() -> str:
        begun.set()
        await asyncio.sleep(SLOW_S)
        return "charged"

    till.then = slowly
    guard = Guard(app, scope="agent-7")
    charge = guarded(guard, till.tool())
    config = RunConfig(tracing_disabled=True)
    running = asyncio.create_task(told(calls(5), charge, config=config))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ours = await told(calls(5), charge, config=config)
    assert "already" in ours[0]
    assert till.charged == [5]
    assert (await app.session("agent-7")).recent[0].status == "succeeded"


@pytest.mark.proves("AGENTS-OPENAI-5")
def test_a_blocking_application_serves_an_agent_that_blocks(tmp_path, till):
    till.then = lost
    with Doubtless.sync(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        given = [guarded(app, till.tool(), scope="agent-7"), *reading(app, "agent-7")]
        listing = [function_call(telling.UNRESOLVED_TOOL, {}, call_id="call_9")]
        model = ScriptedModel([*calls(5, 5), listing, DONE])
        agent = Agent(name="shop", model=model, tools=given)
        *ours, waiting = outputs(Runner.run_sync(agent, "charge 5", run_config=CONFIG))
    assert till.charged == [5]
    assert all(each.startswith(UNKNOWN) for each in ours)
    assert len(json.loads(waiting)) == 1


@pytest.mark.proves("AGENTS-OPENAI-5")
async def test_the_example_of_the_page_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paid: list[Any] = []

    async def pay(card: str, amount: int) -> str:
        paid.append((card, amount))
        return "paid"

    names = examples.first_of("agents-openai.md")
    asked = function_call("charge", {"card": "7", "amount": 5}, call_id="call_1")
    model = ScriptedModel([[asked], DONE])
    names.update(pay=pay, RunConfig=partial(RunConfig, model=model, tracing_disabled=True))
    await names["main"]()
    assert paid == [("7", 5)]
    assert model.remaining_steps == 0


# --- MCP servers ---------------------------------------------------------------------------------


class Shop(MCPServerStdio):
    """An MCP server of the framework, with a far side in this process in place of a child's."""

    def __init__(self, server: Server[Any], **options: Any) -> None:
        super().__init__({"command": "nothing"}, name="shop", **options)
        self._in_memory = server

    def create_streams(self) -> Any:
        return InMemoryTransport(self._in_memory)


def mcp_server(till: Till, metas: list[Any]) -> Server[Any]:
    """Return an MCP server with `charge`, which acts, and `balance`, which reads."""
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}

    async def listed(*_: Any) -> ListToolsResult:
        read = ToolAnnotations(read_only_hint=True)
        return ListToolsResult(
            tools=[
                MCPTool(name="charge", description="Charge an amount.", input_schema=schema),
                MCPTool(name="balance", input_schema=schema, annotations=read),
            ]
        )

    async def called(context: Any, params: Any) -> CallToolResult:
        metas.append(dict(context.meta or {}))
        till.charged.append(params.arguments["amount"])
        try:
            found = till.then()
            said = await found if asyncio.iscoroutine(found) else found
        except ConnectionError as error:
            lines = [TextContent(type="text", text=str(error))]
            return CallToolResult(content=[*lines], is_error=True)
        return CallToolResult(content=[TextContent(type="text", text=said)])

    return Server("shop", on_list_tools=listed, on_call_tool=called)


async def told_by(server: Any, *amounts: int, name: str = "charge") -> list[Any]:
    model = ScriptedModel([*calls(*amounts, name=name), DONE])
    agent = Agent(name="shop", model=model, mcp_servers=[server])
    found = await Runner.run(agent, "charge 5", run_config=CONFIG)
    return [each["text"] if isinstance(each, dict) else each for each in outputs(found)]


@pytest.mark.proves("AGENTS-OPENAI-7")
async def test_an_mcp_server_that_hangs_is_neither_repeated_nor_interrupted(app, till):
    ended: list[str] = []

    async def slowly() -> str:
        try:
            await asyncio.sleep(SLOW_S)
        except asyncio.CancelledError:
            ended.append("interrupted")
            raise
        ended.append("done")
        return "charged"

    till.then = slowly
    impatient: dict[str, Any] = {
        "client_session_timeout_seconds": 0.05,
        "max_retry_attempts": 2,
        "retry_backoff_seconds_base": 0,
    }
    metas: list[Any] = []
    async with Shop(mcp_server(till, metas), **impatient) as server:
        default = await told_by(server, 5)
    assert (till.charged, default[0][-17:]) == ([5, 5, 5], "Please try again.")
    assert "interrupted" in ended
    till.charged.clear()
    ended.clear()
    charge = {"charge": ToolKeys(effect="time_sensitive", valid_for="1h", timeout="100ms")}
    shop = Shop(mcp_server(till, metas), **impatient)
    async with GuardedServer(app, shop, contracts=charge) as guarded_server:
        ours = await told_by(guarded_server, 5, 5)
        assert all(each.startswith(UNKNOWN) for each in ours)
        name = (await only(app)).operation_id
        late = await app.wait(name, timeout=5)  # the answer that came late counts
    assert (till.charged, ended, late.status) == ([5], ["done"], "succeeded")
    assert metas[-1]["doubtless.dev/operation-id"] == name


@pytest.mark.proves("AGENTS-OPENAI-7")
async def test_an_error_of_an_mcp_tool_is_unknown_unless_declared_as_definitive(app, till):
    till.then = lost
    async with Shop(mcp_server(till, [])) as server:
        assert await told_by(server, 5) == ["the answer was lost"]
    till.charged.clear()
    async with GuardedServer(app, Shop(mcp_server(till, []))) as server:
        assert (await told_by(server, 5, 5))[1].startswith(UNKNOWN)
        assert till.charged == [5]
        assert await told_by(server, 6, name="balance") == ["the answer was lost"]
    server = Shop(mcp_server(till, []))
    async with GuardedServer(app, server, definitive=["charge"], prefix="b_") as server:
        ours = await told_by(server, 7)
    assert ours[0].startswith("[failed")
    assert "the answer was lost" in ours[0]
    after = await server.call_tool("charge", {"amount": 9})  # its connection is closed
    assert (after.structured_content or {})["status"] == "failed_safe_to_retry"
    assert 9 not in till.charged


@pytest.mark.proves("AGENTS-OPENAI-7")
async def test_an_approved_call_of_an_mcp_server_acts_once_however_often_it_is_resumed(app, till):
    async def resumed(server: Any) -> list[Any]:
        agent = Agent(name="shop", model=ScriptedModel(calls(5)), mcp_servers=[server])
        state = (await Runner.run(agent, "charge 5", run_config=CONFIG)).to_state()
        state.approve(state.get_interruptions()[0])
        found = []
        for _ in range(2):
            agent = Agent(name="shop", model=ScriptedModel([DONE]), mcp_servers=[server])
            again = await RunState.from_json(agent, state.to_json())
            found += outputs(await Runner.run(agent, again, run_config=CONFIG))[-1:]
        return [each["text"] for each in found]

    till.then = lambda: "charged"
    async with Shop(mcp_server(till, []), require_approval="always") as plain:
        assert await resumed(plain) == ["charged", "charged"]
    assert till.charged == [5, 5]
    till.charged.clear()
    shop = Shop(mcp_server(till, []), require_approval="always")
    async with GuardedServer(app, shop) as server:
        assert await resumed(server) == ["charged", "charged"]
    assert till.charged == [5]
