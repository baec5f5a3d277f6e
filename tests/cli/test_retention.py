"""`doubtless retention`: what it would do, what it did, and how far it has come."""

import pytest

ARGUMENTS = '{"charge": "ch_1", "amount": 5}'


@pytest.mark.proves("SCALE-2")
@pytest.mark.usefixtures("provider")
def test_nothing_is_done_without_a_time_nor_before_it(shell):
    assert shell.here("call", "refund", "--operation-id", "r1", "--json", ARGUMENTS).code == 0
    refused = shell.here("retention", "run")
    assert refused.code == 2
    assert "say --retention 90d" in refused.err
    short = shell.here("retention", "run", "--retention", "1h")
    assert short.code == 2
    assert "too short" in short.err
    for more in (("--dry-run",), ()):
        ran = shell.here("retention", "run", "--retention", "90d", "--archive-after", "1d", *more)
        assert ran.code == 0, ran.err
        would = "would be " if more else ""
        assert ran.out.splitlines() == [
            f"0 operations {would}emptied",
            f"0 operations {would}archived",
        ]
    told = shell.here("retention", "show").json
    assert told["settlements"] == 1
    assert told["retention"] == {"after": None, "reached": 0, "later": 0}
    assert told["months"] == []
