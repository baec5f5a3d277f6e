"""Tools of Pydantic AI: its defaults beside ours, with scripted models and no network."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    Tool,
    ToolReturn,
    UnexpectedModelBehavior,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel
from tests.integrations.children import Nursery, eventually

from doubtless import Call, Doubtless, Effect, Outcome
from doubtless.integrations import telling
from doubtless.integrations.pydantic_ai import DurableTools, tools, tools_sync

UNKNOWN = "[unknown_reconciliation_required]"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


class Model:
    """Says what is in its script, whatever it hears; it keeps what its tools say of themselves."""

    def __init__(self, *turns: list[Any]) -> None:
        self._turns = iter(turns)
        self.texts: dict[str, str] = {}
        self.itself = FunctionModel(self.answer)

    def answer(self, _: Any, info: Any) -> ModelResponse:
        self.texts = {each.name: each.description for each in info.function_tools}
        return ModelResponse(parts=next(self._turns, [TextPart("done")]))


def asks(*calls: tuple[str, dict[str, Any]]) -> list[list[Any]]:
    """Return one turn for each call, each with an id of its own."""
    return [
        [ToolCallPart(name, args, tool_call_id=f"call_{number}")]
        for number, (name, args) in enumerate(calls, 1)
    ]


class Till:
    """The far side: what was charged, by a tool that answers, fails, hangs or asks."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.then: Callable[[], Any] = lambda: "charged"

    def tool(self, **options: Any) -> Tool:
        async def charge(amount: int) -> Any:
            """Charge an amount."""
            self.charged.append(amount)
            found = self.then()
            return await found if asyncio.iscoroutine(found) else found

        return Tool(charge, **options)


@pytest.fixture
def till() -> Till:
    return Till()


def lost() -> Any:
    raise ConnectionError("the answer was lost")


async def hangs() -> str:
    await asyncio.Event().wait()
    return "late"


def returns(found: Any) -> list[ToolReturnPart]:
    """Return what the model was told of its calls."""
    return [
        part
        for message in found.all_messages()
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def contents(found: Any) -> list[Any]:
    return [each.content for each in returns(found)]


async def only(app: Doubtless) -> Outcome:
    (found,) = await app.operations()
    return found


FIVE = ("charge", {"amount": 5})


# --- the defaults, beside ours -------------------------------------------------------------------


@pytest.mark.proves("AGENTS-PYDANTIC-1")
async def test_the_timeout_of_a_tool_has_one_effect_and_without_us_two(app, till):
    till.then = hangs
    plain = Agent(Model(*asks(FIVE, FIVE)).itself, tools=[till.tool(timeout=0.05)])
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries") as raised:
        await plain.run("charge 5")
    assert str(raised.value.__cause__) == "Timed out after 0.05 seconds."
    assert till.charged == [5, 5]
    till.charged.clear()
    says = Model(*asks(FIVE, ("charge", {"amount": "5"}), FIVE))
    ours = Agent(says.itself, tools=[till.tool(timeout=0.05)], capabilities=[DurableTools(app)])
    found = returns(await ours.run("charge 5"))
    assert till.charged == [5]
    assert [each.outcome for each in found] == ["success"] * 3
    assert all(str(each.content).startswith(UNKNOWN) for each in found)
    assert found[0].metadata["doubtless"]["status"] == "unknown_reconciliation_required"
    assert says.texts["charge"] == telling.described("Charge an amount.", Effect.TIME_SENSITIVE)


@pytest.mark.proves("AGENTS-PYDANTIC-1")
async def test_a_person_settles_it_later_and_the_model_reads_that(app, till):
    till.then = lost
    plain = Agent(Model(*asks(FIVE)).itself, tools=[till.tool()])
    with pytest.raises(ConnectionError):  # its default: the run ends, and what follows is a repeat
        await plain.run("charge 5")
    till.charged.clear()
    durable = DurableTools(app)
    agent = Agent(Model(*asks(FIVE)).itself, tools=[till.tool()], capabilities=[durable])
    await agent.run("charge 5")
    name = (await only(app)).operation_id
    reads = asks(("list_unresolved", {}), ("operation_status", {"operation_id": name}))
    before = contents(await agent.run("go on", model=Model(*reads).itself))
    assert [each["operation_id"] for each in before[0]] == [name]
    await app.resolve(name, "done", operator="night-shift", note="seen in the till")
    after = contents(await agent.run("go on", model=Model(*reads).itself))
    assert after[0] == []
    assert after[1]["status"] == "succeeded"
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-PYDANTIC-1")
async def test_the_example_of_the_page_runs(till, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "agents-pydantic-ai.md").read_text("utf-8")
    found = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(found[1], "docs/agents-pydantic-ai.md", "exec"), names)  # noqa: S102 - our own page
    till.then = lost
    result = await names["shop"](Model(*asks(FIVE, FIVE)).itself, [till.tool()], "charge 5")
    assert all(str(each).startswith(UNKNOWN) for each in contents(result))
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-PYDANTIC-2")
async def test_a_tool_of_an_mcp_server_acts_once_although_its_answer_is_late(app, till):
    # Two seconds, which tests of other kinds need not wait for.
    from fastmcp import FastMCP  # noqa: PLC0415
    from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415

    server: FastMCP[Any] = FastMCP("shop")

    @server.tool
    async def charge(amount: int) -> str:
        till.charged.append(amount)
        return await hangs()

    @server.tool(annotations={"readOnlyHint": True})
    def price() -> int:
        return 7

    def toolset() -> MCPToolset[None]:
        return MCPToolset(server, read_timeout=0.2, tool_error_behavior="failed")

    plain = Agent(Model(*asks(FIVE, FIVE)).itself, toolsets=[toolset()])
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries"):
        await plain.run("charge 5")
    assert till.charged == [5, 5]
    till.charged.clear()
    ours = Agent(
        Model(*asks(("price", {}), FIVE, FIVE)).itself,
        toolsets=[toolset()],
        capabilities=[DurableTools(app, definitive=["charge"])],
    )
    found = contents(await ours.run("charge 5"))
    assert found[0] == 7
    assert all(each.startswith(UNKNOWN) for each in found[1:])
    assert till.charged == [5]
    assert (await only(app)).tool == "charge"


# --- after a crash -------------------------------------------------------------------------------


@pytest.mark.proves("AGENTS-PYDANTIC-3")
@pytest.mark.timeout(120)  # processes import the framework
def test_a_run_that_goes_on_after_a_crash_repeats_nothing_and_without_us_all(
    nursery: Nursery, tmp_path: Path
):
    response = ModelResponse(
        parts=[
            ToolCallPart("charge", {"amount": 5}, tool_call_id="call_1"),
            ToolCallPart("ship", {"parcel": "p7"}, tool_call_id="call_2"),
        ],
        run_id="run_1",
    )
    stored: list[Any] = [ModelRequest(parts=[UserPromptPart("pay and ship")]), response]
    (tmp_path / "messages.json").write_bytes(ModelMessagesTypeAdapter.dump_json(stored))
    for first in (True, False):
        children = [
            nursery.bear("pydantic_ai_child", folder=str(tmp_path), kind=kind, first=first)
            for kind in ("plain", "ours")
        ]
        for child in children:
            eventually(lambda pid=child.pid: not Path(f"/proc/{pid}").exists())
    effects = {
        kind: (tmp_path / f"{kind}.effects").read_text().split() for kind in ("plain", "ours")
    }
    assert effects["plain"] == ["charge", "5", "ship", "p7"] * 2
    assert effects["ours"] == ["charge", "5", "ship", "p7"]
    told = ModelMessagesTypeAdapter.validate_json((tmp_path / "ours.told").read_bytes())
    (charged, shipped) = [
        part.content for each in told for part in each.parts if isinstance(part, ToolReturnPart)
    ]
    assert charged == "charged 5"
    assert str(shipped).startswith(UNKNOWN)


# --- people --------------------------------------------------------------------------------------


@pytest.mark.proves("AGENTS-PYDANTIC-4")
async def test_an_approved_call_acts_once_however_often_its_run_goes_on(app, till):
    def pay(ctx: RunContext[None], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"amount": amount})
        till.charged.append(amount)
        return "paid"

    async def twice(*capabilities: AbstractCapability[None]) -> list[Any]:
        agent = Agent(
            Model(*asks(("pay", {"amount": 5}))).itself,
            tools=[Tool(pay)],
            output_type=[str, DeferredToolRequests],
            capabilities=capabilities,
        )
        first = await agent.run("pay 5")
        assert isinstance(first.output, DeferredToolRequests)
        assert first.output.metadata == {"call_1": {"amount": 5}}
        approved = DeferredToolResults(approvals={"call_1": True})
        history = first.all_messages()
        return [
            contents(await agent.run(message_history=history, deferred_tool_results=approved))
            for _ in range(2)
        ]

    await twice()
    assert till.charged == [5, 5]
    till.charged.clear()
    assert await twice(DurableTools(app)) == [["paid"], ["paid"]]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-PYDANTIC-4")
async def test_a_call_that_is_handed_on_is_handed_on_once(app, till):
    def enqueues() -> Any:
        raise CallDeferred(metadata={"job": 7})

    till.then = enqueues
    agent = Agent(
        Model(*asks(FIVE)).itself,
        tools=[till.tool()],
        output_type=[str, DeferredToolRequests],
        capabilities=[DurableTools(app)],
    )
    found = await agent.run("charge 5")
    again = await agent.run(message_history=found.all_messages()[:2])
    for each in (found, again):
        assert isinstance(each.output, DeferredToolRequests)
        assert each.output.metadata == {"call_1": {"job": 7}}
    assert till.charged == [5]


# --- what tools answer ---------------------------------------------------------------------------


@pytest.mark.proves("AGENTS-PYDANTIC-5")
async def test_results_go_as_they_are_and_come_out_of_the_ledger_as_far_as_kept(app, till):
    till.then = lambda: ToolReturn({"paid": 5}, content="a receipt", metadata={"raw": b"\xff"})
    agent = Agent(Model(*asks(FIVE)).itself, tools=[till.tool()], capabilities=[DurableTools(app)])
    found = await agent.run("charge 5")
    assert returns(found)[0].metadata == {"raw": b"\xff"}
    again = await agent.run(message_history=found.all_messages()[:2])
    assert contents(again) == contents(found) == [{"paid": 5}]
    assert "a receipt" in str(again.all_messages())
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-PYDANTIC-5")
async def test_only_errors_that_are_declared_definitive_fail_and_none_asks_for_a_retry(app, till):
    def refuses() -> Any:
        raise ModelRetry("the card was refused")

    till.then = refuses
    told = {}
    for names in ([], ["charge"]):
        agent = Agent(
            Model(*asks(FIVE)).itself,
            tools=[till.tool()],
            capabilities=[DurableTools(app, scope=f"user {names}", definitive=names)],
        )
        told[len(names)] = returns(await agent.run("charge 5"))[0]
    assert str(told[0].content).startswith(UNKNOWN)
    assert told[1].outcome == "failed"
    assert "the card was refused" in str(told[1].content)
    assert till.charged == [5, 5]


@pytest.mark.proves("AGENTS-PYDANTIC-5")
async def test_two_calls_that_a_model_numbers_alike_are_two(app, till):
    agent = Agent(tools=[till.tool()], capabilities=[DurableTools(app)])
    first = await agent.run("charge", model=Model(*asks(FIVE)).itself)
    history = first.all_messages()
    await agent.run("again", model=Model(*asks(FIVE)).itself, message_history=history)
    assert till.charged == [5, 5]  # each call has the id call_1, and both are meant


@pytest.mark.proves("AGENTS-PYDANTIC-5")
async def test_a_variant_of_what_is_unknown_is_refused_where_a_contract_names_the_object(app):
    refunded: list[int] = []

    async def refund(charge: str, amount: int, note: str = "") -> str:
        refunded.append(amount)
        raise TimeoutError

    contracts: Any = {"refund": {"effect": "money", "valid_for": "1h", "business_key": ["charge"]}}
    asked = asks(*[("refund", {"charge": "ch_1", "amount": amount}) for amount in (500, 499, 250)])
    durable = DurableTools(app, contracts=contracts)
    agent = Agent(Model(*asked).itself, tools=[Tool(refund)], capabilities=[durable])
    found = returns(await agent.run("refund"))
    assert [each.outcome for each in found] == ["success", "failed", "failed"]
    assert all(str(each.content).startswith("[rejected_by_policy]") for each in found[1:])
    assert refunded == [500]


@pytest.mark.proves("AGENTS-PYDANTIC-6")
def test_an_agent_on_an_event_loop_of_its_own_acts_once(tmp_path, till):
    till.then = lost
    with Doubtless.sync(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        agent = Agent(
            Model(*asks(FIVE, FIVE)).itself,
            deps_type=str,
            tools=[till.tool()],
            capabilities=[DurableTools(app, scope=lambda ctx: str(ctx.deps))],
        )
        assert all(each.startswith(UNKNOWN) for each in contents(agent.run_sync("5", deps="ann")))
        assert till.charged == [5]
        assert len(app.session("ann").unresolved) == 1
        agent.run_sync("5", deps="bob", model=Model(*asks(FIVE)).itself)
        assert till.charged == [5, 5]
        assert list(tools_sync(app).tools) == ["operation_status", "list_unresolved"]


@pytest.mark.proves("AGENTS-PYDANTIC-7")
async def test_the_applications_own_tools_are_tools_of_an_agent(app, till):
    @app.tool(effect=Effect.MONEY, valid_for="1h", description="Refund.")
    async def refund(call: Call, amount: int) -> dict[str, int]:
        till.charged.append(amount)
        return {"refunded": amount} if amount < 10 else lost()

    offered = await tools(app)
    calls = asks(*[("refund", {"amount": amount}) for amount in (5, 50, 50, "x")])
    for capabilities in ([], [DurableTools(app)]):
        says = Model(*calls)
        agent = Agent(says.itself, toolsets=[offered], capabilities=capabilities)
        found = returns(await agent.run("refund"))
        assert found[0].content == {"refunded": 5}
        assert found[0].metadata["doubtless"]["status"] == "succeeded"
        assert all(str(each.content).startswith(UNKNOWN) for each in found[1:3])
        assert found[3].outcome == "failed"
        assert str(found[3].content).startswith("[not_done]")
        assert says.texts["refund"] == telling.described("Refund.", Effect.MONEY)
    assert till.charged == [5, 50, 5]
