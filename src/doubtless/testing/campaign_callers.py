"""Callers that keep what they were told, with when: the history that is judged afterwards."""

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio
import httpx2

from doubtless.core.model import Json
from doubtless.testing.campaign_stage import SHOPS

ANSWER_S: Final = 6.0  # a caller waits at most so long, and then asks the other service
TRIES: Final = 30  # until it is acknowledged
PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one request about an operation was answered, and between which instants."""

    begun_s: float  # by the callers' own monotonic clock
    ended_s: float
    calls: bool  # it may act: a call or a repeat; else it only asks
    service: str
    code: int  # the HTTP status; zero: there was no answer
    status: str = ""  # of the outcome
    retry_allowed: bool = False
    already_done: bool = False

    @property
    def acknowledges(self) -> bool:
        """Whether it says that the operation is recorded."""
        return self.code in (200, 202)


@dataclass(slots=True)
class History:
    """All that was asked for and told, by operation."""

    words: dict[str, list[Word]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # operations that were acknowledged
    failures: Counter[str] = field(default_factory=Counter)  # requests without an outcome
    repeats: int = 0  # of an acknowledged operation, through the other service
    twice: int = 0  # operations that were called through both at the same moment
    unwaited: int = 0

    def acknowledged(self) -> set[str]:
        """Return the operations that were acknowledged to anybody. Any thread may ask."""
        return self.known.copy()

    def add(self, name: str, word: Word) -> None:
        """Note what was told."""
        self.words.setdefault(name, []).append(word)
        if word.acknowledges:
            self.known.add(name)

    @property
    def requests(self) -> int:
        """How many there were."""
        return sum(len(words) for words in self.words.values())


class Callers:
    """Clients that call through services, repeat through the other one, and ask.

    Args:
        services: Their addresses.
        token: Of an agent.
        seed: Of what they draw.
        prefix: Of the names of their operations.
    """

    def __init__(
        self, services: Sequence[str], token: str, *, seed: int, prefix: str = "op"
    ) -> None:
        self.history = History()
        self._services, self._token = services, token
        self._seed, self._prefix = seed, prefix
        self._ends = False

    def end(self) -> None:
        """Let no caller begin another operation."""
        self._ends = True

    async def run(self, count: int, *, think_s: float) -> None:
        """Let so many callers call until `end`, each with a pause of about `think_s` in between."""
        limits = httpx2.Limits(max_connections=4 * count, max_keepalive_connections=count)
        async with self.client(limits) as api, anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(self._caller, api, number, think_s)

    def client(self, limits: httpx2.Limits | None = None) -> httpx2.AsyncClient:
        """Return a client that brings the token."""
        return httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=ANSWER_S,
            limits=limits or httpx2.Limits(),
            trust_env=False,
        )

    async def _caller(self, api: httpx2.AsyncClient, number: int, think_s: float) -> None:
        draw = random.Random(f"{self._seed}-{number}")
        before: str | None = None
        turn = 0
        while not self._ends:
            turn += 1
            name = f"{self._prefix}-{number}-{turn}"
            body = self._drawn(draw, name, before)
            if await self._intend(api, draw, name, body):
                before = name
            await anyio.sleep(draw.expovariate(1 / think_s))

    def _drawn(self, draw: random.Random, name: str, before: str | None) -> dict[str, Json]:
        waits = draw.random() < 0.6
        self.history.unwaited += not waits
        body: dict[str, Json] = {
            "tool": draw.choice(("refund", "ticket")),
            "arguments": {"charge": name, "amount": 500, "shop": draw.randrange(SHOPS)},
            "operation_id": name,
            "wait": "2s" if waits else "0s",
        }
        if before is not None and draw.random() < 0.15:
            body["after"] = [before]  # it waits in the ledger, and a worker takes it up
        return body

    async def _intend(
        self, api: httpx2.AsyncClient, draw: random.Random, name: str, body: dict[str, Json]
    ) -> bool:
        """See to it that one operation is acknowledged; then repeat it, or ask about it."""
        first = draw.randrange(len(self._services))
        if draw.random() < 0.1:
            self.history.twice += 1
            async with anyio.create_task_group() as group:
                for service in self._services:
                    group.start_soon(self.call, api, service, name, body)
        for trial in range(TRIES):
            word = await self.call(api, self._at(first + trial), name, body)
            if word.acknowledges:
                break
            await anyio.sleep(PAUSE_S)
        else:
            return False
        if draw.random() < 0.3:
            self.history.repeats += 1
            await self.call(api, self._at(first + 1), name, body)
        if draw.random() < 0.3:
            await self.ask(api, self._at(draw.randrange(len(self._services))), name)
        return True

    def _at(self, number: int) -> str:
        return self._services[number % len(self._services)]

    async def call(
        self, api: httpx2.AsyncClient, service: str, name: str, body: dict[str, Json]
    ) -> Word:
        """Call an operation, or repeat it."""
        return await self._told(
            name, service, lambda: api.post(f"{service}/v1/operations", json=body), calls=True
        )

    async def ask(self, api: httpx2.AsyncClient, service: str, name: str) -> Word:
        """Ask how an operation stands."""
        return await self._told(
            name, service, lambda: api.get(f"{service}/v1/operations/{name}"), calls=False
        )

    async def _told(
        self,
        name: str,
        service: str,
        send: Callable[[], Awaitable[httpx2.Response]],
        *,
        calls: bool,
    ) -> Word:
        begun_s = time.monotonic()
        code = 0
        told: dict[str, Json] = {}
        try:
            answer = await send()
            code = answer.status_code
            told = answer.json()
        except httpx2.HTTPError as error:
            self.history.failures[type(error).__name__] += 1
        if code not in (0, 200, 202):
            self.history.failures[f"{code} {told.get('code', '')}".strip()] += 1
        word = Word(
            begun_s=begun_s,
            ended_s=time.monotonic(),
            calls=calls,
            service=service,
            code=code,
            status=str(told.get("status", "")) if code in (200, 202) else "",
            retry_allowed=told.get("retry_allowed") is True,
            already_done=told.get("already_done") is True,
        )
        self.history.add(name, word)
        return word
