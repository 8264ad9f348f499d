"""Reading the picker's pages."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from epp.demo.picker_pages import PagesError, PickerPages, read_pick_times, read_pool

POOL = b"""{"pool": {"name": "p"}, "endpoints": [
  {"endpoint": "127.0.0.1:1", "name": "a", "engine": "vllm", "state": "ready", "in_flight_requests": 3, "demoted_because": null},
  {"endpoint": "127.0.0.1:2", "name": "a", "engine": null, "state": "draining", "in_flight_requests": 1, "leaving": true},
  {"endpoint": "127.0.0.1:3", "name": "b", "engine": null, "state": "draining", "in_flight_requests": 2, "leaving": true}]}"""
METRICS = """\
# TYPE epp_pick_duration_seconds histogram
epp_pick_duration_seconds_bucket{le="1e-05"} 10.0
epp_pick_duration_seconds_bucket{le="5e-05"} 60.0
epp_pick_duration_seconds_bucket{le="0.001"} 99.0
epp_pick_duration_seconds_bucket{le="+Inf"} 100.0
epp_pick_duration_seconds_count 100.0
epp_pick_duration_seconds_sum 0.02
# TYPE epp_other_seconds histogram
epp_other_seconds_bucket{le="+Inf"} 7.0
epp_other_seconds_count 7.0
epp_other_seconds_sum 9.0
"""


def test_an_endpoint_that_leaves_gives_way_to_its_successor_of_the_same_name() -> None:
    pool = read_pool(POOL)

    assert (pool["a"].in_flight_requests, pool["a"].state, pool["b"].in_flight_requests) == (3, "ready", 2)


def test_quantiles_of_decision_times_are_bounds_of_buckets() -> None:
    times = read_pick_times(METRICS)

    assert times is not None
    assert (times.picks, times.mean_s, times.p50_at_most_s, times.p99_at_most_s) == (100, 0.0002, 0.00005, 0.001)


def test_without_a_decision_there_are_no_times() -> None:
    assert read_pick_times(METRICS.replace("epp_pick", "epp_no_pick")) is None
    assert (
        read_pick_times('# TYPE epp_pick_duration_seconds histogram\nepp_pick_duration_seconds_bucket{le="+Inf"} 0\n') is None
    )


async def test_a_page_that_is_not_there_is_an_error_of_ours() -> None:
    async with TestServer(web.Application()) as server, PickerPages(str(server.make_url("")).rstrip("/")) as pages:
        assert not await pages.is_ready()
        with pytest.raises(PagesError, match="/api/v1/pool: expected status 200, found 404"):
            await pages.pool()
        await server.close()
        with pytest.raises(PagesError, match="/api/v1/pool: expected an answer, found"):
            await pages.pool()
