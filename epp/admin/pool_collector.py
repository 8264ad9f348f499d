"""Gauges of the pool, computed when the registry is read: no work on the path of a request, and the series of an endpoint
that left are gone with it."""

from collections.abc import Iterator
from statistics import fmean, pstdev

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from epp.clock import Clock
from epp.lifecycle import Lifecycle
from epp.pool.endpoint import Endpoint, EndpointState
from epp.pool.state import PoolState

_QUANTITIES = (
    ("kv_cache_utilization", "kv_cache_usage_ratio", "used part of the KV cache, from 0 to 1"),
    ("queue_size", "waiting_requests", "number of requests that wait in the model server"),
    ("running_requests", "running_requests", "number of requests that run in the model server"),
)


class PoolCollector:
    """A Prometheus collector over `PoolState`.

    Averages are over the ready endpoints that give the quantity; when none does, there is no series (a zero would read as
    idle). Endpoints that left and still hold requests count as draining.
    """

    def __init__(self, pool: PoolState, lifecycle: Lifecycle, clock: Clock) -> None:
        self._pool = pool
        self._lifecycle = lifecycle
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        yield GaugeMetricFamily(
            "epp_ready", "Whether Envoy should send new streams to this picker.", int(self._lifecycle.ready)
        )
        yield from self._of_pool()
        yield from self._of_endpoints()

    def _of_pool(self) -> Iterator[Metric]:
        pool = self._pool
        for name in ("inference_pool_ready_pods", "llm_d_epp_ready_endpoints"):
            yield self._gauge(name, "Endpoints that new requests may go to.", len(pool.ready))
        demoted = sum(e.health.demoted_because is not None for e in pool.ready)
        yield self._gauge("epp_demoted_endpoints", "Those of the ready endpoints that only get probes.", demoted)
        for suffix, attribute, sentence in _QUANTITIES:
            values = [v for e in pool.ready if e.metrics and (v := getattr(e.metrics, attribute)) is not None]
            average = fmean(values) if values else None
            for prefix in ("inference_pool", "llm_d_epp"):
                yield self._gauge(f"{prefix}_average_{suffix}", f"Average {sentence}.", average)
            spread = pstdev(values) if values else None
            yield self._gauge(f"llm_d_epp_std_dev_{suffix}", f"Standard deviation of the {sentence}.", spread)
        yield self._states()
        without = sum(not e.tells_load for e in pool.endpoints)
        sentence = "Endpoints whose metrics give no load, so that only the picker's own count ranks them."
        yield GaugeMetricFamily("epp_endpoints_without_load_metrics", sentence, without)

    def _gauge(self, name: str, sentence: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(name, sentence, labels=("name",))
        if value is not None:
            family.add_metric((self._pool.name,), value)
        return family

    def _states(self) -> Metric:
        family = GaugeMetricFamily("epp_endpoints", "Endpoints by state.", labels=("state",))
        states = [endpoint.state for endpoint in self._everyone()]
        for state in EndpointState:
            family.add_metric((state.value,), states.count(state))
        return family

    def _of_endpoints(self) -> Iterator[Metric]:
        legacy, current = (
            GaugeMetricFamily(name, "Requests that wait in the model server.", labels=("name", label))
            for name, label in (
                ("inference_pool_per_pod_queue_size", "model_server_pod"),
                ("llm_d_epp_per_endpoint_queue_size", "model_server_endpoint"),
            )
        )
        age = GaugeMetricFamily("epp_endpoint_metrics_age_seconds", "Since the last good scrape began.", labels=("endpoint",))
        demoted = GaugeMetricFamily(
            "epp_endpoint_demoted", "Whether the endpoint only gets probes, since its answers fail.", labels=("endpoint",)
        )
        now_s = self._clock.monotonic_s()
        for endpoint in self._pool.endpoints:
            waiting = None if endpoint.metrics is None else endpoint.metrics.waiting_requests
            if waiting is not None:
                for family in (legacy, current):
                    family.add_metric((self._pool.name, endpoint.spec.name), waiting)
            age_s = endpoint.metrics_age_s(now_s)
            if age_s is not None:
                age.add_metric((endpoint.address,), age_s)
            demoted.add_metric((endpoint.address,), int(endpoint.health.demoted_because is not None))
        yield from (legacy, current, age, demoted, self._in_flight())

    def _in_flight(self) -> Metric:
        # A new incarnation may stand at the address of one that still finishes requests: one series, both counts.
        requests: dict[str, int] = {}
        for endpoint in self._everyone():
            requests[endpoint.address] = requests.get(endpoint.address, 0) + endpoint.in_flight_requests
        family = GaugeMetricFamily(
            "epp_endpoint_in_flight_requests", "Requests sent to the endpoint that have not ended.", labels=("endpoint",)
        )
        for address, count in requests.items():
            family.add_metric((address,), count)
        return family

    def _everyone(self) -> tuple[Endpoint, ...]:
        return (*self._pool.endpoints, *self._pool.leaving)
