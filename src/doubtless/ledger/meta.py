"""Facts about the ledger as a whole. They stand in the row of the tenant "main"."""

from typing import Final

from doubtless.ledger.codec import integer_of
from doubtless.ledger.store import Transaction

CLOCK_BREAK: Final = "select clock_break_ms from meta where tenant = 'main'"
SET_CLOCK_BREAK: Final = """
    update meta
       set clock_break_ms = :at_ms
     where tenant = 'main' and clock_break_ms < :at_ms
"""


def clock_break(tx: Transaction) -> int:
    """Return the last instant at which the clock could not be trusted; 0 if there was none."""
    return integer_of(tx.tuples(CLOCK_BREAK)[0][0])


def set_clock_break(tx: Transaction, at_ms: int) -> None:
    """Record that the clock could not be trusted at `at_ms`. An earlier instant changes nothing."""
    tx.run(SET_CLOCK_BREAK, at_ms=at_ms)
