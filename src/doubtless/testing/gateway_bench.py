"""What does the gateway cost a call, and what do 100 calls at once through it come to?

    python -m doubtless.testing.gateway_bench [--calls 200] [--rounds 5] [--at-once 100]
                                              [--evidence docs/evidence.md]

One client of the official SDK speaks with a server over pipes, another one with the same server
through the gateway, as a client starts it. They call in turns, each call with arguments of its own,
on a ledger on this machine's disk. The server counts: more or fewer calls than were made are an
error.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from doubtless.integrations import mcp_shim
from doubtless.integrations.mcp_place import FOLDER, GatewaySettings
from doubtless.testing import evidence

UPSTREAM: Final = (sys.executable, "-m", "doubtless.testing.gateway_upstream")
WARM_UP: Final = 20


@dataclass(slots=True)
class Side:
    """One way to the server, and how long calls took on it, in milliseconds."""

    name: str
    client: Client
    took_ms: list[float] = field(default_factory=list)
    made: int = 0

    async def call(self, amount: int) -> None:
        """Make one call."""
        began_s = time.perf_counter()
        result = await self.client.call_tool("charge", {"amount": amount})
        self.took_ms.append((time.perf_counter() - began_s) * 1000)
        self.made += 1
        assert not result.is_error, result

    async def counted(self) -> int:
        """Return how many calls its server took."""
        result = await self.client.call_tool("count", {})
        assert isinstance(result.content[0], types.TextContent)
        return int(result.content[0].text)

    @property
    def median_ms(self) -> float:
        """The median of what was measured."""
        return statistics.median(self.took_ms)

    @property
    def most_ms(self) -> float:
        """What 95 of 100 calls did not take longer than."""
        return statistics.quantiles(self.took_ms, n=20)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured."""

    direct: tuple[float, float]  # ms: median, 95th of 100
    through: tuple[float, float]
    direct_at_once_s: float
    through_at_once_s: float
    at_once: int

    def lines(self) -> list[str]:
        """Return it as Markdown."""
        (direct, most), (through, most_through) = self.direct, self.through
        told = (
            f"Median ratio {through / direct:.1f}, which is {through - direct:.1f} ms a call."
            " Each call through the gateway is durable before it is sent and again when it is"
            " answered; the server does nothing but count, and counted each call once."
        )
        return [
            f"| | one call, ms: median (95th of 100) | {self.at_once} at once, s |",
            "| --- | ---: | ---: |",
            f"| direct | {direct:.2f} ({most:.2f}) | {self.direct_at_once_s:.2f} |",
            f"| gateway | {through:.2f} ({most_through:.2f}) | {self.through_at_once_s:.2f} |",
            "",
            told,
        ]


async def measure(asked: argparse.Namespace, folder: Path) -> Found:
    """Call in turns, then many at once."""
    amounts = count()
    with _gateway(folder) as parameters:
        async with (
            Client(StdioServerParameters(command=UPSTREAM[0], args=list(UPSTREAM[1:]))) as one,
            Client(parameters) as other,
        ):
            direct, through = Side("direct", one), Side("through", other)
            for side in (direct, through):
                for _ in range(WARM_UP):
                    await side.call(next(amounts))
                side.took_ms.clear()
            for _ in range(asked.rounds):
                for side in (direct, through):
                    for _ in range(asked.calls):
                        await side.call(next(amounts))
            figures = [(side.median_ms, side.most_ms) for side in (direct, through)]
            at_once_s = []
            for side in (direct, through):
                began_s = time.perf_counter()
                await asyncio.gather(*(side.call(next(amounts)) for _ in range(asked.at_once)))
                at_once_s.append(time.perf_counter() - began_s)
                assert await side.counted() == side.made
    return Found(
        direct=figures[0],
        through=figures[1],
        direct_at_once_s=at_once_s[0],
        through_at_once_s=at_once_s[1],
        at_once=asked.at_once,
    )


@contextmanager
def _gateway(folder: Path) -> Iterator[StdioServerParameters]:
    """Say how a client starts the gateway, and end its service afterwards."""
    ledger, scope = f"sqlite:///{folder / 'ledger.db'}", "bench"
    said = ["-m", "doubtless.cli", "mcp", "--scope", scope, "--ledger", ledger, "--", *UPSTREAM]
    os.environ[FOLDER] = runtime = str(folder / "run")
    try:
        yield StdioServerParameters(
            command=sys.executable, args=said, env={FOLDER: runtime}, cwd=folder
        )
    finally:
        settings = GatewaySettings(ledger=ledger, scope=scope, folder=str(folder))
        mcp_shim.stop(settings, lambda _: None)


def main() -> int:
    """Measure, print, and write the section of evidence if that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--calls", type=int, default=200, help="in each round, on each side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--evidence", type=Path, help="write a section of this page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(measure(asked, Path(name)))
    lines = found.lines()
    print("\n".join(lines))
    if asked.evidence is not None:
        title = "The gateway in front of an MCP server"
        evidence.record(asked.evidence, "gateway", title, "make gateway", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
