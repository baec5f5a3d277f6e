"""The HTTP transport of a simulated process: the real one's promises, and no socket.

The gate is asked right before the first byte, `write_by_s` is compared once more in the same step
as the write, and the watch moves as it does in `transports.http`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, urlsplit

import anyio

from doubtless.core.contract import Contract, LookupRules, SourceRules
from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.errors import DoubtlessError
from doubtless.testing.simulate_gaps import Gaps
from doubtless.testing.world import World
from doubtless.testing.world_orders import LOGIN_PAGE, Answer, Order, Thing
from doubtless.transports.base import (
    Gate,
    HttpRequest,
    Private,
    Reply,
    Watch,
    open_gate,
)

PAGE: Final = 2  # objects on one page of a list
REF_LENGTH: Final = 26


class SimulatedHttp:
    """What one process sends with.

    Args:
        gaps: Of the process.
        world: What it sends to.
        contracts: By tool, to tell from a request's path what it is.
        first_byte: Called in the step in which the first byte is written.
    """

    def __init__(
        self,
        gaps: Gaps,
        world: World,
        contracts: Mapping[str, Contract],
        *,
        first_byte: Callable[[Order], None],
    ) -> None:
        self._gaps, self._world, self._contracts = gaps, world, contracts
        self._loop, self._faults = gaps.loop, gaps.faults
        self._first_byte = first_byte

    async def self_test(self) -> None:
        """There is no library to be checked."""

    async def aclose(self) -> None:
        """Nothing is kept open."""

    async def perform(
        self,
        request: HttpRequest,
        *,
        source: SourceRules,
        private: Private,
        gate: Gate,
        watch: Watch,
        limit_s: float,
        fresh: bool = True,
    ) -> Reply:
        """Do as `HttpTransport.perform` does."""
        if gate is open_gate:
            return await self._look(request, limit_s)
        begun_s = self._loop.time()
        with anyio.move_on_after(limit_s):
            return await self._send(request, private, gate, watch, begun_s, limit_s)
        unsent = not watch.sent_bytes
        return Reply(
            stage=watch.stage,
            proof=Seen.NOT_SENT if unsent else None,
            cause=Cause.NOT_SENT if unsent else Cause.TIMEOUT,
            detail="deadline exceeded",
            sent_bytes=watch.sent_bytes,
        )

    # --- an action -------------------------------------------------------------------------------

    async def _send(
        self,
        request: HttpRequest,
        private: Private,
        gate: Gate,
        watch: Watch,
        begun_s: float,
        limit_s: float,
    ) -> Reply:
        gaps, faults = self._gaps, self._faults
        watch.stage = Stage.CONNECTING
        await anyio.sleep(faults.chance.uniform(0.001, 0.05))
        if faults.draw("connect.hangs"):
            await gaps.never()
        if faults.draw("connect.fails"):
            return _unsent(Stage.CONNECTING, "connection refused while connecting")
        await gaps.pass_("before_gate")
        watch.stage = Stage.GATE
        try:
            write_by_s = await gate()
        except DoubtlessError as error:
            return _unsent(Stage.GATE, f"the gate did not open: {error}")
        order = self._order(request, private() if callable(private) else private)
        await gaps.pass_("gate_to_byte")
        if not self._loop.time() <= write_by_s:
            faults.happened("request.stopped_at_byte")
            return _unsent(Stage.GATE, "the time for the first byte had passed")
        watch.sent_bytes, watch.stage = 200, Stage.SENT
        gaps.tell(f"{order.name} is being written")
        deadline_s = begun_s + limit_s - order.contract.horizon_ms / 1000
        try:
            await self._write(order, deadline_s)
        finally:
            watch.first_byte_s = self._loop.time()
        watch.written = True
        await gaps.pass_("after_write")
        return _reply(await order.answer, watch)

    async def _write(self, order: Order, deadline_s: float) -> None:
        """Write in the very step in which the clock was looked at."""

        def write() -> None:
            self._first_byte(order)
            if not self._faults.draw("request.cut_short"):
                self._world.receive(order, deadline_s=deadline_s)

        if self._gaps.stops_at_first_byte():
            # Kept back until the process is woken, and then the first thing that it does.
            self._loop.call_soon(write)
        else:
            write()
        await self._gaps.turn()
        if not order.written_s:
            # What is not wholly written is dropped by the other side; the rest may still come.
            await anyio.sleep(self._faults.chance.uniform(0.01, 6.0))
            self._world.receive(order, deadline_s=deadline_s)

    def _order(self, request: HttpRequest, private: Mapping[str, str]) -> Order:
        headers = dict(request.headers)
        ref, _, number = private["X-Correlation-ID"].partition("-")
        content = request.method, request.url, sorted(headers.items()), request.body.hex()
        return Order(
            contract=self._contracts[_tool(request)],
            ref=ref,
            attempt=int(number),
            arguments=json.loads(request.body),
            key=headers.get("idempotency-key"),
            content=json.dumps(content).encode(),
            answer=self._loop.create_future(),
        )

    # --- a look-up -------------------------------------------------------------------------------

    async def _look(self, request: HttpRequest, limit_s: float) -> Reply:
        faults, chance = self._faults, self._faults.chance
        await anyio.sleep(chance.uniform(0.001, 0.1))
        if faults.draw("lookup.hangs"):
            await anyio.sleep(limit_s)
            return Reply(stage=Stage.SENT, cause=Cause.TIMEOUT, detail="no answer came")
        if faults.draw("lookup.fails"):
            return _reply(Answer.of(chance.choice((500, 503, 429, 401)), {}), Watch())
        if faults.draw("lookup.login_page"):
            return _reply(LOGIN_PAGE, Watch())
        answer = self._found(request)
        if faults.draw("lookup.cut_short"):
            answer = Answer(status=answer.status, body=answer.body[:9], complete=False)
        return _reply(answer, Watch())

    def _found(self, request: HttpRequest) -> Answer:
        contract, parts = self._contracts[_tool(request)], urlsplit(request.url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        rules = self._rules(contract, parts.path)
        at_s, things = self._world.look(contract, rules)
        steps = parts.path.split("/")
        if len(steps) == 4:
            mine = [thing for thing in things if thing.ref == steps[3]]
            return Answer.of(200, mine[0].shown(at_s)) if mine else Answer.of(404, {})
        if "target" in query:
            things = [thing for thing in things if thing.target == query["target"]]
        return self._list(things, at_s, rules, query.get("page"))

    def _rules(self, contract: Contract, path: str) -> LookupRules:
        """Return the look-up that this request belongs to; of several that fit, the strictest."""
        single = len(path.split("/")) == 4
        fit = [
            look
            for look in contract.lookups
            if look.request is not None and (look.request.path.count("/") == 3) is single
        ]
        return min(fit, key=lambda look: (not look.authoritative, look.lag_ms))

    def _list(
        self, things: list[Thing], at_s: float, rules: LookupRules, page: str | None
    ) -> Answer:
        first = int(page or 0)
        pages = rules.next_page is not None
        last = first + PAGE if pages else len(things)
        shown: list[Json] = [thing.shown(at_s) for thing in things[first:last]]
        more = len(things) > last
        if self._faults.draw("lookup.part"):
            shown, more, pages = shown[:-1], True, False
        return Answer.of(
            200, {"data": shown, "has_more": more, "next": str(last) if more and pages else None}
        )


def _tool(request: HttpRequest) -> str:
    return urlsplit(request.url).path.split("/")[1]


def _unsent(stage: Stage, detail: str) -> Reply:
    return Reply(stage=stage, proof=Seen.NOT_SENT, cause=Cause.NOT_SENT, detail=detail)


def _reply(answer: Answer, watch: Watch) -> Reply:
    """Report an answer as the real transport does."""
    if answer.status is None:
        return Reply(
            stage=watch.stage,
            cause=Cause.CONNECTION_RESET,
            detail="connection reset after request write, before any answer",
            sent_bytes=watch.sent_bytes,
        )
    watch.stage = Stage.READ if answer.complete else Stage.ANSWERED
    return Reply(
        stage=watch.stage,
        cause=None if answer.complete else Cause.CONNECTION_RESET,
        detail="" if answer.complete else "connection reset in the body",
        status=answer.status,
        headers=answer.headers,
        body=answer.body,
        complete=answer.complete,
        sent_bytes=watch.sent_bytes,
    )
