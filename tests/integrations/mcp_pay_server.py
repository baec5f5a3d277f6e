"""An upstream that does as it is told: `python mcp_pay_server.py EFFECTS`, over its pipes.

Written without a library, so that it starts at once and may answer what no library would. Each
charge is appended to EFFECTS before anything else happens; `how` says what happens then.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

EFFECTS = Path(sys.argv[1])
LOCK = threading.Lock()
POLL_S = 0.01

CHARGE = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "how": {"type": "string"}},
    "required": ["amount"],
    "additionalProperties": False,
}
PAID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TOOLS = [
    {
        "name": "charge",
        "description": "Charges a card.",
        "inputSchema": CHARGE,
        "outputSchema": PAID,
        "annotations": {"title": "Charge", "destructiveHint": True},
    },
    {"name": "pay.out", "description": "Pays out.", "inputSchema": CHARGE},
    {"name": "wire", "description": "Wires.", "inputSchema": CHARGE},
    {"name": "refusing", "description": "Refuses.", "inputSchema": CHARGE},
    {
        "name": "charges",
        "description": "Lists charges.",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    },
]

if "clash" in sys.argv:  # names that the gateway has for tools of its own
    TOOLS += [{"name": "operation_status", "description": "Mine.", "inputSchema": CHARGE}]


def write(message: object) -> None:
    text = message if isinstance(message, str) else json.dumps(message)
    with LOCK:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def effects() -> list[dict[str, Any]]:
    return [json.loads(line) for line in EFFECTS.read_text().splitlines()]


def charge(asked: dict[str, Any]) -> Any:
    params = asked["params"]
    amount, how = params["arguments"]["amount"], params["arguments"].get("how", "")
    meta = params.get("_meta", {})
    if how == "refuse":
        return {"content": [{"type": "text", "text": "amount too small"}], "isError": True}
    if how == "slow":
        wait_for(f"go-{amount}")
    with LOCK, EFFECTS.open("a") as file:
        file.write(json.dumps({"amount": amount, "of": meta.get("doubtless.dev/operation-id")}))
        file.write("\n")
    match how:
        case "die":
            os._exit(1)
        case "hang":
            wait_for(f"go-{amount}")
        case "raise":
            return {"content": [{"type": "text", "text": "db gone"}], "isError": True}
        case "garbage":
            return {"content": "no list"}
        case "noise":
            write("this is no JSON")
    paid = {"id": f"ch_{amount}"}
    return {
        "content": [{"type": "text", "text": f"charged {amount}"}],
        "structuredContent": paid,
        "_meta": {"pay.example/receipt": amount},
    }


def wait_for(name: str) -> None:
    """Wait until the test puts a file of that name beside the effects."""
    while not (EFFECTS.parent / name).exists():
        time.sleep(POLL_S)


def answer(asked: dict[str, Any]) -> None:
    result: Any
    match asked["method"]:
        case "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
                "serverInfo": {"name": "pay", "version": "1"},
            }
        case "resources/list":
            result = {"resources": [{"uri": f"pay://{EFFECTS.name}", "name": "effects"}]}
        case "resources/templates/list":
            result = {"resourceTemplates": [{"uriTemplate": "pay://{name}", "name": "any"}]}
        case "resources/read":
            uri = asked["params"]["uri"]
            result = {"contents": [{"uri": uri, "text": EFFECTS.read_text()}]}
        case "prompts/list":
            result = {"prompts": [{"name": "dun"}]}
        case "prompts/get" if asked["params"]["name"] == "dun":
            text = {"type": "text", "text": f"Pay, {asked['params']['arguments']['who']}!"}
            result = {"messages": [{"role": "user", "content": text}]}
        case "tools/list":
            with (EFFECTS.parent / "lists").open("a") as file:
                file.write("l")
            result = {"tools": TOOLS}
        case "tools/call" if asked["params"].get("arguments", {}).get("of") == "nobody":
            result = {"content": [{"type": "text", "text": "nobody is that"}], "isError": True}
        case "tools/call" if asked["params"]["name"] == "charges":
            told = json.dumps(effects())
            result = {"content": [{"type": "text", "text": told}]}
        case "tools/call":
            result = charge(asked)
        case _:
            what = asked["params"].get("name", asked["method"])
            error = {"code": -32601, "message": f"Unknown prompt: {what}"}
            write({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            return
    write({"jsonrpc": "2.0", "id": asked["id"], "result": result})


def main() -> None:
    EFFECTS.touch()
    (EFFECTS.parent / "key").write_text(os.environ.get("PAY_KEY", ""))
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("method") == "notifications/cancelled":
            with (EFFECTS.parent / "cancelled").open("a") as file:
                file.write("cancelled\n")
        if "id" in asked:
            threading.Thread(target=answer, args=(asked,), daemon=True).start()


if __name__ == "__main__":
    main()
