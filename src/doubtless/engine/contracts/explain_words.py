"""The words of `contracts explain`: what each class of effect means, and times as they are said."""

from collections.abc import Mapping
from typing import Final

from doubtless.core.effects import Resend
from doubtless.core.model import Effect

EFFECTS: Final[Mapping[Effect, str]] = {
    Effect.READ: "it only reads: nothing outside changes",
    Effect.COMPUTE: "it only computes: nothing outside changes",
    Effect.FILE: "it changes a file or folder, which can be looked at",
    Effect.SHELL_READ: "a command that changes nothing",
    Effect.SHELL_WRITE: "a command that changes something",
    Effect.KEYED_CREATE: "it makes an object under an id that we choose",
    Effect.CONDITIONAL_UPDATE: "it changes an object only if its version is the expected one",
    Effect.IDEMPOTENT_CALL: "the provider documents that a repeat under one key gets one answer",
    Effect.WRITE: "it changes something at the provider",
    Effect.MONEY: "it moves money",
    Effect.MESSAGE: "it sends a message to somebody",
    Effect.ACCESS: "it changes who may do what",
    Effect.DELETE: "it deletes something",
    Effect.PUBLISH: "it publishes something",
    Effect.ORDER: "it orders something",
    Effect.BOOKING: "it books something",
    Effect.PHYSICAL: "it moves something in the world",
    Effect.BROWSER: "it does something in a page, as a person would",
    Effect.TIME_SENSITIVE: "it is worth doing only now",
}
RESENDS: Final[Mapping[Resend, str]] = {
    Resend.FREELY: "it may be repeated",
    Resend.ONCE: "it may be repeated once by itself",
    Resend.SAME_OBJECT: "it may be repeated by itself: a repeat meets the same object",
    Resend.VERSIONED: "it may be repeated by itself, if no version ever comes twice",
    Resend.REPLAYED: "it may be repeated by itself, under a key that lives and replays the answer",
    Resend.AFTER_ABSENCE: "it is repeated only after proof that it was not done, if at all",
    Resend.AFTER_ABSENCE_WITH_KEY: (
        "it is repeated only after proof that it was not done, under a key that lives, if at all"
    ),
    Resend.NEVER: "it is never repeated by itself, and never looked up",
}
IRREVERSIBLE: Final = "it can't be taken back"
_UNITS: Final = (
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1_000),
    ("millisecond", 1),
)


def spoken(ms: int) -> str:
    """Write a time in words, in its two largest units: 1 minute 30 seconds.

    A day or two are told in hours, as people do.
    """
    parts: list[str] = []
    left = ms
    for name, size in _UNITS:
        if name == "day" and ms < 3 * size:
            continue
        count, left = divmod(left, size)
        if count and len(parts) < 2:
            parts.append(counted(count, name))
    return " ".join(parts) or "no time"


def counted(count: int, word: str) -> str:
    """Write a number and what is counted."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def times(count: int) -> str:
    """Write how often."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
