"""Fill a PostgreSQL ledger with settled operations as the engine writes them, quickly.

The engine carries out three operations; their rows, all of them, are the patterns. Each row of the
load is such a row with another id, reference, key, object, principal, session and time, so that its
shape can't differ from what the engine writes. What is said twice stays as the engine said it:
times within the journal's texts, and digests of bodies.

For measurements only: while it loads, triggers and foreign keys of its sessions are off, indexes
are not kept up but built afterwards, and commits don't wait for the disk.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from doubtless.core.model import Effect, Json, Principal, Role
from doubtless.engine.app import Doubtless
from doubtless.engine.tools import Call
from doubtless.errors import SettingsError
from doubtless.ledger import inbox, migrate
from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.migrate import Connection
from doubtless.ledger.store import Transaction

TENANT: Final = "main"
APART_MS: Final = 2_600  # between two operations: ten million take ten months
CHUNK: Final = 250_000
BYTES_EACH: Final = 5_800  # on disk, with all indexes, and room to build them

ID: Final = "sample{:026}"  # as long as an id of ours
CHARGE: Final = "ch_{:012}"
PRINCIPAL: Final = "agent-{:03}"
SESSION: Final = "s-{:08}"


class Refused(Exception):
    """The made-up provider says no."""


def application(ledger: str, *, principal: str = PRINCIPAL.format(0)) -> Doubtless:
    """Return an application with the tools of the load, without a worker."""
    app = Doubtless(ledger, principal=principal, worker=False)

    @app.tool(effect=Effect.MONEY, business_key=["charge"])
    async def refund(_call: Call, charge: str, amount: int) -> dict[str, object]:
        return {"refund": f"re_{charge}", "amount": amount, "status": "succeeded"}

    @app.tool(effect=Effect.WRITE)
    async def ticket(_call: Call, charge: str, text: str) -> dict[str, object]:
        return {"ticket": f"t_{charge}", "text": text}

    @app.tool(effect=Effect.WRITE, rejected=[Refused])
    async def tariff(_call: Call, charge: str) -> dict[str, object]:
        raise Refused(charge)

    @app.tool(effect=Effect.TIME_SENSITIVE, valid_for="2m")
    async def notify(_call: Call, charge: str) -> dict[str, object]:
        raise ConnectionResetError(charge)

    return app


async def carry_out_patterns(ledger: str) -> None:
    """Have the engine carry out what the load repeats."""
    charge, session = CHARGE.format(0), SESSION.format(0)
    calls: Sequence[tuple[str, dict[str, Json]]] = (
        ("refund", {"charge": charge, "amount": 500}),
        ("ticket", {"charge": charge, "text": "the customer says that it is broken"}),
        ("tariff", {"charge": charge}),
    )
    async with application(ledger) as app:
        for number, (tool, arguments) in enumerate(calls):
            await app.call(tool, arguments, operation_id=ID.format(number), session_id=session)
        await app.ledger.commit(_pattern_of_an_event)


def _pattern_of_an_event(tx: Transaction) -> None:
    event = inbox.insert(
        tx,
        TENANT,
        source="refund",
        event_id="evt_0",
        type="refund.updated",
        delivered_by="refund",
        occurred_ms=tx.now_ms,
        digest="0" * 64,
        content=b'{"type":"refund.updated","refund":"re_1","status":"succeeded"}',
    )
    principal = Principal(name="refund", role=Role.PROVIDER)
    inbox.match(tx, TENANT, event, ID.format(0), principal=principal)


async def leave_open(ledger: str, count: int) -> None:
    """Leave operations open, half of them due and half in review."""
    async with application(ledger) as app:
        for number in range(count // 2):
            charge = f"open_{number:010}"
            await app.call("notify", {"charge": charge})
            await app.prepare("refund", {"charge": charge, "amount": 5})


def enough_room(folder: Path, count: int) -> None:
    """Be sure that the disk has room for the load.

    Raises:
        SettingsError: It hasn't.
    """
    free, need = shutil.disk_usage(folder).free, count * BYTES_EACH
    if need > free:
        raise SettingsError(
            f"{count:,} operations take {need / 1e9:.0f} GB; {folder} has {free / 1e9:.0f} GB free"
        )


# --- what differs from the pattern ---------------------------------------------------------------

# Of twenty operations one is refused, and two name no object. An id begins with the time, as ours.
NEW: Final = f"""
    select n,
           {{first_ms}} + n * {APART_MS} as at_ms,
           lpad(to_hex({{first_ms}} + n * {APART_MS}), 12, '0') || right(md5(n::text), 20) as id,
           right(md5(n || 'ref'), 26) as ref,
           md5(n || 'key')::uuid::text as key,
           'sha256:' || encode(sha256(convert_to(n::text, 'UTF8')), 'hex') as hash,
           'ch_' || lpad(n::text, 12, '0') as charge,
           'agent-' || lpad((n / 20 % 50)::text, 3, '0') as principal,
           's-' || lpad((n / 20)::text, 8, '0') as session_id,
           case n % 20 when 0 then '{ID.format(2)}' when 1 then '{ID.format(1)}'
                       when 2 then '{ID.format(1)}' else '{ID.format(0)}' end as pattern
      from generate_series({{first}}::bigint, {{last}}::bigint) as n
     where n % {{every}} = 0
"""  # noqa: S608 - nothing in it comes from outside
INSERT: Final = f"""
    insert into {{table}} ({{columns}})
    overriding system value
    select {{values}}
      from ({NEW}) as new
      join {{patterns}}.operation as old on old.id = new.pattern
      join {{patterns}}.{{table}} as row on row.{{owner}} = new.pattern
"""  # noqa: S608 - nothing in it comes from outside


def _text(column: str) -> str:
    """Write a pattern's text with what names the new operation in place of the old one."""
    found = f"row.{column}"
    for old, new in (
        ("old.id", "new.id"),
        ("old.ref", "new.ref"),
        ("old.key", "new.key"),
        ("old.payload_hash", "new.hash"),
        (f"'{CHARGE.format(0)}'", "new.charge"),
        (f"'{PRINCIPAL.format(0)}'", "new.principal"),
        (f"'{SESSION.format(0)}'", "new.session_id"),
    ):
        found = f"replace({found}, {old}, {new})"
    return found


def _shifted(*names: str) -> dict[str, str]:
    return {name: f"row.{name} - old.created_ms + new.at_ms" for name in names}


@dataclass(frozen=True, slots=True)
class _Table:
    """How one table is filled: the columns that differ from the pattern's."""

    name: str
    values: dict[str, str]
    counter: str | None = None  # the column that counts, in the order of creation
    owner: str = "operation_id"
    every: int = 1  # only for every so many operation
    columns: list[str] = field(default_factory=list)


_CONTENT: Final = (
    "convert_to(replace(convert_from(row.content, 'UTF8'),"
    f" '{CHARGE.format(0)}', new.charge), 'UTF8')"
)
_OWNED: Final = {"operation_id": "new.id"}
JOURNAL: Final = _Table(
    "journal",
    {
        **_OWNED,
        "seq": "new.n * 2 + row.seq % 2",
        "entries": _text("entries"),
        **_shifted("at_ms"),
    },
    counter="seq",
)
OTHERS: Final = (
    _Table(
        "operation",
        {
            "position": "new.n",
            "id": "new.id",
            "principal": "new.principal",
            "session_id": "new.session_id",
            "payload_hash": "new.hash",
            "request_digest": "new.hash",
            "ref": "new.ref",
            "key": "new.key",
            "business_key": _text("business_key"),
            "claim": _text("claim"),
            **_shifted("created_ms", "updated_ms", "valid_until_ms", "confirmed_ms"),
        },
        counter="position",
        owner="id",
    ),
    _Table(
        "attempt",
        {
            **_OWNED,
            "correlation_id": _text("correlation_id"),
            **_shifted("opened_ms", "lease_end_ms", "sent_by_ms", "ended_ms", "closed_ms"),
        },
    ),
    _Table("evidence", {**_OWNED, **_shifted("at_ms", "begun_ms")}),
    _Table("body", {**_OWNED, "content": _CONTENT, **_shifted("at_ms")}),
    _Table("settlement", {**_OWNED, "seq": "new.n", **_shifted("at_ms")}, counter="seq"),
    _Table(
        "event",
        {
            **_OWNED,
            "position": "new.n",
            "event_id": "'evt_' || new.id",
            **_shifted("received_ms", "matched_ms"),
        },
        counter="position",
        every=10,
    ),
)
TABLES: Final = (*OTHERS, JOURNAL)

# --- loading -------------------------------------------------------------------------------------

SESSION_SETTINGS: Final = """
    set session_replication_role = replica;
    set synchronous_commit = off;
    set maintenance_work_mem = '1GB';
    set lock_timeout = 0;
    set idle_in_transaction_session_timeout = 0
"""
SET_ASIDE: Final = """
    create unlogged table {patterns}.{table} as
        select * from {table} where {owner} like 'sample%';
    delete from {table}
"""
COLUMNS: Final = """
    select column_name::text
      from information_schema.columns
     where table_schema = current_schema() and table_name = :name
  order by ordinal_position
"""
INDEXES_OFF: Final = """
    update pg_index
       set indisready = false, indisvalid = false
     where indrelid = '{table}'::regclass
"""


def fill(url: str, count: int, *, told: Callable[[str], None] = print) -> None:
    """Write `count` settled operations in place of the patterns; build indexes and statistics.

    Args:
        url: A PostgreSQL ledger that holds the patterns and nothing else; its user is a superuser.
        count: How many.
        told: Is told what was done, and how long it took.
    """
    place = migrate.parse(url)
    connection = _open(place)
    schema = text_of(connection.execute("select current_schema()::text", {})[0][0])
    patterns = f"{schema}_patterns"
    connection.script(f"drop schema if exists {patterns} cascade; create schema {patterns}")
    rows = connection.execute("select max(created_ms) from operation where tenant = 'main'", {})
    first_ms = integer_of(rows[0][0]) - (count + 1) * APART_MS
    for table in TABLES:
        table.columns[:] = [
            text_of(row[0]) for row in connection.execute(COLUMNS, {"name": table.name})
        ]
        said = {"patterns": patterns, "table": table.name, "owner": table.owner}
        connection.script(SET_ASIDE.format(**said) + ";" + INDEXES_OFF.format(**said))
    connection.close()

    def part(tables: Sequence[_Table]) -> None:
        _load(place, patterns, tables, first_ms, count, told)

    with ThreadPoolExecutor(2) as threads:  # the journal is half of it all
        list(threads.map(part, (OTHERS, (JOURNAL,))))
    connection = _open(place)
    connection.script(f"drop schema {patterns} cascade")
    connection.close()


def _open(place: migrate.Place) -> Connection:
    connection = migrate.open_connection(place)
    connection.script(SESSION_SETTINGS)
    return connection


def _load(
    place: migrate.Place,
    patterns: str,
    tables: Sequence[_Table],
    first_ms: int,
    count: int,
    told: Callable[[str], None],
) -> None:
    connection = _open(place)
    for table in tables:
        began_s = time.monotonic()
        values = [table.values.get(name, f"row.{name}") for name in table.columns]
        for first in range(1, count + 1, CHUNK):
            connection.script(
                INSERT.format(
                    table=table.name,
                    columns=", ".join(table.columns),
                    values=", ".join(values),
                    patterns=patterns,
                    owner=table.owner,
                    every=table.every,
                    first_ms=first_ms,
                    first=first,
                    last=min(first + CHUNK - 1, count),
                )
            )
        loaded_s = time.monotonic()
        connection.script(f"reindex table {table.name}")
        if table.counter is not None:
            _continue_after(connection, table)
        indexed_s = time.monotonic()
        connection.script(f"vacuum analyze {table.name}")
        told(
            f"{table.name}: rows {loaded_s - began_s:.0f} s, indexes {indexed_s - loaded_s:.0f} s,"
            f" vacuum {time.monotonic() - indexed_s:.0f} s"
        )
    connection.close()


def _continue_after(connection: Connection, table: _Table) -> None:
    """Let the numbers that come next follow those of the load."""
    connection.script(
        f"select setval(pg_get_serial_sequence('{table.name}', '{table.counter}'),"  # noqa: S608 - as above
        f" (select max({table.counter}) from {table.name}))"
    )
