"""The measurement of throughput beside DBOS: what it measures, and what it makes of it."""

import pytest

from doubtless.testing import throughput
from doubtless.testing.postgres_server import Server, scratch
from doubtless.testing.throughput import Dbos, Ours, Rate, Report, middle_rate


@pytest.mark.timeout(180)
@pytest.mark.long
def test_workers_settle_what_a_process_has_prepared_and_the_rate_is_read_from_the_ledger():
    with scratch() as base, Server(base / "postgres") as server:
        server.create()
        found = throughput.measure(Ours(), server, number=1, workers=2, count=40)
        with Ours().connect(server.address(schema="ledger_1")) as connection:
            ended_ms = Ours().ended_ms(connection)
    assert len(ended_ms) == 40
    assert found.settled == middle_rate(ended_ms)
    assert found.prepared > 0


def test_a_rate_leaves_out_how_it_began_and_how_it_ran_out():
    steady = list(range(0, 10_000, 100))
    assert middle_rate(steady) == pytest.approx(10)
    assert middle_rate([-60_000, *steady[1:-1], 90_000]) == pytest.approx(10)


def test_a_ratio_compares_what_was_measured_in_the_same_round():
    report = Report()
    for busy in (1, 10, 2):  # the machine had other work to do, now more, now less
        report.rates.setdefault((Ours.name, 1), []).append(Rate(200, 300 / busy))
        report.rates.setdefault((Dbos.name, 1), []).append(Rate(100, 100 / busy))
    assert report.ratio(1) == pytest.approx(3)
    assert report.lines()[2:] == [
        "| 1 | 150 (30 to 300) | 50 (10 to 100) | 3.0 |",
        "| made durable first, by one process | 200 | 100 | 2.0 |",
    ]
