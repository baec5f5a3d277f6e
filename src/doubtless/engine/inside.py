"""Whether this task is inside a transaction of the user's: what would wait for it is refused."""

from contextvars import ContextVar
from typing import Protocol

from doubtless.errors import InsideTransaction


class Span(Protocol):
    """A transaction, as long as it is open."""

    @property
    def is_open(self) -> bool:
        """Whether it holds the ledger's write lock."""
        ...


BLOCKING: ContextVar[bool] = ContextVar("doubtless_blocking", default=False)
"""Whether somebody on another thread waits for this call, who has no event loop."""
INSIDE: ContextVar[Span | None] = ContextVar("doubtless_transaction", default=None)


def stay_out(what: str) -> None:
    """Be sure that this task holds no transaction open.

    Raises:
        InsideTransaction: It does, and would wait for what only itself can end.
    """
    span = INSIDE.get()
    if span is not None and span.is_open:
        raise InsideTransaction(what)
