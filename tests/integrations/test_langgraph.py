"""Tools of LangChain and LangGraph: their defaults beside ours, with scripted models."""

import asyncio
import json
import operator
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import NodeTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel, Field
from tests.integrations.children import Nursery, eventually
from tests.scenarios.contracts import written
from tests.service.serving import staged

from doubtless import Call, Doubtless, Effect, Outcome
from doubtless.errors import DoubtlessError, SettingsError
from doubtless.integrations import crossing, telling
from doubtless.integrations.langgraph import DurableTools, tools, tools_sync

UNKNOWN = "[unknown_reconciliation_required]"
THREAD: Any = {"configurable": {"thread_id": "t1"}}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


class Model(GenericFakeChatModel):
    """Says what is in its script, whatever it hears; it keeps what its tools say of themselves."""

    texts: dict[str, str] = Field(default_factory=dict)

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        self.texts.update({each.name: each.description for each in tools})
        return self


def asks(*calls: tuple[str, dict[str, Any]]) -> list[AIMessage]:
    """Return one message for each call, each with an id of its own."""
    return [
        AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": f"call_{number}"}])
        for number, (name, args) in enumerate(calls, 1)
    ]


def model(*turns: AIMessage) -> Model:
    return Model(messages=iter([*turns, AIMessage(content="done")]))


class Till:
    """The far side: what was charged, by a tool that answers, fails, hangs or asks."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.then: Callable[[], Any] = lambda: "charged"

    def tool(self, name: str = "charge", **options: Any) -> BaseTool:
        async def charge(amount: int) -> Any:
            self.charged.append(amount)
            found = self.then()
            return await found if asyncio.iscoroutine(found) else found

        def blocks(amount: int) -> Any:
            self.charged.append(amount)
            return self.then()

        return StructuredTool.from_function(
            blocks, coroutine=charge, name=name, description="Charge an amount.", **options
        )


@pytest.fixture
def till() -> Till:
    return Till()


def lost() -> Any:
    raise ConnectionError("the answer was lost")


GO: Any = {"messages": [HumanMessage("charge 5")]}
RETRY: Any = {"max_retries": 2, "initial_delay": 0.0}


def answers(found: Any) -> list[ToolMessage]:
    return [each for each in found["messages"] if isinstance(each, ToolMessage)]


def contents(found: Any) -> list[str]:
    return [str(each.content) for each in answers(found)]


async def only(app: Doubtless) -> Outcome:
    (found,) = await app.operations()
    return found


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[Any], operator.add]


def graph(node: Any, *turns: AIMessage, saver: Any = None, **options: Any) -> Any:
    """Return a graph of the user's own: one message with calls, and the node with the tools."""
    script = iter(turns)
    made = StateGraph(State)
    made.add_node("model", lambda _: {"messages": [next(script)]})
    made.add_node("tools", node, **options)
    made.add_edge(START, "model")
    made.add_edge("model", "tools")
    made.add_edge("tools", END)
    return made.compile(checkpointer=saver)


def node_of(durable: DurableTools, *given: BaseTool, **options: Any) -> ToolNode:
    return ToolNode(
        [*durable.described(given), *durable.tools],
        awrap_tool_call=durable.awrap_tool_call,
        wrap_tool_call=durable.wrap_tool_call,
        **options,
    )


# --- the defaults, beside ours -------------------------------------------------------------------


@pytest.mark.proves("AGENTS-LANGGRAPH-1")
async def test_a_lost_answer_under_a_retry_has_one_effect_and_without_us_three(app, till):
    till.then = lost
    asked = asks(("charge", {"amount": 5}))
    plain = create_agent(model(*asked), [till.tool()], middleware=[ToolRetryMiddleware(**RETRY)])
    default = await plain.ainvoke(GO)
    assert till.charged == [5, 5, 5]
    assert contents(default)[0].endswith("Please try again.")
    till.charged.clear()
    stubborn = asks(*[("charge", {"amount": amount}) for amount in (5, "5", 5)])
    says = model(*stubborn)
    ours = create_agent(
        says, [till.tool()], middleware=[ToolRetryMiddleware(**RETRY), DurableTools(app)]
    )
    found = answers(await ours.ainvoke(GO))
    assert till.charged == [5]
    assert [each.status for each in found] == ["success"] * 3
    assert all(UNKNOWN in str(each.content) for each in found)
    assert len({each.artifact["operation_id"] for each in found}) == 1
    assert says.texts["charge"] == telling.described("Charge an amount.", Effect.TIME_SENSITIVE)


@pytest.mark.proves("AGENTS-LANGGRAPH-1")
async def test_a_person_settles_it_later_and_the_model_reads_that(app, till):
    till.then = lost
    durable = DurableTools(app)
    await create_agent(
        model(*asks(("charge", {"amount": 5}))), [till.tool()], middleware=[durable]
    ).ainvoke(GO)
    name = (await only(app)).operation_id
    reads = [("list_unresolved", {}), ("operation_status", {"operation_id": name})]
    agent = create_agent(model(*asks(*reads)), [till.tool()], middleware=[durable])
    before = contents(await agent.ainvoke(GO))
    assert [each["operation_id"] for each in json.loads(before[0])] == [name]
    await app.resolve(name, "done", operator="night-shift", note="seen in the till")
    agent = create_agent(model(*asks(*reads)), [till.tool()], middleware=[durable])
    after = contents(await agent.ainvoke(GO))
    assert json.loads(after[0]) == []
    assert json.loads(after[1])["status"] == "succeeded"
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-2")
async def test_the_retry_of_a_node_and_its_timeout_find_the_operation(app, till):
    gate = asyncio.Event()

    async def hangs() -> str:
        await gate.wait()
        return "charged late"

    till.then = hangs
    options: dict[str, Any] = {
        "retry_policy": RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False),
        "timeout": 0.15,
    }
    asked = asks(("charge", {"amount": 5}))
    plain = graph(ToolNode([till.tool()]), *asked, **options)
    with pytest.raises(NodeTimeoutError):
        await plain.ainvoke(GO)
    assert till.charged == [5, 5, 5]
    till.charged.clear()

    def opens() -> Any:
        asyncio.get_running_loop().call_later(0.2, gate.set)
        return hangs()

    till.then = opens
    ours = graph(node_of(DurableTools(app), till.tool()), *asked, **options)
    assert contents(await ours.ainvoke(GO)) == ["charged late"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-2")
async def test_a_node_that_handles_errors_says_please_fix_and_ours_that_it_is_unknown(app, till):
    till.then = lost
    asked = asks(("charge", {"amount": 5}))
    plain = graph(ToolNode([till.tool()], handle_tool_errors=True), *asked)
    assert contents(await plain.ainvoke(GO))[0].endswith("Please fix your mistakes.")
    node = node_of(DurableTools(app), till.tool(), handle_tool_errors=True)
    (ours,) = answers(await graph(node, *asked).ainvoke(GO))
    assert str(ours.content).startswith(UNKNOWN)
    assert ours.status == "success"
    assert "fix" not in str(ours.content)


@pytest.mark.proves("AGENTS-LANGGRAPH-1")
async def test_the_examples_of_the_page_run(app, till, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "agents-langgraph.md").read_text("utf-8")
    names: dict[str, Any] = {"__name__": "example"}
    for example in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]:
        exec(compile(example, "docs/agents-langgraph.md", "exec"), names)  # noqa: S102 - our own page
    till.then = lost
    asked = asks(("charge", {"amount": 5}), ("charge", {"amount": 5}))
    found = await names["shop"](model(*asked), [till.tool()], "charge 5")
    bound, node = names["tool_node"](app, model(*asked), [till.tool()])
    made = graph(node, await bound.ainvoke("charge 5"))
    for each in (found, await made.ainvoke(GO)):
        assert all(text.startswith(UNKNOWN) for text in contents(each))
    assert till.charged == [5, 5]  # one in each ledger


# --- after a crash -------------------------------------------------------------------------------


@pytest.mark.proves("AGENTS-LANGGRAPH-3")
@pytest.mark.timeout(120)  # processes import the framework
def test_a_crash_in_the_second_call_of_a_node_repeats_nothing_and_without_us_both(
    nursery: Nursery, tmp_path: Path
):
    for first in (True, False):
        children = [
            nursery.bear("langgraph_child", folder=str(tmp_path), kind=kind, first=first)
            for kind in ("plain", "ours")
        ]
        for child in children:
            eventually(lambda pid=child.pid: not Path(f"/proc/{pid}").exists())
    effects = {kind: (tmp_path / f"{kind}.effects").read_text().split("\n") for kind in KINDS}
    assert effects["plain"] == ["charge 5", "ship p7", "charge 5", "ship p7", ""]
    assert effects["ours"] == ["charge 5", "ship p7", ""]
    told = json.loads((tmp_path / "ours.told").read_text())
    assert told[-2] == "charged 5"
    assert told[-1].startswith(UNKNOWN)


KINDS = ("plain", "ours")


# --- waiting for people --------------------------------------------------------------------------


@pytest.mark.proves("AGENTS-LANGGRAPH-4")
async def test_what_a_waiting_graph_is_resumed_with_is_not_believed(app, till):
    till.then = lost
    node = node_of(DurableTools(app, wait_for_operator=True), till.tool())
    waits = graph(node, *asks(("charge", {"amount": 5})), saver=InMemorySaver())
    first = await waits.ainvoke(GO, THREAD)
    (asked,) = first["__interrupt__"]
    name = asked.value["operation_id"]
    assert asked.value["status"] == "unknown_reconciliation_required"
    again = await waits.ainvoke(Command(resume="it was done, trust me"), THREAD)
    assert again["__interrupt__"][0].value["operation_id"] == name
    await app.resolve(name, "done", operator="night-shift", note="seen in the till")
    settled = await waits.ainvoke(Command(resume="now"), THREAD)
    assert "__interrupt__" not in settled
    assert answers(settled)[0].response_metadata["doubtless"]["status"] == "succeeded"
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-4")
async def test_an_approval_comes_from_a_person_and_not_from_the_resume_value(app, till):
    contracts: Any = {
        "charge": {"effect": "money", "valid_for": "1h", "approval": {"expires": "1h"}}
    }
    durable = DurableTools(app, contracts=contracts, wait_for_operator=True)
    waits = graph(
        node_of(durable, till.tool()), *asks(("charge", {"amount": 5})), saver=InMemorySaver()
    )
    first = await waits.ainvoke(GO, THREAD)
    assert first["__interrupt__"][0].value["state"] == "awaiting_approval"
    again = await waits.ainvoke(Command(resume="approved"), THREAD)
    assert again["__interrupt__"][0].value["state"] == "awaiting_approval"
    assert till.charged == []
    waiting = await only(app)
    await app.approve(
        waiting.operation_id, operator="boss", note="fine", payload_hash=waiting.payload_hash or ""
    )
    await app.wait(waiting.operation_id, timeout=10)
    done = await waits.ainvoke(Command(resume="now"), THREAD)
    assert contents(done) == ["charged"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-4")
async def test_what_was_approved_while_its_run_was_gone_is_asked_for_anew(tmp_path, till):
    contracts: Any = {
        "charge": {
            "effect": "money",
            "valid_for": "1h",
            "approval": {"expires": "1h"},
            "retry": {"attempts": 1},
        }
    }
    saver, ledger = InMemorySaver(), f"sqlite:///{tmp_path / 'ledger.db'}"
    asked = asks(("charge", {"amount": 5}))

    def made(app: Doubtless) -> Any:
        durable = DurableTools(app, contracts=contracts, wait_for_operator=True)
        return graph(node_of(durable, till.tool()), *asked, saver=saver)

    async def approved(app: Doubtless, name: str) -> Outcome:
        waiting = await app.outcome(name)
        said = {"operator": "boss", "note": "fine", "payload_hash": waiting.payload_hash or ""}
        await app.approve(name, **said)
        return await app.wait(name, timeout=10)

    async with Doubtless(ledger) as app:
        first = await made(app).ainvoke(GO, THREAD)
    later = Doubtless(ledger)
    resumed = made(later)  # the tool is known here, and nobody asks for the call yet
    async with later as app:
        name = first["__interrupt__"][0].value["operation_id"]
        assert (await approved(app, name)).status == "failed_safe_to_retry"
        again = await resumed.ainvoke(Command(resume="now"), THREAD)
        other = again["__interrupt__"][0].value["operation_id"]
        assert other != name
        assert (await approved(app, other)).status == "succeeded"
        assert contents(await resumed.ainvoke(Command(resume="now"), THREAD)) == ["charged"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-5")
async def test_a_tool_that_interrupts_before_it_acts_goes_on_when_it_is_resumed(app, till):
    def answered() -> Any:
        if interrupt("really?") != "yes":
            return "not charged"
        till.charged.append(5)
        return "charged"

    confirm = StructuredTool.from_function(
        lambda amount: answered(), name="confirm", description="Ask, then charge."
    )
    asked = asks(("confirm", {"amount": 5}))
    durable = DurableTools(app, interrupting=["confirm"])
    made = graph(node_of(durable, confirm), *asked, saver=InMemorySaver())
    first = await made.ainvoke(GO, THREAD)
    assert first["__interrupt__"][0].value == "really?"
    assert contents(await made.ainvoke(Command(resume="yes"), THREAD)) == ["charged"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-5")
async def test_an_interrupt_of_a_tool_that_may_have_acted_is_unknown(app, till):
    till.then = lambda: interrupt("was that right?")
    made = graph(
        node_of(DurableTools(app), till.tool()),
        *asks(("charge", {"amount": 5})),
        saver=InMemorySaver(),
    )
    found = await made.ainvoke(GO, THREAD)
    assert contents(found)[0].startswith(UNKNOWN)
    assert till.charged == [5]


# --- what tools answer ---------------------------------------------------------------------------


def noting(till: Till) -> BaseTool:
    def note(
        amount: int,
        state: Annotated[dict[str, Any], InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        till.charged.append(amount)
        assert state["messages"]
        said = ToolMessage("noted", tool_call_id=tool_call_id, artifact={"number": 7})
        return Command(update={"messages": [said], "notes": [{"amount": amount}]})

    return StructuredTool.from_function(note, name="note", description="Note an amount.")


@pytest.mark.proves("AGENTS-LANGGRAPH-6")
async def test_a_call_that_is_run_again_from_a_checkpoint_is_answered_out_of_the_ledger(app, till):
    artful = till.tool("artful", response_format="content_and_artifact")
    till.then = lambda: ([{"type": "text", "text": "charged"}], {"receipt": 7, "raw": b"\xff"})
    both = AIMessage(
        content="",
        tool_calls=[
            {"name": "note", "args": {"amount": 1}, "id": "a"},
            {"name": "artful", "args": {"amount": 2}, "id": "b"},
        ],
    )
    saver = InMemorySaver()
    made = graph(node_of(DurableTools(app), noting(till), artful), both, saver=saver)
    first = await made.ainvoke(GO, THREAD)
    assert answers(first)[1].artifact == {"receipt": 7, "raw": b"\xff"}
    (before,) = [each async for each in made.aget_state_history(THREAD) if each.next == ("tools",)]
    again = await made.ainvoke(None, before.config)
    assert sorted(till.charged) == [1, 2]
    assert again["notes"] == first["notes"] == [{"amount": 1}]
    assert answers(again)[0].content == "noted"
    assert answers(again)[0].artifact == {"number": 7}
    assert answers(again)[1].content[0] == {"type": "text", "text": "charged"}
    assert "not kept, as it is no JSON: artifact" in str(answers(again)[1].content[1])
    payload = await app.timeline((await app.operations(tool="note"))[0].operation_id)
    assert "tool_call_id" not in json.dumps(payload)


@pytest.mark.proves("AGENTS-LANGGRAPH-6")
async def test_what_no_json_can_say_is_no_failure(app, till):
    till.then = object
    (found,) = answers(
        await graph(
            node_of(DurableTools(app), till.tool()), *asks(("charge", {"amount": 5}))
        ).ainvoke(GO)
    )
    assert str(found.content).startswith("<object object")
    assert (await only(app)).status == "succeeded"


@pytest.mark.proves("AGENTS-LANGGRAPH-7")
async def test_a_variant_of_what_is_unknown_is_refused_where_a_contract_names_the_object(app):
    refunded: list[int] = []

    async def refund(charge: str, amount: int, note: str = "") -> str:
        refunded.append(amount)
        raise TimeoutError

    tool = StructuredTool.from_function(coroutine=refund, name="refund", description="Refund.")
    contracts: Any = {"refund": {"effect": "money", "valid_for": "1h", "business_key": ["charge"]}}
    asked = asks(*[("refund", {"charge": "ch_1", "amount": amount}) for amount in (500, 499, 250)])
    durable = DurableTools(app, contracts=contracts)
    agent = create_agent(model(*asked), [tool], middleware=[durable])
    found = answers(await agent.ainvoke(GO))
    assert [each.status for each in found] == ["success", "error", "error"]
    assert all(each.artifact["error"]["code"] == "target_unresolved" for each in found[1:])
    assert refunded == [500]


class Amount(BaseModel):
    amount: int = Field(gt=0)


@pytest.mark.proves("AGENTS-LANGGRAPH-7")
async def test_arguments_that_do_not_fit_are_told_as_nothing_done(app, till):
    strict = till.tool(args_schema=Amount)
    asked = asks(("charge", {"amount": -5}), ("nothing", {}), ("charge", {"amount": 5}))
    agent = create_agent(model(*asked), [strict], middleware=[DurableTools(app)])
    found = answers(await agent.ainvoke(GO))
    assert [each.status for each in found] == ["error", "error", "success"]
    assert str(found[0].content).startswith("[not_done] Nothing was recorded")
    assert "not a valid tool" in str(found[1].content)
    assert till.charged == [5]
    assert len(await app.operations()) == 1


@pytest.mark.proves("AGENTS-LANGGRAPH-7")
async def test_only_a_tool_whose_errors_are_declared_definitive_is_said_to_have_failed(app, till):
    def refuses() -> Any:
        raise ToolException("the card was refused")

    till.then = refuses
    handled = till.tool("handled", handle_tool_error=True)
    told = {}
    for names in ([], ["charge", "handled"]):
        durable = DurableTools(app, scope=str(names), definitive=names)
        asked = asks(("charge", {"amount": 5}), ("handled", {"amount": 6}))
        agent = create_agent(model(*asked), [till.tool(), handled], middleware=[durable])
        told[len(names)] = answers(await agent.ainvoke(GO))
    assert all(str(each.content).startswith(UNKNOWN) for each in told[0])
    assert [each.status for each in told[2]] == ["error", "error"]
    assert all("the card was refused" in str(each.content) for each in told[2])
    states = [each.state for each in await app.operations(session_id="['charge', 'handled']")]
    assert states == ["failed", "failed"]


@pytest.mark.proves("AGENTS-LANGGRAPH-7")
async def test_a_timeout_is_no_definitive_error_in_whatever_it_is_wrapped(app, till):
    def wraps() -> Any:
        try:
            raise TimeoutError
        except TimeoutError as error:
            raise ToolException("the tool failed") from error

    till.then = wraps
    durable = DurableTools(app, definitive=["charge"])
    agent = create_agent(
        model(*asks(("charge", {"amount": 5}))), [till.tool()], middleware=[durable]
    )
    assert contents(await agent.ainvoke(GO))[0].startswith(UNKNOWN)


@pytest.mark.proves("AGENTS-LANGGRAPH-7")
async def test_tools_that_only_read_are_left_alone(app, till):
    claims = till.tool("claims", metadata={"readOnlyHint": True})
    durable = DurableTools(app, reads=["charge"])
    asked = asks(("charge", {"amount": 5}), ("claims", {"amount": 6}))
    says = model(*asked)
    found = await create_agent(says, [till.tool(), claims], middleware=[durable]).ainvoke(GO)
    assert contents(found) == ["charged", "charged"]
    assert await app.operations() == []
    assert says.texts["claims"] == "Charge an amount."


# --- wherever it stands, and however it is invoked -----------------------------------------------


@pytest.mark.proves("AGENTS-LANGGRAPH-8")
async def test_a_retry_further_in_executes_a_tool_once_too(app, till):
    till.then = lost
    agent = create_agent(
        model(*asks(("charge", {"amount": 5}))),
        [till.tool()],
        middleware=[DurableTools(app), ToolRetryMiddleware(**RETRY)],
    )
    assert contents(await agent.ainvoke(GO))[0].startswith(UNKNOWN)
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-LANGGRAPH-8")
async def test_what_is_answered_in_a_tools_place_is_no_effect(app, till):
    class Emulates(AgentMiddleware[Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return ToolMessage("emulated", tool_call_id=request.tool_call["id"])

    agent = create_agent(
        model(*asks(("charge", {"amount": 5}))),
        [till.tool()],
        middleware=[DurableTools(app), Emulates()],
    )
    assert contents(await agent.ainvoke(GO)) == ["emulated"]
    assert till.charged == []
    assert (await only(app)).state == "failed"


@pytest.mark.proves("AGENTS-LANGGRAPH-9")
def test_an_agent_that_is_invoked_synchronously_acts_once(tmp_path, till):
    till.then = lost
    with Doubtless.sync(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        agent = create_agent(
            model(*asks(*[("charge", {"amount": 5})] * 2)),
            [till.tool()],
            middleware=[ToolRetryMiddleware(**RETRY), DurableTools(app)],
        )
        found = contents(agent.invoke(GO))
        assert all(each.startswith(UNKNOWN) for each in found)
        assert till.charged == [5]
        (unknown,) = app.operations()
        app.resolve(unknown.operation_id, "done", operator="night-shift", note="seen")
        reads = asks(("operation_status", {"operation_id": unknown.operation_id}))
        agent = create_agent(model(*reads), [], middleware=[DurableTools(app)])
        assert json.loads(contents(agent.invoke(GO))[0])["status"] == "succeeded"
        agent = create_agent(
            model(*asks(("charge", {"amount": 6}))), [till.tool()], middleware=[DurableTools(app)]
        )
        asyncio.run(agent.ainvoke(GO))  # on another event loop than the application's
        assert till.charged == [5, 6]


@pytest.mark.proves("AGENTS-LANGGRAPH-9")
async def test_a_thread_may_invoke_an_agent_of_an_asynchronous_application(app, till, monkeypatch):
    agent = create_agent(
        model(*asks(("charge", {"amount": 5}), ("charge", {"amount": 6}))),
        [till.tool()],
        middleware=[DurableTools(app)],
    )
    assert contents(await asyncio.to_thread(agent.invoke, GO)) == ["charged", "charged"]
    monkeypatch.setattr(crossing, "STUCK_S", 0.05)
    blocked = create_agent(
        model(*asks(("charge", {"amount": 7}))), [till.tool()], middleware=[DurableTools(app)]
    )
    with pytest.raises(DoubtlessError, match="would wait for the event loop"):
        blocked.invoke(GO)
    assert till.charged == [5, 6]


# --- tools of the application --------------------------------------------------------------------


@pytest.mark.proves("AGENTS-LANGGRAPH-10")
async def test_the_applications_own_tools_are_tools_of_an_agent(app, till):
    @app.tool(effect=Effect.MONEY, valid_for="1h", description="Refund.")
    async def refund(call: Call, amount: int) -> dict[str, int]:
        till.charged.append(amount)
        return {"refunded": amount} if amount < 10 else lost()

    offered = await tools(app)
    assert [each.name for each in offered] == ["refund", "operation_status", "list_unresolved"]
    assert offered[0].description == telling.described("Refund.", Effect.MONEY)
    with pytest.raises(SettingsError, match="rename one"):
        DurableTools(app).described([till.tool("refund")])
    asked = AIMessage(
        content="",
        tool_calls=[
            {"name": "refund", "args": {"amount": amount}, "id": f"c{amount}"}
            for amount in (5, 50, "x")
        ],
    )
    made = graph(ToolNode(offered), asked, saver=InMemorySaver())
    first = answers(await made.ainvoke(GO, THREAD))
    assert first[0].content == '{"refunded": 5}'
    assert str(first[1].content).startswith(UNKNOWN)
    assert str(first[2].content).startswith("[not_done]")
    (before,) = [each async for each in made.aget_state_history(THREAD) if each.next == ("tools",)]
    again = answers(await made.ainvoke(None, before.config))
    assert again[0].content == '{"refunded": 5}'
    assert sorted(till.charged) == [5, 50]
    agent = create_agent(
        model(*asks(("refund", {"amount": 50}))), offered, middleware=[DurableTools(app)]
    )
    assert contents(await agent.ainvoke(GO, THREAD))[0].startswith(UNKNOWN)
    assert sorted(till.charged) == [5, 50]


LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
NOBODY_KNOWS: Any = {"effect": "write", "lookup": None, "on_absent": None}


@pytest.mark.proves("AGENTS-LANGGRAPH-10")
@pytest.mark.parametrize("way", ["asynchronous", "blocking"])
def test_the_tools_of_a_service_are_tools_of_an_agent(provider, tmp_path, way):
    provider.configure(LOST)
    refund = ("refund", {"charge": "ch_1", "amount": 5})
    asked = asks(refund, refund, ("list_unresolved", {}))
    with staged(tmp_path, written(provider.url, NOBODY_KNOWS)) as stage:
        url, token = stage.serving.url, stage.tokens["agent"]

        async def over_there() -> Any:
            async with Doubtless(url, token=token) as app:
                with pytest.raises(SettingsError, match="the service's own tools"):
                    DurableTools(app)
                return await create_agent(model(*asked), await tools(app)).ainvoke(GO)

        if way == "asynchronous":
            found = contents(asyncio.run(over_there()))
        else:
            with Doubtless.sync(url, token=token) as app:
                found = contents(create_agent(model(*asked), tools_sync(app)).invoke(GO))
    assert all(each.startswith(UNKNOWN) for each in found[:2])
    assert [each["tool"] for each in json.loads(found[2])] == ["refund"]
    assert len(provider.effects()) == 1
