"""Changes of the schema in two steps, while processes of two releases are at work."""

from functools import partial

import pytest
from tests.ledger import made_up, samples
from tests.ledger.servers import sessions, wait_until_gone

from doubtless.errors import LedgerError, LedgerOutdated, LedgerUnavailable
from doubtless.ledger import migrate, operations
from doubtless.ledger.at_work import OlderAtWork
from doubtless.ledger.migrate import Migration, Step
from doubtless.ledger.steps import BASE_LAST
from doubtless.ledger.store import open_ledger

COUNT = "select count(*) from made_up where tenant = 'main'"


@pytest.fixture
def release(monkeypatch):
    """Let the code be of a release that knows these migrations."""

    def know(*migrations: Migration) -> None:
        monkeypatch.setattr(migrate, "known", lambda *_: migrations)

    return know


@pytest.fixture
def before(database) -> tuple[Migration, ...]:
    """What the release before knows."""
    return made_up.released(database)


@pytest.fixture
def after(before, database) -> tuple[Migration, ...]:
    """What the next release knows: a pre step, one with indexes, and a post step."""
    return (*before, *made_up.steps(database))


def begin(ledger, name: str) -> None:
    ledger.write(partial(samples.begin, made=samples.operation(name)))


def end(ledger, name: str) -> None:
    ledger.write(partial(samples.end, operation_id=name))


def state(ledger, name: str) -> str:
    found = ledger.read(lambda tx: operations.get(tx, "main", name))
    return str(found.state)


@pytest.mark.proves("MIGRATE-1")
def test_each_migration_since_there_are_steps_says_its_own(database):
    for migration in migrate.known(database):
        assert (migration.step is Step.BASE) == (migration.number <= BASE_LAST), migration.name
        if migration.stands_outside:
            assert database == "postgres"
            assert list(migration.indexes())


@pytest.mark.proves("MIGRATE-1", "MIGRATE-2")
def test_two_releases_work_together_on_pre_steps(absent, release, before, after):
    with open_ledger(absent) as old:
        begin(old, "first")
        release(*after)
        with pytest.raises(LedgerOutdated, match=r"from \d+_made_up\.pre\.sql on: run `doubtless"):
            open_ledger(absent)
        assert migrate.migrate(absent) == [after[-3].name, after[-2].name]
        assert migrate.migrate(absent) == []
        assert migrate.pending(absent) == [after[-1].name]
        with open_ledger(absent) as new:
            end(new, "first")
            begin(new, "second")
            end(old, "second")
            assert state(old, "first") == state(new, "first") == "succeeded"
            assert state(old, "second") == state(new, "second") == "succeeded"
            release(*before)
            with open_ledger(absent) as another:  # of the release before, started late
                begin(another, "third")
            assert state(new, "third") == "executing"
            assert migrate.status(absent).why_not is None


@pytest.mark.proves("MIGRATE-3")
def test_a_post_step_waits_until_nobody_older_is_at_work(absent, release, before, after):
    old = open_ledger(absent)
    release(*after)
    migrate.migrate(absent)
    with open_ledger(absent) as new:
        with pytest.raises(OlderAtWork, match=r"made_up\.post\.sql was not applied.*--force"):
            migrate.migrate(absent, post=True)
        assert migrate.pending(absent) == [after[-1].name]
        begin(old, "first")
        old.close()
        assert migrate.migrate(absent, post=True) == [after[-1].name]
        end(new, "first")
        assert new.read(lambda tx: tx.tuples(COUNT)) == [(1,)]
    release(*before)
    for attempt in (open_ledger, migrate.migrate, migrate.pending):
        with pytest.raises(LedgerOutdated, match=r"made_up\.post\.sql.*upgrade doubtless"):
            attempt(absent)
    assert "upgrade doubtless" in (migrate.status(absent).why_not or "")


@pytest.mark.proves("MIGRATE-4")
def test_who_is_shut_out_by_force_records_nothing_more(absent, release, after):
    with open_ledger(absent) as old:
        begin(old, "first")
        assert state(old, "first") == "executing"
        release(*after)
        assert migrate.migrate(absent, post=True, force=True)[-1] == after[-1].name
        with open_ledger(absent) as new:
            for _ in range(2):
                with pytest.raises(LedgerUnavailable, match=r"upgrade.*nothing of this was"):
                    begin(old, "second")
                with pytest.raises(LedgerUnavailable, match="upgrade doubtless"):
                    state(old, "first")
            assert new.read(lambda tx: operations.get(tx, "main", "second")) is None
            end(new, "first")
            assert state(new, "first") == "succeeded"


@pytest.mark.proves("MIGRATE-4")
@samples.ON_SQLITE
def test_a_transaction_of_the_users_is_shut_out_too(absent, release, after):
    with open_ledger(absent) as old:
        release(*after)
        connection = old.connect()
        connection.known = after[-4].number
        connection.begin(write=True)
        connection.rollback()
        migrate.migrate(absent, post=True, force=True)
        with pytest.raises(LedgerUnavailable, match="upgrade doubtless"):
            connection.begin(write=True)
        connection.close()


@pytest.mark.proves("MIGRATE-4")
@samples.ON_POSTGRES
def test_who_lost_its_connection_meanwhile_comes_back_to_a_closed_door(
    absent, release, before, after, own
):
    address = own.fresh()
    with own.connect() as connection, open_ledger(address) as old:
        begin(old, "first")
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s"
        connection.execute(cut, ("doubtless",))
        wait_until_gone(connection)
        release(*after)
        assert migrate.migrate(address, post=True)[-1] == after[-1].name
        release(*before)
        with pytest.raises(LedgerUnavailable):
            begin(old, "second")
        assert sessions(connection, "application_name = 'doubtless' and state <> 'idle'") == 0
        release(*after)
        with open_ledger(address) as new:
            assert new.read(lambda tx: operations.get(tx, "main", "second")) is None


@pytest.mark.proves("MIGRATE-3")
def test_the_post_step_of_an_earlier_release_comes_before_the_pre_steps_of_the_next(
    absent, release, after
):
    number = after[-1].number + 1
    text = "create table later (tenant text not null default 'main')"
    later = Migration(number=number, name=f"{number:04d}_later.pre.sql", text=text)
    oldest = open_ledger(absent)
    release(*after)
    migrate.migrate(absent)
    with open_ledger(absent) as old:
        release(*after, later)
        with pytest.raises(OlderAtWork, match=r"made_up\.post\.sql"):
            migrate.migrate(absent)
        oldest.close()
        assert migrate.migrate(absent) == [after[-1].name, later.name]
        begin(old, "first")


def test_what_stands_outside_a_transaction_is_the_building_of_indexes():
    head = "-- outside a transaction\n"
    good = Migration(
        number=9,
        name="0009_a.pre.sql",
        text=f"{head}-- why; and why not\ncreate unique index concurrently X_1 on t (a);\n",
    )
    assert list(good.indexes()) == [("x_1", "create unique index concurrently X_1 on t (a)")]
    assert "concurrently" not in good.within
    for name, text in (
        ("0009_a.pre.sql", f"{head}drop table t"),
        ("0009_a.pre.sql", f"{head}create index x on t (a)"),
        ("0009_a.post.sql", f"{head}create index concurrently x on t (a)"),
    ):
        with pytest.raises(LedgerError, match="outside a transaction"):
            list(Migration(number=9, name=name, text=text).indexes())


@samples.ON_SQLITE
def test_nothing_is_left_beside_a_ledger_that_was_closed(url, path):
    with open_ledger(url):
        assert list(path.parent.glob("*-schema*"))
        with open_ledger(url, inline=True):
            pass
        assert list(path.parent.glob("*-schema*"))
    assert list(path.parent.iterdir()) == [path]
