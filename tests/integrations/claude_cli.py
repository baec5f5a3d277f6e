"""A stand-in for the program that claude-agent-sdk drives, and agents that die in their tools.

It speaks the control protocol: it asks the hooks, calls the tools of this process over MCP, and
makes the calls of a scripted model. The real program is not run here.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, SdkMcpTool, Transport, create_sdk_mcp_server
from claude_agent_sdk import query as run_query
from claude_agent_sdk import tool as declared

from doubtless import Doubtless
from doubtless.integrations.claude_agent import guarded

Step = tuple[str, dict[str, Any]]


class FakeCli(Transport):
    """Makes the calls of a script; `told` is what the model gets to see of each."""

    def __init__(self, *script: Step | Callable[[], Step], honors_blocks: bool = True) -> None:
        self._script, self._honors_blocks = script, honors_blocks
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._hooks: list[Any] = []
        self._task: asyncio.Task[None] | None = None
        self.told: list[str] = []
        self.outside: Callable[[str, dict[str, Any]], str] | None = None  # tools of others

    async def connect(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._out.put_nowait(None)

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._out.get()) is not None:
            yield message

    async def write(self, data: str) -> None:
        for line in data.splitlines():
            message = json.loads(line)
            if message["type"] == "control_request":
                self._hooks = (message["request"].get("hooks") or {}).get("PreToolUse", [])
                answer = {"hook_on_failure_supported": self._honors_blocks}
                self._say_response(message["request_id"], answer)
            elif message["type"] == "control_response":
                response = message["response"]
                self._asked.pop(response["request_id"]).set_result(response)
            elif message["type"] == "user":
                self._task = asyncio.create_task(self._work())

    def _say_response(self, request_id: str, answer: dict[str, Any]) -> None:
        response = {"subtype": "success", "request_id": request_id, "response": answer}
        self._out.put_nowait({"type": "control_response", "response": response})

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        name = f"cli_{len(self._asked)}_{len(self.told)}_{id(request)}"
        self._asked[name] = asyncio.get_running_loop().create_future()
        self._out.put_nowait({"type": "control_request", "request_id": name, "request": request})
        found: dict[str, Any] = await self._asked[name]
        return found

    async def _work(self) -> None:
        methods = ("initialize", "tools/list")
        for method in methods:
            await self._mcp(method, _HANDSHAKE if method == "initialize" else {})
        for number, each in enumerate(self._script):
            name, arguments = each() if callable(each) else each
            self.told.append(await self._call(f"toolu_{number}", name, arguments))
        self._out.put_nowait(_RESULT)
        self._out.put_nowait(None)

    async def _mcp(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": len(self.told), "method": method, "params": params}
        asked = {"subtype": "mcp_message", "server_name": "shop", "message": message}
        return (await self._ask(asked))["response"]["mcp_response"]["result"]

    async def _call(self, use: str, name: str, arguments: dict[str, Any]) -> str:
        said = {
            "hook_event_name": "PreToolUse",
            "tool_name": name,
            "tool_input": arguments,
            "tool_use_id": use,
        }
        for matcher in self._hooks:
            for callback in matcher["hookCallbackIds"]:
                asked = {"subtype": "hook_callback", "callback_id": callback, "input": said}
                found = await self._ask(asked)
                if found["subtype"] == "error":
                    assert matcher["onFailure"] == "block"
                    return f"blocked: {found['error']}"
                decision = found["response"].get("hookSpecificOutput", {})
                if decision.get("permissionDecision") == "deny":
                    return f"denied: {decision['permissionDecisionReason']}"
        if self.outside is not None and not name.startswith("mcp__shop__"):
            return self.outside(name, arguments)
        bare = name.removeprefix("mcp__shop__")
        result = await self._mcp("tools/call", {"name": bare, "arguments": arguments})
        return str(result["content"][0]["text"])


_HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "cli", "version": "0"},
}
_RESULT = {
    "type": "result",
    "subtype": "success",
    "duration_ms": 1,
    "duration_api_ms": 1,
    "is_error": False,
    "num_turns": 1,
    "session_id": "session",
    "total_cost_usd": 0.0,
}


async def run_agent(cli: FakeCli, *tools: SdkMcpTool[Any], **options: Any) -> list[str]:
    """Run the scripted model with these tools; return what it was told of each call."""
    server = create_sdk_mcp_server("shop", tools=list(tools))
    given = ClaudeAgentOptions(mcp_servers={"shop": server}, **options)

    async def prompt() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "charge 5"}}

    async for _ in run_query(prompt=prompt(), options=given, transport=cli):
        pass
    return cli.told


def paying(effects: Path, *, ends: bool = False) -> SdkMcpTool[Any]:
    """Return a tool that adds a line to `effects`, and then may end the process."""

    @declared("pay", "Pay an amount.", {"amount": int})
    async def pay(arguments: dict[str, Any]) -> dict[str, Any]:
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{arguments['amount']}\n")
        if ends:
            os._exit(9)
        return {"content": [{"type": "text", "text": "paid"}]}

    return pay


async def _agent(options: dict[str, Any]) -> None:
    folder = Path(options["folder"])
    made = paying(folder / options["effects"], ends=True)
    async with Doubtless(f"sqlite:///{folder / 'ledger.db'}") as app:
        given = guarded(app, made, scope="agent-7") if options["is_ours"] else made
        await run_agent(FakeCli(("mcp__shop__pay", {"amount": 5})), given)


def run(options: dict[str, Any]) -> None:
    """Run the agent; it doesn't return."""
    asyncio.run(_agent(options))
