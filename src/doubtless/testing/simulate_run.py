"""One simulated run, from one seed: harm for a while, then rest, and every check at every step."""

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from doubtless.core import schedule
from doubtless.engine import dispatcher, waiting
from doubtless.errors import LedgerError
from doubtless.testing.simulate_actors import PRINCIPALS, Actors
from doubtless.testing.simulate_checks import Broken
from doubtless.testing.simulate_report import Report
from doubtless.testing.simulate_stage import Stage
from doubtless.testing.simulate_tools import TARGETS
from doubtless.testing.virtual_time import VirtualLoop, virtual_loop

HARM_S: Final = 45.0  # faults end about then
PROCESSES: Final = (1, 1, 2, 3)
DECISIONS: Final = (0, 0, 0, 1, 2)  # of people, about what has come to rest
REST_S: Final = 4.0  # how often it is looked whether all is settled
POLLS: Final = (
    (schedule, "POLL_MS", 6_000),
    (dispatcher, "POLL_S", 10.0),
    (waiting, "POLL_MIN_S", 0.3),
    (waiting, "POLL_MAX_S", 3.0),
)
"""How often processes ask what others did: rarely, since it mostly finds nothing."""


class Run:
    """The course of one seed."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._loop, self._chance = stage, stage.loop, stage.chance
        self._actors = Actors(stage)

    async def play(self) -> None:
        """Do harm for a while, then let it come to rest, and check everything once more."""
        stage, chance = self._stage, self._chance
        machines = chance.choice((["m1"], ["m1"], ["m1", "m2"]))
        for index in range(chance.choice(PROCESSES)):
            principal = PRINCIPALS[0] if index == 0 else chance.choice(PRINCIPALS)
            stage.start(principal=principal, machine=chance.choice(machines), whole=index == 0)
        if chance.random() < 0.3:
            for each in stage.designs:
                stage.world.foreign(each.contract.tool, chance.choice(TARGETS), 5)
        self._actors.plan()
        await self._until(self._loop.time() + HARM_S)
        await self._come_to_rest()

    async def _until(self, at_s: float, ready: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until an instant, or until `ready`; and no longer once a check failed."""
        checks = self._stage.checks
        while self._loop.time() < at_s and checks.broken is None and not ready():
            await self._pass_time(at_s)

    async def _pass_time(self, until_s: float) -> None:
        await asyncio.sleep(min(REST_S, until_s - self._loop.time()))

    async def _come_to_rest(self) -> None:
        stage, chance = self._stage, self._chance
        stage.tell("--- faults are over ---")
        stage.faults.are_over = True
        for host in stage.hosts:
            if host.process.is_alive and host.process.is_stopped:
                host.process.wake(self._loop)
        whole = [host for host in stage.hosts if host.serves and not host.without]
        if not whole:
            whole = [stage.start(principal=PRINCIPALS[0], machine="m1", whole=True)]
        for host in stage.hosts:
            if host is not whole[0] and host.serves:
                host.closing.set_result(None)
        await self._rest()
        for _ in range(chance.choice(DECISIONS)):
            self._actors.decide()
            await self._rest()

    async def _rest(self) -> None:
        """Let everything be settled or in a person's hands, and nothing be on its way any more."""
        for _ in range(2):  # what a person decided at the last moment has to come to rest too
            await self._until(self._loop.time() + self._patience_s(), self._rests)
            quiet_s = self._stage.world.quiet_s()
            await self._until(max(quiet_s, self._loop.time() + 0.1))

    def _rests(self) -> bool:
        return not self._actors.are_waiting() and not self._stage.checks.unsettled()

    def _patience_s(self) -> float:
        """Return how long it may take until everything is settled or in a person's hands."""
        longest_ms = max(
            c.valid_for_ms + 2 * c.recovery_deadline_ms + c.completes_within_ms
            for c in self._stage.contracts.values()
        )
        return longest_ms / 1000 + 120


def simulate(seed: int, *, traced: bool = False) -> Report:
    """Run one seed to its end."""
    with ExitStack() as stack:
        # A killed process leaves coroutines behind that were never begun.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)
        for module, name, value in POLLS:
            stack.enter_context(patch.object(module, name, value))
        heard = stack.enter_context(_listening())
        loop = stack.enter_context(virtual_loop())
        stage = Stage(seed, loop, traced=traced)
        stack.callback(stage.ledger.close)
        return _played(seed, stage, loop, heard)


def _played(seed: int, stage: Stage, loop: VirtualLoop, heard: list[str]) -> Report:
    checks = stage.checks
    loop.set_exception_handler(lambda _, context: heard.append(_words(context)))
    try:
        loop.run_until_complete(Run(stage).play())
    except Broken as error:
        checks.broken = error
    if heard:
        checks.fail("fault", heard[0])
    states = checks.ended() if checks.broken is None else checks.states()
    return Report(
        seed=seed,
        operations=len(checks.records),
        effects=sum(order.took_effect for order in stage.world.orders),
        states=states,
        faults=stage.faults.counts,
        broken=None if checks.broken is None else str(checks.broken),
        trace=stage.trace,
    )


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
