"""One simulated run: processes, callers, operators and whoever does harm to them, from one seed."""

import asyncio
import json
import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from doubtless.core.contract import Kind
from doubtless.core.progress import Liveness
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import Contracts
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import LedgerError
from doubtless.ledger.journal import Entry
from doubtless.ledger.store import Ledger, open_ledger
from doubtless.testing.simulate_actors import Actors
from doubtless.testing.simulate_checks import Broken, Checks
from doubtless.testing.simulate_faults import Faults
from doubtless.testing.simulate_functions import function_tool
from doubtless.testing.simulate_gaps import Gaps
from doubtless.testing.simulate_http import SimulatedHttp
from doubtless.testing.simulate_ledger import SimulatedLedger
from doubtless.testing.simulate_tools import DESIGNS, TARGETS, design
from doubtless.testing.virtual_time import WORLD, Process, VirtualLoop, virtual_loop
from doubtless.testing.world import World

START_MS: Final = 1_750_000_000_000
HARM_S: Final = 45.0  # faults end about then
PROCESSES_MAX: Final = 3
PRINCIPALS: Final = ("alpha", "beta")
REST_S: Final = 1.0  # how often it is looked whether all is settled


@dataclass(slots=True, kw_only=True)
class Report:
    """What one seed brought."""

    seed: int
    operations: int = 0
    effects: int = 0
    doubled: int = 0
    lost: int = 0
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: str | None = None
    trace: list[str] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class Host:
    """One application in one process."""

    process: Process
    gaps: Gaps
    principal: str
    without: frozenset[str]  # tools whose code is not there
    app: Doubtless | None = None
    closing: "asyncio.Future[None]"

    @property
    def serves(self) -> bool:
        """Whether it can be called now."""
        return self.app is not None and self.process.is_alive and not self.closing.done()


class Run:
    """Everything of one seed.

    Args:
        seed: Decides all that happens.
        loop: A fresh one.
        traced: Keep a line for everything that happens.
    """

    def __init__(self, seed: int, loop: VirtualLoop, *, traced: bool) -> None:
        self.chance = random.Random(f"run {seed}")
        self.loop, self.report = loop, Report(seed=seed)
        self._traced = traced
        self.faults = Faults(self.chance)
        self.offset_ms = 0
        self._ids = 0
        picked = self.chance.sample(range(DESIGNS), self.chance.choice((1, 2, 3)))
        self.designs = [design(number) for number in picked]
        self.contracts = {each.contract.tool: each.contract for each in self.designs}
        self.ledger: Ledger = open_ledger(
            "sqlite://", clock=self.wall_ms, inline=True, entropy=self.chance.randbytes
        )
        self.checks = Checks(self.contracts, self.ledger, self.wall_ms)
        self.world = World(
            loop,
            self.faults,
            pending=frozenset(d.contract.tool for d in self.designs if d.pending),
            unique=frozenset(d.contract.tool for d in self.designs if d.unique),
            took_effect=self.checks.took_effect,
            tell=self.tell,
        )
        self.checks.world = self.world
        if traced:
            self.checks.on_entry = self._journalled
        self.hosts: list[Host] = []
        self.actors = Actors(self)
        self._owners: dict[str, Host] = {}

    # --- surroundings ----------------------------------------------------------------------------

    def wall_ms(self) -> int:
        """Return the wall clock, which can be set."""
        return START_MS + int(self.loop.time() * 1000) + self.offset_ms

    def new_id(self) -> str:
        """Return an operation id."""
        self._ids += 1
        return f"made-{self._ids}"

    def tell(self, line: str) -> None:
        """Add a line to the trace."""
        if self._traced:
            self.report.trace.append(f"{self.loop.time() - 1000:10.4f} {line}")

    def _liveness(self, asking: str, owner: str) -> Liveness:
        host = self._owners.get(owner)
        if host is None or host.process.host != asking:
            found = Liveness.FOREIGN
        else:
            found = Liveness.ALIVE if host.process.is_alive else Liveness.DEAD
        self.faults.happened(f"owner.{found.value}")
        return found

    # --- processes -------------------------------------------------------------------------------

    def start(self, *, principal: str, machine: str, whole: bool) -> Host:
        """Start a process with an application in it."""
        process = Process(f"p{len(self.hosts) + 1}", machine)
        without = frozenset[str]()
        if not whole and self.chance.random() < 0.2:
            self.faults.happened("process.without_tool")
            without = frozenset({self.chance.choice(sorted(self.contracts))})
        host = Host(
            process=process,
            gaps=Gaps(process, self.loop, self.faults, self.tell),
            principal=principal,
            without=without,
            closing=self.loop.create_future(),
        )
        process.ended = partial(self._ended, host)
        self.hosts.append(host)
        self._owners[process.name] = host
        self.tell(f"{process.name} starts on {machine} for {principal}")
        self.loop.create_task(self._serve(host), context=process.context())
        return host

    async def _serve(self, host: Host) -> None:
        https = {
            name: contract
            for name, contract in self.contracts.items()
            if contract.kind is Kind.HTTP and name not in host.without
        }
        first_byte = self.checks.first_byte
        app = Doubtless(
            cast("Ledger", SimulatedLedger(self.ledger, host.gaps, self.checks.committed)),
            contracts=Contracts(tools=https),
            principal=host.principal,
            surroundings=Surroundings(
                wall_ms=self.wall_ms,
                boot_s=self.loop.time,
                new_id=self.new_id,
                owner=host.process.name,
                liveness=partial(self._liveness, host.process.host),
            ),
            http=SimulatedHttp(host.gaps, self.world, self.contracts, first_byte=first_byte),
        )
        for name, contract in self.contracts.items():
            if contract.kind is Kind.FUNCTION and name not in host.without:
                tool = function_tool(contract, host.gaps, self.world, first_byte=first_byte)
                app.registry.add(tool)
        try:
            async with app:
                host.app = app
                await host.closing
        except Exception as error:  # noqa: BLE001 - an application never falls
            words = "".join(traceback.format_exception(error)) if self._traced else repr(error)
            self.checks.fail("fault", f"the application of {host.process.name} fell: {words}")
        self.tell(f"{host.process.name} has ended")
        host.process.ended = None
        host.process.kill()

    def _journalled(self, entry: Entry) -> None:
        words = json.dumps(entry.data, sort_keys=True)
        self.tell(f"  {entry.operation_id}: {entry.kind} by {entry.principal.role}: {words}")

    def _ended(self, host: Host) -> None:
        """Start another process in place of one that was killed, after a while."""
        if self.faults.are_over:
            return
        pause_s = self.chance.choice((self.chance.uniform(0.05, 2.0), self.chance.uniform(2, 30)))
        self.loop.call_later(pause_s, self.replace, host, context=WORLD)

    def replace(self, host: Host) -> None:
        """Start another process in place of one that has ended."""
        if not self.faults.are_over:
            self.faults.happened("process.started_again")
            self.start(principal=host.principal, machine=host.process.host, whole=False)

    # --- the course of it ------------------------------------------------------------------------

    async def play(self) -> None:
        """Do harm for a while, then let it come to rest, and check everything once more."""
        machines = self.chance.choice((["m1"], ["m1"], ["m1", "m2"]))
        for index in range(self.chance.randint(1, PROCESSES_MAX)):
            principal = PRINCIPALS[0] if index == 0 else self.chance.choice(PRINCIPALS)
            self.start(principal=principal, machine=self.chance.choice(machines), whole=index == 0)
        if self.chance.random() < 0.3:
            for each in self.designs:
                self.world.foreign(each.contract.tool, self.chance.choice(TARGETS), 5)
        self.actors.plan()
        await self._until(self.loop.time() + HARM_S)
        await self._come_to_rest()

    async def _until(self, at_s: float, ready: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until an instant, or until `ready`; and no longer once a check failed."""
        while self.loop.time() < at_s and self.checks.broken is None and not ready():
            await self._pass_time(at_s)

    async def _pass_time(self, until_s: float) -> None:
        await asyncio.sleep(min(REST_S, until_s - self.loop.time()))

    async def _come_to_rest(self) -> None:
        self.tell("--- faults are over ---")
        self.faults.are_over = True
        for host in self.hosts:
            if host.process.is_alive and host.process.is_stopped:
                host.process.wake(self.loop)
        whole = [h for h in self.hosts if h.serves and not h.without]
        if not whole:
            whole = [self.start(principal=PRINCIPALS[0], machine="m1", whole=True)]
        for host in self.hosts:
            if host is not whole[0] and host.serves:
                host.closing.set_result(None)
        await self._until(self.loop.time() + self._patience_s(), self._rests)
        await self._until(max(self.world.quiet_s(), self.loop.time() + 0.1))
        if self.checks.broken is None:
            self.report.states = self.checks.ended()

    def _rests(self) -> bool:
        return not self.actors.are_waiting() and not self.checks.unsettled()

    def _patience_s(self) -> float:
        """Return how long it may take until everything is settled or in a person's hands."""
        longest_ms = max(
            c.valid_for_ms + 2 * c.recovery_deadline_ms + c.completes_within_ms
            for c in self.contracts.values()
        )
        return longest_ms / 1000 + 120


def simulate(seed: int, *, traced: bool = False) -> Report:
    """Run one seed to its end."""
    with virtual_loop() as loop, _listening() as heard:
        run = Run(seed, loop, traced=traced)
        loop.set_exception_handler(lambda _, context: heard.append(_words(context)))
        try:
            loop.run_until_complete(run.play())
        except Broken as error:
            run.checks.broken = error
        report = run.report
        report.faults = run.faults.counts
        report.operations = len(run.checks.records)
        report.effects = sum(order.took_effect for order in run.world.orders)
        if run.checks.broken is None and heard:
            run.checks.broken = Broken(f"fault: {heard[0]}")
        if run.checks.broken is not None:
            report.broken = str(run.checks.broken)
            report.doubled = int(report.broken.startswith("doubled"))
            report.lost = int(report.broken.startswith("lost"))
    run.ledger.close()
    return report


def _words(context: dict[str, object]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


class _Ear(logging.Handler):
    """Hears what the engine logs; an exception that is not the ledger's is a fault of ours."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, LedgerError):
            self._heard.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _listening() -> Iterator[list[str]]:
    heard: list[str] = []
    logger, ear = logging.getLogger("doubtless"), _Ear(heard)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(ear)
    try:
        yield heard
    finally:
        logger.removeHandler(ear)
        logger.propagate = propagates
