"""An agent that goes on from stored messages, whose second tool ends the process."""

import asyncio
import os
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from doubtless import Doubtless
from doubtless.integrations.pydantic_ai import DurableTools


def tools(effects: Path, *, ends: bool) -> list[Tool]:
    def note(line: str) -> None:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def charge(amount: int) -> str:
        note(f"charge {amount}")
        return f"charged {amount}"

    def ship(parcel: str) -> str:
        note(f"ship {parcel}")
        if ends:
            os._exit(9)
        return f"shipped {parcel}"

    # One after the other, so that the first has finished when the second ends it all.
    return [Tool(charge, sequential=True), Tool(ship, sequential=True)]


async def agents(options: dict[str, Any]) -> None:
    folder, kind = Path(options["folder"]), options["kind"]
    stored = ModelMessagesTypeAdapter.validate_json((folder / "messages.json").read_bytes())
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("done")]))
    async with Doubtless(f"sqlite:///{folder / 'ledger.db'}") as app:
        agent = Agent(
            model,
            tools=tools(folder / f"{kind}.effects", ends=options["first"]),
            capabilities=[DurableTools(app)] if kind == "ours" else [],
        )
        found = await agent.run(message_history=stored)
        (folder / f"{kind}.told").write_bytes(found.all_messages_json())


def run(options: dict[str, Any]) -> None:
    """Run the agent; the first time it doesn't return."""
    asyncio.run(agents(options))
