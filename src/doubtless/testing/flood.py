"""A flood of webhooks on a service that is killed in the middle: is any lost, or counted twice?

    python -m doubtless.testing.flood [--events 10000] [--seed 1] [--evidence docs/evidence.md]

Half of the events are copies: the same event again, or the same news under another id. They come
shuffled, many at once, over real HTTP, from a provider that lost all of its answers; a tenth of
them speaks of operations that are created only afterwards. When half of them are acknowledged the
service is killed; what was not acknowledged is sent again to the next one, as providers do. In the
end each acknowledged event must be in the ledger, each news must be evidence once, all must be
matched, and every operation settled, with one effect by the provider's own count.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import anyio
import httpx2
from standardwebhooks import Webhook

from doubtless.testing import evidence
from doubtless.testing.flood_stage import SECRET, Killable
from doubtless.testing.provider import ProviderProcess, spawn_provider

NEWS_EACH: Final = 5  # of one operation: four that its work goes on, and its end
LATE: Final = 0.1  # of the operations are created only afterwards
AT_ONCE: Final = 64
ANSWER_S: Final = 60.0
SETTLE_S: Final = 60.0
POLL_S: Final = 0.2
LOSES_ANSWERS: Final = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of the provider."""

    event_id: str
    body: bytes


@dataclass(slots=True)
class Flood:
    """What is sent, and what was answered."""

    early: list[str]  # operations that are there before
    late: list[str]
    waiting: list[Sent]
    acknowledged: set[str] = field(default_factory=set)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def names(self) -> list[str]:
        """All operations."""
        return [*self.early, *self.late]


def drawn(events: int, seed: int) -> Flood:
    """Draw what is sent. The same seed gives the same requests in the same order."""
    chance = random.Random(seed)
    count = max(events // 2 // NEWS_EACH, 2)
    names = [f"flood-{number}" for number in range(count)]
    cut = count - max(1, round(count * LATE))
    now_s = int(time.time())
    originals, twins = [], []
    for name in names:
        for version in range(1, NEWS_EACH + 1):
            status = "succeeded" if version == NEWS_EACH else "pending"
            data = {"name": name, "id": f"re-{name}", "version": version, "status": status}
            created = now_s + version
            originals.append(_sent(f"{name}/{version}", created, data))
            twins.append(_sent(f"{name}/{version}/again", created, data))
    copies = [chance.choice((originals, twins))[place] for place in range(len(originals))]
    waiting = [*originals, *copies]
    chance.shuffle(waiting)
    return Flood(early=names[:cut], late=names[cut:], waiting=waiting)


def _sent(event_id: str, created: int, data: dict[str, object]) -> Sent:
    body = {"id": event_id, "type": "refund.updated", "created": created, "data": data}
    return Sent(event_id=event_id, body=json.dumps(body).encode())


# --- sending -------------------------------------------------------------------------------------


async def _post(api: httpx2.AsyncClient, sent: Sent) -> bool:
    """Send one event as its provider does; whether it was acknowledged."""
    now = datetime.now(UTC)
    headers = {
        "webhook-id": sent.event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign(sent.event_id, now, sent.body.decode()),
    }
    answer = await api.post("/webhooks/payments", content=sent.body, headers=headers)
    return answer.status_code == 200


async def _send(flood: Flood, service: Killable, *, kill_after: int | None) -> list[Sent]:
    """Send all that waits, many at once; return what was not acknowledged."""
    todo, failed, killed = iter(flood.waiting), list[Sent](), False

    async def sender(api: httpx2.AsyncClient) -> None:
        nonlocal killed
        for sent in todo:
            try:
                taken = await _post(api, sent)
            except httpx2.HTTPError as error:
                flood.answers[type(error).__name__] += 1
                taken = False
            if not taken:
                failed.append(sent)
                continue
            flood.answers["acknowledged"] += 1
            flood.acknowledged.add(sent.event_id)
            if (
                kill_after is not None
                and not killed
                and flood.answers["acknowledged"] >= kill_after
            ):
                killed = True
                service.kill()

    async with _client(service) as api, anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(sender, api)
    return failed


def _client(service: Killable) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=service.url,
        headers={"Authorization": f"Bearer {service.token}"},
        timeout=ANSWER_S,
        limits=httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE),
        trust_env=False,
    )


async def _create(service: Killable, names: Sequence[str]) -> Counter[str]:
    """Call for each operation, whose answers all get lost; return the states that were told."""
    todo, told = iter(names), Counter[str]()

    async def caller(api: httpx2.AsyncClient) -> None:
        for name in todo:
            body = {"tool": "refund", "arguments": {"charge": name}, "operation_id": name}
            answer = await api.post("/v1/operations", json=body)
            answer.raise_for_status()
            told[str(answer.json()["state"])] += 1

    async with _client(service) as api, anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(caller, api)
    return told


# --- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run gave."""

    events: int
    operations: int
    late: int
    before_kill: int  # acknowledged when the service was killed
    again: int  # sent again to the next one
    seconds: float  # of sending
    lost: int  # acknowledged, and not in the ledger: right after the kill, and in the end
    doubled: int  # news that are evidence twice
    missing: int  # news that are evidence of nothing
    unmatched: int
    unsettled: int
    effects: Counter[int]  # how many operations had so many, by the provider's count

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, or left open."""
        wrong = (self.lost, self.doubled, self.missing, self.unmatched, self.unsettled)
        return not any(wrong) and set(self.effects) == {1} and self.again > 0

    def lines(self) -> list[str]:
        """Write it as a table."""
        rows = [
            ("events", f"{self.events:,}, half of them copies, {AT_ONCE} at once"),
            ("operations", f"{self.operations:,}, {self.late:,} of them created afterwards"),
            ("acknowledged before SIGKILL", f"{self.before_kill:,}"),
            ("sent again to the next process", f"{self.again:,}"),
            ("throughput", f"{self.events / self.seconds:,.0f} events a second"),
            ("acknowledged and lost", f"{self.lost:,}"),
            ("news counted twice", f"{self.doubled:,}"),
            ("news not counted", f"{self.missing:,}"),
            ("unmatched in the end", f"{self.unmatched:,}"),
            ("operations not settled", f"{self.unsettled:,}"),
            (
                "operations by effects",
                ", ".join(f"{n:,} with {e}" for e, n in self.effects.items()),
            ),
        ]
        return ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]


async def run(service: Killable, provider: ProviderProcess, events: int, seed: int) -> Result:
    """Flood the service, kill it in the middle, go on, and count."""
    flood = drawn(events, seed)
    total = len(flood.waiting)
    service.start()
    told = await _create(service, flood.early)
    assert set(told) == {"unknown"}, told
    begun_s = time.perf_counter()
    failed = await _send(flood, service, kill_after=total // 2)
    before_kill, lost = flood.answers["acknowledged"], flood.acknowledged - service.stored()
    service.start()
    flood.waiting, again = failed, len(failed)
    left = await _send(flood, service, kill_after=None)
    seconds = time.perf_counter() - begun_s
    assert not left, f"{len(left)} events were refused: {flood.answers}"
    await _create(service, flood.late)
    await _settled(service, flood.names)
    lost |= flood.acknowledged - service.stored()
    counted = service.counted(flood.names)
    news = Counter(_news(detail) for _, details in counted.values() for detail in details)
    wanted = {f"{name}/{version}" for name in flood.names for version in range(1, NEWS_EACH + 1)}
    refs = provider.counts()
    return Result(
        events=total,
        operations=len(flood.names),
        late=len(flood.late),
        before_kill=before_kill,
        again=again,
        seconds=seconds,
        lost=len(lost),
        doubled=sum(count - 1 for count in news.values()),
        missing=len(wanted - news.keys()),
        unmatched=service.unmatched(),
        unsettled=sum(state != "succeeded" for state, _ in counted.values()),
        effects=Counter(refs.values()),
    )


def _news(detail: str) -> str:
    """Return which news the evidence of an event told, under whichever of its ids."""
    return detail.removeprefix("event ").partition(" ")[0].removesuffix("/again")


async def _settled(service: Killable, names: list[str]) -> None:
    """Wait until every operation is settled, or for as long as that may take."""
    end_s = time.perf_counter() + SETTLE_S
    while time.perf_counter() < end_s:
        if all(state == "succeeded" for state, _ in service.counted(names).values()):
            return
        await anyio.sleep(POLL_S)


def flooded(events: int, seed: int) -> Result:
    """Run it in a folder of its own, with a provider of its own."""
    with tempfile.TemporaryDirectory() as folder, spawn_provider(LOSES_ANSWERS) as provider:
        service = Killable(Path(folder), provider.url)
        try:
            return anyio.run(run, service, provider, events, seed)
        finally:
            service.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where something was lost, doubled or left open."""
    parser = argparse.ArgumentParser(prog="python -m doubtless.testing.flood", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evidence", type=Path, help="the page to write the figures into")
    said = parser.parse_args(arguments)
    result = flooded(said.events, said.seed)
    lines = ["Provider, service and counting share the machine.", "", *result.lines()]
    print("\n".join(lines))
    if said.evidence is not None:
        command = f"python -m doubtless.testing.flood --events {said.events} --seed {said.seed}"
        evidence.record(said.evidence, "flood", "A flood of webhooks", command, lines)
    return 0 if result.holds else 1


if __name__ == "__main__":
    sys.exit(main())
