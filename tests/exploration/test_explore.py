"""A slice of the exploration: every kind of resend, exhausted, and every rule that is missed."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from doubtless import core
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Effect
from doubtless.testing import explore
from doubtless.testing.explore_canonical import canonical
from doubtless.testing.explore_families import ALIKE, BY_NAME, SCENES, first_of_its_row
from doubtless.testing.explore_mutants import MUTANTS
from doubtless.testing.explore_pairs import PAIRS, pair_model
from doubtless.testing.explore_scenes import hurried, model, tuned
from doubtless.testing.explore_search import search
from doubtless.testing.explore_world import Budget

SLICE = {
    "read/repeat": {"repeats": 1},
    "browser/operator": {"words": 1},
    "write/lookups": {"blind": 1, "stray": 1},
    "write/resend": {"crashes": 1},
    "write/accepted": {},
    "write/webhook": {"hooks": 1},
    "shell_read/stall": {},
    "keyed_create/late": {},
    "conditional_update/late": {},
    "idempotent_call/stall": {},
    "money/repeat": {},
}
"""Scenes with fewer faults than the full run has."""

EVENTS = {
    "time passes": "passes",
    "a worker that dies": "is killed",
    "a gate that opens": "passes the gate",
    "a request that is written": "writes the request",
    "a lost connection": "loses the connection",
    "an effect": "takes effect",
    "a refusal": "is refused",
    "an answer": "hears success",
    "an acceptance": "is accepted; the work goes on",
    "accepted work that ends": "finishes the accepted work: it takes effect",
    "a dead worker that is found": "finds the worker dead",
    "a look-up that finds nothing": "finds nothing",
    "a look-up that finds the effect": "finds the effect",
    "a look-up that can't be asked": "could not ask",
    "an event": "says that it was done",
    "a repeat": "repeats the call: a new attempt is opened",
    "a person's word": "decides not_done",
}


def narrowed(name, faults=SLICE):
    scene = SCENES[name]
    budget = replace(scene.budget, crashes=0, late=0, stalls=0, words=0, hooks=0)
    budget = replace(budget, repeats=0, blind=0, stray=0, votes=0)
    return replace(scene, contract=hurried(scene.contract), budget=replace(budget, **faults[name]))


missed = cache(explore.missed)  # two tests read each story


@pytest.fixture(scope="module")
def slices():
    """Search the slice once, for all tests of this module."""
    with tuned():
        return {name: search(model(narrowed(name))) for name in SLICE}


@pytest.mark.proves("EXPLORE-1")
def test_every_reachable_state_of_each_slice_holds_every_invariant(slices):
    ends = {name: found.broken or found.exhausted for name, found in slices.items()}
    assert ends == dict.fromkeys(SLICE, True)
    assert all(found.states > 100 and found.depth > 10 for found in slices.values())


def test_the_slices_cover_every_kind_of_resend():
    kinds = {RULES[Effect(name.partition("/")[0])].resend for name in SLICE}
    assert kinds == set(Resend)


@pytest.mark.parametrize("what", EVENTS.values(), ids=EVENTS.keys())
def test_every_kind_of_event_happens_somewhere_in_the_slices(slices, what):
    assert sum(found.kinds.get(what, 0) for found in slices.values()) > 0


@pytest.mark.proves("EXPLORE-2")
def test_every_effect_has_scenes_for_the_faults_that_matter_to_it():
    for effect, row in RULES.items():
        families = {name.partition("/")[2] for name in SCENES if name.startswith(f"{effect}/")}
        assert {"crash", "late"} <= families
        assert ("lookups" in families) is row.looks_up
        if effect in ALIKE:
            assert RULES[ALIKE[effect]] == row
            continue
        assert {"stall", "operator", "repeat", "approval"} <= families
        assert ("webhook" in families) is ("hearsay" in families) is (effect not in NO_EFFECT)


def test_a_plainer_provider_stands_only_before_effects_whose_rules_are_those_of_another_one():
    for effect in RULES:
        first, mine = first_of_its_row(effect), SCENES[f"{effect}/late"]
        theirs = SCENES[f"{first}/late"]
        assert RULES[first] == RULES[effect]
        assert replace(mine.contract, tool="", effect=first) == replace(theirs.contract, tool="")
        if first is effect:
            plainer = mine.keyed and mine.locks and RULES[effect].resend is Resend.REPLAYED
            assert mine.refuses is mine.busy is not plainer
        else:
            assert not mine.refuses
            assert not mine.busy


def test_the_core_tells_effects_apart_by_their_rules_alone():
    """No effect's name stands in it, but in the table, the set beside it, and one rule."""
    named = re.compile(r"\bEffect\.([A-Z_]+)")
    files = [path for path in Path(core.__file__).parent.glob("*.py") if path.name != "effects.py"]
    found = {name for path in files for name in named.findall(path.read_text())}
    assert {Effect[name] for name in found} == BY_NAME
    for effect in RULES:
        assert (effect in NO_EFFECT) is (first_of_its_row(effect) in NO_EFFECT)


TWINS = {
    "write/hearsay": {"hooks": 1},
    "idempotent_call/partial": {},
    "write/approval": {"votes": 1},
    "browser/operator": {"words": 1},
}


@pytest.mark.parametrize("name", TWINS)
def test_worlds_that_count_as_one_have_one_future(name):
    with tuned():
        found = search(model(narrowed(name, TWINS)), twins=True)
    assert found.broken == ""
    assert found.exhausted


def test_worlds_that_are_taken_for_one_although_they_differ_are_found_out():
    scene = narrowed("browser/operator", TWINS)

    def without_what_is_really_there(world):
        budget, _, *rest = canonical(scene, world)
        return (budget, *rest)

    with tuned():
        blurred = replace(model(scene), key=without_what_is_really_there)
        found = search(blurred, twins=True)
    assert found.broken.startswith("canonical:")
    assert found.story[-1].strip() == f"violated: {found.broken}"


def test_two_operations_may_be_searched_by_what_each_of_them_may_do_alone():
    pair = PAIRS["pair/after-or-unknown"]
    with tuned():
        found = search(pair_model(pair), twins=True)
    assert found.broken == ""


@pytest.mark.proves("EXPLORE-3")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_switched_off_is_missed_by_a_story(name):
    found = missed(name)
    mutant = MUTANTS[name]
    assert found.broken.startswith(f"{mutant.breaks}:")
    assert "caller asks for the operation" in found.story[0]
    assert found.story[-1].strip() == f"violated: {found.broken}"


TELLING = {
    "last-horizon": ["opens attempt 2", "confirmed_absent; 1 effects"],
    "no-lease": ["is stopped (SIGSTOP)", "after the end of its lease"],
    "no-fence": ["finds the lease run out", "passes the gate"],
    "one-confirmation": ["in a copy that trails behind", "confirmed_absent; 1 effects"],
    "key-once": ["is stopped (SIGSTOP)", "after the provider has forgotten the key"],
    "no-fold": ["opens attempt 2", "failed, not_sent; 1 effects"],
    "unclaimed": ["nobody takes it further"],
    "sent-at-gate": ["is stopped (SIGSTOP)", "confirmed_absent"],
    "hasty-word": ["decides not_done", "repeats the call", "2 effects"],
    "stores": ["opens attempt 2", "2 effects"],
    "unapproved": ["approves it", "after its approval had expired"],
}


@pytest.mark.parametrize("name", TELLING)
def test_the_story_of_a_missing_rule_tells_what_it_comes_to(name):
    story = "\n".join(missed(name).story)
    for fact in TELLING[name]:
        assert fact in story


@pytest.mark.proves("EXPLORE-4")
@pytest.mark.parametrize("name", ["pair/after", "pair/meet"])
def test_two_operations_never_act_where_one_must_wait_for_the_other(name):
    pair = PAIRS[name]
    without_repeats = replace(pair, scene=replace(pair.scene, budget=Budget()))
    with tuned():
        found = search(pair_model(without_repeats))
    assert found.broken == ""
    assert found.exhausted


def test_the_command_lists_its_scenes_and_mutants(capsys):
    assert explore.main(["--list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*SCENES, *PAIRS, *MUTANTS))
