"""A migration beside those who work, and one that is killed."""

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.ledger import made_up, samples
from tests.ledger.servers import begin, in_background, wait_until

from doubtless.errors import LedgerUnavailable
from doubtless.ledger import applying, migrate, sqlite
from doubtless.ledger.store import open_ledger

ROOT = Path(__file__).parents[2]


@pytest.fixture
def steps(monkeypatch, database, absent):
    """A ledger, and a release with a pre step, one with indexes and a post step for it."""
    open_ledger(absent).close()
    found = made_up.steps(database)
    released = (*made_up.released(database), *found)
    monkeypatch.setattr(migrate, "known", lambda *_: released)
    return found


@pytest.fixture
def old(absent):
    """A process of the release before: to be asked for before `steps`."""
    with open_ledger(absent) as ledger:
        yield ledger


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]


def past_the_ledger(postgres, url: str) -> psycopg.Connection:
    connection = psycopg.connect(postgres.base)
    connection.execute(f"set search_path = {schema_of(url)}".encode())
    connection.commit()
    return connection


@pytest.mark.proves("MIGRATE-5")
def test_a_migration_that_is_killed_at_any_point_is_finished_by_the_next_run(absent):
    run = subprocess.run(
        [sys.executable, "-m", "tests.ledger.migrating", absent],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 15


@pytest.mark.proves("MIGRATE-6")
@samples.ON_POSTGRES
def test_a_step_that_waits_for_a_lock_lets_others_write(absent, old, steps, postgres, monkeypatch):
    monkeypatch.setattr(applying, "LOCK_WAIT_MS", 50)
    monkeypatch.setattr(applying, "BREATH_S", 0.05)
    with past_the_ledger(postgres, absent) as reader:
        reader.execute("select count(*) from operation")  # and its transaction stays open
        pid = reader.info.backend_pid
        waits = f"{pid} = any(pg_blocking_pids(pid))"
        with postgres.connect() as looking, in_background(partial(migrate.migrate, absent)) as told:
            for number in range(3):
                wait_until(looking, waits)
                begin(old, f"op-{number}")
            assert told == []
            reader.rollback()
    assert told == [[steps[0].name, steps[1].name]]


@pytest.mark.proves("MIGRATE-6")
def test_a_step_that_never_gets_its_locks_changes_nothing_and_says_so(
    absent, steps, request, database, path, monkeypatch
):
    monkeypatch.setattr(applying, "PATIENCE_S", 0.0)
    monkeypatch.setattr(applying, "LOCK_WAIT_MS", 20)
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.02)
    other: apsw.Connection | psycopg.Connection
    if database == "sqlite":
        other = apsw.Connection(str(path))
        other.execute("begin immediate")
    else:
        other = past_the_ledger(request.getfixturevalue("postgres"), absent)
        other.execute("select count(*) from operation")
    with pytest.raises(LedgerUnavailable, match=r"made_up\.pre\.sql was not applied.*again"):
        migrate.migrate(absent)
    other.close()
    assert migrate.pending(absent) == [step.name for step in steps]
    assert migrate.migrate(absent) == [steps[0].name, steps[1].name]


@pytest.mark.proves("MIGRATE-6")
@samples.ON_POSTGRES
def test_two_who_migrate_at_once_never_wait_in_the_server(absent, steps, postgres):
    # An index that is built waits for every older transaction: one that waits for it is a deadlock.
    ready = threading.Barrier(2)

    def run(found: list[str]) -> None:
        ready.wait(10)
        found += migrate.migrate(absent, post=True)

    found: list[list[str]] = [[], []]
    with in_background(partial(run, found[0])), in_background(partial(run, found[1])):
        pass
    assert sorted(found[0] + found[1]) == sorted(step.name for step in steps)


@pytest.mark.proves("MIGRATE-7")
@samples.ON_POSTGRES
def test_an_index_that_was_cut_off_is_made_again_beside_those_who_write(
    absent, old, steps, postgres
):
    with past_the_ledger(postgres, absent) as other:
        place = migrate.parse(absent)
        connection = migrate.open_connection(place)
        applying.apply(connection, steps[0], force=False)
        connection.close()
        other.execute("insert into made_up (a) values (1), (1)")
        other.commit()
        other.autocommit = True
        cut_off = b"create unique index concurrently made_up_a on made_up (a)"
        with pytest.raises(psycopg.errors.UniqueViolation):
            other.execute(cut_off)
        valid = (
            b"select indisvalid, indisunique from pg_index where indexrelid = 'made_up_a'::regclass"
        )
        assert other.execute(valid).fetchone() == (False, True)
        other.autocommit = False
        other.execute("insert into made_up (a) values (2)")  # and its transaction stays open
        waits = f"{other.info.backend_pid} = any(pg_blocking_pids(pid))"
        with postgres.connect() as looking, in_background(partial(migrate.migrate, absent)) as told:
            wait_until(looking, waits)
            begin(old, "meanwhile")
            other.rollback()
        assert told == [[steps[1].name]]
        assert other.execute(valid).fetchone() == (True, False)
