"""The run under load, in small; and the page that it writes into."""

import pytest

from doubtless.testing import evidence, load


@pytest.mark.proves("SERVICE-LOAD-1")
@pytest.mark.long
def test_under_load_with_lost_answers_nothing_is_doubled_or_lost(tmp_path):
    page = tmp_path / "evidence.md"
    words = ["--clients", "12", "--seconds", "2", "--evidence", str(page)]
    assert load.main(words) == 0
    told = page.read_text(encoding="utf-8")
    assert "| doubled, by the provider's count | 0 |" in told
    assert "unknown_reconciliation_required" in told, "no answer was lost: the run proves nothing"


def test_a_run_replaces_its_own_section_of_the_evidence_and_no_other(tmp_path):
    page = tmp_path / "evidence.md"
    evidence.record(page, "one", "One", "run one", ["first"])
    evidence.record(page, "two", "Two", "run two", ["second"])
    evidence.record(page, "one", "One", "run one", ["third \\1"])
    text = page.read_text(encoding="utf-8")
    assert "first" not in text
    assert text.index("third \\1") < text.index("second")
    assert text.count("## One") == text.count("## Two") == 1
