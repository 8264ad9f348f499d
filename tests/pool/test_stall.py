"""Endpoints that hold requests and make no progress."""

from epp.pool.endpoint import Endpoint
from epp.pool.stall import StallWatch
from epp.pool.state import PoolState
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, tell


def watched(picks: int) -> tuple[FakeClock, PoolState, Endpoint, StallWatch]:
    clock = FakeClock()
    pool = pool_of(1, clock)
    endpoint = pool.endpoints[0]
    for _ in range(picks):
        pool.count_pick(endpoint)
    watch = StallWatch(pool, clock, stall_after_s=30.0, stalled_requests=3)
    watch.look()
    return clock, pool, endpoint, watch


def test_an_endpoint_that_never_answers_while_its_metrics_call_it_idle_is_demoted() -> None:
    """Field report 41."""
    clock, _, endpoint, watch = watched(picks=3)
    tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
    clock.advance(29.0)
    assert watch.look() == []
    clock.advance(1.0)
    assert watch.look() == [endpoint]
    assert endpoint.health.demoted_because == "3 requests without an answer and no progress for 30 s"
    assert watch.look() == []


def test_one_that_says_that_it_is_busy_gets_ten_times_as_long() -> None:
    clock, _, endpoint, watch = watched(picks=3)
    tell(endpoint, clock, waiting_requests=0.0, running_requests=3.0)
    clock.advance(299.0)
    assert watch.look() == []
    clock.advance(1.0)
    assert watch.look() == [endpoint]


def test_any_sign_of_life_starts_the_wait_anew() -> None:
    clock, _, endpoint, watch = watched(picks=3)
    tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
    clock.advance(29.0)
    endpoint.progress_events += 1
    watch.look()
    clock.advance(29.0)
    assert watch.look() == []


def test_few_slow_requests_are_no_stall() -> None:
    clock, _, endpoint, watch = watched(picks=2)
    tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
    clock.advance(3600.0)
    assert watch.look() == []


def test_an_answer_restores_it() -> None:
    """Field report 41: until something completes."""
    clock, pool, endpoint, watch = watched(picks=3)
    tell(endpoint, clock, waiting_requests=0.0, running_requests=0.0)
    clock.advance(30.0)
    watch.look()
    endpoint.answered(200, clock.now_s, pool.picks_total, picked_at_s=0.0)
    assert endpoint.health.demoted_because is None
