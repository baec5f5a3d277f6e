"""Several processes on one ledger, and processes that are killed."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from tests.ledger import samples

from doubtless.ledger import attempts, journal, listing, operations
from doubtless.ledger.store import open_ledger

ROOT = Path(__file__).parents[2]
POLL_S = 0.005


@contextmanager
def process(*arguments: str):
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.process", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def get(tx, operation_id: str):
    return operations.get(tx, "main", operation_id)


def check_whole(tx, operation_id) -> None:
    replayed = journal.replay(journal.journal_of(tx, "main", operation_id))
    assert replayed.operation == operations.get(tx, "main", operation_id)
    assert replayed.attempts == attempts.attempts_of(tx, "main", operation_id)
    assert len(replayed.attempts) == 1


@pytest.mark.parametrize("acknowledged", [1, 40])
def test_a_killed_process_loses_nothing_that_was_acknowledged_and_leaves_nothing_half(
    url, acknowledged
):
    with process("endless", url, "op") as child:
        told = [child.stdout.readline().strip() for _ in range(acknowledged)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.read().split()
    with open_ledger(url) as ledger:
        every = "select id from operation where tenant = 'main'"
        found = {row[0] for row in ledger.read(lambda tx: tx.tuples(every))}
        assert found >= set(told)
        assert len(found) - len(told) <= 1, "at most the one that was not acknowledged yet"
        for operation_id in found:
            ledger.read(partial(check_whole, operation_id=operation_id))


def test_another_process_sees_a_commit_as_soon_as_it_was_acknowledged(url):
    with open_ledger(url) as ledger, process("endless", url, "op") as child:
        for _ in range(20):
            operation_id = child.stdout.readline().strip()
            assert ledger.read(partial(get, operation_id=operation_id))


def test_two_processes_write_at_once_and_neither_starves(url):
    count = 60
    with (
        process("some", url, "a", str(count)) as first,
        process("some", url, "b", str(count)) as second,
    ):
        assert first.stdout.readline() == "done\n"
        assert second.stdout.readline() == "done\n"
    with open_ledger(url) as ledger:
        for prefix in "ab":
            for number in (0, count - 1):
                found = ledger.read(partial(get, operation_id=f"{prefix}-{number}"))
                assert found is not None


@samples.ON_POSTGRES
@pytest.mark.proves("PG-10")
def test_whoever_reads_settlements_of_two_writers_in_order_misses_none(url):
    count, after = 70, 0
    seen: list[str] = []
    with (
        open_ledger(url) as ledger,
        process("settle", url, "a", str(count)) as first,
        process("settle", url, "b", str(count)) as second,
    ):
        for child in (first, second):
            assert child.stdout.readline() == "ready\n"
        for child in (first, second):
            child.stdin.write("go\n")
            child.stdin.flush()
        deadline = time.monotonic() + 30
        while len(seen) < 2 * count:
            page = ledger.read(partial(listing.settlements, tenant="main", after=after))
            assert page or time.monotonic() < deadline, f"{len(seen)} of {2 * count} are seen"
            seen += [item.operation_id for item in page]
            if page:
                after = page[-1].seq
            else:
                time.sleep(POLL_S)
    assert len(set(seen)) == 2 * count
    turns = sum(one[0] != other[0] for one, other in pairwise(seen))
    assert turns > 2, "the two wrote one after the other: nothing was shown"


def test_four_processes_that_create_one_ledger_all_find_the_same(absent):
    with (
        process("create", absent) as a,
        process("create", absent) as b,
        process("create", absent) as c,
        process("create", absent) as d,
    ):
        children = (a, b, c, d)
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        ids = {child.stdout.readline() for child in children}
    assert len(ids) == 1
    assert len(ids.pop().strip()) == 32
