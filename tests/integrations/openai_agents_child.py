"""An agent of openai-agents whose tools end the process right after their effect."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
from agents.testing import ScriptedModel, function_call

from doubtless import Doubtless
from doubtless.integrations.openai_agents import guarded


def tool(name: str, effects: Path, *, ends: bool = False) -> Any:
    """Return a tool that adds a line to `effects`, and then may end the process.

    One whose name begins with `approved` waits for a person.
    """

    @function_tool(name_override=name, needs_approval=name.startswith("approved"))
    async def act(amount: int) -> str:
        """Pay an amount."""
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{name} {amount}\n")
        if ends:
            os._exit(9)
        return f"paid {amount}"

    return act


async def agents(options: dict[str, Any]) -> None:
    folder = Path(options["folder"])
    effects = folder / "effects"
    session = SQLiteSession("chat", folder / "session.db")
    async with Doubtless(f"sqlite:///{folder / 'ledger.db'}") as app:
        made = tool(options["tool"], effects, ends=True)
        agent = Agent(
            name="shop",
            model=ScriptedModel([[function_call(made.name, {"amount": 5}, call_id="call_1")]]),
            tools=[guarded(app, made) if options["is_ours"] else made],
        )
        config = RunConfig(group_id="chat", tracing_disabled=True)
        found = await Runner.run(agent, "pay 5", session=session, run_config=config)
        state = found.to_state()
        state.approve(state.get_interruptions()[0])
        (folder / f"{made.name}.json").write_text(json.dumps(state.to_json()))
        await Runner.run(agent, state, session=session, run_config=config)


def run(options: dict[str, Any]) -> None:
    """Run the agent; it doesn't return."""
    asyncio.run(agents(options))
