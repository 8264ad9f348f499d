"""The load of one endpoint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.load import estimate_load, estimated_cost
from epp.pool.metrics import EndpointMetrics

counts = st.integers(0, 1000)


def metrics(waiting: float | None, running: float | None, kv: float | None = None) -> EndpointMetrics:
    return EndpointMetrics(waiting_requests=waiting, running_requests=running, kv_cache_usage_ratio=kv)


def test_without_metrics_the_own_count_is_all() -> None:
    assert estimate_load(None, 3, 0) == (0.0, 3.0, 3.0)


def test_picks_since_the_scrape_began_are_added_to_the_running_requests() -> None:
    assert estimate_load(metrics(0, 5), 4, 1)[:2] == (0.0, 8.0)


def test_picks_since_the_scrape_began_join_the_queue_where_there_is_one() -> None:
    assert estimate_load(metrics(2, 5), 4, 1)[:2] == (5.0, 5.0)


def test_requests_that_ended_since_the_scrape_began_leave_the_queue_first() -> None:
    assert estimate_load(metrics(2, 5), 0, 3)[:2] == (0.0, 4.0)


def test_a_scrape_of_zero_does_not_erase_what_is_outstanding() -> None:
    """Field report 50."""
    assert estimate_load(metrics(0, 0), 7, 7).running_requests == 7.0


@given(counts, counts, counts, counts)
def test_the_load_is_never_below_the_own_count_and_never_negative(waiting: int, running: int, now: int, then: int) -> None:
    load = estimate_load(metrics(waiting, running), now, then)
    assert load.waiting_requests >= 0
    assert load.running_requests >= 0
    assert load.waiting_requests + load.running_requests >= now
    assert load.cost_requests >= load.running_requests


@given(counts, counts, st.integers(0, 50), st.integers(0, 50))
def test_one_more_request_never_makes_an_endpoint_cheaper(waiting: int, running: int, now: int, then: int) -> None:
    before = estimate_load(metrics(waiting, running), now, then).cost_requests
    assert estimate_load(metrics(waiting, running), now + 1, then).cost_requests >= before


def test_a_full_small_server_costs_more_than_a_busy_large_one_with_room() -> None:
    small_and_full = estimate_load(metrics(1, 4), 0, 0).cost_requests
    large_with_room = estimate_load(metrics(0, 16), 0, 0).cost_requests
    assert small_and_full > large_with_room


def test_the_queue_of_a_large_batch_moves_faster_than_that_of_a_small_one() -> None:
    assert estimate_load(metrics(8, 8), 0, 0).cost_requests > estimate_load(metrics(8, 16), 0, 0).cost_requests


def test_the_kv_cache_only_breaks_ties_until_it_is_nearly_full() -> None:
    half = estimate_load(metrics(0, 5, 0.5), 0, 0).cost_requests
    assert 5.0 < half < 6.0
    assert half < estimate_load(metrics(0, 6, 0.0), 0, 0).cost_requests


def test_a_full_kv_cache_is_bounded_so_that_a_stuck_gauge_makes_no_black_hole() -> None:
    assert estimate_load(metrics(0, 0, 1.0), 0, 0).cost_requests == pytest.approx(11.0)


optional_counts = st.none() | st.just(0.0) | counts.map(float)


@given(optional_counts, optional_counts, st.none() | st.floats(0, 1), counts, counts)
def test_the_quick_cost_is_the_cost(
    waiting: float | None, running: float | None, kv: float | None, now: int, then: int
) -> None:
    page = metrics(waiting, running, kv)
    assert estimated_cost(page, now, then) == estimate_load(page, now, then).cost_requests
    assert estimated_cost(None, now, then) == estimate_load(None, now, then).cost_requests
