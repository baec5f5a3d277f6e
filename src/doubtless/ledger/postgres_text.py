"""What is said to PostgreSQL: how one text of a statement becomes its, and its own statements."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from doubtless.ledger.codec import Value
from doubtless.ledger.steps import OUTGROWN

TURN_TIMEOUT_S: Final = 10  # how long a writer waits for its turn
OTHERS_TIMEOUT_MS: Final = 500  # how long a unit waits for rows of who takes no turns
IDLE_TIMEOUT_S: Final = 5  # a process that is stopped in its turn loses it after that
LOCK: Final = 0x44_42_54_31  # of migrations: "DBT1", and the name of the schema

_TOKENS: Final = re.compile(
    r"""
    '(?:[^']|'')*'                      # a string
  | "(?:[^"]|"")*"                      # a name
  | --[^\n]*                            # a comment
  | ::                                  # a cast
  | :(?P<name>[a-z_][a-z0-9_]*)
  | (?P<place>\?)
    """,
    re.VERBOSE | re.IGNORECASE,
)


@lru_cache(maxsize=2048)
def translated(sql: str) -> tuple[str, tuple[str, ...]]:
    """Turn `:name` and `?` into `$1`, `$2`, …; return the names by number too."""
    names: list[str] = []

    def replace(found: re.Match[str]) -> str:
        if found["place"]:
            names.append("")
            return f"${len(names)}"
        name = found["name"]
        if name is None:
            return found[0]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _TOKENS.sub(replace, sql), tuple(names)


def written(value: Value) -> bytes | None:
    """Write a value as the server reads it: as text, bytes as they are.

    Raises:
        ValueError: It is a text that no PostgreSQL holds.
        TypeError: It is nothing that a ledger holds.
    """
    match value:
        case None | bytes():
            return value
        case str():
            if "\0" in value:
                raise ValueError("PostgreSQL holds no NUL in a text")
            return value.encode()
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"{value} is too large for the ledger")
            return b"%d" % value
        case float():
            return repr(value).encode()
        case _:
            raise TypeError(f"a ledger holds no {type(value).__name__}")


# --- the clock, and who has the turn -------------------------------------------------------------

WALL: Final = "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"
# The wall clock is read when the row is ours, however long that took.
BEGIN: Final = "begin isolation level read committed read write"
TURN: Final = "select 1 from meta where tenant = 'main' for no key update"
TICK: Final = f"""
    with clock as materialized (select {WALL} as wall_ms)
    update meta
       set clock_floor_ms = greatest(clock_floor_ms, clock.wall_ms)
      from clock
     where tenant = 'main'
 returning clock_floor_ms, clock.wall_ms, clock_break_ms
"""  # noqa: S608 - nothing in it comes from outside
SIGN: Final = f"""
    insert into writer (tenant, id, number, at_ms)
    values ('main', :writer, :number, {WALL})
        on conflict (tenant, id) do update set number = excluded.number, at_ms = excluded.at_ms
"""  # noqa: S608 - nothing in it comes from outside
# In a turn, others' rows are waited for only briefly: a transaction of the user's, which takes no
# turns, may have added the same operation or object, and be open for long.
BRIEFLY: Final = f"set local lock_timeout = '{OTHERS_TIMEOUT_MS}ms'"
SAVEPOINT: Final = "savepoint unit"
BEGIN_READING: Final = "begin isolation level repeatable read read only"
LOOK: Final = f"""
    with clock as materialized (select {WALL} as wall_ms)
    select greatest(clock_floor_ms, clock.wall_ms), clock.wall_ms, clock_break_ms
      from meta, clock
     where tenant = 'main'
"""  # noqa: S608 - nothing in it comes from outside
WRITING: Final = (BEGIN, TURN, TICK, SIGN, BRIEFLY, SAVEPOINT, OUTGROWN)
READING: Final = (BEGIN_READING, LOOK, OUTGROWN)
# Asked once the turn of the lost connection is over: then it has committed, or never will. An id of
# a transaction would not do: another primary may have given the same one to somebody else.
COMMITTED: Final = """
    select 1 from writer where tenant = 'main' and id = :writer and number >= :number
"""
FORGET: Final = f"""
    delete from writer where tenant = 'main' and at_ms < {WALL} - :kept_ms
"""  # noqa: S608 - nothing in it comes from outside

# --- what workers share --------------------------------------------------------------------------

# Small statements of ours lock less than `for update` would: a transaction of the user's that only
# refers to an operation keeps nobody from taking it.
TAKE_DUE: Final = """
    select id
      from operation
     where tenant = :tenant and due_ms <= :now_ms
       and open = 1
       and state in ({states})
       and id not in (select json_array_elements_text(cast(:without as json)))
  order by due_ms
     limit :limit
       for no key update skip locked
"""
NEXT_DUE: Final = """
    select due_ms
      from operation
     where tenant = :tenant and open = 1
       and state in ({states})
       and id not in (select json_array_elements_text(cast(:without as json)))
  order by due_ms
     limit 1
"""
NOTIFY: Final = "select pg_notify(:channel, :payload)"
CHANNEL_MAX: Final = 63  # as for every name
# Whoever listens holds a lock that keeps nobody out: so the others can be counted.
LISTENERS: Final = 0x44_42_4C_31  # "DBL1", and the name of the schema
GREETING: Final = "select pg_notify(%(channel)s, %(payload)s)"
LISTENING: Final = "select pg_advisory_lock_shared(%(lock)s, hashtext(%(schema)s))"
OTHERS: Final = """
    select count(*)
      from pg_locks
     where locktype = 'advisory' and classid = %(lock)s and objsubid = 2
       and objid::bigint = hashtext(%(schema)s)::bigint & 4294967295
       and database = (select oid from pg_database where datname = current_database())
       and pid <> pg_backend_pid()
"""


def channel(schema: str) -> str:
    """Return the channel of the ledger in a schema; those of two with long names may be one."""
    return f"doubtless {schema}"[:CHANNEL_MAX]


# --- changes of the schema -----------------------------------------------------------------------

# Nobody may wait for these two in the server: `create index concurrently` would wait for them.
MIGRATING: Final = f"select pg_try_advisory_xact_lock({LOCK}, hashtext(:schema))::int"
MIGRATING_ALONG: Final = f"select pg_try_advisory_lock({LOCK}, hashtext(:schema))::int"
MIGRATED: Final = f"select pg_advisory_unlock({LOCK}, hashtext(:schema))"
JOIN: Final = f"""
    select pg_advisory_lock_shared(cast({LOCK} + cast(:number as int) as int), hashtext(:schema))
"""
SHUT_OUT: Final = f"""
    select coalesce(bool_and(pg_try_advisory_xact_lock({LOCK} + older, hashtext(:schema)))::int, 1)
      from generate_series(1, cast(:number as int) - 1) as older
"""  # noqa: S608 - nothing in it comes from outside
OLDER: Final = f"""
    select format('pid %s from %s, up to %s', held.pid, coalesce(host(client_addr), 'its own host'),
                  lpad((classid::bigint - {LOCK})::text, 4, '0'))
      from pg_locks as held
      join pg_stat_activity as session on session.pid = held.pid
     where locktype = 'advisory' and granted and held.pid <> pg_backend_pid()
       and database = (select oid from pg_database where datname = current_database())
       and classid::bigint between {LOCK} + 1 and {LOCK} + cast(:number as bigint) - 1
       and objid::bigint = hashtext(:schema)::bigint & 4294967295
     order by held.pid
"""  # noqa: S608 - nothing in it comes from outside
HAS_SCHEMA: Final = "select (to_regnamespace(:schema) is not null)::int"
IS_VALID: Final = """
    select indisvalid::int
      from pg_index
      join pg_class on pg_class.oid = indexrelid
     where relnamespace = to_regnamespace(:schema) and relname = :name
"""

# --- sessions ------------------------------------------------------------------------------------

DEFAULTS: Final[Mapping[str, str | int]] = {
    "target_session_attrs": "read-write",  # of several hosts the primary, whichever it is now
    "connect_timeout": 10,
    "fallback_application_name": "doubtless",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms that what was sent may wait for the other side to have it
}

# Nothing may ever cancel a COMMIT: not a time-out either.
SETTINGS: Final = f"""
    set statement_timeout = 0;
    set lock_timeout = '{TURN_TIMEOUT_S}s';
    set idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s';
    set search_path = "{{schema}}";
    set jit = off
"""
ASKED: Final = """
    select current_setting('server_encoding'), pg_is_in_recovery()::text, current_setting('fsync'),
           current_setting('full_page_writes'), current_setting('synchronous_commit')
"""
LOSES: Final = """
    select 1
     where current_setting('synchronous_standby_names') = ''
       and exists (select 1 from pg_stat_replication)
"""
CONTENT: Final = """
    select to_regclass(:schema || '.meta') is not null
           and to_regclass(:schema || '.migration') is not null,
           (select count(*)
              from pg_class
             where relnamespace = to_regnamespace(:schema))
"""

# --- what a check-up looks at --------------------------------------------------------------------

SETTINGS_SEEN: Final = """
    select name, current_setting(name)
      from pg_settings
     where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names',
                    'statement_timeout', 'transaction_timeout')
"""
SERVER_SEEN: Final = f"""
    select current_setting('server_encoding'), pg_is_in_recovery()::int,
           (select count(*) from pg_stat_replication),
           (select count(*) from pg_stat_replication where sync_state in ('sync', 'quorum')),
           least(current_setting('max_connections')::int
                 - current_setting('superuser_reserved_connections')::int,
                 (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user),
                 (select nullif(datconnlimit, -1)
                    from pg_database
                   where datname = current_database())),
           (select count(*) from pg_stat_activity where backend_type = 'client backend'),
           {WALL}, current_setting('server_version_num')::int
"""  # noqa: S608 - nothing in it comes from outside
