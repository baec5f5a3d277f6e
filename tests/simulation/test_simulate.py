import hashlib
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from tests.simulation.mutants import MUTANTS

from doubtless.testing.simulate import run, run_all
from doubtless.testing.simulate_faults import ALL_FAULTS
from doubtless.testing.simulate_report import Report, Totals
from doubtless.testing.simulate_run import simulate

SEEDS = 600
CHUNK = 100
FIRST = range(0, SEEDS, CHUNK)
SEARCHED = 400  # seeds in which a deliberate fault has to be found


@pytest.fixture
def shared(tmp_path_factory):
    """Give one folder to all workers of a run of the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulated"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.proves("SIM-1", "SIM-3")
@pytest.mark.parametrize("first", FIRST, ids=str)
def test_no_seed_doubles_loses_or_breaks_anything(first, shared):
    totals = run(first, CHUNK)
    assert totals.broken == {}
    assert totals.seeds == CHUNK
    assert totals.operations > CHUNK
    assert totals.effects > 0
    assert set(totals.states) >= {"succeeded", "failed", "manual_review"}
    (shared / f"{first}.part").write_text(json.dumps(totals.faults))
    (shared / f"{first}.part").rename(shared / f"{first}.json")
    parts = [json.loads(path.read_text()) for path in shared.glob("*.json")]
    if len(parts) == len(FIRST):  # whoever comes last sees all of them
        assert set().union(*parts) == set(ALL_FAULTS)


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


@pytest.mark.long
def test_several_processes_add_up_to_what_one_finds():
    alone, together = run_all(0, 30, jobs=1), run_all(0, 30, jobs=2)
    assert (alone.operations, alone.effects) == (together.operations, together.effects)
    assert alone.faults == together.faults


# --- deliberate faults of our own, each found by an invariant ------------------------------------


@pytest.mark.proves("SIM-5")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_deliberate_fault_is_found_by_its_invariant(name):
    mutant = MUTANTS[name]
    with mutant.at_work():
        found = next(filter(None, (simulate(seed).invariant for seed in range(SEARCHED))), None)
    assert found in mutant.found_by
