"""The archive: what moves, that nothing is lost on the way, and what stays when a month is gone."""

import re

import pytest
from tests.ledger import samples, tables
from tests.ledger.test_schema import session_of

from doubtless.core.model import Record
from doubtless.errors import LedgerError
from doubtless.ledger import archive, attempts, bodies, journal, operations, retention
from doubtless.ledger.journal import Entry, replay
from doubtless.ledger.transaction import Transaction

TABLES = ("attempt", "evidence", "journal", "body")
OF = "tenant = 'main' and operation_id = 'op'"


@pytest.fixture
def settled(memory):
    """A ledger with one settled operation, and another one beside it."""

    def fill(tx) -> None:
        for name in ("op", "other"):
            samples.begin(tx, samples.operation(name))
            samples.end(tx, name)

    memory.write(fill)
    return memory


def move(ledger, name: str = "op") -> bool:
    def unit(tx: Transaction) -> bool:
        version = operations.version_of(tx, "main", name) or 0
        return archive.move(tx, "main", name, version=version)

    return bool(ledger.write(unit))


def counts(ledger, prefix: str = "") -> list[int]:
    return [
        ledger.read(
            lambda tx, t=table: tx.tuples(f"select count(*) from {prefix}{t} where {OF}")[0][0]  # noqa: S608
        )
        for table in TABLES
    ]


def known(ledger, name: str = "op") -> tuple[Record, list[Entry], bytes | None]:
    """All that can be read of an operation."""

    def unit(tx: Transaction) -> tuple[Record, list[Entry], bytes | None]:
        record = operations.load(tx, "main", name)
        assert record is not None
        entries = journal.journal_of(tx, "main", name)
        return record, entries, bodies.body(tx, "main", name, "payload")

    found: tuple[Record, list[Entry], bytes | None] = ledger.read(unit)
    return found


@pytest.mark.proves("SCALE-3")
def test_what_is_archived_leaves_the_hot_tables_and_reads_as_before(settled):
    before, rows, beside = known(settled), counts(settled), known(settled, "other")
    assert all(rows)
    assert move(settled)
    assert counts(settled) == [0, 0, 0, 0]
    assert counts(settled, "archived_") == rows
    assert known(settled) == before
    assert known(settled, "other") == beside
    record, entries, _ = before
    assert replay(entries).operation == record.operation
    assert not move(settled)


@pytest.mark.proves("SCALE-3")
def test_nothing_is_archived_that_is_open_or_was_changed_meanwhile(memory):
    memory.write(lambda tx: samples.begin(tx, samples.operation("op")))
    assert not move(memory)
    memory.write(lambda tx: samples.end(tx, "op"))
    assert not memory.write(lambda tx: archive.move(tx, "main", "op", version=1))
    assert not memory.write(lambda tx: archive.move(tx, "other", "op", version=2))
    assert all(counts(memory))


COLUMNS = {"journal": "entries", "attempt": "owner", "evidence": "detail", "body": "digest"}


def copy_carelessly(tx, table: str) -> None:
    """Copy the rows of an operation into the archive, with another text in one column."""
    tx.run(archive.ADD_MONTH, tenant="main", month=197001, made_ms=1)
    row = {"tenant": "main", "operation_id": "op", "month": 197001}
    tx.run(archive.ADD, at_ms=1, evidence=1, digest="", **row)
    head, _, chosen = archive.IN[TABLES.index(table)].partition("select")
    column = COLUMNS[table]
    changed = re.sub(rf"\b{column}\b", f"{column} || '.'", chosen, count=1)
    assert changed != chosen
    assert tx.run(f"{head}select{changed}", **row)


@pytest.mark.proves("SCALE-4")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("careless", [False, True])
def test_a_row_is_deleted_only_where_the_very_same_stands_in_the_archive(settled, table, careless):
    def lose(tx) -> None:
        if careless:
            copy_carelessly(tx, table)
        tx.run(f"delete from {table} where {OF}")  # noqa: S608

    before = counts(settled)
    with pytest.raises(LedgerError, match=r"appended|forgotten|never deleted"):
        settled.write(lose)
    assert counts(settled) == before


@pytest.mark.proves("SCALE-4")
@pytest.mark.parametrize("table", ["journal", "evidence"])
@pytest.mark.parametrize(
    "statement", ["delete from {} where {}", "update {} set at_ms = 0 where {}"]
)
def test_journal_and_evidence_in_the_archive_are_neither_changed_nor_deleted(
    settled, table, statement
):
    move(settled)
    before = known(settled)
    with pytest.raises(LedgerError, match="only appended"):
        settled.write(lambda tx: tx.run(statement.format(f"archived_{table}", OF)))
    assert known(settled) == before


@pytest.mark.proves("SCALE-3")
def test_what_changes_again_comes_back_whole_first(settled):
    before, rows = known(settled), counts(settled)
    assert move(settled)

    def change(tx) -> None:
        record = operations.load(tx, "main", "op")
        assert record is not None
        fact = samples.evidence()
        numbered = attempts.add_evidence(tx, "main", "op", fact, principal=samples.WORKER)
        assert numbered.number == len(record.evidence) + 1
        samples.save(tx, record.operation, superseded_by="other")

    settled.write(change)
    assert counts(settled, "archived_") == [0, 0, 0, 0]
    assert counts(settled) == [rows[0], rows[1] + 1, rows[2] + 1, rows[3]]
    record, entries, payload = known(settled)
    assert entries[: len(before[1])] == before[1]
    assert record.evidence[:-1] == before[0].evidence
    assert payload == before[2]
    assert replay(entries).operation == record.operation
    assert replay(entries).evidence == record.evidence
    assert move(settled)
    assert known(settled) == (record, entries, payload)


@pytest.mark.proves("SCALE-3")
def test_nothing_is_opened_again_past_the_archive(settled):
    move(settled)
    with pytest.raises(LedgerError, match="opened again only with all"):
        settled.write(
            lambda tx: tx.run(
                "update operation set open = 1, state = 'manual_review', due_ms = 1"
                " where tenant = 'main' and id = 'op'"
            )
        )


@samples.ON_POSTGRES
@pytest.mark.proves("SCALE-5")
def test_a_month_is_a_partition_that_can_be_taken_away_and_put_back(settled):
    before = known(settled)
    move(settled)
    (month,) = settled.read(lambda tx: archive.months(tx, "main"))
    session = session_of(settled)
    for table in TABLES:
        session.script(f"alter table archived_{table} detach partition archived_{table}_{month}")
    record = settled.read(lambda tx: operations.load(tx, "main", "op"))
    assert record.operation == before[0].operation
    assert (record.attempts, record.evidence) == ((), ())
    with pytest.raises(LedgerError, match=f"archive of {month}, which was taken away"):
        settled.write(lambda tx: samples.save(tx, record.operation, superseded_by="other"))
    with pytest.raises(LedgerError, match=r"UNIQUE|unique"):  # its id stays taken
        settled.write(lambda tx: samples.insert(tx, samples.operation("op")))
    for table in TABLES:
        session.script(
            f"alter table archived_{table} attach partition archived_{table}_{month}"
            f" for values in ({month})"
        )
    assert known(settled) == before


@pytest.mark.proves("SCALE-3")
def test_the_archive_has_the_columns_of_what_it_takes_in(memory):
    found = tables.columns(session_of(memory))
    for table in TABLES:
        kept = dict(found[f"archived_{table}"])
        assert kept.pop("month") == ("integer", True)
        assert kept == found[table]


def test_months_are_told_in_utc():
    assert archive.month_of(1_796_140_458_414) == 202612
    assert archive.month_of(1_796_083_199_999) == 202611
    assert archive.month_of(1_796_083_200_000) == 202612


@pytest.mark.proves("SCALE-1")
@pytest.mark.parametrize("archived", [False, True])
def test_what_a_settled_operation_carried_is_emptied_and_its_digest_stays(settled, archived):
    if archived:
        move(settled)
    prefix = "archived_" if archived else ""
    asked = f"select kind, digest, size from {prefix}body where {OF} order by kind"  # noqa: S608
    digests = settled.read(lambda tx: tx.tuples(asked))
    assert not settled.write(lambda tx: retention.empty(tx, "main", "op", version=1))
    assert not settled.write(lambda tx: retention.empty(tx, "other", "op", version=3))
    version = settled.read(lambda tx: operations.version_of(tx, "main", "op"))
    before = known(settled)
    assert settled.write(lambda tx: retention.empty(tx, "main", "op", version=version))
    assert settled.read(lambda tx: tx.tuples(asked)) == digests
    record, entries, payload = known(settled)
    assert (record, entries) == before[:2]
    assert payload is None
    assert settled.read(lambda tx: retention.is_emptied(tx, "main", "op", "payload"))
    assert not settled.read(lambda tx: retention.is_emptied(tx, "main", "other", "payload"))
    if not archived:
        assert move(settled)
        assert known(settled)[:2] == before[:2]
