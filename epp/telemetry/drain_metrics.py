"""What happens to requests when endpoints leave rotation."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from epp.telemetry import buckets
from epp.telemetry.distribution import Distribution, HistogramName

_DRAIN = HistogramName(
    "epp_endpoint_drain_seconds",
    "From the first sight that an endpoint leaves rotation to its last request (last_pick) and to the end of it (last_stream).",
    labels=("phase",),
    counted_in=buckets.DRAIN_S,
)


class DrainMetrics:
    """A Prometheus collector."""

    def __init__(self) -> None:
        self.last_pick_s = Distribution(buckets.DRAIN_S)
        self.last_stream_s = Distribution(buckets.DRAIN_S)
        self.cut_requests = 0
        self.recommended_min_wait_s: Callable[[], float | None] = _nobody_knows

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        yield _DRAIN.family([(("last_pick",), self.last_pick_s), (("last_stream",), self.last_stream_s)])
        yield CounterMetricFamily(
            "epp_endpoint_drain_cut_requests_total",
            "Requests that ended without a whole answer on endpoints that had left rotation.",
            self.cut_requests,
        )
        recommended = GaugeMetricFamily(
            "epp_recommended_min_wait_seconds", "What --min-wait of a preStop hook should be, by what was measured."
        )
        value = self.recommended_min_wait_s()
        if value is not None:
            recommended.add_metric((), value)
        yield recommended


def _nobody_knows() -> None:
    return None
