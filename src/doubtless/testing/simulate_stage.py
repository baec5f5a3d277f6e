"""What one simulated run consists of: its clock, its ledger, its world and its processes."""

import asyncio
import json
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from doubtless.core.contract import Kind
from doubtless.core.progress import Liveness
from doubtless.engine.app import Doubtless
from doubtless.engine.surroundings import Surroundings
from doubtless.ledger.journal import Entry
from doubtless.ledger.store import Ledger, open_ledger
from doubtless.testing.simulate_checks import Checks
from doubtless.testing.simulate_faults import Faults
from doubtless.testing.simulate_functions import function_tool
from doubtless.testing.simulate_gaps import Gaps
from doubtless.testing.simulate_http import SimulatedHttp
from doubtless.testing.simulate_ledger import SimulatedLedger
from doubtless.testing.simulate_tools import DESIGNS, Design, design
from doubtless.testing.virtual_time import WORLD, Process, VirtualLoop
from doubtless.testing.world import World

START_MS: Final = 1_750_000_000_000


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


class Stage:
    """Everything of one seed, and how processes start and end on it.

    Args:
        seed: Decides all that happens.
        loop: A fresh one.
        traced: Keep a line for everything that happens.
    """

    def __init__(self, seed: int, loop: VirtualLoop, *, traced: bool) -> None:
        self.chance, self.loop = random.Random(f"run {seed}"), loop
        self.trace: list[str] = []
        self._traced = traced
        self.faults = Faults(self.chance)
        self.offset_ms = 0  # of the wall clock, which can be set
        self._ids = 0
        picked = self.chance.sample(range(DESIGNS), self.chance.choice((1, 1, 2)))
        self.designs: list[Design] = [design(number) for number in picked]
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
            key_forgotten=self.checks.key_forgotten,
            tell=self.tell,
        )
        self.checks.world = self.world
        if traced:
            self.checks.on_entry = self._journalled
        self.hosts: list[Host] = []
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
            self.trace.append(f"{self.loop.time() - 1000:10.4f} {line}")

    def later(self, in_s: float, act: Callable[[], None]) -> None:
        """Let something happen that is no process's doing."""
        self.loop.call_later(in_s, act, context=WORLD)

    def _liveness(self, asking: str, owner: str) -> Liveness:
        host = self._owners.get(owner)
        if host is None or host.process.host != asking:
            found = Liveness.FOREIGN
        else:
            found = Liveness.ALIVE if host.process.is_alive else Liveness.DEAD
        self.faults.happened(f"owner.{found.value}")
        return found

    def _journalled(self, entry: Entry) -> None:
        words = json.dumps(entry.data, sort_keys=True)
        self.tell(f"  {entry.operation_id}: {entry.kind} by {entry.principal.role}: {words}")

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
        try:
            async with self._application(host) as app:
                host.app = app
                await host.closing
        except Exception as error:  # noqa: BLE001 - an application never falls
            words = "".join(traceback.format_exception(error)) if self._traced else repr(error)
            self.checks.fail("fault", f"the application of {host.process.name} fell: {words}")
        self.tell(f"{host.process.name} has ended")
        host.process.ended = None
        host.process.kill()

    def _application(self, host: Host) -> Doubtless:
        first_byte = self.checks.first_byte
        app = Doubtless(
            cast("Ledger", SimulatedLedger(self.ledger, host.gaps, self.checks.committed)),
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
        for each in self.designs:
            if each.contract.tool in host.without:
                continue
            if each.contract.kind is Kind.FUNCTION:
                app.registry.add(function_tool(each, host.gaps, self.world, first_byte=first_byte))
            else:
                app.registry.add(each.tool)
        return app

    def _ended(self, host: Host) -> None:
        """Start another process in place of one that was killed, after a while."""
        if self.faults.are_over:
            return
        chance = self.chance
        pause_s = chance.choice((chance.uniform(0.05, 2.0), chance.uniform(2, 30)))
        self.later(pause_s, partial(self.replace, host))

    def replace(self, host: Host) -> None:
        """Start another process in place of one that has ended."""
        if not self.faults.are_over:
            self.faults.happened("process.started_again")
            self.start(principal=host.principal, machine=host.process.host, whole=False)
