"""Who acts in a simulated run: agents that call, people who decide, and whoever does harm."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from doubtless.core.decisions import Word
from doubtless.core.model import Json, Record, State
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.errors import BadRequest, DecisionRefused, LedgerError
from doubtless.testing.simulate_stage import Host, Stage
from doubtless.testing.simulate_tools import TARGETS

PRINCIPALS: Final = ("alpha", "beta")
HARM_S: Final = 40.0
OPEN_TO_PEOPLE: Final = frozenset(
    {State.ACCEPTED, State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW, State.FAILED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an agent wants."""

    tool: str
    arguments: dict[str, Json]
    operation_id: str | None
    session_id: str | None
    principal: str


class Actors:
    """All who act in one run."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._chance, self._loop = stage, stage.chance, stage.loop
        self._asked: list[tuple[Host, asyncio.Task[None]]] = []

    def plan(self) -> None:
        """Decide who will do what and when."""
        for index in range(self._chance.choice((1, 1, 1, 1, 2, 3))):
            intent = self._intent(index)
            at_s = self._chance.uniform(0.1, 15.0)
            self._at(at_s, partial(self._call, intent))
            self._plan_more(intent, at_s)
        for _ in range(self._chance.choice((0, 0, 0, 1, 2))):
            self._at(self._chance.uniform(2.0, HARM_S), self._harm)
        for _ in range(self._chance.choice((0, 1, 3, 6))):
            self._at(self._chance.uniform(5.0, 200.0), self.decide)
        if self._chance.random() < 0.15:
            self._at(self._chance.uniform(1.0, HARM_S), self._set_clock)

    def _intent(self, index: int) -> Intent:
        tool = self._chance.choice(sorted(self._stage.contracts))
        arguments: dict[str, Json] = {
            "target": self._chance.choice(TARGETS),
            "amount": self._chance.choice((1, 2)),
            "etag": "v1",
        }
        said = self._chance.random() < 0.6
        return Intent(
            tool=tool,
            arguments=arguments,
            operation_id=f"op-{index}" if said else None,
            session_id=self._chance.choice((None, "s1")),
            principal=self._chance.choice([host.principal for host in self._stage.hosts]),
        )

    def _plan_more(self, intent: Intent, at_s: float) -> None:
        """Plan what a forgetful agent does after its first call."""
        chance, faults = self._chance, self._stage.faults

        def later() -> float:
            return at_s + chance.choice((chance.uniform(0.0, 1.0), chance.uniform(1.0, 29.0)))

        for _ in range(chance.choice((0, 0, 1, 2))):
            faults.happened("agent.repeats")
            self._at(later(), partial(self._call, intent))
        if chance.random() < 0.15:
            faults.happened("agent.improvises")
            varied = {**intent.arguments, "amount": 3}
            improvised = replace(intent, operation_id=None, arguments=varied)
            self._at(later(), partial(self._call, improvised))
        if chance.random() < 0.1 and intent.operation_id is not None:
            faults.happened("agent.changes_payload")
            changed = replace(intent, arguments={**intent.arguments, "amount": 4})
            self._at(later(), partial(self._call, changed))
        if chance.random() < 0.1 and intent.operation_id is not None:
            other = "beta" if intent.principal == "alpha" else "alpha"
            if any(host.principal == other for host in self._stage.hosts):
                faults.happened("agent.of_another")
                self._at(later(), partial(self._call, replace(intent, principal=other)))
        if chance.random() < 0.08 and intent.operation_id is not None:
            self._at(later(), partial(self._withdraw, intent))

    def _at(self, in_s: float, act: Callable[[], None]) -> None:
        def unless_over() -> None:
            if not self._stage.faults.are_over:
                act()

        self._stage.later(in_s, unless_over)

    def _host(self, *, principal: str | None = None, tool: str | None = None) -> Host | None:
        serving = [
            host
            for host in self._stage.hosts
            if host.serves
            and principal in (None, host.principal)
            and (tool is None or tool not in host.without)
        ]
        return self._chance.choice(serving) if serving else None

    # --- agents ----------------------------------------------------------------------------------

    def _call(self, intent: Intent) -> None:
        host = self._host(principal=intent.principal, tool=intent.tool)
        if host is None or host.app is None:
            return
        wait_s = self._chance.choice((None, None, 0.0, 3.0))
        call = host.app.call(
            intent.tool,
            intent.arguments,
            operation_id=intent.operation_id,
            session_id=intent.session_id,
            wait_s=wait_s,
        )
        self._stage.tell(f"{host.process.name}: call {intent.tool} {intent.operation_id}")
        task = self._do(host, call)
        if self._chance.random() < 0.1:
            self._at(self._chance.uniform(0.0, 3.0), partial(self._give_up, task))

    def _give_up(self, task: "asyncio.Task[None]") -> None:
        if not task.done():
            self._stage.faults.happened("agent.cancelled")
            task.cancel()

    def _withdraw(self, intent: Intent) -> None:
        host = self._host(principal=intent.principal)
        if host is not None and host.app is not None and intent.operation_id is not None:
            self._stage.faults.happened("agent.withdraws")
            self._do(host, host.app.cancel(intent.operation_id))

    def _do(self, host: Host, asked: Coroutine[object, object, Outcome]) -> "asyncio.Task[None]":
        async def do() -> None:
            try:
                outcome = await asked
            except (LedgerError, DecisionRefused, BadRequest) as error:
                host.gaps.tell(f"told {type(error).__name__}: {error}")
                return
            except Exception as error:  # noqa: BLE001 - no caller may ever see another one
                self._stage.checks.fail("fault", f"a caller is met by {error!r}")
                return
            host.gaps.tell(f"told {outcome.operation_id} {outcome.state} {outcome.status}")
            self._stage.checks.told(outcome)

        task = self._loop.create_task(do(), context=host.process.context())
        self._asked.append((host, task))
        return task

    def are_waiting(self) -> bool:
        """Whether somebody still waits for an answer of a process that lives."""
        return any(host.process.is_alive and not task.done() for host, task in self._asked)

    # --- people ----------------------------------------------------------------------------------

    def decide(self) -> None:
        """Let a person decide one operation. She knows the truth, and says it."""
        waiting = [
            record
            for _, record in sorted(self._stage.checks.records.items())
            if record.operation.state in OPEN_TO_PEOPLE
        ]
        if not waiting:
            return
        record = self._chance.choice(waiting)
        host = self._host(tool=record.operation.tool)
        word = self._word(record)
        if host is None or host.app is None or word is None:
            return
        self._stage.tell(f"operator: {record.operation.id} {word.value}")
        self._do(host, self._decided(host.app, record, word))

    async def _decided(self, app: Doubtless, record: Record, word: Word) -> Outcome:
        outcome = await app.resolve(
            record.operation.id,
            word.value,
            operator="operator",
            note="seen at the provider",
            version=record.operation.version,
            mark_duplicate=word is Word.AGAIN and not self._nothing_done(record),
        )
        self._stage.faults.happened(f"operator.{word.value}")
        return outcome

    def _nothing_done(self, record: Record) -> bool:
        """Whether it is true that nothing was done, and that nothing of it can still arrive."""
        ref, world = record.operation.ref, self._stage.world
        return not world.effects_of(ref) and not world.may_still_act(ref)

    def _word(self, record: Record) -> Word | None:
        state, ref = record.operation.state, record.operation.ref
        in_review = state is State.MANUAL_REVIEW
        if state is State.FAILED:
            return Word.RETRY if self._nothing_done(record) else None
        if in_review and self._chance.random() < 0.4:
            return self._chance.choice((Word.UNSURE, Word.LOOK_AGAIN, Word.LOOK_AGAIN))
        if self._stage.world.effects_of(ref):
            return self._chance.choice((Word.DONE, Word.DONE, Word.AGAIN))
        if self._nothing_done(record):
            words = [Word.NOT_DONE, Word.AGAIN] + [Word.RETRY, Word.RETRY] * in_review
            return self._chance.choice(words)
        return None

    # --- harm ------------------------------------------------------------------------------------

    def _harm(self) -> None:
        host = self._host()
        if host is None or self._stage.faults.are_over:
            return
        what = self._chance.choice(("killed", "stopped", "stopped", "closed"))
        self._stage.faults.happened(f"process.{what}")
        match what:
            case "killed":
                host.gaps.tell("KILLED anywhere")
                host.process.kill()
            case "stopped":
                host.gaps.stop(host.gaps.length_s(), "anywhere")
            case _:
                host.gaps.tell("is closed")
                host.closing.set_result(None)
                self._stage.later(3.0, partial(self._stage.replace, host))

    def _set_clock(self) -> None:
        if self._stage.faults.are_over:
            return
        seconds = self._chance.choice((3.0, 10.0, 60.0)) * self._chance.choice((1, -1))
        self._stage.faults.happened("clock.forward" if seconds > 0 else "clock.backward")
        self._stage.tell(f"the wall clock is set by {seconds} s")
        self._stage.checks.clock_was_set = True
        self._stage.offset_ms += int(seconds * 1000)
