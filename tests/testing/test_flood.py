"""The flood of webhooks: a slice of it, and what it calls wrong."""

from collections import Counter
from dataclasses import replace

import pytest

from doubtless.testing.flood import AT_ONCE, Result, drawn, flooded, main

GOOD = Result(
    events=10,
    operations=2,
    late=1,
    before_kill=5,
    again=5,
    seconds=1.0,
    lost=0,
    doubled=0,
    missing=0,
    unmatched=0,
    unsettled=0,
    effects=Counter({1: 2}),
)


@pytest.mark.proves("INBOX-13")
def test_five_hundred_webhooks_outlive_a_kill_and_count_once():
    result = flooded(events=500, seed=7)
    assert result.holds, result
    assert (result.events, result.operations, result.late) == (500, 50, 5)
    assert 250 <= result.before_kill < 250 + AT_ONCE
    assert result.again == 500 - result.before_kill


def test_half_of_what_is_drawn_are_copies_and_the_same_seed_draws_the_same():
    flood = drawn(1_000, seed=3)
    assert len(flood.waiting) == 1_000
    assert len({sent.event_id.removesuffix("/again") for sent in flood.waiting}) == 500
    assert 500 < len({sent.event_id for sent in flood.waiting}) < 1_000
    ids = [sent.event_id for sent in flood.waiting]
    assert ids == [sent.event_id for sent in drawn(1_000, seed=3).waiting]
    assert ids != [sent.event_id for sent in drawn(1_000, seed=4).waiting]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"doubled": 1},
        {"missing": 1},
        {"unmatched": 1},
        {"unsettled": 1},
        {"again": 0},
        {"effects": Counter({1: 1, 2: 1})},
        {"effects": Counter({1: 1, 0: 1})},
    ],
    ids=repr,
)
def test_one_that_is_lost_doubled_or_left_open_is_enough_to_fail(wrong):
    assert GOOD.holds
    assert not replace(GOOD, **wrong).holds


def test_the_figures_are_written_by_the_run_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("doubtless.testing.flood.flooded", lambda events, seed: GOOD)
    page = tmp_path / "evidence.md"
    assert main(["--events", "10", "--evidence", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "`python -m doubtless.testing.flood --events 10 --seed 1`" in text
    assert "| acknowledged and lost | 0 |" in text
    assert "| acknowledged and lost | 0 |" in capsys.readouterr().out
    monkeypatch.setattr(
        "doubtless.testing.flood.flooded", lambda events, seed: replace(GOOD, lost=1)
    )
    assert main([]) == 1
