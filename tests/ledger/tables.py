"""What stands in a ledger's schema, told the same way of both databases."""

from typing import TypeAlias

from doubtless.ledger.codec import text_of
from doubtless.ledger.migrate import Connection
from doubtless.ledger.sqlite import Connection as SqliteConnection

Columns: TypeAlias = dict[str, dict[str, tuple[str, bool]]]

SQLITE_COLUMNS = """
    select lower(tables.name), lower(columns.name), lower(columns.type),
           "notnull" or pk <> 0 and tables.type = 'table'
      from sqlite_schema as tables
      join pragma_table_info(tables.name) as columns
     where tables.type = 'table' and tables.name not like 'sqlite_%'
"""
POSTGRES_COLUMNS = """
    select table_name::text, column_name::text, data_type::text, (is_nullable = 'NO')::int
      from information_schema.columns
     where table_schema = current_schema()
"""
SQLITE_OTHERS = """
    select name from sqlite_schema where type in ('index', 'trigger') and sql is not null
"""
POSTGRES_OTHERS = """
    select relname::text
      from pg_class
      join pg_index on pg_index.indexrelid = pg_class.oid
     where relnamespace = current_schema()::regnamespace
       and not exists (select 1 from pg_constraint where conindid = pg_class.oid)
     union all
    select tgname::text
      from pg_trigger
      join pg_class on pg_class.oid = pg_trigger.tgrelid
     where relnamespace = current_schema()::regnamespace and not tgisinternal
"""
KINDS = {"blob": "bytes", "bytea": "bytes", "bigint": "integer"}


def columns(connection: Connection) -> Columns:
    """Return type and "never null" of every column of every table."""
    on_sqlite = isinstance(connection, SqliteConnection)
    found: Columns = {}
    for row in connection.execute(SQLITE_COLUMNS if on_sqlite else POSTGRES_COLUMNS, {}):
        table, column, kind = (text_of(value) for value in row[:3])
        found.setdefault(table, {})[column] = (KINDS.get(kind, kind), bool(row[3]))
    return found


def others(connection: Connection) -> set[str]:
    """Return the names of what else was made: indexes and triggers."""
    on_sqlite = isinstance(connection, SqliteConnection)
    rows = connection.execute(SQLITE_OTHERS if on_sqlite else POSTGRES_OTHERS, {})
    return {text_of(row[0]) for row in rows}
