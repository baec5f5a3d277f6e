"""Creating a ledger, bringing it up to date, and refusing what isn't one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import apsw
import pytest
from tests.ledger import samples

from doubtless.errors import LedgerError, LedgerOutdated
from doubtless.ledger import migrate
from doubtless.ledger.store import open_ledger

SECOND = migrate.Migration(
    number=2,
    name="0002_more.sql",
    text="create table more (tenant text not null default 'main', a text);",
)


@pytest.fixture
def known(monkeypatch):
    """Let the release know other migrations than its own."""

    def know(*migrations: migrate.Migration) -> None:
        monkeypatch.setattr(migrate, "known", lambda kind="sqlite": migrations)

    return know


@pytest.fixture
def first(known, database) -> migrate.Migration:
    """Let the release know its first migration alone, and return it."""
    found = migrate.known(database)[0]
    known(found)
    return found


def execute(path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_the_migrations_are_numbered_without_gaps(database):
    numbers = [item.number for item in migrate.known(database)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [item.name for item in migrate.known("sqlite")] == [
        item.name for item in migrate.known("postgres")
    ]


def test_an_absent_ledger_is_created_complete(absent, database):
    assert migrate.pending(absent) == [item.name for item in migrate.known(database)]
    open_ledger(absent).close()
    assert migrate.pending(absent) == []
    assert migrate.migrate(absent) == []


@samples.ON_SQLITE
def test_an_empty_file_becomes_a_ledger_for_its_owner_alone(url, path):
    path.touch(mode=0o644)
    open_ledger(url).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_migrating_an_absent_ledger_creates_it(absent, database):
    assert migrate.migrate(absent) == [item.name for item in migrate.known(database)]
    open_ledger(absent).close()


def test_an_older_ledger_is_refused_with_the_command_that_mends_it(absent, known, first):
    open_ledger(absent).close()
    known(first, SECOND)
    with pytest.raises(LedgerOutdated, match=r"0002_more\.sql.*`doubtless migrate`"):
        open_ledger(absent)
    assert migrate.pending(absent) == ["0002_more.sql"]
    assert migrate.migrate(absent) == ["0002_more.sql"]
    assert migrate.migrate(absent) == []
    with open_ledger(absent) as ledger:
        more = "select count(*) from more where tenant = 'main'"
        assert ledger.read(lambda tx: tx.tuples(more)) == [(0,)]


def test_opening_never_migrates(absent, known, first):
    open_ledger(absent).close()
    known(first, SECOND)
    for _ in range(2):
        with pytest.raises(LedgerOutdated):
            open_ledger(absent)


def test_a_newer_ledger_is_refused_with_the_advice_to_upgrade(absent, known, first):
    known(first, SECOND)
    open_ledger(absent).close()
    known(first)
    for attempt in (open_ledger, migrate.migrate, migrate.pending):
        with pytest.raises(LedgerOutdated, match="upgrade doubtless"):
            attempt(absent)


def test_a_migration_that_was_changed_after_it_was_applied_is_noticed(absent, known, first):
    open_ledger(absent).close()
    known(replace(first, text=first.text + "-- one more line\n"))
    for attempt in (open_ledger, migrate.migrate, migrate.pending):
        with pytest.raises(LedgerError, match="was changed"):
            attempt(absent)


def test_the_line_endings_of_a_checkout_are_no_change(absent, known, first):
    open_ledger(absent).close()
    known(replace(first, text=first.text.replace("\n", "\r\n")))
    open_ledger(absent).close()


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(absent, known, first):
    open_ledger(absent).close()
    known(first, SECOND, replace(SECOND, number=3, name="0003_bad.sql", text="create nonsense"))
    with pytest.raises(LedgerError, match="nonsense"):
        migrate.migrate(absent)
    assert migrate.pending(absent) == ["0003_bad.sql"]


def test_a_ledger_that_could_not_be_created_stays_empty(absent, known, first):
    known(first, replace(SECOND, text="create nonsense"))
    with pytest.raises(LedgerError, match="nonsense"):
        open_ledger(absent)
    known(first)
    open_ledger(absent).close()


def test_migrating_at_once_applies_each_migration_once(absent, known, first):
    open_ledger(absent).close()
    known(first, SECOND)
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda _: migrate.migrate(absent), range(4)))
    assert sorted(applied) == [[], [], [], ["0002_more.sql"]]


@samples.ON_SQLITE
def test_another_sqlite_database_is_refused_and_left_as_it_was(url, path):
    execute(path, "create table theirs (a)", "insert into theirs values (1)")
    for attempt in (open_ledger, migrate.migrate, migrate.pending):
        with pytest.raises(LedgerError, match="not a ledger"):
            attempt(url)
    with apsw.Connection(str(path)) as connection:
        assert connection.pragma("journal_mode") == "delete"
        assert connection.execute("select name from sqlite_schema").fetchall() == [("theirs",)]


@samples.ON_SQLITE
def test_another_programs_empty_database_is_refused(url, path):
    execute(path, "pragma application_id = 7")
    with pytest.raises(LedgerError, match="not a ledger"):
        open_ledger(url)


@samples.ON_SQLITE
def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(url, path):
    content = b"Dear ledger, this is a letter. " * 50
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="no SQLite database"):
        open_ledger(url)
    assert path.read_bytes() == content


@samples.ON_SQLITE
def test_a_ledger_in_another_journal_mode_is_brought_back_to_the_wal(url, path):
    open_ledger(url).close()
    execute(path, "pragma journal_mode = delete")
    with open_ledger(url) as ledger:
        assert ledger.read(lambda tx: tx.tuples("pragma journal_mode")) == [("wal",)]
