"""Gauges of the pool."""

import pytest
from prometheus_client import CollectorRegistry

from epp.admin.pool_collector import PoolCollector
from epp.lifecycle import Lifecycle, Phase
from epp.pool.endpoint import EndpointSpec
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec, tell
from tests.telemetry.page import Page


class Watched:
    """A pool and the page that shows it."""

    def __init__(self, *specs: EndpointSpec) -> None:
        self.clock = FakeClock()
        self.pool: PoolState = pool_of(specs, self.clock)
        self.lifecycle = Lifecycle()
        self.registry = CollectorRegistry()
        self.registry.register(PoolCollector(self.pool, self.lifecycle, self.clock))

    @property
    def page(self) -> Page:
        return Page(self.registry)


def test_averages_are_over_the_ready_endpoints_that_give_the_number() -> None:
    watched = Watched(spec(1), spec(2), spec(3), spec(4, draining=True))
    first, second, _silent, draining = watched.pool.endpoints
    tell(first, watched.clock, waiting_requests=2.0, running_requests=4.0, kv_cache_usage_ratio=0.2)
    tell(second, watched.clock, waiting_requests=6.0, running_requests=4.0, kv_cache_usage_ratio=0.6)
    tell(draining, watched.clock, waiting_requests=1000.0, running_requests=1000.0, kv_cache_usage_ratio=1.0)

    page = watched.page
    for prefix in ("inference_pool", "llm_d_epp"):
        assert page.value(f"{prefix}_average_queue_size", name="p") == 4
        assert page.value(f"{prefix}_average_running_requests", name="p") == 4
        assert page.value(f"{prefix}_average_kv_cache_utilization", name="p") == pytest.approx(0.4)
    assert page.value("llm_d_epp_std_dev_queue_size", name="p") == 2
    assert page.value("llm_d_epp_std_dev_kv_cache_utilization", name="p") == pytest.approx(0.2)
    assert page.value("inference_pool_ready_pods", name="p") == 3
    assert page.value("llm_d_epp_ready_endpoints", name="p") == 3


def test_a_pool_that_gives_no_numbers_has_no_averages() -> None:
    page = Watched(spec(1)).page

    assert page.samples("inference_pool_average_queue_size") == []
    assert page.samples("llm_d_epp_std_dev_queue_size") == []
    assert page.value("inference_pool_ready_pods", name="p") == 1


def test_endpoints_count_by_state_with_zeros() -> None:
    watched = Watched(spec(1), spec(2), spec(3, draining=True))
    watched.pool.count_pick(watched.pool.endpoints[1])
    watched.pool.sync([spec(1), spec(3, draining=True)])

    states = {labels["state"]: value for labels, value in watched.page.samples("epp_endpoints")}
    assert states == {"ready": 1, "draining": 2, "unready": 0}


def test_the_queue_of_each_endpoint_is_under_its_name_if_the_page_gives_it() -> None:
    watched = Watched(spec(1), spec(2))
    tell(watched.pool.endpoints[0], watched.clock, waiting_requests=7.0)
    tell(watched.pool.endpoints[1], watched.clock, running_requests=7.0)

    page = watched.page
    assert page.samples("inference_pool_per_pod_queue_size") == [({"name": "p", "model_server_pod": "e1"}, 7)]
    assert page.samples("llm_d_epp_per_endpoint_queue_size") == [({"name": "p", "model_server_endpoint": "e1"}, 7)]


def test_endpoints_without_usable_load_data_are_counted() -> None:
    """Field report 39: a pool whose pages all give load has 0; one more endpoint whose page gives none makes it 1."""
    watched = Watched(spec(1), spec(2))
    for endpoint in watched.pool.endpoints:
        tell(endpoint, watched.clock, waiting_requests=0.0, running_requests=0.0)
    assert watched.page.value("epp_endpoints_without_load_metrics") == 0

    watched.pool.sync([spec(1), spec(2), spec(3)])
    tell(watched.pool.endpoints[2], watched.clock, kv_cache_usage_ratio=0.5)
    assert watched.page.value("epp_endpoints_without_load_metrics") == 1


def test_the_age_of_metrics_grows_until_the_next_scrape() -> None:
    watched = Watched(spec(1), spec(2))
    tell(watched.pool.endpoints[0], watched.clock, running_requests=0.0)
    watched.clock.advance(3.5)

    assert watched.page.samples("epp_endpoint_metrics_age_seconds") == [({"endpoint": "10.0.0.1:8000"}, 3.5)]

    tell(watched.pool.endpoints[0], watched.clock, running_requests=0.0)
    assert watched.page.value("epp_endpoint_metrics_age_seconds", endpoint="10.0.0.1:8000") == 0


def test_two_lives_at_one_address_are_one_series_of_requests_in_flight() -> None:
    watched = Watched(spec(1, incarnation="old"))
    watched.pool.count_pick(watched.pool.endpoints[0])
    watched.pool.sync([spec(1, incarnation="new")])
    for _ in range(2):
        watched.pool.count_pick(watched.pool.endpoints[0])

    assert watched.page.samples("epp_endpoint_in_flight_requests") == [({"endpoint": "10.0.0.1:8000"}, 3)]


def test_the_series_of_an_endpoint_that_left_vanish_with_its_last_request() -> None:
    watched = Watched(spec(1), spec(2))
    (endpoint, _) = watched.pool.endpoints
    tell(endpoint, watched.clock, waiting_requests=1.0)
    watched.pool.count_pick(endpoint)
    watched.pool.sync([spec(2)])

    assert watched.page.value("epp_endpoint_in_flight_requests", endpoint=endpoint.address) == 1
    assert watched.page.samples("epp_endpoint_metrics_age_seconds") == []

    watched.pool.count_release(endpoint)
    page = watched.page
    assert endpoint.address not in page.text
    assert "e1" not in {labels.get("model_server_pod") for labels, _ in page.samples("inference_pool_per_pod_queue_size")}


def test_demoted_endpoints_are_marked() -> None:
    watched = Watched(spec(1), spec(2))
    watched.pool.endpoints[1].health.demote("3 answers in a row failed", 0.0, 0)

    values = {labels["endpoint"]: value for labels, value in watched.page.samples("epp_endpoint_demoted")}
    assert values == {"10.0.0.1:8000": 0, "10.0.0.2:8000": 1}


def test_readiness_is_a_gauge() -> None:
    watched = Watched()
    assert watched.page.value("epp_ready") == 0

    watched.lifecycle.enter(Phase.SERVING)
    assert watched.page.value("epp_ready") == 1

    watched.lifecycle.enter(Phase.DRAINING)
    assert watched.page.value("epp_ready") == 0
