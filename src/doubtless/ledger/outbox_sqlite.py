"""A transaction of the user's on SQLite: what their statements may not do is refused before."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isnan
from typing import Final

from doubtless.errors import StatementRefused
from doubtless.ledger import migrate
from doubtless.ledger.codec import Value, integer_of
from doubtless.ledger.group import FLOOR
from doubtless.ledger.sqlite import Connection
from doubtless.ledger.transaction import Times

HARMLESS: Final = frozenset({"SELECT", "READ", "RECURSIVE", "REINDEX"})
ASKING: Final = frozenset(
    {
        "application_id",
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "foreign_key_check",
        "foreign_key_list",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
"""Pragmas that only tell something, whatever they are given."""
TELLING: Final = frozenset({"encoding", "foreign_keys", "journal_mode", "synchronous"})
"""Pragmas that only tell something as long as they are given nothing."""


def judge(action: str, names: Sequence[str]) -> str | None:
    """Say why a statement of the user's may not do something, or None.

    Args:
        action: SQLite's name of it (see its `sqlite3_set_authorizer`).
        names: What it concerns: two names that depend on the action, the database, the trigger.
    """
    first, second = names[0].lower(), names[1].lower()
    match action:
        case _ if action in HARMLESS:
            return None
        case "TRANSACTION" | "SAVEPOINT":
            return "the block itself begins and ends its transaction: leave it, or raise"
        case "ATTACH" | "DETACH":
            return "another database can't be part of the transaction (nor can it be vacuumed)"
        case "PRAGMA":
            asks = first in ASKING or (first in TELLING and not second)
            return None if asks else f"pragma {names[0]} may not be set in a transaction"
        case "FUNCTION":
            return "extensions are not loaded here" if second == "load_extension" else None
    ours = migrate.own_names()
    for name, shown in ((first, names[0]), (second, names[1])):
        if name in ours:
            return f"{shown} is a table or an index of the ledger's own: only doubtless changes it"
    return None


class SqliteDesk:
    """The connection of a transaction, where their statements and our units take turns."""

    def __init__(self, connection: Connection, *, clock: Callable[[], int]) -> None:
        self.session: Final = connection
        self._clock: Final = clock

    def begin(self) -> Times:
        """Take the write lock; wait for others who have it."""
        self.session.begin(write=True)
        wall_ms = self._clock()
        now_ms, break_ms = self.session.execute(FLOOR, {"wall_ms": wall_ms})[0]
        self.session.guard(judge)
        return integer_of(now_ms), wall_ms, integer_of(break_ms)

    def run(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run a statement of theirs and return how many rows it changed."""
        with self._statement(params):
            return self.session.change(sql, params)

    def rows(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Run a statement of theirs and return its rows."""
        with self._statement(params):
            return self.session.named(sql, params)

    @contextmanager
    def _statement(self, params: Mapping[str, Value]) -> Iterator[None]:
        for name, value in params.items():
            if isinstance(value, float) and isnan(value):
                raise ValueError(f":{name} is NaN, which SQLite would store as null")
        self.session.refused = None
        try:
            yield
        except KeyError as error:
            raise StatementRefused(f"no value was given for :{error.args[0]}") from None

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Run a unit of ours, unguarded."""
        self.session.guard(None)
        try:
            yield
        finally:
            self.session.guard(judge)

    def conclude(self) -> None:
        """Be sure that nothing of theirs is still to be judged, before the commit."""
        self.session.guard(None)

    def rollback(self) -> None:
        """Take everything back."""
        self.session.guard(None)
        self.session.rollback()
