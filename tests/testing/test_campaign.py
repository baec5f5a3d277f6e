"""The campaign on PostgreSQL: a slice of it, and what it calls wrong."""

from collections import Counter
from dataclasses import replace

import pytest

from doubtless.core.model import State
from doubtless.testing import campaign
from doubtless.testing.campaign import Plan, Result
from doubtless.testing.campaign_callers import History, Word
from doubtless.testing.campaign_checks import Held, of_the_history, of_the_ledger, summed
from doubtless.testing.campaign_faults import CUT, KILLED, NAPPED
from doubtless.testing.campaign_fight import Sides, Verdict
from doubtless.testing.campaign_stage import SHORT, hostile

SLICE = Plan(
    sides=Sides(
        seed=17,  # it draws faults of every kind early on
        pace=SHORT,
        workers=1,
        callers=4,
        think_s=0.3,
        asked_max=10,
    ),
    seconds=3.2,
    every_s=0.5,
    kinds=((KILLED, 0.3), (NAPPED, 0.3), (CUT, 0.4)),
)


@pytest.mark.timeout(180)
@pytest.mark.proves("PG-15")
def test_processes_that_are_killed_and_stopped_double_and_lose_nothing(postgres, tmp_path):
    result = campaign.run(SLICE, tmp_path, postgres.base, "campaign")
    verdict = result.verdict
    assert result.holds, [*verdict.shown, result.faults]
    assert sum(verdict.ended.values()) > 10
    assert sum(verdict.provider_faults.values()) > 0
    assert verdict.history.repeats > 0


def test_the_same_seed_draws_the_same_faults_for_the_provider():
    assert hostile(SHORT, 3) == hostile(SHORT, 3)
    assert hostile(SHORT, 3) != hostile(SHORT, 4)


# --- what it calls wrong -------------------------------------------------------------------------


def word(begun_s: float, **said) -> Word:
    """An answer that took a second."""
    plain = Word(begun_s=begun_s, ended_s=begun_s + 1, calls=True, service="one", code=200)
    return replace(plain, **{"status": "succeeded"} | said)


UNKNOWN = {"status": "unknown_reconciliation_required"}
RIGHT = [
    word(0, code=0, status=""),
    word(2, code=202, status="pending"),
    word(4, **UNKNOWN),
    word(6, calls=False),
    word(8, already_done=True),
    word(8.5, already_done=True),
]


def told(*words: Word) -> History:
    history = History()
    for each in words:
        history.add("op", each)
    return history


def kinds(history: History) -> set[str]:
    return {kind for kind, names in of_the_history(history).items() if names}


def test_answers_that_learn_more_and_more_contradict_nothing():
    assert kinds(told(*RIGHT)) == set()
    late = [word(0), word(0.5, **UNKNOWN)]
    assert kinds(told(*late)) == set(), "it was asked before the other was answered"


@pytest.mark.parametrize(
    ("later", "kind"),
    [
        (word(20, **UNKNOWN), "told of success and later otherwise"),
        (word(20, status="failed"), "told of success and later otherwise"),
        (word(20), "told of success and acted on again"),
        (
            word(20, code=404, status="", calls=False),
            "acknowledged and later unknown to the service",
        ),
    ],
    ids=["unknown", "failed", "acted again", "not found"],
)
def test_an_answer_that_contradicts_an_earlier_one_is_found(later, kind):
    assert kinds(told(*RIGHT, later)) == {kind}


def test_a_failure_becomes_a_success_only_by_a_repeat():
    failed, asked = word(0, status="failed"), word(10, calls=False)
    assert kinds(told(failed, asked)) == {"told of failure and of success without a repeat"}
    assert kinds(told(failed, word(5), asked)) == set()


GOOD = {"op": Held(state=State.SUCCEEDED, ref="r")}


@pytest.mark.parametrize(
    ("held", "effects", "kinds"),
    [
        (GOOD, {"r": 1}, set()),
        (GOOD, {"r": 2}, {"doubled"}),
        (GOOD, {}, {"succeeded without an effect"}),
        (GOOD, {"r": 1, "other": 1}, {"effects that no operation has"}),
        ({}, {}, {"acknowledged and lost"}),
        (
            {"op": replace(GOOD["op"], state=State.FAILED)},
            {"r": 1},
            {"ended otherwise with an effect", "told otherwise than it ended"},
        ),
        (
            {"op": replace(GOOD["op"], state=State.FAILED)},
            {},
            {"told otherwise than it ended"},
        ),
        (
            {"op": replace(GOOD["op"], state=State.UNKNOWN)},
            {"r": 1},
            {"not settled", "told otherwise than it ended"},
        ),
    ],
)
def test_ledger_count_and_what_was_told_are_held_against_one_another(held, effects, kinds):
    found = of_the_ledger(told(*RIGHT), held, effects)
    assert {kind for kind, names in found.items() if names} == kinds


def test_one_that_is_wrong_or_a_fault_that_never_came_is_enough_to_fail():
    verdict = Verdict(
        sides=SLICE.sides,
        history=told(*RIGHT),
        ended=summed({"succeeded": ["op"]}),
        effects=Counter({1: 1}),
        wrong=summed({"doubled": []}),
        shown=(),
        provider_faults=summed({}),
        seen=summed({}),
        settled_s=1.0,
    )
    faults = summed({f"workers {kind}": ["one"] for kind, _ in SLICE.kinds})
    good = Result(plan=SLICE, verdict=verdict, faults=faults)
    assert good.holds
    assert not replace(good, verdict=replace(verdict, wrong=summed({"doubled": ["op"]}))).holds
    assert not replace(good, verdict=replace(verdict, ended=Counter())).holds
    assert not replace(good, faults=summed({f"workers {KILLED}": ["one"]})).holds
    assert "| doubled | 0 |" in good.lines()
