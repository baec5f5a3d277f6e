"""What a model is told: no more than is known, and no invitation to what isn't permitted."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.life import every_life

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Cause, Effect
from doubtless.core.outcome import Extras, Outcome, Status, outcome_of
from doubtless.core.refusals import refusal
from doubtless.integrations import telling
from doubtless.testing.strategies import Life

IMPLIED = re.compile(
    r"\b(fail|did not|will not|took effect|succe|was done|been done|done|completed|proven|safe)",
    re.IGNORECASE,
)
INVITED = re.compile(r"\b(try again|retry|call it again|called again|error)", re.IGNORECASE)


def outcomes_of(life: Life) -> list[Outcome]:
    return [
        outcome_of(record, life.contract, now, Extras())
        for record, now in zip(life.records, life.times, strict=True)
    ]


@pytest.mark.proves("TELLING-1")
@every_life
def test_no_text_says_more_than_is_known_or_invites_a_repeat(life: Life):
    for outcome in outcomes_of(life):
        text = telling.told(outcome)
        assert text.startswith(f"[{outcome.status}] ")
        assert outcome.operation_id in text
        assert Status(outcome.status)
        words = text.removeprefix(f"[{outcome.status}]")
        if outcome.outcome in ("unknown", "pending"):
            neutral = words.replace(f"It is not known whether {outcome.tool} took effect.", "")
            assert not IMPLIED.search(neutral), text
            assert not INVITED.search(words), text
            assert f'{telling.STATUS_TOOL}(operation_id="{outcome.operation_id}")' in text
        elif not outcome.retry_allowed:
            assert not INVITED.search(words), text
        else:
            assert "may be called again" in words
            assert "with operation_id" not in words, "a model has no id to call under"


@pytest.mark.proves("TELLING-1")
@every_life
def test_every_form_of_an_outcome_begins_with_the_same_words(life: Life):
    for outcome in outcomes_of(life):
        text = telling.told(outcome)
        assert telling.in_full(outcome).startswith(f"{text}\n{{")
        line = telling.brief(outcome)
        assert (line["message"], line["status"]) == (text, outcome.status)
        assert telling.is_good(outcome) == (outcome.status == "succeeded")


@pytest.mark.proves("TELLING-2")
@pytest.mark.parametrize("by", ["first", None])
@pytest.mark.parametrize(
    "code", [Cause.PAYLOAD_MISMATCH, Cause.TARGET_UNRESOLVED, Cause.OPERATION_ID_TAKEN]
)
def test_a_refusal_leads_to_what_stands_in_the_way_and_to_no_other_call(code, by):
    outcome = refusal(
        operation_id=None, tool="pay", code=code, by=by, payload_hash="sha256:0", target={}
    )
    text = telling.told(outcome)
    assert text.startswith("[rejected_by_policy] pay was refused")
    assert "Nothing was sent" in text
    assert not INVITED.search(text)
    asks = f'{telling.STATUS_TOOL}(operation_id="first")' in text
    assert asks == (by is not None)
    if by is not None and code is not Cause.OPERATION_ID_TAKEN:
        assert "an id of its own" not in text
        assert "None" not in text


descriptions = st.text(max_size=40)


@pytest.mark.proves("TELLING-3")
@given(descriptions, st.sampled_from(sorted(set(Effect) - NO_EFFECT)), st.integers(1, 3))
def test_what_acts_is_described_with_the_caution_once(description, effect, times):
    text = description
    for _ in range(times):
        text = telling.described(text, effect)
    assert text.count(telling.CAUTION) == 1
    assert text.startswith(description.rstrip())
    for word in ("unknown", "neither call it again", "no check", telling.STATUS_TOOL):
        assert word in telling.CAUTION


@pytest.mark.proves("TELLING-3")
@given(descriptions, st.sampled_from(sorted(NO_EFFECT)))
def test_what_reads_is_described_as_it_is(description, effect):
    assert telling.described(description, effect) == description


@pytest.mark.proves("TELLING-3")
def test_the_tools_that_ask_say_that_they_only_read():
    for text in (telling.STATUS_DESCRIPTION, telling.UNRESOLVED_DESCRIPTION):
        assert "only reads" in text
    assert telling.not_done("no").startswith("[not_done] Nothing was recorded")
