"""What the facts of a host prove about an operation. Pure: the same facts give the same answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from doubtless.core.model import Json, Shows
from doubtless.transports.base import Sighting, could_not_ask
from doubtless.transports.ssh_link import Facts
from doubtless.transports.ssh_script import KEPT_BYTES, Step
from doubtless.transports.ssh_status import ABSENT, StatusRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that is known when the facts are judged."""

    ref: str
    facts: Facts
    steps: Sequence[Step]
    failed_exit: Sequence[int]  # exit codes by which a command says that it did nothing
    rules: StatusRules | None = None
    phase: int | None = None  # by the host's status command; None without one
    before: int | None = None  # the same, before the first attempt

    @property
    def place(self) -> str:
        """Where a person finds the marker."""
        return f"{self.facts.base}/{self.ref}"

    def says(self) -> str:
        """Say what the host reports, for people."""
        if self.rules is None or self.phase is None:
            return ""
        return f"; the host reports {self.rules.name(self.phase)}"

    def seen(self, shows: Shows, detail: str, *, result: Json = None) -> Sighting:
        """Return a sighting of this case."""
        return Sighting(
            shows=shows,
            detail=f"{detail}{self.says()} ({self.place})",
            provider_operation_id=self.place if self.facts.has_run else None,
            result=result,
        )


def verdict(case: Case) -> Sighting:
    """Say what became of an operation. Where no run stands, the claims must have been fenced."""
    facts = case.facts
    if facts.run is None:
        return _without_run(case)
    if _is_behind(case):
        return case.seen(Shows.CONFLICT, f"its marker says {_reached(case)}, and the host less")
    if facts.code is not None:
        return _ended(case)
    if facts.alive == "yes":
        return case.seen(Shows.IN_PROGRESS, f"it runs on the host, {_at(facts)}")
    if facts.alive != "no":
        return could_not_ask(f"nothing tells whether it still runs, {_at(facts)} ({case.place})")
    if _is_done(case):
        return case.seen(
            Shows.APPLIED, "its process is gone, and all is done", result=_result(case)
        )
    gone = f"its process is gone without an exit code, {_at(facts)}"
    return case.seen(Shows.CONFLICT, gone)


def can_go_on(case: Case) -> bool:
    """Whether a run that died may be followed by another one: it is known how far it got."""
    facts, rules = case.facts, case.rules
    if facts.run is None or facts.code is not None or facts.alive != "no":
        return False
    if not facts.steps:
        return True  # each is marked before it begins
    if rules is None or case.phase is None:
        return False
    known = case.phase != ABSENT or rules.never_started
    return known and case.phase < rules.last and not _is_behind(case)


def _without_run(case: Case) -> Sighting:
    """No run stands, and none of the attempts so far can begin any more."""
    facts, rules, phase = case.facts, case.rules, case.phase
    at_end = rules is not None and phase == rules.last
    if not facts.has_run:
        if at_end and case.before != phase:
            return case.seen(Shows.PRESENT, "none of ours ran, and yet it is done")
        return case.seen(Shows.ABSENT, "it never began there, and its attempts can't any more")
    if at_end:
        return case.seen(Shows.APPLIED, "its process is gone, and all is done")
    gone = "its process is gone, and its attempts can't begin any more"
    told = rules is not None and phase is not None and (phase != ABSENT or rules.never_started)
    if facts.steps and not told:
        return case.seen(Shows.CONFLICT, gone)
    if facts.was_seen:  # what was seen at work is never called absent: it has failed
        return case.seen(Shows.NOT_APPLIED, f"it was seen at work; {gone}")
    return case.seen(Shows.ABSENT, f"{gone}: what is left of it can be done")


def _ended(case: Case) -> Sighting:
    """Judge a run with a recorded end. The host's own word outweighs the exit code."""
    facts, rules, phase = case.facts, case.rules, case.phase
    name = facts.steps[-1].name if facts.steps else "nothing"
    if _is_done(case):
        return case.seen(Shows.APPLIED, f"{name} ended with {facts.code}", result=_result(case))
    if facts.code == 0:
        if rules is None or phase is None or (phase == ABSENT and not rules.never_started):
            return case.seen(Shows.APPLIED, f"{name} ended with 0", result=_result(case))
        if phase == ABSENT:
            return case.seen(Shows.CONFLICT, f"{name} ended with 0")
        return case.seen(Shows.IN_PROGRESS, f"{name} ended with 0, and the host is not through")
    reported = phase is not None and phase != ABSENT
    if facts.code in case.failed_exit and len(facts.steps) == 1:
        return case.seen(Shows.NOT_APPLIED, f"{name} refused: it ended with {facts.code}")
    if reported or (phase == ABSENT and rules is not None and rules.never_started):
        return case.seen(Shows.NOT_APPLIED, f"{name} ended with {facts.code}")
    failed = f"{name} ended with {facts.code}, which does not say whether it had an effect"
    return case.seen(Shows.PRESENT, failed)


def _is_done(case: Case) -> bool:
    return case.rules is not None and case.phase == case.rules.last


def _is_behind(case: Case) -> bool:
    """Whether the host reports less than what its own commands have ended with."""
    rules, phase = case.rules, case.phase
    done = [step.name for step in case.facts.steps if step.code == 0]
    if rules is None or phase is None or not done:
        return False
    if phase == ABSENT:
        return rules.never_started
    return phase < rules.order.index(done[-1])


def _reached(case: Case) -> str:
    return [step.name for step in case.facts.steps if step.code == 0][-1]


def _at(facts: Facts) -> str:
    return f"at {facts.steps[-1].name}" if facts.steps else "before its first step"


def _result(case: Case) -> Json:
    """Return what the agent gets: the last step's exit and output, its beginning where it is long.

    What is no UTF-8 in it is replaced.
    """
    facts = case.facts
    last = facts.steps[-1] if facts.steps else None
    return {
        "exit": facts.code,
        "steps": [step.name for step in facts.steps],
        "stdout": facts.out.decode(errors="replace"),
        "stderr": facts.err.decode(errors="replace"),
        "digest": last.digest if last is not None else None,
        "cut": len(facts.out) == KEPT_BYTES or len(facts.err) == KEPT_BYTES,
    }
