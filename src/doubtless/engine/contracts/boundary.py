"""The way of an action, place by place: what is known if it breaks there, and what proves it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Known(StrEnum):
    """What is known of an action that broke at a place, and of which nothing else is heard."""

    NOT_SENT = "not sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One place on the way."""

    name: str
    known: Known  # if it breaks here
    means: str  # what is done here, in a sentence
    proof: str = ""  # what this place proves, in a sentence; empty: nothing


def harmless(name: str, means: str, proof: str) -> Boundary:
    """Return a place before anything was done."""
    return Boundary(name=name, known=Known.NOT_SENT, means=means, proof=proof)


def doubtful(name: str, means: str, proof: str = "") -> Boundary:
    """Return a place from which on it may have been done."""
    return Boundary(name=name, known=Known.UNKNOWN, means=means, proof=proof)


RECORDED: Final = (
    harmless(
        "this process",
        "It takes the call, and records it before anything else.",
        "none is needed: nothing is sent that is not recorded.",
    ),
    harmless(
        "the ledger",
        "The operation and its attempt are on disk before anything outside is touched.",
        "the ledger: an attempt that is not in it never began.",
    ),
)
"""The first places of every action."""

GATE: Final = harmless(
    "the gate",
    "At the last harmless moment the ledger is asked: is the attempt still ours, in time, and "
    "allowed?",
    "its answer: without a yes nothing begins.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What is to be known of an action that may break anywhere."""

    tie: str = ""  # what ties all its attempts to one operation; empty: nothing
    recognises: str = ""  # by what a look knows that it was done; empty: there is no look
    absent: str = ""  # what a look finds where it was not
    missing: str = ""  # what would make it more automatic; empty: all is there
    path: tuple[Boundary, ...]  # in order
