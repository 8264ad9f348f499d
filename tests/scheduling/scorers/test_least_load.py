"""The default scorer."""

import pytest

from epp.pool.state import PoolState
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scorers.least_load import LeastLoadScorer
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, spec, tell

REQUEST = InferenceRequest(request_id="r")
SCORER = LeastLoadScorer(staleness_s=2.0)


def costs(pool: PoolState, clock: FakeClock) -> list[float]:
    """Without the next request, which each of them counts."""
    return [cost - 1.0 for cost in SCORER.costs(pool.ready, clock.now_s)]


def test_the_least_loaded_gets_1_the_most_loaded_0_and_the_rest_lies_between() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    for endpoint, running in zip(pool.ready, (0.0, 5.0, 10.0), strict=True):
        tell(endpoint, clock, running_requests=running)
    assert SCORER.score(REQUEST, pool.ready, Moment(now_s=clock.now_s, picks_total=0)) == [1.0, 0.5, 0.0]


def test_equal_loads_all_get_1() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    assert SCORER.score(REQUEST, pool.ready, Moment(now_s=clock.now_s, picks_total=0)) == [1.0, 1.0, 1.0]


def test_stale_metrics_make_an_endpoint_at_best_average() -> None:
    """Field report 33."""
    clock = FakeClock()
    pool = pool_of(3, clock)
    frozen, b, c = pool.ready
    tell(frozen, clock, running_requests=0.0)
    clock.advance(2.1)
    tell(b, clock, running_requests=2.0)
    tell(c, clock, running_requests=4.0)
    assert costs(pool, clock) == [3.0, 2.0, 4.0]


def test_metrics_that_are_read_slowly_on_purpose_are_not_stale_while_the_scrapes_go_well() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    slow, fast = pool.ready
    tell(slow, clock, running_requests=1.0)
    slow.scrape_interval_s = 5.0
    clock.advance(10.0)
    tell(fast, clock, running_requests=4.0)
    assert costs(pool, clock) == [1.0, 4.0]
    slow.scrape_failed("timeout")
    assert costs(pool, clock) == [4.0, 4.0]
    slow.scrape_error = None
    clock.advance(5.1)
    tell(fast, clock, running_requests=4.0)
    assert costs(pool, clock) == [4.0, 4.0]


def test_missing_metrics_make_an_endpoint_at_best_average_but_its_own_count_still_speaks() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    unknown, known = pool.ready
    tell(known, clock, running_requests=3.0)
    assert costs(pool, clock) == [3.0, 3.0]
    for _ in range(5):
        pool.count_pick(unknown)
    assert costs(pool, clock) == [5.0, 3.0]


def test_without_any_fresh_metrics_own_counts_decide_alone() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    pool.count_pick(pool.ready[0])
    assert costs(pool, clock) == [1.0, 0.0]


def test_an_engine_without_load_metrics_is_ranked_by_the_own_count_while_its_scrape_is_fresh() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    ollama, vllm = pool.ready
    tell(ollama, clock, models=frozenset({"m"}))
    tell(vllm, clock, running_requests=3.0)
    assert costs(pool, clock) == [0.0, 3.0]


def test_a_late_endpoint_ramps_up_from_half_its_share_to_all_of_it() -> None:
    clock = FakeClock()
    pool = pool_of(1, clock)
    pool.sync([spec(1), spec(2)])
    for endpoint in pool.ready:
        pool.count_pick(endpoint)
    assert costs(pool, clock) == [1.0, 3.0]
    clock.advance(5.0)
    assert costs(pool, clock) == pytest.approx([1.0, 2.0 / 0.75 - 1.0])
    clock.advance(5.0)
    assert costs(pool, clock) == [1.0, 1.0]


def test_a_weight_tells_among_idle_endpoints_too() -> None:
    clock = FakeClock()
    pool = pool_of([spec(1, weight=2.0), spec(2)], clock)
    assert SCORER.costs(pool.ready, clock.now_s) == [0.5, 1.0]
