"""Durable operations for the external actions of AI agents.

One intent has one effect. Where an answer is lost, the outcome is unknown until evidence settles
it.
"""

from doubtless.core.model import Effect
from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import Key, Lookup
from doubtless.engine.lookups import Absent, CouldNotAsk, Operation, Present
from doubtless.engine.reports import SessionRecord
from doubtless.engine.tools import Call
from doubtless.errors import DoubtlessError, NotSent, Rejected

__version__ = "0.1.0"

__all__ = [
    "Absent",
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
]
