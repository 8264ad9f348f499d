"""The scorers that the reference pickers have too, by their formulas."""

import pytest

from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from epp.scheduling.scorers.queue import QueueScorer
from epp.scheduling.scorers.running_requests import RunningRequestsScorer
from tests.fakes.clock import FakeClock
from tests.fakes.pool import pool_of, tell

REQUEST = InferenceRequest(request_id="r")
NOW = Moment(now_s=1000.0, picks_total=0)


def test_queue_scorer() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    for endpoint, waiting in zip(pool.ready, (2.0, 3.0, 6.0), strict=True):
        tell(endpoint, clock, waiting_requests=waiting)
    assert QueueScorer(staleness_s=2.0).score(REQUEST, pool.ready, NOW) == [1.0, 0.75, 0.0]


def test_running_requests_size_scorer_counts_picks_that_no_page_shows_yet() -> None:
    clock = FakeClock()
    pool = pool_of(2, clock)
    for endpoint in pool.ready:
        tell(endpoint, clock, running_requests=1.0)
    pool.count_pick(pool.ready[0])
    assert RunningRequestsScorer(staleness_s=2.0).score(REQUEST, pool.ready, NOW) == [0.0, 1.0]


def test_kv_cache_utilization_scorer_takes_the_average_for_those_that_do_not_tell() -> None:
    clock = FakeClock()
    pool = pool_of(3, clock)
    tell(pool.ready[0], clock, kv_cache_usage_ratio=0.25)
    tell(pool.ready[1], clock, kv_cache_usage_ratio=0.75)
    assert KvCacheUtilizationScorer(staleness_s=2.0).score(REQUEST, pool.ready, NOW) == [0.75, 0.25, 0.5]


def test_kv_cache_utilization_scorer_gives_all_the_same_when_nobody_tells() -> None:
    assert KvCacheUtilizationScorer(staleness_s=2.0).score(REQUEST, pool_of(2).ready, NOW) == [0.5, 0.5]


@pytest.mark.parametrize(
    "scorer", [QueueScorer(staleness_s=2.0), RunningRequestsScorer(staleness_s=2.0), KvCacheUtilizationScorer(staleness_s=2.0)]
)
def test_stale_and_missing_metrics_are_at_best_average(
    scorer: QueueScorer | RunningRequestsScorer | KvCacheUtilizationScorer,
) -> None:
    """Field report 33."""
    clock = FakeClock()
    pool = pool_of(4, clock)
    frozen, _, light, heavy = pool.ready
    tell(frozen, clock, waiting_requests=0.0, running_requests=0.0, kv_cache_usage_ratio=0.0)
    clock.advance(3.0)
    tell(light, clock, waiting_requests=2.0, running_requests=2.0, kv_cache_usage_ratio=0.2)
    tell(heavy, clock, waiting_requests=6.0, running_requests=6.0, kv_cache_usage_ratio=0.6)
    scores = scorer.score(REQUEST, pool.ready, Moment(now_s=clock.now_s, picks_total=0))
    assert scores[2] > scores[0] == scores[1] > scores[3]
