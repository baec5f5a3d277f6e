"""What is asked of a PostgreSQL server before a ledger is trusted to it."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, Protocol

from doubtless.ledger import postgres_text as text
from doubtless.ledger.codec import Row, Value, integer_of
from doubtless.ledger.postgres_errors import check_server

WRITERS_KEPT_MS: Final = 7 * 86_400_000


class Where(Protocol):
    """The place of a ledger."""

    @property
    def schema(self) -> str:
        """The schema that its tables stand in."""
        ...

    @property
    def shown(self) -> str:
        """How it is called in what people read."""
        ...


class Checks:
    """A connection, as far as its server and its schema are looked at."""

    place: Where
    version: int  # of the server: 170_004 is 17.4

    @abstractmethod
    def execute(self, sql: str, params: Mapping[str, Value]) -> list[Row]:
        """Run one statement to its end and return its rows."""

    @abstractmethod
    def script(self, sql: str) -> None:
        """Run statements that take no values."""

    def assert_durable(self) -> None:
        """Check that the server keeps what it acknowledges, and see to it for this session.

        Raises:
            LedgerUnsafe: it doesn't.
            LedgerError: it is too old, or its database isn't in UTF-8.
            LedgerUnavailable: it is a standby, or can't be asked.
        """
        found = [str(value) for value in self.execute(text.ASKED, {})[0]]
        check_server(self.place.shown, self.version, *found)
        if found[-1] != "remote_apply":
            self.script("set synchronous_commit = on")

    def content(self) -> tuple[bool, int]:
        """Return whether a ledger stands in the schema, and how many things do.

        Raises:
            LedgerUnavailable: it can't be read.
        """
        is_ledger, count = self.execute(text.CONTENT, {"schema": self.place.schema})[0]
        return bool(is_ledger), integer_of(count)

    def mark(self) -> None:
        """Mark an empty schema as a ledger's: its tables do."""

    def forget_writers(self) -> None:
        """Forget the connections of long ago, about which nobody can ask any more."""
        self.execute(text.FORGET, {"kept_ms": WRITERS_KEPT_MS})

    def loses_on_failover(self) -> bool:
        """Whether standbys follow the server, and no commit waits for one of them."""
        return bool(self.execute(text.LOSES, {}))
