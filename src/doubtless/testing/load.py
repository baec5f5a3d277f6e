"""Many clients against a service whose provider loses answers: is anything doubled or lost?

    python -m doubtless.testing.load [--clients 200] [--seconds 60] [--lose 0.2]
                                     [--evidence docs/evidence.md]

Starts a provider that commits and then loses so many of its answers, and the service as a process
of its own; both on loopback. Every client calls one operation after the other through the HTTP API.
Afterwards, when everything is settled, the provider's own count is held against what clients were
told and what the service lists.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2

from doubtless.core.model import Json
from doubtless.testing import evidence
from doubtless.testing.load_service import Served, serving
from doubtless.testing.provider import ProviderProcess, spawn_provider
from doubtless.testing.refund_contract import refund_contract

SETTLE_S = 180.0  # everything has to be settled so long after the last call
ANSWER_S = 60.0  # a client waits at most so long for the service
TIMEOUT_MS = 10_000
POLL_S = 0.2
PAGE = 200


@dataclass(slots=True)
class Told:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each answered call
    statuses: Counter[str] = field(default_factory=Counter)  # the first word on each operation
    operations: set[str] = field(default_factory=set)  # acknowledged ones
    failures: Counter[str] = field(default_factory=Counter)  # calls without an outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run gave."""

    clients: int
    seconds: float
    told: Told
    ended: Counter[str]  # the last status of each operation that the service lists
    doubled: int
    lost: int  # acknowledged and not listed, or told as succeeded without an effect
    settled_s: float  # from the last call until nothing was open
    memory_mib: tuple[float, float]  # of the service, after a tenth of the time and at its end
    cpu_s: float  # of the service

    @property
    def holds(self) -> bool:
        """Whether everything is settled, and nothing doubled or lost."""
        settled = set(self.ended) <= {"succeeded"}
        return settled and self.doubled == self.lost == 0 and not self.told.failures

    def lines(self) -> list[str]:
        """Write it as a table."""
        times = sorted(self.told.seconds)
        ranks = statistics.quantiles(times, n=100)
        first = ", ".join(f"{count:,} {word}" for word, count in self.told.statuses.most_common())
        ended = ", ".join(f"{count:,} {word}" for word, count in self.ended.most_common())
        failed = ", ".join(f"{count:,} {word}" for word, count in self.told.failures.items())
        early, late = self.memory_mib
        rows = [
            ("clients at once", f"{self.clients:,}"),
            ("operations", f"{len(self.told.operations):,} in {self.seconds:.0f} s"),
            ("throughput", f"{len(times) / self.seconds:,.0f} operations a second"),
            ("time until told, median", f"{ranks[49] * 1000:,.0f} ms"),
            ("time until told, p99", f"{ranks[98] * 1000:,.0f} ms"),
            ("told at first", first),
            ("calls without an outcome", failed or "0"),
            ("in the end", ended),
            ("settled after the last call within", f"{self.settled_s:.1f} s"),
            ("doubled, by the provider's count", f"{self.doubled:,}"),
            ("lost", f"{self.lost:,}"),
            ("memory of the service", f"{early:.0f} MiB after a tenth, {late:.0f} MiB at the end"),
            ("processor time of the service", f"{self.cpu_s:.0f} s"),
        ]
        return ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]


def rules(lose: float) -> list[dict[str, object]]:
    """Lose that share of the answers to POST, after the effect: half by RST, half by FIN.

    Both rules draw the same numbers; what is below the half is the first one's.
    """

    def losing(share: float, action: str) -> dict[str, object]:
        return {"match": {"method": "POST", "probability": share}, "then": {"action": action}}

    return [losing(lose / 2, "commit_then_rst"), losing(lose, "commit_then_fin")]


async def _client(number: int, end_s: float, api: httpx2.AsyncClient, told: Told) -> None:
    turn = 0
    while time.perf_counter() < end_s:
        turn += 1
        name = f"load-{number}-{turn}"
        body = {
            "tool": "refund",
            "arguments": {"charge": f"ch-{number}-{turn}", "amount": 500},
            "operation_id": name,
        }
        begun_s = time.perf_counter()
        try:
            answer = await api.post("/v1/operations", json=body)
        except httpx2.HTTPError as error:
            told.failures[type(error).__name__] += 1
            continue
        if answer.status_code not in (200, 202):
            told.failures[str(answer.status_code)] += 1
            continue
        told.seconds.append(time.perf_counter() - begun_s)
        told.statuses[str(answer.json()["status"])] += 1
        told.operations.add(name)


async def _settled(api: httpx2.AsyncClient) -> float:
    """Wait until nothing is open, and return how long that took."""
    begun_s = time.perf_counter()
    while True:
        answer = await api.get("/v1/operations", params={"state": "unresolved", "limit": "1"})
        answer.raise_for_status()
        taken_s = time.perf_counter() - begun_s
        if not answer.json()["operations"] or taken_s > SETTLE_S:
            return taken_s
        await anyio.sleep(POLL_S)


async def _listed(api: httpx2.AsyncClient) -> dict[str, dict[str, Json]]:
    """Return every operation that the service knows, by id."""
    found: dict[str, dict[str, Json]] = {}
    cursor: str | None = None
    while True:
        params = {"limit": str(PAGE)} | ({"cursor": cursor} if cursor else {})
        answer = await api.get("/v1/operations", params=params)
        answer.raise_for_status()
        page = answer.json()
        found |= {str(each["operation_id"]): each for each in page["operations"]}
        cursor = page["cursor"]
        if cursor is None:
            return found


async def run(served: Served, provider: ProviderProcess, clients: int, seconds: float) -> Result:
    """Let so many clients call for that long, and count."""
    told, sizes = Told(), []
    limits = httpx2.Limits(max_connections=clients + 1, max_keepalive_connections=clients + 1)
    async with httpx2.AsyncClient(
        base_url=served.url,
        headers={"Authorization": f"Bearer {served.token}"},
        timeout=ANSWER_S,
        limits=limits,
        trust_env=False,
    ) as api:
        begun_s = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(clients):
                group.start_soon(_client, number, begun_s + seconds, api, told)
            await anyio.sleep(seconds / 10)
            sizes.append(served.memory_mib())
        taken_s = time.perf_counter() - begun_s
        sizes.append(served.memory_mib())
        settled_s = await _settled(api)
        listed = await _listed(api)
    counts = provider.counts()
    succeeded = [each for each in listed.values() if each["status"] == "succeeded"]
    without = [each for each in succeeded if not counts.get(str(each["ref"]))]
    return Result(
        clients=clients,
        seconds=taken_s,
        told=told,
        ended=Counter(str(each["status"]) for each in listed.values()),
        doubled=sum(1 for count in counts.values() if count > 1),
        lost=len(told.operations - set(listed)) + len(without),
        settled_s=settled_s,
        memory_mib=(sizes[0], sizes[1]),
        cpu_s=served.cpu_s(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where something was doubled, lost or left open."""
    parser = argparse.ArgumentParser(prog="python -m doubtless.testing.load", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--lose", type=float, default=0.2, help="share of the answers")
    parser.add_argument("--evidence", type=Path, help="the page to write the figures into")
    said = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, spawn_provider(rules(said.lose)) as provider:
        text = refund_contract(provider.url, timeout_ms=TIMEOUT_MS, horizon="2s", interval="500ms")
        with serving(Path(folder), text, role="agent") as served:
            result = anyio.run(run, served, provider, said.clients, said.seconds)
    command = (
        f"python -m doubtless.testing.load --clients {said.clients} --seconds {said.seconds:g}"
    )
    lines = [
        f"A provider that loses {said.lose:.0%} of its answers after the effect. Clients, service",
        "and provider share the machine.",
        "",
        *result.lines(),
    ]
    print("\n".join(lines))
    if said.evidence is not None:
        evidence.record(said.evidence, "load", "Load with lost answers", command, lines)
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
