"""Durable operations for the external actions of AI agents.

One intent has one effect. Where an answer is lost, the outcome is unknown until evidence settles
it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from doubtless.core.model import Effect
    from doubtless.core.outcome import Outcome
    from doubtless.engine.app import Doubtless
    from doubtless.engine.blocking import BlockingDoubtless
    from doubtless.engine.contracts import Key, Lookup
    from doubtless.engine.lookups import Absent, CouldNotAsk, Operation, Present
    from doubtless.engine.reports import SessionRecord
    from doubtless.engine.stream import Settlement
    from doubtless.engine.tools import Call
    from doubtless.errors import DoubtlessError, NotSent, Rejected

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "BlockingDoubtless",
    "Call",
    "CouldNotAsk",
    "Doubtless",
    "DoubtlessError",
    "Effect",
    "Key",
    "Lookup",
    "NotSent",
    "Operation",
    "Outcome",
    "Present",
    "Rejected",
    "SessionRecord",
    "Settlement",
]

# The engine takes most of a second to import; a command that only prints its help doesn't need it.
_HOMES = {
    "Absent": "doubtless.engine.lookups",
    "BlockingDoubtless": "doubtless.engine.blocking",
    "Call": "doubtless.engine.tools",
    "CouldNotAsk": "doubtless.engine.lookups",
    "Doubtless": "doubtless.engine.app",
    "DoubtlessError": "doubtless.errors",
    "Effect": "doubtless.core.model",
    "Key": "doubtless.engine.contracts",
    "Lookup": "doubtless.engine.contracts",
    "NotSent": "doubtless.errors",
    "Operation": "doubtless.engine.lookups",
    "Outcome": "doubtless.core.outcome",
    "Present": "doubtless.engine.lookups",
    "Rejected": "doubtless.errors",
    "SessionRecord": "doubtless.engine.reports",
    "Settlement": "doubtless.engine.stream",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name what is public."""
    return [*__all__, "__version__"]
