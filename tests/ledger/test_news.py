"""News between processes: short, naming nothing, and harmless whatever it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.ledger.news import ANYTHING, TAGS_MAX, read, written

told = st.lists(st.tuples(st.text("ab€", min_size=1), st.booleans(), st.booleans()), max_size=9)
voices = st.sampled_from(["0123abcd", "ffffffff"])


@pytest.mark.proves("PG-21")
@given(voices, told)
def test_news_concern_all_that_was_told_and_say_what_of_it_is_due_or_ended(voice, items):
    news = read(written(voice, items))
    assert news.voice == voice
    assert all(news.concerns(operation_id) for operation_id, _, _ in items)
    assert news.due == any(due for _, due, _ in items)
    assert news.ended == any(ended for _, _, ended in items)


@pytest.mark.proves("PG-21")
def test_news_concern_others_only_where_there_are_too_many_to_name():
    few = [(f"o{number}", False, True) for number in range(TAGS_MAX)]
    assert not read(written("ab", few)).concerns("another")
    many = [*few, ("one-more", False, True)]
    assert read(written("ab", many)).concerns("another")
    assert max(len(written("abcdef01", each)) for each in (few, many)) < 2_000


@pytest.mark.proves("PG-22")
@given(st.text())
def test_what_nobody_of_ours_wrote_may_mean_anything(payload):
    news = read(payload)
    assert news == ANYTHING or news.voice == payload.partition(" ")[0]
