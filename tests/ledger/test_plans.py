"""Plans: what each statement would read, asked of both databases beside many settled operations."""

import json
import re
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from tests.ledger.test_both import postgres_place, statements

from doubtless.core.model import State
from doubtless.ledger import inbox, listing, migrate, sqlite
from doubtless.ledger.postgres_text import translated
from doubtless.ledger.store import open_ledger
from doubtless.testing import scale_load

SETTLED = 20_000
PAGE = 50
COST_MAX = 1_600.0  # in PostgreSQL's units: a page read in order is 1, one read at random 4
GROWS = frozenset(
    {"operation", "attempt", "evidence", "journal", "body", "settlement", "event", "archived"}
)
"""Tables that get larger with every operation."""
OTHERS = re.compile(r"set_config|pg_|current_setting|explain")  # about the server itself
SERVERS = re.compile(r"json_array_elements")  # in the words of a server alone

Plan = dict[str, Any]

LISTS = [
    listing._find(tuple(sorted([*names, *cursor])), tuple(states))  # noqa: SLF001
    for states in (
        (),
        (State.SUCCEEDED,),
        (State.SUCCEEDED, State.FAILED),
        (State.FAILED,),
        (State.REJECTED, State.CANCELLED),
        (State.UNKNOWN,),
        (State.MANUAL_REVIEW,),
        (State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW),
    )
    for names in [(), *((name,) for name in listing.CONDITIONS if name != "cursor")]
    for cursor in ((), ("cursor",))
]
EVENTS = [
    inbox.LIST.replace("{conditions}", conditions)
    for page in ("", " and position < :before")
    for conditions in (
        f"and lower(tenant) = :tenant{page}",
        f"and lower(tenant) = :tenant {inbox.MATCHED}{page}",
        f"{inbox.UNMATCHED}{page}",
        f"and source = :source{page}",
        f"{inbox.MATCHED} and source = :source{page}",
        f"{inbox.UNMATCHED} and source = :source{page}",
    )
]
SORTED = {
    "a file sorts one session where nobody says whose": re.compile(
        r"session_id = :session_id(?! and principal)"
    ),
    "a file looks through all events by a provider's id, if only a person names it": re.compile(
        r"and event_id = :event_id order by position limit 2"
    ),
}
"""What is known, and told in docs/scaling.md."""


def texts() -> Iterator[str]:
    """Yield every statement once, with a page of a length that the database knows."""
    every = (text for _, text in statements())
    for text in dict.fromkeys([*every, *LISTS, *EVENTS]):
        if not OTHERS.search(text):
            yield text.replace("limit :limit", f"limit {PAGE}")


def complaints(node: Plan, *, limited: bool = False) -> Iterator[str]:
    """Yield what a plan does that costs more, the more operations are settled."""
    table, kind, rows = node.get("Relation Name"), node["Node Type"], node["Plan Rows"]
    inner = node.get("Plans", [])
    if table in GROWS:
        where = f"{kind} on {table} by {node.get('Index Name')}"
        if kind == "Seq Scan":
            yield f"{where}: all of it"
        elif not limited and rows > 5 * PAGE:
            yield f"{where}: {rows} rows"
    if node["Total Cost"] > COST_MAX and not limited:
        yield f"cost {node['Total Cost']}"
    if "Sort" in kind and inner[0]["Plan Rows"] > 5 * PAGE:
        yield f"{kind} of {inner[0]['Plan Rows']} rows"
    for each in inner:
        yield from complaints(each, limited=(limited or kind == "Limit") and kind != "Sort")


ARCHIVED = """
    set session_replication_role = replica;
    insert into archived (tenant, operation_id, month, at_ms, evidence, digest)
    select tenant, id, 202601, 1, 1, '' from operation where position % 2 = 0;
    set session_replication_role = origin;
    analyze
"""


@pytest.fixture(scope="module")
def loaded(postgres) -> Iterator[migrate.Connection]:
    """A connection to a ledger with many settled operations and a few open ones."""
    place = postgres_place(postgres.fresh())
    url = f"{postgres.base}&schema={place.schema}"
    open_ledger(url).close()
    anyio.run(scale_load.carry_out_patterns, url)
    scale_load.fill(url, SETTLED, told=lambda _: None)
    anyio.run(scale_load.leave_open, url, 40)
    connection = place.connect()
    connection.script(ARCHIVED)
    yield connection
    connection.script(f'drop schema "{place.schema}" cascade')
    connection.close()


def sizes_of(connection) -> dict[str, float]:
    asked = """
        select relname::text, reltuples::bigint
          from pg_class
         where relnamespace = current_schema()::regnamespace and relkind = 'r'
    """
    return {str(name): float(count) for name, count in connection.execute(asked, {})}


def plan_of(connection, text: str) -> Plan:
    numbered, _ = translated(text)
    told = connection._pgconn.exec_(  # noqa: SLF001 - the plan for any values, as it would be kept
        f"explain (generic_plan, format json) {numbered}".encode()
    )
    plan: Plan = json.loads(told.get_value(0, 0))[0]["Plan"]
    return plan


@pytest.mark.proves("SCALE-6")
def test_no_statement_costs_more_on_a_server_because_much_is_settled(loaded):
    sizes = sizes_of(loaded)
    assert sizes["operation"] >= SETTLED
    assert sizes["event"] > SETTLED / 30
    found, count = [], 0
    for text in texts():
        plan, count = plan_of(loaded, text), count + 1
        wrong = list(complaints(plan))
        if wrong:
            found.append((" ".join(text.split()), wrong))
    assert found == [], "\n".join(map(str, found))
    assert count > 250


@pytest.mark.proves("SCALE-6")
@pytest.mark.parametrize(
    "text",
    [
        "select id from operation where tenant = :tenant and confirmed_state = :state",
        "select id from operation where tenant = :tenant order by updated_ms limit 50",
        "select count(*) from journal where tenant = :tenant",
        "select id from operation where tenant = :tenant and tool = :tool order by id",
    ],
)
def test_a_statement_that_reads_or_sorts_more_the_more_is_settled_is_noticed(loaded, text):
    plan = plan_of(loaded, text)
    assert list(complaints(plan)) != []


SORTED_FEW = (
    *("operation_due", "operation_open", "operation_waiting"),
    *("event_unmatched", "event_value", "dependency_after"),
    # Of ends that few operations come to; a page of several sorts them all.
    "operation_undone",
)
"""What is found so may be sorted: it is little, and doesn't grow as operations succeed."""


@pytest.mark.proves("SCALE-6")
def test_no_statement_scans_or_sorts_what_is_settled_in_a_file():
    connection = sqlite.Connection(sqlite.Place(path=""))
    for migration in migrate.known("sqlite"):
        connection.script(migration.text)
    found = []
    for text in texts():
        if SERVERS.search(text):
            continue
        _, names = translated(text)
        values = dict.fromkeys(names) if names != ("",) * 4 else (None,) * 4
        plan = [str(row[3]) for row in connection.execute(f"explain query plan {text}", values)]
        few = any(f" {name} " in step for step in plan for name in SORTED_FEW)
        grown = any(step.startswith(f"SCAN {table} ") for step in plan for table in GROWS)
        grown |= any(step == f"SCAN {table}" for step in plan for table in GROWS)
        touched = any(f"SEARCH {table} " in step for step in plan for table in GROWS)
        sorts = touched and any("TEMP B-TREE FOR ORDER BY" in step for step in plan)
        known = any(each.search(" ".join(text.split())) for each in SORTED.values())
        if grown or (sorts and not few and not known):
            found.append((" ".join(text.split()), plan))
    connection.close()
    assert found == [], "\n".join(map(str, found))
