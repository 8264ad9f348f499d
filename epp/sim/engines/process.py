"""What Python servers tell of their own process: `python_*` and `process_*`."""

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CollectorRegistry
from prometheus_client.metrics_core import Metric

from epp.sim.exposition import PageWriter


class ProcessFamilies:
    """The families of prometheus_client's own collectors.

    The start time is the simulated server's, since several of them may live in one process.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._collectors = (GCCollector(registry), PlatformCollector(registry), ProcessCollector(registry=registry))

    def write(self, page: PageWriter, *, started_wall_s: float) -> None:
        """Add them to `page`."""
        for collector in self._collectors:
            for metric in collector.collect():
                page.metric(_started(metric, started_wall_s))


def _started(metric: Metric, started_wall_s: float) -> Metric:
    if metric.name != "process_start_time_seconds":
        return metric
    own = Metric(metric.name, metric.documentation, metric.type)
    own.add_sample(metric.name, {}, started_wall_s)
    return own
