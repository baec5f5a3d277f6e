"""Every statement that names a table is held to one tenant, by its structure."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ledger.scopes import WHOLE, complaints
from tests.ledger.test_both import FOR_A_SERVER, statements, texts
from tests.ledger.test_plans import EVENTS, LISTS

import doubtless
from doubtless.ledger import archive, migrate, postgres_text

PRODUCT = Path(doubtless.__file__).parent
SQL = re.compile(r"\s*(--[^\n]*\n\s*)*(with|select|insert|update|delete)\s")
PLACE = re.compile(r"\{[a-zA-Z_]*\}")
BY_PLACE = {
    "insert into journal (tenant, operation_id, at_ms, entries) values (?, ?, ?, ?)": (
        "many rows at once; the first place of each is the operation's own tenant"
    )
}
"""Statements whose values have no names, with the reason why they are well."""


@pytest.fixture(scope="module")
def tables() -> frozenset[str]:
    """Every table of either database: each has a tenant."""
    made = re.compile(r"create table (\w+) \((.*?)\n\)", re.DOTALL)
    texts = [migration.text for kind in ("sqlite", "postgres") for migration in migrate.known(kind)]
    found = [each.groups() for text in texts for each in made.finditer(text)]
    assert [table for table, columns in found if "tenant text" not in columns] == []
    return frozenset(table for table, _ in found)


def one_line(sql: str) -> str:
    return " ".join(sql.split())


def all_statements() -> set[str]:
    """All that is ever said to either database, with what is filled in while the program runs."""
    found = [sql for _, sql in statements()]
    found += [sql for module in (*FOR_A_SERVER, "checkup", "sqlite") for sql in texts(module)]
    found += [
        sql for sql in vars(postgres_text).values() if isinstance(sql, str) and SQL.match(sql)
    ]
    found += [*archive.IN, *archive.OUT, *archive.BACK, *archive.GONE]
    return {one_line(sql) for sql in (*found, *LISTS, *EVENTS)}


def in_code() -> Iterator[tuple[str, str]]:
    """Yield each text in the product's code that begins like a statement, and its file.

    What is filled in is a star.
    """
    for file in sorted(PRODUCT.rglob("*.py")):
        # What owners of an API keep of keys stands in a database of theirs, by caller.
        if "testing" in file.relative_to(PRODUCT).parts or file.name == "idempotency_store.py":
            continue
        pieces: set[int] = set()  # of texts with something to fill in, which come before them
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            text = ""
            if isinstance(node, ast.JoinedStr):
                pieces |= {id(each) for each in node.values}
                text = "".join(
                    str(each.value) if isinstance(each, ast.Constant) else "*"
                    for each in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if id(node) in pieces else node.value
            if SQL.match(text):
                yield file.name, one_line(PLACE.sub("*", text))


@pytest.mark.proves("SCALE-10")
def test_every_statement_touches_rows_of_one_tenant_alone(tables):
    every = all_statements() - BY_PLACE.keys()
    found = {sql: complaints(sql, tables) for sql in every}
    assert {sql: wrong for sql, wrong in found.items() if wrong} == {}
    assert len(every) > 250


@pytest.mark.proves("SCALE-10")
def test_no_statement_in_the_code_is_left_out(tables):
    """Those that are checked come from the ledger's modules; here, all code is looked through."""
    every = "\n".join(all_statements())
    names = re.compile(rf"\b(from|join|into|update) ({'|'.join(tables)}|[*])(\W|$)")
    missing, count = [], 0
    for file, text in in_code():
        if names.search(text):
            count += 1
            wanted = re.escape(text).replace(r"\*", "[^\n]*")
            if not re.search(rf"^{wanted}$", every, re.MULTILINE):
                missing.append((file, text))
    assert missing == [], missing
    assert count > 130
    assert WHOLE.keys() | {"archived_journal", "operation"} <= tables


GOOD = [
    "select id from operation where tenant = :tenant and (open = 1 or due_ms = 2)",
    "select o.id from operation as o join body on body.tenant = o.tenant where o.tenant = :tenant",
    "delete from body where tenant = :tenant and 1 in (select 1 from event where tenant = :tenant)",
    "insert into body (kind, tenant) select kind, tenant from event where tenant = :tenant",
]
BAD = {
    "nothing is said": "select id from operation where id = :id",
    "a way around": "select id from operation where tenant = :tenant or id = :id",
    "a no": "select id from operation where not tenant = :tenant",
    "more than one": "select id from operation where tenant >= :tenant",
    "another value": "select id from operation where tenant = :principal",
    "the ledger's": "select id from operation where tenant = 'main'",
    "only the other table": "select o.id from operation as o join body on body.operation_id = o.id "
    "where o.tenant = :tenant",
    "each by the other": "select o.id from operation as o join body as b on b.tenant = o.tenant",
    "by a comma": "select o.id from operation as o, body as b where o.tenant = :tenant",
    "an outer join": "select o.id from operation as o left join body as b on o.tenant = :tenant "
    "and b.tenant = o.tenant",
    "within": "select id from operation where tenant = :tenant and id in (select operation_id from "
    "body where kind = :kind)",
    "by one that isn't held": "select (select min(number) from body where body.tenant = "
    "operation.tenant) from operation where id = :id",
    "before it": "with some as (select id from operation) select id from some",
    "after a union": "select id from operation where tenant = :tenant union select id from event",
    "deleted": "delete from operation where id = :id",
    "changed": "update operation set state = :state where id = :id",
    "given away": "update operation set tenant = :tenant where tenant = :tenant",
    "held by what is set": "update operation set tenant = :tenant where id = :id",
    "added to nobody's": "insert into body (operation_id, kind) values (:operation_id, :kind)",
    "added without names": "insert into body values (:tenant, :operation_id)",
    "added to another": "insert into body (tenant, kind) values (:other, :tenant)",
    "added as it stands there": "insert into body (tenant, kind) select tenant, kind from event",
    "changed instead": "insert into body (tenant, kind) values (:tenant, :kind) on conflict (kind) "
    "do update set kind = excluded.kind",
    "in a case": "select id from operation where case when tenant = :tenant then 1 end = 1",
    "a second one": "select 1; delete from operation",
    "in parentheses": "select 1 from (operation join body on body.tenant = operation.tenant)",
}


@pytest.mark.proves("SCALE-10")
@pytest.mark.parametrize("sql", BAD.values(), ids=BAD)
def test_a_statement_that_reaches_other_tenants_is_noticed(tables, sql):
    assert complaints(sql, tables) != []


@pytest.mark.proves("SCALE-10")
@pytest.mark.parametrize("sql", GOOD)
def test_a_statement_of_one_tenant_is_no_complaint(tables, sql):
    assert complaints(sql, tables) == []
