"""The scorers that the reference pickers have too, by their formulas."""

from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp.scheduling.scorers.queue import QueueScorer
from epp.scheduling.scorers.running_requests import RunningRequestsScorer
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, tell

REQUEST = InferenceRequest(request_id="r")
NOW = Moment(now_s=0.0, picks_total=0)


def test_queue_scorer() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    for endpoint, waiting in zip(pool.ready, (2.0, 3.0, 6.0), strict=True):
        tell(endpoint, clock, waiting_requests=waiting)
    assert QueueScorer().score(REQUEST, pool.ready, NOW) == [1.0, 0.75, 0.0]


def test_running_requests_size_scorer_counts_picks_that_no_page_shows_yet() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    for endpoint in pool.ready:
        tell(endpoint, clock, running_requests=1.0)
    pool.count_pick(pool.ready[0])
    assert RunningRequestsScorer().score(REQUEST, pool.ready, NOW) == [0.0, 1.0]


def test_kv_cache_utilization_scorer_takes_the_average_for_those_that_do_not_tell() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    tell(pool.ready[0], clock, kv_cache_usage_ratio=0.25)
    tell(pool.ready[1], clock, kv_cache_usage_ratio=0.75)
    assert KvCacheUtilizationScorer().score(REQUEST, pool.ready, NOW) == [0.75, 0.25, 0.5]


def test_kv_cache_utilization_scorer_gives_all_the_same_when_nobody_tells() -> None:
    assert KvCacheUtilizationScorer().score(REQUEST, pool_of(2).ready, NOW) == [0.5, 0.5]
