import hashlib
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from doubtless.core import answers, progress
from doubtless.core.model import Seen, Shows
from doubtless.core.permission import Pass
from doubtless.testing.simulate import run, run_all
from doubtless.testing.simulate_faults import ALL_FAULTS
from doubtless.testing.simulate_report import Report, Totals
from doubtless.testing.simulate_run import simulate

SEEDS = 2_000
CHUNK = 100
FIRST = range(0, SEEDS, CHUNK)
UNREACHED = {"key.forgotten"}
"""No key's life, its margin of a minute included, ends within a run; row j shows it for real."""


@pytest.mark.proves("SIM-1")
@pytest.mark.parametrize("first", FIRST, ids=str)
def test_no_seed_doubles_loses_or_breaks_anything(first):
    totals = run(first, CHUNK)
    assert totals.broken == {}
    assert totals.seeds == CHUNK
    assert totals.operations > CHUNK
    assert totals.effects > 0
    assert set(totals.states) >= {"succeeded", "failed", "manual_review"}


@pytest.mark.proves("SIM-2")
def test_the_same_seed_gives_the_same_trace_in_another_process_too():
    seeds = [3, 17, 42]
    here = [_digest(simulate(seed, traced=True)) for seed in seeds]
    assert here == [_digest(simulate(seed, traced=True)) for seed in seeds]
    assert len(set(here)) == len(seeds)
    program = (
        "from tests.simulation.test_simulate import _digest, simulate\n"
        f"print([_digest(simulate(seed, traced=True)) for seed in {seeds}])"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ".", "PATH": ""},
        )
        assert done.stdout.strip() == str(here)


def _digest(report: Report) -> str:
    assert report.trace
    return hashlib.sha256("\n".join(report.trace).encode()).hexdigest()


@pytest.mark.proves("SIM-3")
def test_every_class_of_fault_happens():
    totals = run(0, 260)
    missing = set(totals.never_happened) - UNREACHED
    for seed in COVERING:
        if not missing:
            break
        missing -= {name for name, count in simulate(seed).faults.items() if count}
    assert missing == set()
    assert set(totals.faults) <= set(ALL_FAULTS)


COVERING = (408, 464, 1466, 1720)
"""Seeds in which what is rare happens."""


@pytest.mark.proves("SIM-4")
def test_a_failure_names_the_command_that_plays_it_again():
    totals = Totals()
    totals.add(Report(seed=7, broken="doubled: op-1 took effect 2 times", states=Counter()))
    told = "\n".join(totals.lines(1.0))
    assert "FAILED      seed 7: doubled: op-1 took effect 2 times" in told
    assert "python -m doubtless.testing.simulate --seed 7 --trace" in told


@pytest.mark.proves("SIM-4")
def test_the_command_plays_a_seed_and_tells_all_of_it():
    done = subprocess.run(
        [sys.executable, "-m", "doubtless.testing.simulate", "--seed", "7", "--trace"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "faults are over" in done.stdout
    assert "doubled 0" in done.stdout


def test_several_processes_add_up_to_what_one_finds():
    alone, together = run_all(0, 30, jobs=1), run_all(0, 30, jobs=2)
    assert (alone.operations, alone.effects) == (together.operations, together.effects)
    assert alone.faults == together.faults


# --- deliberate faults of our own, each found by an invariant ------------------------------------


def first_broken(seeds: range) -> str | None:
    """Return the name of the first invariant that is broken, or None."""
    for seed in seeds:
        found = simulate(seed).invariant
        if found is not None:
            return found
    return None


@pytest.mark.proves("SIM-5")
def test_a_gate_that_is_always_open_is_found(monkeypatch):
    def always(record, contract, now, *, attempt, fence):
        return Pass(write_by_ms=now.ms + 3_600_000)

    monkeypatch.setattr("doubtless.engine.steps.permission.gate", always)
    assert first_broken(range(150)) in {"fence", "doubled", "proof", "durable", "validity"}


@pytest.mark.proves("SIM-5")
def test_an_absence_that_is_believed_at_once_is_found(monkeypatch):
    monkeypatch.setattr("doubtless.core.evidence._counted", lambda *_: 99)
    assert first_broken(range(60)) in {"proof", "doubled"}


@pytest.mark.proves("SIM-5")
def test_a_recovery_that_takes_a_crash_for_proof_is_found(monkeypatch):
    recover = progress.recover

    def blind(record, contract, now, liveness):
        return recover(record, replace(contract, record_sending=True), now, liveness)

    monkeypatch.setattr(progress, "recover", blind)
    assert first_broken(range(60)) == "proof"


@pytest.mark.proves("SIM-5")
def test_an_answer_that_is_lost_and_taken_for_not_sent_is_found(monkeypatch):
    monkeypatch.setattr(answers, "SHOWS", {**answers.SHOWS, Seen.UNKNOWN: Shows.NOT_SENT})
    assert first_broken(range(60)) == "proof"
