"""What always holds of a verdict, whatever the evidence."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.life import LIVES, every_life
from tests.core.samples import (
    EVENTS,
    HOUR,
    PROVES,
    T0,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    numbered,
    tried,
)

from doubtless.core.evidence import weigh
from doubtless.core.model import Now, Seen, Shows, Source, Verdict
from doubtless.testing.strategies import Life

RULES = contract(events=EVENTS)
INSTANTS = st.integers(T0, PROVES + 60_000)
SAID = st.sampled_from(
    [s for s in Shows if s not in (Shows.NOT_SENT, Shows.NOT_PROCESSED, Shows.REFUSED)]
)
ASKED = st.builds(lambda shows, at: evidence(shows, at=at), SAID, INSTANTS)
EVENT = st.builds(
    lambda shows, at: event(shows, at=at),
    st.sampled_from([Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS]),
    INSTANTS,
)
ATTEMPTS = st.lists(st.sampled_from([Seen.UNKNOWN, Seen.NOT_SENT, Seen.REJECTED]), min_size=1)


def verdict(before, at: Now | None = None):
    return weigh(before, RULES, at or now(PROVES + HOUR)).verdict


def no_tie(items):
    occurred = [item.occurred_ms for item in items if item.source is Source.WEBHOOK]
    return len(set(occurred)) == len(occurred)


@pytest.mark.proves("CORE-17")
@given(st.lists(ASKED | EVENT, max_size=6).filter(no_tie), ASKED | EVENT)
def test_more_evidence_never_turns_applied_back_into_unknown(items, more):
    before = adding(tried(attempt()), *items)
    if verdict(before) is Verdict.APPLIED and no_tie([*items, more]):
        assert verdict(adding(before, more)) in (Verdict.APPLIED, Verdict.CONTRADICTION)


@pytest.mark.proves("CORE-17")
@given(st.lists(ASKED | EVENT, max_size=6).filter(no_tie), ASKED | EVENT)
def test_a_contradiction_is_not_explained_away(items, more):
    before = adding(tried(attempt()), evidence(Shows.CONFLICT), *items)
    assert verdict(adding(before, more)) is Verdict.CONTRADICTION


@given(st.lists(EVENT, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_arrival_of_events_changes_no_verdict(items, chance):
    shuffled = list(items)
    chance.shuffle(shuffled)
    before = tried(attempt())
    assert verdict(adding(before, *items)) is verdict(adding(before, *shuffled))


@given(st.lists(ASKED | EVENT, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_recording_changes_no_verdict(items, chance):
    shuffled = list(items)
    chance.shuffle(shuffled)
    before = tried(attempt())
    assert verdict(adding(before, *items)) is verdict(adding(before, *shuffled))


@pytest.mark.proves("CORE-17")
@given(st.lists(ASKED | EVENT, max_size=8), st.integers(0, 10**13))
def test_time_alone_changes_no_verdict(items, later):
    before = adding(tried(attempt()), *items)
    assert verdict(before, now(T0)) is verdict(before, now(T0 + later))


@pytest.mark.proves("CORE-17", "INV-2")
@settings(max_examples=20)
@given(LIVES, st.integers(0, 10**13))
def test_no_age_ever_turns_an_unknown_into_a_failure(life: Life, later):
    for record, at in zip(life.records, life.times, strict=True):
        if weigh(record, life.contract, at).verdict is Verdict.UNKNOWN:
            older = replace(at, ms=at.ms + later)
            assert weigh(record, life.contract, older).verdict is Verdict.UNKNOWN


@given(ATTEMPTS, st.lists(ASKED, max_size=6))
def test_a_verdict_of_not_done_rests_on_proof_of_every_attempt_or_on_absence(seen, items):
    attempts = [attempt(n, seen=s, at=T0 + n) for n, s in enumerate(seen, start=1)]
    found = weigh(adding(tried(*attempts), *items), RULES, now(PROVES + HOUR))
    if found.verdict is Verdict.NOT_APPLIED:
        failed = any(item.shows is Shows.NOT_APPLIED for item in items)
        assert Seen.UNKNOWN not in seen or found.absence.confirmed or failed


@every_life
def test_evidence_is_only_ever_appended(life: Life):
    for before, after in zip(life.records, life.records[1:], strict=False):
        assert after.evidence[: len(before.evidence)] == before.evidence
    assert life.last.evidence == numbered(*life.last.evidence)
