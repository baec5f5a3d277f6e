"""What the schema itself forbids, and what it is indexed for."""

import re

import pytest
from tests.ledger import samples, tables

from doubtless.core.model import TERMINAL, State
from doubtless.errors import LedgerError
from doubtless.ledger import attempts, listing, operations
from doubtless.ledger.journal import APPROVAL, ATTEMPT, EVIDENCE, OPERATION


def session_of(ledger):
    return ledger._group._session  # noqa: SLF001 - a driver's connection, for its own questions


@pytest.fixture
def filled(memory):
    """A ledger with a row in every table that an operation can touch."""

    def fill(tx) -> None:
        samples.begin(tx, samples.operation("first"))
        samples.end(tx, "first")
        samples.insert(tx, samples.operation("second"), after=("first",))
        attempts.add_approval(tx, "main", "second", samples.approval(), principal=samples.OPERATOR)

    memory.write(fill)
    return memory


def test_every_table_has_a_tenant_that_is_never_null(memory):
    found = tables.columns(session_of(memory))
    assert len(found) > 12
    for table, described in found.items():
        assert described["tenant"] == ("text", True), table


@pytest.mark.parametrize(
    ("table", "shape", "more"),
    [
        ("operation", OPERATION, {"position", "open"}),
        ("attempt", ATTEMPT, {"tenant", "operation_id"}),
        ("evidence", EVIDENCE, {"tenant", "operation_id"}),
        ("approval", APPROVAL, {"tenant", "operation_id", "number"}),
    ],
)
def test_the_columns_are_the_fields_of_the_model(memory, table, shape, more):
    assert set(tables.columns(session_of(memory))[table]) == set(shape.names) | more


@pytest.mark.parametrize("table", ["journal", "evidence"])
@pytest.mark.parametrize(
    "statement",
    [
        "update {} set tenant = tenant where tenant = 'main'",
        "delete from {} where tenant = 'main'",
        {
            "sqlite": "insert or replace into {} select * from {} where tenant = 'main'",
            "postgres": "truncate {}",
        },
    ],
)
def test_journal_and_evidence_are_only_appended(filled, database, table, statement):
    statement = statement if isinstance(statement, str) else statement[database]
    count = f"select count(*) from {table} where tenant = 'main'"  # noqa: S608
    before = filled.read(lambda tx: tx.tuples(count))
    with pytest.raises(LedgerError, match="only appended"):
        filled.write(lambda tx: tx.run(statement.replace("{}", table)))
    assert filled.read(lambda tx: tx.tuples(count)) == before != [(0,)]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ("fence = fence - 1", "a fence only grows"),
        ("due_ms = null", "CHECK"),
        ("version = 0", "CHECK"),
        ("state = 'lost'", "CHECK"),
        ("open = 0", "CHECK"),
        ("state = 'failed'", "CHECK"),
        ("key = 'another'", "never changes"),
        ("payload_hash = 'another'", "never changes"),
        ("request_digest = 'another'", "never changes"),
        ("tenant = 'another'", "never changes"),
        ("id = 'another'", "never changes"),
    ],
)
def test_an_operation_cannot_be_changed_into_one_that_breaks_the_rules(memory, change, wrong):
    memory.write(lambda tx: samples.begin(tx, samples.operation("op")))
    with pytest.raises(LedgerError, match=wrong):
        memory.write(
            lambda tx: tx.run(f"update operation set {change} where tenant = 'main'")  # noqa: S608
        )


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_no_open_operation_is_without_a_due_time(memory, state):
    with pytest.raises(LedgerError, match="CHECK"):
        memory.write(
            lambda tx: samples.insert(tx, samples.operation("op", state=state, due_ms=None))
        )


@pytest.mark.parametrize("kind", ["payload", "request"])
def test_payload_and_request_can_be_emptied_but_never_changed(filled, kind):
    put = "update body set {} where tenant = 'main' and kind = :kind"
    with pytest.raises(LedgerError, match="never change"):
        filled.write(lambda tx: tx.run(put.replace("{}", "content = :c"), kind=kind, c=b"0"))
    assert filled.write(lambda tx: tx.run(put.replace("{}", "content = null"), kind=kind)) == 2


def test_what_belongs_to_no_operation_is_refused(memory):
    with pytest.raises(LedgerError, match="FOREIGN KEY"):
        memory.write(
            lambda tx: attempts.add_evidence(
                tx, "main", "nobody", samples.evidence(), principal=samples.WORKER
            )
        )


def plan(ledger, statement: str) -> str:
    names = set(re.findall(r":(\w+)", statement))
    rows = ledger.read(
        lambda tx: tx.tuples(f"explain query plan {statement}", **dict.fromkeys(names))
    )
    return " / ".join(str(row[3]) for row in rows)


OPEN_STATES = (State.UNKNOWN, State.RECONCILING)


@samples.ON_SQLITE
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (operations._in_states(operations.DUE, OPEN_STATES), "operation_due"),  # noqa: SLF001
        (operations.LATER_TWIN, "operation_by_claim"),
        (operations.NEWEST, "operation_by_claim"),
        (operations.OLDER_OPEN, "operation_by_claim"),
        (listing.SUCCEEDED_TWIN, "operation_by_claim"),
        (listing.BY_KEY, "operation_key"),
        (listing.BY_REF, "operation_ref"),
        (listing.BY_PROVIDER, "operation_provider"),
        (listing.COUNTS, "operation_due"),
        (listing._find((), OPEN_STATES), "operation_open"),  # noqa: SLF001
        (listing.SESSION_RECENT, "operation_by_session"),
        (listing.SESSION_OPEN, "operation_due"),
    ],
)
def test_a_million_settled_operations_stand_in_nobodys_way(memory, statement, index):
    found = plan(memory, statement)
    assert f"USING INDEX {index} " in found or f"USING COVERING INDEX {index} " in found
    assert "SCAN operation" not in found


@samples.ON_SQLITE
def test_due_operations_are_found_in_order_without_sorting(memory):
    statement = operations._in_states(operations.DUE, OPEN_STATES)  # noqa: SLF001
    assert "TEMP B-TREE" not in plan(memory, statement)
