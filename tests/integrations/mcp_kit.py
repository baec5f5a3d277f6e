"""What the tests of the gateway stand on: an upstream, a contract file for it, and clients."""

import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

SERVER = Path(__file__).with_name("mcp_pay_server.py")
WITHIN_S = 30.0
POLL_S = 0.01
ERAS = ("legacy", "2026-07-28")

CONTRACTS = """
[servers.pay]
command = [{python}, {server}, {effects}]

[tools.charge]
effect = "write"
timeout = "400ms"
in_flight_horizon = "200ms"
retry = {{ backoff = "50ms", attempts = 2 }}
[tools.charge.arguments]
type = "object"
required = ["amount"]
additionalProperties = false
properties = {{ amount = {{ type = "integer" }}, how = {{ type = "string" }} }}
[tools.charge.mcp]
server = "pay"
tool = "charge"
errors = "unknown"
lookup = {{ tool = "charges", where = {{ of = "{{operation.id}}" }} }}

[tools.refusing]
effect = "write"
arguments = {{ type = "object" }}
[tools.refusing.mcp]
server = "pay"
tool = "refusing"
errors = "definitive"

[sources.carrier]
base_url = "http://127.0.0.1:9"
[tools.shipment]
effect = "read"
description = "Tells where a shipment is."
source = "carrier"
arguments = {{ type = "object", required = ["id"], properties = {{ id = {{ type = "string" }} }} }}
request = {{ method = "GET", path = "/shipments/{{args.id}}" }}

[tools.wire]
effect = "money"
description = "Sends money, if a person agrees."
approval = {{}}
timeout = "2s"
[tools.wire.arguments]
type = "object"
required = ["amount"]
properties = {{ amount = {{ type = "integer" }} }}
[tools.wire.mcp]
server = "pay"
tool = "wire"
errors = "definitive"
"""


class Shop:
    """A folder with an upstream, its effects, and a contract file for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "pay_server.py"
        shutil.copy(SERVER, self.program)
        self.file = folder / "effects"
        self.file.touch()
        self.ledger = f"sqlite:///{folder / 'ledger.db'}"
        self.contracts = folder / "contracts.toml"
        quoted = {
            name: json.dumps(str(value))
            for name, value in {
                "python": sys.executable,
                "server": self.program,
                "effects": self.file,
            }.items()
        }
        self.contracts.write_text(CONTRACTS.format(**quoted))

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, str(self.program), str(self.file))

    def effects(self, amount: int) -> int:
        """How often that amount was charged, as the upstream counted."""
        lines = self.file.read_text().splitlines()
        return sum(json.loads(line)["amount"] == amount for line in lines)

    def lists(self) -> int:
        """How often the upstream was asked for its tools."""
        return len((self.folder / "lists").read_text())

    def let_go(self, amount: int) -> None:
        """Let a call of that amount go on, which hangs or is slow."""
        (self.folder / f"go-{amount}").touch()

    @property
    def was_cancelled(self) -> bool:
        return (self.folder / "cancelled").exists()


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until something is so."""
    with anyio.fail_after(WITHIN_S):
        while not await condition():  # noqa: ASYNC110 - another process makes it so
            await anyio.sleep(POLL_S)


@asynccontextmanager
async def over_http(url: str, token: str, mode: str, **options: Any) -> AsyncIterator[Client]:
    """Connect a client of the SDK to a gateway over HTTP."""
    head = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=head, timeout=WITHIN_S) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client
