"""Whose proof it is: what speaks for one attempt never speaks for the operation."""

from dataclasses import replace
from itertools import product

import pytest
from tests.core.samples import (
    KEY,
    T0,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    record,
    tried,
    witnessed,
)

from doubtless.core import answers
from doubtless.core.contract import Stores
from doubtless.core.evidence import NOTHING_DONE, unproven, weigh
from doubtless.core.model import (
    Cause,
    Effect,
    Observation,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
    Verdict,
)

PROVEN = (Seen.NOT_SENT, Seen.NOT_PROCESSED, Seen.REJECTED)


def verdict(before, rules=None, at=T0 + 60_000):
    return weigh(before, rules or contract(), now(at)).verdict


def test_of_an_operation_that_was_never_tried_nothing_was_done():
    assert weigh(record(), contract(), now(T0)) == NOTHING_DONE


@pytest.mark.proves("CORE-3")
@pytest.mark.parametrize("second", PROVEN)
def test_a_refusal_of_attempt_two_says_nothing_about_attempt_one(second):
    before = tried(attempt(), attempt(2, seen=second, at=T0 + 20_000))
    assert verdict(before) is Verdict.UNKNOWN
    assert [a.number for a in unproven(before, contract())] == [1]


@pytest.mark.proves("CORE-3")
@pytest.mark.parametrize(("first", "second"), list(product(PROVEN, PROVEN)))
def test_proof_of_every_attempt_is_proof_of_the_operation(first, second):
    before = tried(attempt(seen=first), attempt(2, seen=second, at=T0 + 20_000))
    found = weigh(before, contract(), now(T0 + 60_000))
    assert found.verdict is Verdict.NOT_APPLIED
    if Seen.REJECTED in (first, second):
        assert found.basis is Cause.REFUSED


@pytest.mark.parametrize("seen", [Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_proof_counts_for_the_attempt_that_it_names_and_for_no_other(seen):
    before = tried(attempt(), attempt(2, at=T0 + 20_000))
    late = adding(before, witnessed(2, answers.SHOWS[seen]))
    assert [a.number for a in unproven(late, contract())] == [1]


def test_proof_that_names_no_attempt_is_none():
    before = adding(tried(attempt()), evidence(Shows.REFUSED, Source.RESPONSE))
    assert verdict(before) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-4")
@pytest.mark.parametrize("shows", [Shows.REFUSED, Shows.NOT_PROCESSED])
def test_a_replayed_answer_is_the_first_attempts_answer_too_a_refusal_as_well(shows):
    before = tried(attempt(), attempt(2, at=T0 + 20_000))
    replayed = adding(before, witnessed(2, shows, source=Source.KEY_REPLAY))
    assert verdict(replayed, contract(Effect.IDEMPOTENT_CALL, key=KEY)) is Verdict.NOT_APPLIED


def test_a_replayed_answer_says_nothing_of_a_later_attempt():
    before = tried(attempt(), attempt(2, at=T0 + 20_000))
    replayed = adding(before, witnessed(1, Shows.REFUSED, source=Source.KEY_REPLAY))
    assert verdict(replayed) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-4")
@pytest.mark.parametrize("stores", Stores)
def test_only_a_provider_that_stores_all_answers_replays_for_the_first_attempt(stores):
    rules = contract(key=replace(KEY, stores=stores))
    refused = Observation(seen=Seen.REJECTED, stage=Stage.READ, status=402, replayed=True)
    expected = Source.KEY_REPLAY if stores is Stores.ALL else Source.RESPONSE
    assert answers.source_of(refused, rules) is expected


def test_a_replayed_unknown_proves_nothing():
    before = tried(attempt(), attempt(2, at=T0 + 20_000))
    replayed = adding(before, witnessed(2, Shows.NOTHING, source=Source.KEY_REPLAY))
    assert verdict(replayed) is Verdict.UNKNOWN


@pytest.mark.parametrize("effect", [Effect.READ, Effect.COMPUTE])
@pytest.mark.parametrize("seen", [Seen.UNKNOWN, Seen.NOT_SENT, Seen.NOT_PROCESSED])
def test_every_ended_attempt_of_a_read_or_a_computation_is_proven(effect, seen):
    found = weigh(tried(attempt(seen=seen)), contract(effect, lookups=()), now(T0 + 60_000))
    assert (found.verdict, found.basis) == (Verdict.NOT_APPLIED, Cause.NO_EFFECT)


def test_a_read_that_is_still_under_way_is_not_proven():
    before = tried(attempt(seen=None), state=State.EXECUTING)
    assert verdict(before, contract(Effect.READ, lookups=())) is Verdict.UNKNOWN


def test_a_refused_read_was_refused():
    found = weigh(
        tried(attempt(), attempt(2, seen=Seen.REJECTED)), contract(Effect.READ), now(T0 + 60_000)
    )
    assert found.basis is Cause.REFUSED


@pytest.mark.proves("CORE-5")
@pytest.mark.parametrize("shows", [s for s in Shows if s is not Shows.NOTHING])
def test_advisory_evidence_alone_never_settles_anything(shows):
    item = event(shows, at=T0 + 20_000, strength=Strength.ADVISORY)
    assert verdict(adding(tried(attempt()), item)) is Verdict.UNKNOWN


@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS])
def test_advisory_evidence_contradicts_nothing(shows):
    before = adding(tried(attempt()), evidence(Shows.APPLIED, at=T0 + 20_000))
    item = event(shows, at=T0 + 30_000, strength=Strength.ADVISORY)
    assert verdict(adding(before, item)) is Verdict.APPLIED


@pytest.mark.proves("CORE-6")
def test_a_match_that_nothing_ties_to_the_operation_is_never_success():
    before = adding(tried(attempt()), evidence(Shows.PRESENT, at=T0 + 20_000))
    assert verdict(before) is Verdict.UNKNOWN


@pytest.mark.proves("CORE-7")
@pytest.mark.parametrize("source", [Source.LOOKUP, Source.OBJECT, Source.MARKER, Source.RESPONSE])
def test_two_authoritative_items_that_disagree_are_a_contradiction(source):
    items = [evidence(Shows.APPLIED, source), evidence(Shows.NOT_APPLIED, Source.OBJECT)]
    assert verdict(adding(tried(attempt()), *items)) is Verdict.CONTRADICTION
    assert verdict(adding(tried(attempt()), *reversed(items))) is Verdict.CONTRADICTION


@pytest.mark.proves("CORE-7")
@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.ABSENT])
def test_two_matches_are_a_contradiction_whatever_else_is_known(shows):
    items = (evidence(Shows.CONFLICT), evidence(shows, at=T0 + 20_000))
    assert verdict(adding(tried(attempt()), *items)) is Verdict.CONTRADICTION


@pytest.mark.parametrize("shows", [Shows.APPLIED, Shows.IN_PROGRESS])
@pytest.mark.parametrize("seen", PROVEN)
def test_an_effect_that_is_seen_although_no_attempt_can_have_made_it_is_a_contradiction(
    seen, shows
):
    before = adding(tried(attempt(seen=seen)), evidence(shows, at=T0 + 20_000))
    assert verdict(before) is Verdict.CONTRADICTION


def test_an_effect_is_no_contradiction_while_one_attempt_may_have_made_it():
    before = tried(attempt(seen=Seen.NOT_SENT), attempt(2, at=T0 + 20_000))
    assert verdict(adding(before, evidence(Shows.APPLIED))) is Verdict.APPLIED


def test_news_that_the_work_goes_on_is_in_progress_and_no_proof_of_the_end():
    before = adding(tried(attempt()), evidence(Shows.IN_PROGRESS, at=T0 + 20_000))
    assert verdict(before) is Verdict.IN_PROGRESS


def test_a_definite_failure_that_the_owner_reports_is_proof():
    found = weigh(
        adding(tried(attempt()), evidence(Shows.NOT_APPLIED)), contract(), now(T0 + 60_000)
    )
    assert (found.verdict, found.basis) == (Verdict.NOT_APPLIED, Cause.DEFINITE_FAILURE)


# --- a person's word -----------------------------------------------------------------------------


def word(shows: Shows, at: int = T0 + 50_000):
    return evidence(shows, Source.OPERATOR, at=at, by="operator-1")


@pytest.mark.proves("CORE-8")
@pytest.mark.parametrize("came", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.CONFLICT, Shows.PRESENT])
@pytest.mark.parametrize(
    ("shows", "basis"),
    [(Shows.APPLIED, Cause.OPERATOR_DONE), (Shows.NOT_APPLIED, Cause.OPERATOR_NOT_DONE)],
)
def test_an_operators_word_closes_what_came_before_it(shows, basis, came):
    before = adding(tried(attempt()), evidence(came, at=T0 + 20_000), word(shows))
    assert weigh(before, contract(), now(T0 + 60_000)).basis is basis


@pytest.mark.proves("CORE-8")
@pytest.mark.parametrize(
    ("shows", "comes"),
    [
        (Shows.APPLIED, Shows.NOT_APPLIED),
        (Shows.APPLIED, Shows.CONFLICT),
        (Shows.NOT_APPLIED, Shows.APPLIED),
        (Shows.NOT_APPLIED, Shows.IN_PROGRESS),
    ],
)
def test_what_comes_after_an_operators_word_is_held_against_it(shows, comes):
    before = adding(tried(attempt()), word(shows), evidence(comes, at=T0 + 55_000))
    assert verdict(before) is Verdict.CONTRADICTION


def test_an_operator_who_knew_the_proofs_and_says_done_is_believed():
    before = adding(tried(attempt(seen=Seen.NOT_SENT)), word(Shows.APPLIED))
    assert verdict(before) is Verdict.APPLIED


def test_a_proof_that_comes_after_an_operators_done_contradicts_it():
    before = adding(tried(attempt()), word(Shows.APPLIED), witnessed(1, Shows.NOT_SENT))
    assert verdict(before) is Verdict.CONTRADICTION


def test_the_word_not_done_says_nothing_of_an_attempt_that_is_opened_later():
    before = adding(tried(attempt()), word(Shows.NOT_APPLIED))
    later = replace(before, attempts=(*before.attempts, attempt(2, at=T0 + 60_000)))
    assert verdict(later, at=T0 + 90_000) is Verdict.UNKNOWN


@pytest.mark.proves("INV-2")
def test_the_word_not_done_says_nothing_of_an_attempt_that_is_opened_in_the_same_millisecond():
    before = adding(tried(attempt()), word(Shows.NOT_APPLIED))
    later = replace(before, attempts=(*before.attempts, attempt(2, at=T0 + 50_000)))
    assert verdict(later, at=T0 + 90_000) is Verdict.UNKNOWN


def test_an_operators_word_outweighs_no_proof_of_what_the_attempts_saw():
    before = adding(tried(attempt(seen=Seen.NOT_SENT)), word(Shows.NOT_APPLIED))
    assert weigh(before, contract(), now(T0 + 60_000)).basis is Cause.NOT_SENT


def test_permission_is_no_source_of_evidence():
    assert "approval" not in {source.value for source in Source}
