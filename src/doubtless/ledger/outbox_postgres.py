"""A transaction of the user's on PostgreSQL: what they did to the ledger is seen, and taken back.

Their statements run under the search path that their role and database have, ours under the
ledger's schema alone. Nothing on the server asks us before a statement is carried out. Each is a
savepoint of its own therefore, and after it we look at what it did to our tables and settings.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from doubtless.errors import StatementRefused
from doubtless.ledger import postgres_statements as statements
from doubtless.ledger.codec import Value, text_of
from doubtless.ledger.postgres import Answer, Connection
from doubtless.ledger.transaction import Times

GRACE_MS: Final = 500  # after which the server ends what a stopped process can't

# Temporary tables come first unless they are named, and one of theirs could have a name of ours.
OURS: Final = """
    select set_config('search_path', :schema || ', pg_temp', true),
           set_config('lock_timeout', :lock_timeout, true)
"""
THEIRS: Final = """
    select set_config('search_path', :path, true), set_config('lock_timeout', '0', true)
"""
SURROUNDINGS: Final = """
    select (select reset_val from pg_settings where name = 'search_path'),
           current_setting('lock_timeout'),
           (select array_agg(oid)::text
              from pg_class
             where relnamespace = to_regnamespace(:schema) and relkind = 'r')
"""
# Rows that were changed in tables of ours by this transaction; strong locks on anything in our
# schema, which change what stands there; and the settings that ours rely on.
SEEN: Final = """
    select (select sum(pg_stat_get_xact_tuples_inserted(each)
                       + pg_stat_get_xact_tuples_updated(each)
                       + pg_stat_get_xact_tuples_deleted(each))::bigint
              from unnest(cast(:tables as oid[])) as each),
           (select string_agg(relname || mode, ' ' order by relname, mode)
              from pg_locks
              join pg_class on pg_class.oid = relation
             where locktype = 'relation' and pid = pg_backend_pid()
               and database = (select oid from pg_database where datname = current_database())
               and relnamespace = to_regnamespace(:schema)
               and mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')),
           concat_ws(' ', current_user, session_user, current_setting('search_path'),
                     current_setting('client_encoding'), current_setting('lock_timeout'),
                     current_setting('idle_in_transaction_session_timeout'),
                     current_setting('session_replication_role'),
                     current_setting('standard_conforming_strings'),
                     current_setting('statement_timeout'), current_setting('synchronous_commit'),
                     current_setting('track_counts'), current_setting('transaction_read_only'))
"""
CHANGED: Final = (
    "it changes the ledger's own tables: only doubtless does",
    "it changes what stands in the ledger's schema: keep your own in another one",
    "it changes a setting that the ledger relies on",
)


class PostgresDesk:
    """The connection of a transaction, where their statements and our units take turns."""

    def __init__(self, connection: Connection, *, limit_s: float) -> None:
        self.session: Final = connection
        self._limit_ms: Final = round(limit_s * 1000)
        self._schema: Final = connection.place.schema
        self._path = self._lock_timeout = self._tables = ""

    def begin(self) -> Times:
        """Take the turn; wait for others who have it."""
        session, idle_ms = self.session, self._limit_ms + GRACE_MS
        session.script(f"set idle_in_transaction_session_timeout = {idle_ms}")
        times = session.begin(write=True)
        found = session.execute(SURROUNDINGS, {"schema": self._schema})[0]
        self._path, self._lock_timeout, self._tables = map(text_of, found)
        session.savepoint()
        self._turn_to_ours()
        return times

    def run(self, sql: str, params: Mapping[str, Value]) -> int:
        """Run a statement of theirs and return how many rows it changed."""
        return self._do(sql, params)[2]

    def rows(self, sql: str, params: Mapping[str, Value]) -> list[dict[str, Value]]:
        """Run a statement of theirs and return its rows."""
        rows, names, _ = self._do(sql, params)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _do(self, sql: str, params: Mapping[str, Value]) -> Answer:
        numbered, names = statements.read(sql)
        for name in names:
            if name not in params:
                raise StatementRefused(f"no value was given for :{name}")
        with self._theirs():
            return self.session.once(numbered, [params[name] for name in names])

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        session = self.session
        session.savepoint()
        try:
            session.execute(THEIRS, {"path": self._path})
            before = self._seen()
            yield
            if not session.in_transaction:
                return  # whoever holds the transaction is told that it is over
            for was, found, why in zip(before, self._seen(), CHANGED, strict=True):
                if was != found:
                    raise StatementRefused(why)
            self._turn_to_ours()
            session.keep()
        except BaseException:
            if session.broken is None and session.in_transaction:
                session.undo()
            raise

    def _seen(self) -> tuple[Value, ...]:
        asked: dict[str, Value] = {"schema": self._schema, "tables": self._tables}
        return self.session.execute(SEEN, asked)[0]

    def _turn_to_ours(self) -> None:
        asked: dict[str, Value] = {"schema": self._schema, "lock_timeout": self._lock_timeout}
        self.session.execute(OURS, asked)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Run a unit of ours."""
        yield

    def conclude(self) -> None:
        """Let what they deferred to the end happen now, under their search path, and look at it.

        Raises:
            LedgerError: A constraint of theirs says no.
            StatementRefused: A trigger of theirs changes what is ours.
        """
        with self._theirs():
            self.session.once("set constraints all immediate", [])

    def rollback(self) -> None:
        """Take everything back."""
        self.session.rollback()
