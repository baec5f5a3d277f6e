"""GET /metrics: what the ledger counts, as Prometheus reads it."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from doubtless.engine.figures import Figures, Reading
from doubtless.telemetry import Kind


def routes(app: Figures) -> list[Route]:
    """Return the route. `app` must be open when it is asked."""

    async def answer(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Of this one reading: what other libraries count in this process is none of ours.
        registry = CollectorRegistry()
        registry.register(_Collected(await app.metrics()))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return [Route("/metrics", answer, methods=["GET"])]


class _Collected:
    """One reading of all metrics, as prometheus-client takes it."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples, or with none if nothing happened yet."""
        for reading in self._readings:
            yield _family(reading)


def _family(reading: Reading) -> Metric:
    metric = reading.metric
    match metric.kind:
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.means, labels=metric.labels)
            for labels, one in sorted(reading.histograms.items()):
                histogram.add_metric(labels, one.buckets, one.sum_s)
            return histogram
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.means, labels=metric.labels)
            for labels, value in sorted(reading.values.items()):
                counter.add_metric(labels, value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.means, labels=metric.labels)
            for labels, value in sorted(reading.values.items()):
                gauge.add_metric(labels, value)
            return gauge
