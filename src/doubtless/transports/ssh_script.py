"""What is sent to a host: shell text, in which every value is one quoted word.

A conversation is one program for `sh`, read from standard input, so that no argument of a call ever
stands in a command line that another shell would read, nor in a list of processes.
"""

import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.transports.base import Errand

KEPT_BYTES: Final = 65_536  # of what a step prints, in the result; all of it stays on the host


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: a program, or what the job itself can do."""

    name: str
    argv: tuple[str, ...]
    own: bool = False  # a function of the job


@dataclass(frozen=True, slots=True)
class Program:
    """The text of one conversation, and the word by which its host is recognised in it."""

    text: bytes
    nonce: str


def steps_of(members: Mapping[str, Json]) -> tuple[Step, ...]:
    """Return what a rendered block does, in order."""
    if "take_over" in members:
        said = cast("Mapping[str, str]", members["take_over"])
        return (Step("taken_over", ("take_over", said["lock"], said["held_by"]), own=True),)
    said_steps = cast("Sequence[Mapping[str, Json]]", members["steps"])
    return tuple(
        Step(str(each["name"]), tuple(map(word, cast("Sequence[Json]", each["argv"]))))
        for each in said_steps
    )


def word(value: Json) -> str:
    """Return an argument as the text that a command gets."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def program(errand: Errand) -> Program:
    """Write the program for one conversation about an operation."""
    members, nonce = errand.action.members, secrets.token_hex(16)
    steps = steps_of(members)
    facts = {
        "ref": errand.ref,
        "id": errand.operation_id,
        "correlation": errand.correlation_id,
        "attempt": str(errand.attempt),
        "lock": str(members.get("lock", "")),
        "lock_s": str(-(-cast("int", members.get("lock_for", 0)) // 1000)),
    }
    job = [_set(facts), _text("common"), _text("job"), _steps(steps), "run_job"]
    said = {
        **facts,
        "nonce": nonce,
        "base": str(members.get("markers", "")),
        "kept_bytes": str(KEPT_BYTES),
        "job_text": "\n".join(job),
    }
    status = cast("Mapping[str, Sequence[Json]]", members.get("status", {}))
    ask = shlex.join(map(word, status.get("argv", ["false"])))
    asking = f"ask_status() {{\n{ask}\n}}"
    # One compound command, so that it was all read before the first order can come.
    talk = [_set(said), _text("common"), _missing(steps), asking, _text("host")]
    return Program("\n".join(["{", *talk, "exit", "}", ""]).encode(), nonce)


def _set(facts: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={shlex.quote(value)}" for name, value in facts.items())


def _steps(steps: Iterable[Step]) -> str:
    lines = [
        f"step {index:02} {each.name} {'own' if each.own else 'program'} {shlex.join(each.argv)}"
        for index, each in enumerate(steps)
    ]
    return "\n".join(["steps() {", *(f"{line} || return" for line in lines), "}"])


def _missing(steps: Iterable[Step]) -> str:
    """Write the function that tells which programs the host lacks."""
    lines = [
        f"command -v {shlex.quote(each.argv[0])} >/dev/null 2>&1 || say missing {index}"
        for index, each in enumerate(steps)
        if not each.own
    ]
    return "\n".join(["missing() {", ":", *lines, "}"])


@lru_cache(maxsize=4)
def _text(name: str) -> str:
    return files("doubtless.transports").joinpath(f"ssh_{name}.sh").read_text(encoding="ascii")
