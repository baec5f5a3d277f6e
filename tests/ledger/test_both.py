"""One text for both databases: the same schema by number, and statements that both understand."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.ledger import tables

from doubtless.ledger import (
    attempts,
    inbox,
    journal,
    listing,
    migrate,
    operations,
    postgres,
    postgres_text,
    sqlite,
    tokens,
)
from doubtless.ledger.postgres_text import translated
from doubtless.ledger.store import open_ledger

FOR_A_SERVER = {"foreign", "outbox_postgres", "postgres", "postgres_text"}
MODULES = sorted(
    file.stem
    for file in Path(operations.__file__).parent.glob("*.py")
    if file.stem not in {"__init__", "checkup", "sqlite", *FOR_A_SERVER}
)
STATEMENT = re.compile(r"\s*(select|insert|update|delete)\s")
ONLY_SQLITE = {"select lower(name) from sqlite_schema"}
ONLY_POSTGRES = {"writer"}
FILLED = {
    "{changed}": "state = :state, version = :version",
    "{states}": "'prepared', 'unknown'",
    "{limit}": "50",
    "{conditions}": "and source = :source",
}


def texts(module: str) -> Iterator[str]:
    """Yield every statement of a module: its constants, and what stands within its functions."""
    found = importlib.import_module(f"doubtless.ledger.{module}")
    constants = [value for _, value in inspect.getmembers(found) if isinstance(value, str)]
    for function in ast.walk(ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            constants += [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    for text in constants:
        if STATEMENT.match(text) and " ".join(text.split()) not in ONLY_SQLITE:
            yield text


def statements() -> Iterator[tuple[str, str]]:
    for module in MODULES:
        for text in texts(module):
            filled = text
            for place, content in FILLED.items():
                filled = filled.replace(place, content)
            if "{" in filled:
                assert "{columns}" in filled or "{table}" in filled, filled
                continue  # a template that another constant of the module fills
            yield module, filled
    for name in listing.CONDITIONS:
        yield "listing", listing._find((name,), ())  # noqa: SLF001
    for matched in (f"and lower(tenant) = :tenant {inbox.MATCHED}", inbox.UNMATCHED):
        yield "inbox", inbox.LIST.replace("{conditions}", matched)


@pytest.mark.proves("PG-1")
def test_every_statement_of_the_ledger_is_understood_by_both_databases(postgres):
    place = postgres_place(postgres.empty())
    theirs, ours = place.connect(), sqlite.Connection(sqlite.Place(path=""))
    for migration in migrate.known():
        ours.script(migration.text)
    count = 0
    for module, sql in statements():
        count += 1
        numbered, names = translated(sql)
        told = theirs._pgconn.prepare(b"", numbered.encode())  # noqa: SLF001
        assert told.status == psycopg.pq.ExecStatus.COMMAND_OK, (module, sql, told.error_message)
        ours.execute(f"explain {sql}", dict.fromkeys(names) if names != ("",) * 4 else (None,) * 4)
    assert count > 100
    theirs.close()
    ours.close()


def postgres_place(url: str) -> postgres.Place:
    place = migrate.parse(url)
    assert isinstance(place, postgres.Place)
    return place


@pytest.mark.proves("PG-1")
def test_both_databases_have_the_same_tables_columns_and_triggers_after_every_migration(postgres):
    theirs = postgres_place(postgres.fresh()).connect()
    ours = sqlite.Connection(sqlite.Place(path=""))
    migrate.begin(theirs)
    for mine, its in zip(migrate.known("sqlite"), migrate.known("postgres"), strict=True):
        ours.script(mine.text)
        theirs.script(its.within)
        assert mine.name == its.name
        found = tables.columns(theirs)
        for more in ONLY_POSTGRES:
            found.pop(more)
        assert found == tables.columns(ours), mine.name
        emptied = {name for name in tables.others(theirs) if name.endswith("_never_emptied")}
        assert tables.others(theirs) - emptied == tables.others(ours), mine.name
    theirs.close()
    ours.close()


@pytest.mark.proves("PG-12")
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (operations.GET, "operation_id_tenant_key"),
        (operations.VERSION, "operation_id_tenant_key"),
        (operations.UPDATE.replace("{changed}", "looks = :looks"), "operation_id_tenant_key"),
        (operations.LATER_TWIN, "operation_by_claim"),
        (listing.SUCCEEDED_TWIN, "operation_by_claim"),
        (listing.BY_KEY, "operation_key"),
        (listing.BY_REF, "operation_ref"),
        (listing.BY_PROVIDER, "operation_provider"),
        (attempts.EVIDENCE_OF, "evidence_pkey"),
        (journal.JOURNAL_OF, "journal_operation"),
        (inbox.BY_ID, "event_event_id_source_tenant_key"),
        (inbox.OF_OPERATION, "event_operation"),
        (tokens.BY_DIGEST, "token_digest_tenant_key"),
    ],
)
def test_a_new_server_finds_each_thing_by_what_tells_most_of_it(postgres, statement, index):
    # A plan that is made while a table is empty is kept, and then costs more with every row.
    place = postgres_place(postgres.fresh())
    open_ledger(f"{postgres.base}&schema={place.schema}").close()
    connection = place.connect()
    numbered, _ = translated(statement)
    result = connection._pgconn.exec_(f"explain (generic_plan) {numbered}".encode())  # noqa: SLF001
    lines = [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]
    connection.close()
    plan = "\n".join(lines)
    assert re.search(rf"(using|on) {index}\b", plan), plan
    assert "Filter: (tenant" not in plan, plan
    assert "Seq Scan" not in plan.replace("Seq Scan on meta", ""), plan


@pytest.mark.parametrize(
    ("sql", "numbered", "names"),
    [
        ("select :a, :b, :a", "select $1, $2, $1", ("a", "b")),
        ("select ':a', \":b\", :c -- :d\n + :c", "select ':a', \":b\", $1 -- :d\n + $1", ("c",)),
        ("select 'it''s :a' || :b::text", "select 'it''s :a' || $1::text", ("b",)),
        ("insert into t values (?, ?)", "insert into t values ($1, $2)", ("", "")),
        ("select '?', :a_b1", "select '?', $1", ("a_b1",)),
    ],
)
def test_placeholders_become_numbers_and_what_only_looks_like_one_stays(sql, numbered, names):
    assert postgres_text.translated(sql) == (numbered, names)
