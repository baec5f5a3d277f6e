"""What a host's own status command says of a release: the authority beside the marker."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import jmespath
from jmespath.exceptions import JMESPathError

from doubtless.core.model import Json
from doubtless.transports.ssh_script import Step

ABSENT: Final = -1
"""In place of a phase: the command knows nothing of it."""


class Unclear(Exception):
    """The command could not be asked, or its answer is none; it proves nothing."""


class Clash(Exception):
    """The answer contradicts itself, the contract, or what was recorded; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRules:
    """How the answer is read: a block's `status`, and what its steps add."""

    where: Mapping[str, Json]
    phase: str
    order: tuple[str, ...]
    equal: Mapping[str, Json]  # once the last phase is reached
    of_phases: Mapping[str, Mapping[str, Json]]  # what must be equal from a phase on
    never_started: bool  # what it means that the command knows nothing

    @classmethod
    def of(cls, members: Mapping[str, Json]) -> "StatusRules | None":
        """Return the rules of a rendered block, or None where it has no status command."""
        said = cast("Mapping[str, Json] | None", members.get("status"))
        if said is None:
            return None
        steps = cast("Sequence[Mapping[str, Json]]", members["steps"])
        return cls(
            where=_mapping(said, "where"),
            phase=str(said["phase"]),
            order=tuple(cast("Sequence[str]", said["order"])),
            equal=_mapping(said, "equal"),
            of_phases={str(step["name"]): _mapping(step, "equal") for step in steps},
            never_started=said["absent_means"] == "never_started",
        )

    def next_step(self, phase: int, steps: Sequence[Step]) -> int:
        """Return the first step that goes beyond a phase; their number, where none does."""
        for index, step in enumerate(steps):
            if self.order.index(step.name) > phase:
                return index
        return len(steps)

    def name(self, phase: int) -> str:
        """Name a phase for people."""
        return "nothing of it" if phase == ABSENT else self.order[phase]

    @property
    def last(self) -> int:
        """The phase at which all is done."""
        return len(self.order) - 1


def _mapping(said: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", said.get(key) or {})


def phase_of(rules: StatusRules, code: int, content: bytes) -> int:
    """Return the reported phase by its place in the order, or `ABSENT`.

    Raises:
        Unclear: The command failed, or printed no JSON.
        Clash: More than one entry matches, the phase is unknown, or versions don't fit the phase.
    """
    if code != 0:
        raise Unclear(f"the host's status command ended with {code}")
    try:
        answer: Json = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unclear("the host's status command printed no JSON") from error
    items = answer if isinstance(answer, list) else [answer]
    found = [item for item in items if _fits(rules.where, item)]
    if not found:
        return ABSENT
    if len(found) > 1:
        raise Clash(f"the host's status has {len(found)} entries that match")
    name = _value(rules.phase, found[0])
    if not isinstance(name, str) or name not in rules.order:
        raise Clash(f"the host's status tells of a phase {name!r:.80} that the contract lacks")
    phase = rules.order.index(name)
    _hold(rules, phase, found[0])
    return phase


def _hold(rules: StatusRules, phase: int, item: Json) -> None:
    """Hold what is reported beside a phase against what belongs to it."""
    wanted = [
        of_phase for step, of_phase in rules.of_phases.items() if step in rules.order[: phase + 1]
    ]
    if phase == rules.last:
        wanted.append(rules.equal)
    for conditions in wanted:
        for expression, value in conditions.items():
            seen = _value(expression, item)
            if not _same(seen, value):
                raise Clash(
                    f"the host's status says {rules.order[phase]}, "
                    f"but {expression} is {seen!r:.80} and not {value!r:.80}"
                )


def _fits(where: Mapping[str, Json], item: Json) -> bool:
    return all(_same(_value(expression, item), value) for expression, value in where.items())


def _value(expression: str, item: Json) -> Json:
    try:
        found: Json = jmespath.search(expression, item)
    except (JMESPathError, RecursionError, TypeError, ValueError, AttributeError) as error:
        raise Unclear(f"{expression!r:.80} can't be read from the host's status") from error
    return found


def _same(seen: Json, wanted: Json) -> bool:
    """Whether two values are equal as JSON: true is not 1."""
    return seen == wanted and isinstance(seen, bool) == isinstance(wanted, bool)
