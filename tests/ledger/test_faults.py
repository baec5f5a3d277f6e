"""What a failing disk does to units: acknowledged and kept, or refused and gone."""

import subprocess
from functools import partial
from pathlib import Path

import apsw
import pytest
from tests.ledger import samples
from tests.ledger.faults import failing_disk

from doubtless.core.model import Cause
from doubtless.errors import LedgerUnavailable
from doubtless.ledger import journal, operations
from doubtless.ledger.group import IN_DOUBT, NOTHING
from doubtless.ledger.store import Ledger, open_ledger


@pytest.fixture
def disk_and_vfs():
    with failing_disk() as found:
        yield found


@pytest.fixture
def disk(disk_and_vfs):
    return disk_and_vfs[0]


@pytest.fixture
def url(disk_and_vfs, tmp_path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db?vfs={disk_and_vfs[1]}"


def begin(ledger: Ledger, operation_id: str) -> LedgerUnavailable | None:
    try:
        ledger.write(lambda tx: samples.begin(tx, samples.operation(operation_id)))
    except LedgerUnavailable as error:
        return error
    return None


def holds(ledger: Ledger, operation_id: str) -> bool:
    return ledger.read(lambda tx: operations.get(tx, "main", operation_id)) is not None


def holds_after_a_crash(folder: Path, operation_id: str) -> bool:
    """Whether a ledger recovered from the files as they are now holds an operation.

    Another process copies them, since closing a descriptor in this one would drop locks.
    """
    image = folder / "image"
    image.mkdir(exist_ok=True)
    for name in ("ledger.db", "ledger.db-wal"):
        subprocess.run(["cp", folder / name, image / name], check=True)
    with open_ledger(f"sqlite:///{image}/ledger.db", inline=True) as ledger:
        return holds(ledger, operation_id)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_whichever_write_or_sync_fails_a_unit_is_acknowledged_and_kept_or_refused_and_gone(
    disk, url, tmp_path, error, lasting
):
    refusals: dict[int, LedgerUnavailable | None] = {}
    with open_ledger(url) as ledger:
        disk.fail(lambda _: False)
        assert begin(ledger, "measured") is None
        for nth in range(1, disk.done + 12, 1 if error is apsw.IOError and not lasting else 4):
            disk.fail(lambda n, nth=nth: n >= nth if lasting else n == nth, error=error)
            refused = refusals[nth] = begin(ledger, f"failing-{nth}")
            assert (refused is not None) is (disk.failed > 0)
            if refused is None or NOTHING in str(refused):
                # As if the process had died now, before anything else could mend the files.
                assert holds_after_a_crash(tmp_path, f"failing-{nth}") is (refused is None)
            else:
                assert lasting
                assert IN_DOUBT in str(refused)
            disk.heal()
            assert begin(ledger, f"after-{nth}") is None, "a healed disk is used again"
    assert {refused is None for refused in refusals.values()} == {False, True}
    with open_ledger(url) as ledger:
        for nth, refused in refusals.items():
            assert holds(ledger, f"failing-{nth}") is (refused is None)
            assert holds(ledger, f"after-{nth}")


def test_a_failed_commit_refuses_every_unit_of_its_group(disk, url):
    with open_ledger(url) as ledger:
        answers: list[BaseException | None] = []
        with samples.held(ledger):
            disk.fail(lambda n: disk.log[-1] == "sync")
            for number in range(5):
                ledger.submit(
                    partial(samples.insert, made=samples.operation(f"op-{number}")),
                    lambda value, error: answers.append(error),
                )
        with pytest.raises(LedgerUnavailable):
            ledger.write(lambda tx: None)
        disk.heal()
        assert [type(error) for error in answers] == [LedgerUnavailable] * 5
        assert len({id(error) for error in answers}) == 5
        assert not any(holds(ledger, f"op-{number}") for number in range(5))


def test_a_unit_that_swallows_a_disk_error_is_refused_all_the_same(disk, url):
    with open_ledger(url) as ledger:
        before = samples.operation("swallowing")

        def work(tx) -> str:
            samples.insert(tx, before)
            ledger._group._session.broken = LedgerUnavailable("the ledger failed: made up")  # noqa: SLF001
            return "done"

        with pytest.raises(LedgerUnavailable, match=NOTHING):
            ledger.write(work)
        assert not holds(ledger, "swallowing")
        assert begin(ledger, "next") is None


def test_a_ledger_whose_disk_stays_broken_says_so_for_each_unit(disk, url):
    with open_ledger(url) as ledger:
        disk.fail(lambda _: True)
        for number in range(3):
            assert begin(ledger, f"op-{number}") is not None
        disk.heal()
        assert begin(ledger, "op-0") is None


def test_a_commit_whose_sync_failed_is_never_brought_back_by_recovery(disk, url, tmp_path):
    with open_ledger(url) as ledger:
        disk.fail(lambda _: disk.log[-1] == "sync" and disk.failed == 0)
        refused = begin(ledger, "written-but-not-synced")
        assert NOTHING in str(refused)
        assert not holds_after_a_crash(tmp_path, "written-but-not-synced")


def test_a_reader_that_writes_is_refused_and_its_connection_is_dropped(url):
    with open_ledger(url) as ledger:

        def write(tx) -> None:
            tx.run("update meta set mended = 0 where tenant = 'main'")

        def write_later(tx) -> None:
            journal.refuse(tx, "main", "op", Cause.POLICY, principal=samples.AGENT, data={})

        for work in (write, write_later):
            with pytest.raises(LedgerUnavailable, match="readonly"):
                ledger.read(work)
        assert begin(ledger, "after") is None
        assert holds(ledger, "after")
