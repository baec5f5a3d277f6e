"""GET /metrics of a real service, over what several processes did on its ledger."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.serving import Serving, Stage, staged

from doubtless import Doubtless, telemetry

LOSE = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]


def scraped(serving: Serving) -> dict[tuple[str, str], float]:
    """Return the samples by name, and by state or cause where they have one."""
    answer = serving.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, sample.labels.get("state") or sample.labels.get("cause", "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.mark.proves("METRIC-2", "METRIC-4")
async def test_one_service_tells_what_every_process_did_and_so_does_the_next(
    provider, contracts, tmp_path
):
    with staged(tmp_path, contracts, "--no-worker") as stage:
        provider.configure(LOSE)
        lost = stage.call("refund", "lost-1", charge="ch_m1", amount=5)
        assert lost.json["state"] == "unknown"
        told = scraped(stage.serving)
        assert told[telemetry.UNKNOWN.name, "connection_reset"] == 1
        assert told[telemetry.OLDEST.name, "unknown"] >= 0
        assert (telemetry.OPERATIONS.name, "succeeded") not in told
        async with Doubtless(
            stage.shell.ledger, contracts=tmp_path / "contracts.toml", principal="agent-1"
        ) as app:
            assert (await app.wait("lost-1", timeout=20)).status == "succeeded"
            await app.call("refund", {"charge": "ch_m2", "amount": 5})
        told = scraped(stage.serving)
        assert told[telemetry.OPERATIONS.name, "succeeded"] == 2
        assert told[telemetry.CONFIRMED.name, ""] == 1
        assert (telemetry.OLDEST.name, "unknown") not in told
        stage.serving.kill()
        again(stage, told)


def again(stage: Stage, told: dict[tuple[str, str], float]) -> None:
    """Start the service again, and hear the same counters."""
    with Serving(stage.shell, "--no-worker") as serving:
        found = scraped(serving)
        assert {name: value for name, value in found.items() if name[0].endswith("_total")} == {
            name: value for name, value in told.items() if name[0].endswith("_total")
        }
