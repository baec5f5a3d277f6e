"""What operators watch: each metric moves when what it counts happens, and only then."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from tests.engine.people import book_of
from tests.scenarios.stories import UNKNOWN

from doubtless import Doubtless, telemetry
from doubtless.core.model import (
    Evidence,
    Observation,
    Principal,
    Role,
    Seen,
    Shows,
    Source,
    Stage,
    Strength,
)
from doubtless.engine import steps
from doubtless.engine.book import Begun
from doubtless.ledger import meta, metrics
from doubtless.service.metrics import routes
from doubtless.telemetry import METRICS, Kind

LOST = [{"match": {"method": "POST", "nth": 1}, "then": {"action": "commit_then_rst"}}]
DROPPED = [{"match": {"method": "POST", "nth": 1}, "then": {"action": "drop_before_commit"}}]
NO_LOOKUP = {"effect": "write", "lookup": None}
SAID = {"tool": "refund", "effect": "money"}


async def values(app: Doubtless, name: str) -> dict[tuple[str, ...], float]:
    """Return one metric by the values of its labels, those of tool and effect left out."""
    (found,) = [each for each in await app.metrics() if each.metric.name == name]
    own = [place for place, label in enumerate(found.metric.labels) if label not in SAID]
    told: dict[tuple[str, ...], float] = {}
    for labels, value in found.values.items():
        key = tuple(labels[place] for place in own)
        told[key] = told.get(key, 0) + value
    return told


async def moved(app: Doubtless) -> set[str]:
    """Return the names of the counters that are not at nothing."""
    return {
        each.metric.name
        for each in await app.metrics()
        if each.metric.kind is not Kind.GAUGE and (any(each.values.values()) or each.histograms)
    }


def witnessed(source: Source, shows: Shows) -> Evidence:
    return Evidence(
        number=0,
        source=source,
        shows=shows,
        strength=Strength.AUTHORITATIVE,
        at_ms=0,
        begun_ms=0,
        by="a test",
    )


def add(app: Doubtless, source: Source, shows: Shows, operation_id: str = "r1") -> None:
    """Record evidence, as a transport or an event does."""
    item = witnessed(source, shows)
    app.ledger.write(lambda tx: steps.add(book_of(app), tx, operation_id, item))


# --- the ordinary --------------------------------------------------------------------------------


@pytest.mark.proves("METRIC-1")
async def test_ends_are_counted_by_their_state_and_nothing_else_moves(story):
    story.provider.configure(
        [{"match": {"method": "POST", "nth": 3}, "then": {"action": "status", "status": 402}}]
    )
    async with story.app() as app:
        for number in (1, 2, 3):
            await story.call(app, f"r{number}", charge=f"ch_{number}")
        told = await values(app, telemetry.OPERATIONS.name)
        assert told == {("succeeded",): 2, ("failed",): 1}
        assert await moved(app) == {telemetry.OPERATIONS.name}
        (operations,) = [
            each for each in await app.metrics() if each.metric is telemetry.OPERATIONS
        ]
    assert operations.values["succeeded", "refund", "money"] == 2


@pytest.mark.proves("METRIC-1")
async def test_what_is_withdrawn_is_counted_as_cancelled(story):
    async with story.app(worker=False) as app:
        story.provider.configure([{"match": {}, "then": {"action": "rst_on_accept"}}])
        story.provider.refuse_connections()
        await story.call(app, wait_s=0.3)
        await story.until(app, lambda found: found.state == "prepared")
        await app.cancel("r1")
        assert await values(app, telemetry.OPERATIONS.name) == {("cancelled",): 1}


# --- doubt ---------------------------------------------------------------------------------------


@pytest.mark.proves("METRIC-1")
async def test_a_lost_answer_is_counted_by_its_cause_and_its_end_by_its_time(story):
    story.declare()
    story.provider.configure(LOST)
    async with story.app() as app:
        first = await story.call(app)
        assert first.status == UNKNOWN
        assert await values(app, telemetry.UNKNOWN.name) == {("connection_reset",): 1}
        assert telemetry.CONFIRMED.name not in await moved(app)
        await story.ends(app, "succeeded")
        assert await values(app, telemetry.UNKNOWN.name) == {("connection_reset",): 1}
        assert await values(app, telemetry.CONFIRMED.name) == {(): 1}
        histogram = await reconciliation(app)
        assert [count for _, count in histogram.buckets] == [1] * len(histogram.buckets)
        assert 0 < histogram.sum_s < 1


async def reconciliation(app: Doubtless) -> Any:
    (found,) = [each for each in await app.metrics() if each.metric is telemetry.RECONCILIATION]
    (histogram,) = found.histograms.values()
    return histogram


@pytest.mark.proves("METRIC-1")
@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ({"action": "commit_then_status", "status": 502}, "gateway_error"),
        ({"action": "commit_then_delay", "delay_s": 1.5}, "timeout"),
    ],
)
async def test_an_unknown_has_the_cause_that_made_it_so(story, action, cause):
    story.provider.configure([{"match": {"method": "POST", "nth": 1}, "then": action}])
    async with story.app(worker=False) as app:
        assert (await story.call(app)).status == UNKNOWN
        assert await values(app, telemetry.UNKNOWN.name) == {(cause,): 1}


@pytest.mark.proves("METRIC-1")
async def test_what_is_proven_absent_ends_a_doubt_without_being_confirmed(story):
    story.provider.configure(DROPPED)
    async with story.app() as app:
        await story.call(app)
        await story.ends(app, "failed")
        assert telemetry.CONFIRMED.name not in await moved(app)
        histogram = await reconciliation(app)
        assert histogram.buckets[-1] == ("+Inf", 1)
        assert histogram.buckets[0] == ("1.0", 0), "absence takes longer to prove"
        assert histogram.sum_s > 1


# --- what was prevented --------------------------------------------------------------------------


@pytest.mark.proves("METRIC-1")
async def test_a_repeat_that_could_have_acted_twice_is_counted_by_what_became_of_it(story):
    story.declare({"lookup.interval": "7s"})
    story.provider.configure(LOST)
    prevented = telemetry.PREVENTED.name
    async with story.app(worker=False) as app:
        await story.call(app)
        assert prevented not in await moved(app)
        await story.call(app)
        await story.call(app, None)
        assert await values(app, prevented) == {("joined",): 2}
        await story.call(app, "r2", amount=501)
        await story.call(app, "r1", amount=501)
        await app.actor(Principal(name="other", role=Role.AGENT)).call(
            "refund", {"charge": "ch_9", "amount": 1}, operation_id="r1"
        )
        assert await values(app, prevented) == {
            ("joined",): 2,
            ("target_unresolved",): 1,
            ("payload_mismatch",): 1,
            ("operation_id_taken",): 1,
        }
        await app.resolve("r1", "done", operator="ops", note="seen")
        await story.call(app)
        assert (await values(app, prevented))["already_done",] == 1


@pytest.mark.proves("METRIC-1")
async def test_a_refused_end_is_told_again_and_counted_as_not_repeated(story):
    story.provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]
    )
    async with story.app() as app:
        await story.call(app)
        await story.call(app)
        assert await values(app, telemetry.PREVENTED.name) == {("not_repeated",): 1}


@pytest.mark.proves("METRIC-3")
async def test_what_is_taken_back_is_not_counted(story):
    story.declare(NO_LOOKUP)
    story.provider.configure(LOST)
    async with story.app(worker=False) as app:
        await story.call(app)
        before = await app.metrics()

        def broken(tx) -> None:
            steps.add(book_of(app), tx, "r1", witnessed(Source.OBJECT, Shows.APPLIED))
            metrics.count(tx, "main", telemetry.PREVENTED.name, {"reason": "never"})
            raise KeyError("something else of the unit fails")

        with suppress(KeyError):
            app.ledger.write(broken)
        after = await app.metrics()
    counters = [
        (each.metric.name, each.values) for each in before if each.metric.kind is Kind.COUNTER
    ]
    assert counters == [
        (each.metric.name, each.values) for each in after if each.metric.kind is Kind.COUNTER
    ]


# --- people --------------------------------------------------------------------------------------


@pytest.mark.proves("METRIC-1")
async def test_a_review_is_counted_by_its_reason_and_stands_past_its_deadline(story):
    story.declare({**NO_LOOKUP, "recovery_deadline": "3s"})
    story.provider.configure(LOST)
    async with story.app() as app:
        await story.call(app)
        await story.ends(app, "manual_review")
        assert await values(app, telemetry.REVIEWS.name) == {("nothing_left",): 1}
        assert await values(app, telemetry.PAST_DEADLINE.name) == {(): 0}
        await comes_to(app, telemetry.PAST_DEADLINE.name, (), 1)
        await app.resolve("r1", "unsure", operator="ops", note="can't tell")
        assert await values(app, telemetry.REVIEWS.name) == {("nothing_left",): 1}
        await app.resolve("r1", "done", operator="ops", note="seen")
        assert await values(app, telemetry.PAST_DEADLINE.name) == {}
        assert await values(app, telemetry.CONFIRMED.name) == {(): 1}


async def comes_to(app: Doubtless, name: str, labels: tuple[str, ...], least: float) -> None:
    """Wait until a gauge has grown to `least`."""
    async with asyncio.timeout(10):
        while (await values(app, name)).get(labels, 0) < least:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


POLL_S = 0.05


@pytest.mark.proves("METRIC-1")
async def test_the_oldest_that_is_not_settled_ages_by_its_state(story):
    story.declare({"lookup.interval": "7s"})
    story.provider.configure(LOST)
    name = telemetry.OLDEST.name
    async with story.app(worker=False) as app:
        await story.call(app)
        assert set(await values(app, name)) == {("unknown",)}
        await comes_to(app, name, ("unknown",), 0.2)
        await app.resolve("r1", "done", operator="ops", note="seen")
        assert await values(app, name) == {}


@pytest.mark.proves("METRIC-1")
async def test_work_that_nobody_takes_up_is_overdue(story):
    story.declare({"lookup.interval": "200ms"})
    story.provider.configure(LOST)
    name = telemetry.OVERDUE.name
    async with story.app(worker=False) as app:
        assert set((await values(app, name)).values()) == {0}
        await story.call(app)
        await comes_to(app, name, ("unknown",), 0.2)
        assert (await values(app, name))["prepared",] == 0
    async with story.app() as app:
        await story.ends(app, "succeeded")
        assert set((await values(app, name)).values()) == {0}


# --- keys ----------------------------------------------------------------------------------------


SHORT_LIVED = {
    "effect": "write",
    "lookup": None,
    "in_flight_horizon": "100ms",
    "idempotency.ttl": "67500ms",
}


@pytest.mark.proves("METRIC-1")
async def test_a_key_that_died_before_a_review_leaves_it_to_the_operator(story):
    # 5 s of stalling, 1 s of time-out, 0.1 s of horizon and 1 m of margin are taken off its life.
    story.declare({**SHORT_LIVED, "recovery_deadline": "3s", "review": "people"})
    story.provider.configure(LOST)
    async with story.app(worker=False) as app:
        await story.call(app)
        await app.ledger.commit(set_clock_break)
        add(app, Source.OBJECT, Shows.CONFLICT)
        assert await values(app, telemetry.KEY_EXPIRED.name) == {("operator",): 1}


def set_clock_break(tx) -> None:
    """Let every key count as expired, as a clock that jumped does."""
    meta.set_clock_break(tx, tx.now_ms + 1)


@pytest.mark.proves("METRIC-1")
async def test_a_repeat_that_an_expired_key_forbids_is_counted_as_refused(story):
    story.provider.configure(DROPPED)
    async with story.app() as app:
        await story.call(app)
        await story.ends(app, "failed")
        assert telemetry.KEY_EXPIRED.name not in await moved(app)
        await app.ledger.commit(set_clock_break)
        told = await story.call(app)
        assert told.status == "failed"
        assert await values(app, telemetry.KEY_EXPIRED.name) == {("refused",): 1}


@pytest.mark.proves("METRIC-1")
async def test_a_resend_that_an_expired_key_forbids_is_counted_as_refused(story):
    story.declare({"on_absent": "resend"})
    story.provider.configure(DROPPED)
    async with story.app() as app:
        await story.call(app)
        await app.ledger.commit(set_clock_break)
        last = await story.ends(app, "failed")
        story.happened(last, effects=0, sends=1)
        assert await values(app, telemetry.KEY_EXPIRED.name) == {("refused",): 1}


@pytest.mark.proves("METRIC-1")
async def test_a_send_that_the_gate_stops_for_its_key_is_counted_as_refused(story):
    story.provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "status", "status": 429}}]
    )
    async with story.app(worker=False) as app:
        await story.call(app, wait_s=0)
        await story.until(app, lambda found: found.state == "prepared")
        await comes_to(app, telemetry.OVERDUE.name, ("prepared",), 0.01)
        book = book_of(app)
        begun = app.ledger.write(lambda tx: steps.advance(book, tx, "r1"))
        assert isinstance(begun, Begun)
        await app.ledger.commit(set_clock_break)
        why = app.ledger.write(lambda tx: steps.open_gate(book, tx, begun, mark=False))
        assert why == "the provider may have forgotten the key"
        seen = Observation(seen=Seen.NOT_SENT, stage=Stage.GATE, detail=why)
        ending = steps.Ending(observation=seen, sent_by_ms=None)
        app.ledger.write(lambda tx: steps.finish(book, tx, begun, ending))
        assert await values(app, telemetry.KEY_EXPIRED.name) == {("refused",): 1}


# --- what contradicts ----------------------------------------------------------------------------


@pytest.mark.proves("METRIC-1")
@pytest.mark.parametrize("source", [Source.LOOKUP, Source.MARKER, Source.WEBHOOK])
async def test_evidence_against_a_success_is_a_mismatch_of_its_source(story, source):
    async with story.app() as app:
        await story.call(app)
        add(app, source, Shows.NOT_APPLIED)
        mismatch = await values(app, telemetry.MISMATCH.name)
        assert mismatch == {("succeeded", source.value): 1}
        assert await values(app, telemetry.REVIEWS.name) == {("contradiction",): 1}


@pytest.mark.proves("METRIC-1")
async def test_an_effect_of_what_was_never_carried_out_is_a_mismatch(story):
    async with story.app(worker=False) as app:
        story.provider.refuse_connections()
        await story.call(app, wait_s=0.3)
        await story.until(app, lambda found: found.state == "prepared")
        await app.cancel("r1")
        add(app, Source.WEBHOOK, Shows.APPLIED)
        assert await values(app, telemetry.MISMATCH.name) == {("cancelled", "webhook"): 1}
        assert (await app.outcome("r1")).state == "cancelled"


@pytest.mark.proves("METRIC-1")
async def test_an_event_that_names_no_operation_is_a_match_failure(story):
    story.declare(
        {
            "source.webhook": {"scheme": "standard", "credential": "hook"},
            "events": {
                "types": ["refund.created"],
                "match": {"ref": "metadata.operation"},
                "applied": "status == 'succeeded'",
            },
        }
    )
    event = {
        "id": "evt_1",
        "type": "refund.created",
        "metadata": {"operation": "nobody"},
        "status": "succeeded",
    }
    async with story.app() as app:
        assert await values(app, telemetry.UNMATCHED_AGE.name) == {}
        await app.ingest("payments", event)
        await app.ingest("payments", event)
        failures = await values(app, telemetry.MATCH_FAILURES.name)
        assert failures == {("none", "payments"): 1}
        await comes_to(app, telemetry.UNMATCHED_AGE.name, ("payments",), 0.05)


# --- across processes, restarts and time ---------------------------------------------------------


@pytest.mark.proves("METRIC-2")
async def test_one_endpoint_tells_of_all_processes_and_forgets_nothing(story):
    story.provider.configure(LOST)
    story.declare()
    async with story.app() as one, story.app(worker=False) as two:
        await story.call(two)
        await story.ends(one, "succeeded")
        await story.call(one, "r2", charge="ch_2")
        told = [(each.metric.name, each.values) for each in await one.metrics()]
        assert told == [(each.metric.name, each.values) for each in await two.metrics()]
        assert await values(two, telemetry.OPERATIONS.name) == {("succeeded",): 2}
    async with story.app() as again:
        assert told == [(each.metric.name, each.values) for each in await again.metrics()]


@pytest.mark.proves("METRIC-7", "METRIC-2")
async def test_settlements_go_into_the_counters_once_and_only_new_ones_are_read(story, monkeypatch):
    monkeypatch.setattr(metrics, "FOLD_ROWS", 3)
    monkeypatch.setattr(metrics, "FOLD_FROM", 3)
    async with story.app() as app:
        for number in range(1, 6):
            await story.call(app, f"r{number}", charge=f"ch_{number}")
            assert await values(app, telemetry.OPERATIONS.name) == {("succeeded",): number}
        assert app.ledger.read(lambda tx: metrics.folded(tx, "main")) == 3
        left = app.ledger.read(lambda tx: metrics.ended(tx, "main"))
        assert [each.count for each in left] == [2]


# --- /metrics ------------------------------------------------------------------------------------


@pytest.mark.proves("METRIC-4")
async def test_metrics_are_told_as_prometheus_reads_them(story):
    story.provider.configure(LOST)
    async with story.app() as app:
        await story.call(app)
        await story.ends(app, "succeeded")
        asgi = Starlette(routes=routes(app))
        transport = httpx2.ASGITransport(app=asgi)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            plain = await client.get("/metrics")
            open_ones = await client.get(
                "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
            )
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert open_ones.headers["content-type"].startswith("application/openmetrics-text")
    for families in (
        list(text_string_to_metric_families(plain.text)),
        list(open_metrics(open_ones.text)),
    ):
        samples = {
            (sample.name, json.dumps(sample.labels, sort_keys=True)): sample.value
            for family in families
            for sample in family.samples
        }
        by_name: Mapping[str, float] = {name: value for (name, _), value in samples.items()}
        assert by_name["doubtless_unknown_total"] == 1
        assert by_name["doubtless_operations_total"] == 1
        assert by_name["doubtless_reconciliation_seconds_count"] == 1
        assert by_name["doubtless_reconciliation_seconds_sum"] > 0
        assert by_name["doubtless_reconciliation_seconds_bucket"] == 1
        assert not any(name.startswith(("python_", "process_")) for name in by_name)
    names = {family.name for family in text_string_to_metric_families(plain.text)}
    assert names == {each.name.removesuffix("_total") for each in METRICS}


@pytest.mark.proves("METRIC-4")
def test_no_two_metrics_share_a_name_and_each_is_named_by_its_kind():
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("doubtless_") for name in names)
    for each in METRICS:
        assert each.name.endswith("_total") == (each.kind is Kind.COUNTER)
        assert each.means.endswith(".")
