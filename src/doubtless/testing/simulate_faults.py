"""What goes wrong in a simulated run: drawn from the seed, and counted where it happens."""

import random
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RATES: Final[Mapping[str, float]] = MappingProxyType(
    {
        # a process dies in the gap
        "crash.before_prepare": 0.02,
        "crash.after_prepare": 0.05,
        "crash.before_step": 0.01,
        "crash.after_step": 0.03,
        "crash.before_gate": 0.03,
        "crash.in_gate": 0.06,
        "crash.gate_to_byte": 0.07,
        "crash.after_write": 0.06,
        "crash.before_record": 0.06,
        "crash.after_record": 0.06,
        "crash.before_look_record": 0.02,
        "crash.after_look_record": 0.02,
        "crash.in_function": 0.05,
        "crash.applied": 0.2,
        # a process is stopped in the gap, and woken
        "stall.before_gate": 0.03,
        "stall.in_gate": 0.05,
        "stall.gate_to_byte": 0.09,
        "stall.at_first_byte": 0.06,
        "stall.after_write": 0.05,
        "stall.before_record": 0.03,
        "stall.after_prepare": 0.02,
        "stall.after_step": 0.02,
        "stall.before_look_record": 0.02,
        # the ledger
        "ledger.fails": 0.03,
        "ledger.fails_midway": 0.03,
        "ledger.in_doubt": 0.015,
        "ledger.unreadable": 0.004,
        "ledger.slow": 0.04,
        # the way to the provider
        "connect.fails": 0.08,
        "connect.hangs": 0.04,
        "request.cut_short": 0.04,
        "request.dropped": 0.08,
        "request.late": 0.10,
        # the provider, always within its contract
        "provider.refuses": 0.07,
        "provider.busy": 0.09,
        "provider.fails_before": 0.06,
        "provider.fails_after": 0.08,
        "provider.slow": 0.12,
        "provider.accepts": 0.7,
        "provider.work_fails": 0.35,
        "provider.work_stays": 0.25,
        "provider.login_page": 0.03,
        # its answers
        "answer.broken_off": 0.16,  # while the request is still carried out
        "answer.lost": 0.12,
        "answer.late": 0.06,
        "answer.never": 0.05,
        "answer.cut_short": 0.05,
        # look-ups
        "lookup.fails": 0.10,
        "lookup.hangs": 0.05,
        "lookup.login_page": 0.05,
        "lookup.cut_short": 0.06,
        "lookup.part": 0.15,
        "lookup.blind": 0.3,
        # functions
        "function.not_sent": 0.06,
        "function.breaks_after": 0.10,
        "function.applied": 0.35,
    }
)
"""How often each happens where it can, before a run's own mood."""

HAPPENINGS: Final = (
    "process.killed",
    "process.stopped",
    "process.closed",
    "process.started_again",
    "process.without_tool",
    "clock.forward",
    "clock.backward",
    "owner.dead",
    "owner.alive",
    "owner.foreign",
    "key.replayed",
    "key.in_progress",
    "lookup.lagging",
    "provider.exists",
    "request.stopped_at_byte",
    "agent.repeats",
    "agent.improvises",
    "agent.changes_payload",
    "agent.of_another",
    "agent.cancelled",
    "agent.withdraws",
    "operator.done",
    "operator.not_done",
    "operator.unsure",
    "operator.retry",
    "operator.look_again",
    "operator.again",
)
"""What is counted where it happens, and not drawn by a rate."""

ALL_FAULTS: Final = (*RATES, *HAPPENINGS)

MOODS: Final = (0.0, 0.4, 1.0, 1.0, 2.5)


class Faults:
    """The faults of one run. Each family has the mood of the seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.are_over = False
        families = dict.fromkeys(name.partition(".")[0] for name in RATES)
        moods = {family: chance.choice(MOODS) for family in families}
        self._rates = {
            name: min(0.8, rate * moods[name.partition(".")[0]]) for name, rate in RATES.items()
        }

    def draw(self, name: str) -> bool:
        """Whether this fault happens now. It is counted if it does."""
        rate = self._rates[name]
        if self.are_over or self.chance.random() >= rate:
            return False
        self.counts[name] += 1
        return True

    def happened(self, name: str) -> None:
        """Count what happened by itself."""
        self.counts[name] += 1
