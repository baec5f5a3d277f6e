"""Text for people: lines that fit the terminal, safe to show, and the words for each cause."""

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import click

from doubtless.cli_settings import Settings
from doubtless.core.model import Cause, Json, State
from doubtless.ledger.address import masked

COLUMNS: Final = 100  # nothing is written wider than this
COLUMNS_MIN: Final = 40

Style = Literal["", "strong", "good", "bad", "waits", "quiet"]
STYLES: Final[Mapping[Style, Mapping[str, object]]] = {
    "": {},
    "strong": {"bold": True},
    "good": {"fg": "green", "bold": True},
    "bad": {"fg": "red", "bold": True},
    "waits": {"fg": "yellow", "bold": True},
    "quiet": {"dim": True},
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, in one style."""

    text: str
    style: Style = ""


def columns() -> int:
    """Return how wide text may be: the terminal's width, or what COLUMNS says, at most 100."""
    found = shutil.get_terminal_size((COLUMNS, 24)).columns
    return max(COLUMNS_MIN, min(found, COLUMNS))


def coloured() -> bool:
    """Whether standard output takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def write(lines: Iterable[Line]) -> None:
    """Print lines."""
    colour = coloured()
    for line in lines:
        styled = click.style(clean(line.text), **STYLES[line.style])  # type: ignore[arg-type]
        click.echo(styled, color=colour)


def clean(text: str) -> str:
    """Make what others wrote harmless: nothing in it steers the terminal or breaks a line."""
    if text.isprintable():
        return text
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)


def wrapped(
    text: str, *, width: int, first: str = "", rest: str | None = None, style: Style = ""
) -> Iterator[Line]:
    """Break text into lines, at words where it can."""
    following = " " * len(first) if rest is None else rest
    found = textwrap.wrap(
        clean(text),
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_on_hyphens=False,
    )
    for line in found or [first.rstrip()]:
        yield Line(line, style)


def command(words: Iterable[str], *, width: int, indent: str) -> Iterator[Line]:
    """Write a command so that it can be copied whole, in several lines where it is long."""
    line = indent
    for word in words:
        if line.strip() and len(line) + len(word) + 3 > width:
            yield Line(f"{line} \\")
            line = f"{indent}    {word}"
        else:
            line = f"{line} {word}" if line.strip() else f"{line}{word}"
    yield Line(line)


def where(settings: Settings) -> list[str]:
    """Return the flags that lead another command to the same part of the same ledger."""
    words = []
    if "ledger" in settings.flags:
        words.append(f"--ledger {shlex.quote(masked(settings.ledger))}")
    if "tenant" in settings.flags:
        words.append(f"--tenant {settings.tenant}")
    return words


def state_style(state: str) -> Style:
    """Return the style of a state's name."""
    match State(state):
        case State.SUCCEEDED:
            return "good"
        case State.FAILED | State.REJECTED | State.CANCELLED | State.MANUAL_REVIEW:
            return "bad"
        case _:
            return "waits"


def clock(instant: Json) -> str:
    """Return the time of day of an instant as outcomes have it, to the second."""
    return instant[11:19] + "Z" if isinstance(instant, str) else "-"


WHY: Final[Mapping[Cause, str]] = {
    Cause.NOT_SENT: "nothing was sent",
    Cause.NOT_PROCESSED: "the provider says that it did nothing with it",
    Cause.CONFIRMED_ABSENT: "the look-ups prove that the effect does not exist",
    Cause.OPERATOR_NOT_DONE: "an operator found that it was not done",
    Cause.NO_EFFECT: "this tool changes nothing outside",
    Cause.REFUSED: "the provider refused it",
    Cause.DEFINITE_FAILURE: "the provider says that it failed",
    Cause.PROVEN: "the effect is proven",
    Cause.OPERATOR_DONE: "an operator found that it was done",
    Cause.OPERATOR_UNSURE: "closed without certainty; a new operation replaces it",
    Cause.TIMEOUT: "no answer came in time",
    Cause.CONNECTION_RESET: "the connection broke before an answer",
    Cause.GATEWAY_ERROR: "the answer was a server's error, which proves nothing",
    Cause.CRASH: "the process that carried it out died",
    Cause.CANCELLED: "it was stopped on the way",
    Cause.TRUNCATED: "the answer broke off",
    Cause.UNREADABLE: "the answer can't be read",
    Cause.TOOL_ERROR: "the tool's code failed, which proves nothing",
    Cause.WEBHOOK_MISSING: "the provider's message has not come",
    Cause.NO_NEWS_AFTER_ACCEPTED: "it was accepted, and nothing was heard since",
    Cause.UNPROVEN_STATUS: "this provider's status proves nothing",
    Cause.KEY_IN_PROGRESS: "the first request under this key still runs",
    Cause.KEY_MISMATCH: "the provider knows the key with other content",
    Cause.DEADLINE: "time ran out before anything proved it",
    Cause.CONTRADICTION: "two authoritative sources disagree",
    Cause.NOTHING_LEFT: "nothing is left to ask, and a second send could act twice",
    Cause.NOT_ATTRIBUTED: "something is there, but nothing ties it to this operation",
    Cause.ABSENT_REVIEW: "it is proven absent, and its contract leaves the next step to you",
    Cause.OVERDUE: "accepted work goes on past its time",
    Cause.POLICY: "policy does not allow it",
    Cause.PAYLOAD_MISMATCH: "the id came before with another payload",
    Cause.OPERATION_ID_TAKEN: "the id is taken",
    Cause.TARGET_UNRESOLVED: "another operation on the same object is not settled",
    Cause.DENIED: "a person denied it",
    Cause.APPROVAL_EXPIRED: "nobody approved it in time",
    Cause.INTENT_EXPIRED: "it was too late to carry it out",
    Cause.OVERTAKEN: "a newer operation replaces it",
    Cause.AFTER_FAILED: "what it was to follow did not succeed",
}
"""What each cause means, for whoever has to decide."""


def why(cause: Cause | str | None) -> str:
    """Say what a cause means; its own name where there are no words for it."""
    if cause is None:
        return ""
    return WHY.get(Cause(cause), str(cause))
