"""Tools and hooks of claude-agent-sdk, over a stand-in for the program that it drives."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import CLIConnectionError, SdkMcpTool, ToolAnnotations, query
from claude_agent_sdk import tool as declared
from tests.integrations import examples
from tests.integrations.children import Nursery, eventually
from tests.integrations.claude_cli import FakeCli, paying, run_agent

from doubtless import Doubtless
from doubtless.cli_mcp import mcp
from doubtless.errors import SettingsError
from doubtless.integrations import telling
from doubtless.integrations.claude_agent import gateway, guarded, reading, tools, unrepeated

UNKNOWN = "[unknown_reconciliation_required]"
CHARGE = ("mcp__shop__charge", {"amount": 5})


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


def charging(charged: list[int], *, fails: bool = True, **given: Any) -> SdkMcpTool[Any]:
    """Return a tool that charges, and then loses the answer."""

    @declared("charge", "Charge an amount.", {"amount": int}, **given)
    async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
        charged.append(arguments["amount"])
        if fails:
            raise ConnectionError("the answer was lost")
        return {"content": [{"type": "text", "text": "charged"}]}

    return charge


@pytest.mark.proves("AGENTS-CLAUDE-1")
async def test_a_lost_answer_is_unknown_and_a_person_settles_it_later(app):
    charged: list[int] = []
    default = await run_agent(FakeCli(CHARGE, CHARGE), charging(charged))
    assert (charged, default) == ([5, 5], ["the answer was lost"] * 2)
    charged.clear()
    charge = guarded(app, charging(charged), scope="agent-7")
    assert charge.description == f"Charge an amount.\n\n{telling.CAUTION}"
    ours = await run_agent(FakeCli(CHARGE, CHARGE), charge)
    assert charged == [5]
    assert all(each.startswith(UNKNOWN) for each in ours)
    (waiting,) = (await app.session("agent-7")).unresolved
    name = waiting.operation_id
    await app.resolve(name, "done", operator="night-shift", note="seen in the till")
    asking = FakeCli(
        (f"mcp__shop__{telling.STATUS_TOOL}", {"operation_id": name}),
        (f"mcp__shop__{telling.UNRESOLVED_TOOL}", {}),
    )
    settled, left = await run_agent(asking, charge, *reading(app, "agent-7"))
    assert json.loads(settled)["status"] == "succeeded"
    assert json.loads(left) == []


@pytest.mark.proves("AGENTS-CLAUDE-1")
async def test_results_reads_and_refusals_are_as_before(app):
    charged: list[int] = []
    good = guarded(app, charging(charged, fails=False))
    assert await run_agent(FakeCli(CHARGE), good) == ["charged"]

    @declared("refuse", "Refuse.", {"amount": int})
    async def refuse(_: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "no money"}], "is_error": True}

    @declared("balance", "Tell.", {}, ToolAnnotations(readOnlyHint=True))
    async def balance(_: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "no account"}], "is_error": True}

    def script(amount: int) -> FakeCli:
        return FakeCli(("mcp__shop__refuse", {"amount": amount}), ("mcp__shop__balance", {}))

    assert guarded(app, balance).description == "Tell."
    first = await run_agent(script(1), guarded(app, refuse), guarded(app, balance))
    assert first[0].startswith(UNKNOWN)
    assert first[1] == "no account"
    second = await run_agent(
        script(2), guarded(app, refuse, definitive=True), guarded(app, balance)
    )
    assert second[0].startswith("[failed")
    assert "no money" in second[0]


@pytest.mark.proves("AGENTS-CLAUDE-1")
async def test_the_tools_of_an_application_are_tools_of_an_agent(app):
    refunded: list[int] = []

    @app.tool(effect="write", description="Refund an amount.")
    async def refund(call: Any, amount: int) -> str:
        refunded.append(amount)
        return f"re_{amount}"

    given = await tools(app, scope="agent-7")
    assert [each.name for each in given] == ["refund", "operation_status", "list_unresolved"]
    assert await run_agent(FakeCli(("mcp__shop__refund", {"amount": 5})), *given) == ['"re_5"']
    assert refunded == [5]


@pytest.mark.proves("AGENTS-CLAUDE-1")
async def test_the_examples_of_the_page_are_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paid: list[Any] = []

    async def pay(arguments: dict[str, Any]) -> str:
        paid.append(arguments)
        return "paid"

    configured = examples.first_of("agents-claude.md")["options"].mcp_servers["shop"]
    assert configured["args"][-2:] == ["python", "pay_server.py"]
    names = examples.first_of("agents-claude.md", "Tools of this process")
    cli = FakeCli(("mcp__shop__charge", {"card": "7", "amount": 5}))
    names.update(pay=pay, query=partial(query, transport=cli))
    await names["main"]()
    assert (cli.told, paid) == (["paid"], [{"card": "7", "amount": 5}])


@pytest.mark.proves("AGENTS-CLAUDE-2")
async def test_a_hook_stops_the_repeat_of_what_is_unresolved_and_nothing_else(app):
    @app.tool(effect="money", business_key=["charge"], valid_for="1h")
    async def refund(call: Any, charge: str, amount: int) -> str:
        raise ConnectionError

    asked = {"charge": "ch_1", "amount": 5}
    await app.call("refund", asked, session_id="agent-7")
    called: list[Any] = []

    def outside(name: str, arguments: dict[str, Any]) -> str:
        called.append((name, arguments["charge"]))
        return "called"

    cli = FakeCli(
        ("mcp__pay__refund", asked),
        ("mcp__pay__refund", {**asked, "amount": 4}),  # a variant of it
        ("mcp__pay__refund", {**asked, "charge": "ch_2"}),
        ("mcp__pay__other", asked),
    )
    cli.outside = outside
    hooks = {"PreToolUse": [unrepeated(app, scope="agent-7")]}
    told = await run_agent(cli, hooks=hooks)
    assert [each.split(":")[0] for each in told] == ["denied", "denied", "called", "called"]
    assert told[0].startswith(f"denied: {UNKNOWN}")
    assert called == [("mcp__pay__refund", "ch_2"), ("mcp__pay__other", "ch_1")]


@pytest.mark.proves("AGENTS-CLAUDE-2")
async def test_a_hook_that_fails_stops_the_call_and_a_program_that_ignores_it_is_refused(tmp_path):
    closed = Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}")
    hooks = {"PreToolUse": [unrepeated(closed)]}
    charged: list[int] = []
    told = await run_agent(FakeCli(CHARGE), charging(charged), hooks=hooks)
    assert told[0].startswith("blocked: the application is not open")
    with pytest.raises(CLIConnectionError):
        await run_agent(FakeCli(CHARGE, honors_blocks=False), charging(charged), hooks=hooks)
    assert charged == []


@pytest.mark.proves("AGENTS-CLAUDE-3")
def test_the_configuration_of_the_gateway_is_what_its_command_takes(tmp_path):
    found = gateway("python", "pay.py", "--fast", scope="agent-7", ledger="sqlite:///a.db")
    assert found["args"][:3] == ["-m", "doubtless.cli", "mcp"]
    said = mcp.make_context("mcp", found["args"][3:]).params
    assert said["command"] == ("python", "pay.py", "--fast")
    assert (said["scope"], said["ledger"]) == ("agent-7", "sqlite:///a.db")
    several = gateway(scope="agent-7", config=tmp_path / "gateway.toml", env={"A": "b"})
    said = mcp.make_context("mcp", several["args"][3:]).params
    assert (said["file"], said["command"]) == (str(tmp_path / "gateway.toml"), ())
    assert several["env"] == {"A": "b"}
    with pytest.raises(SettingsError):
        gateway(scope="agent-7")


@pytest.mark.proves("AGENTS-CLAUDE-4")
@pytest.mark.timeout(150)  # a process imports the framework
async def test_a_session_after_a_crash_in_a_tool_repeats_nothing(tmp_path: Path, nursery: Nursery):
    for is_ours in (False, True):
        effects = f"effects_{is_ours}"
        child = nursery.bear("claude_cli", effects=effects, folder=str(tmp_path), is_ours=is_ours)
        await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{child.pid}").exists())  # noqa: B023
    script = ("mcp__shop__pay", {"amount": 5})
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        plain = paying(tmp_path / "effects_False")
        ours = guarded(app, paying(tmp_path / "effects_True"), scope="agent-7")
        assert await run_agent(FakeCli(script), plain) == ["paid"]
        assert (await run_agent(FakeCli(script), ours))[0].startswith(UNKNOWN)
    lines = [(tmp_path / f"effects_{each}").read_text().split() for each in (False, True)]
    assert lines == [["5", "5"], ["5"]]
