"""SGLang: two forms of the capacity, ranks and priorities, and `/v1/loads`."""

import msgspec
import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.page import Fault, PageError, PageFormat
from epp.scrape.engines.sglang import SGLANG
from tests.scrape.engines.reading import JSON, faults, read
from tests.scrape.pages import renamed, sample_page

LOAD = {
    "timestamp": 1787460123.2,
    "dp_rank": 0,
    "num_running_reqs": 31,
    "num_waiting_reqs": 2,
    "num_used_tokens": 213769,
    "max_total_num_tokens": 571392,
    "max_running_requests": 192,
    "token_usage": 0.3741,
    "gen_throughput": 2011.2,
    "utilization": 0.16,
}


def loads(*entries: object) -> bytes:
    return msgspec.json.encode({"timestamp": "2026-08-23T10:00:00Z", "version": "0.5", "loads": entries})


def test_capacity_is_read_from_gauges_or_from_the_info_family_of_early_2026() -> None:
    for file in ("sglang-busy.txt", "sglang-cacheinfo-2026-02-busy.txt"):
        metrics = read(SGLANG, sample_page(file))
        assert (metrics.kv_cache_blocks, metrics.kv_cache_block_tokens) == (35712, 16)


def test_schedulers_that_all_tell_the_same_are_counted_once() -> None:
    page = sample_page("sglang-busy.txt")
    lines = [line for line in page.split(b"\n") if line.startswith((b"sglang:num_", b"sglang:page_size"))]
    other_rank = b"\n".join(renamed(line, b'tp_rank="0"', b'tp_rank="1"') for line in lines if b'tp_rank="0"' in line)

    metrics = read(SGLANG, page + other_rank + b"\n")

    assert (metrics.waiting_requests, metrics.running_requests, metrics.kv_cache_blocks) == (2, 31, 35712)


def test_priorities_are_parts_of_a_total_also_where_the_total_is_missing() -> None:
    page = sample_page("sglang-dp2-priority-busy.txt")
    without_totals = b"\n".join(line for line in page.split(b"\n") if b'priority=""' not in line)

    assert read(SGLANG, page).running_requests == 31 + 20
    assert read(SGLANG, without_totals).running_requests == 21 + 10 + 14 + 6


def test_the_label_of_old_versions_makes_no_difference() -> None:
    page = 'sglang:num_queue_reqs{name="m"} 4.0\nsglang:num_running_reqs{name="m"} 9.0\nsglang:token_usage{name="m"} 0.28\n'

    assert read(SGLANG, page) == EndpointMetrics(waiting_requests=4, running_requests=9, kv_cache_usage_ratio=0.28)


def test_a_fresh_server_has_a_size_and_no_load() -> None:
    metrics = read(SGLANG, sample_page("sglang-fresh.txt"))

    assert not metrics.has_load
    assert metrics.kv_cache_blocks == 35712


def test_loads_stand_in_where_metrics_are_off() -> None:
    assert [(source.path, source.format) for source in SGLANG.sources] == [
        ("/metrics", PageFormat.EXPOSITION),
        ("/v1/loads?include=core&format=json", PageFormat.JSON),
    ]

    assert read(SGLANG, loads(LOAD), JSON) == EndpointMetrics(
        waiting_requests=2, running_requests=31, kv_cache_usage_ratio=0.3741, max_running_requests=192
    )


def test_loads_of_several_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    other = LOAD | {"dp_rank": 1, "num_running_reqs": 20, "num_waiting_reqs": 25, "token_usage": 0.9}
    old_entry_of_a_rank = LOAD | {"num_running_reqs": 7}

    metrics = read(SGLANG, loads(old_entry_of_a_rank, LOAD, other), JSON)

    assert metrics == EndpointMetrics(
        waiting_requests=27, running_requests=51, kv_cache_usage_ratio=0.9, max_running_requests=384
    )


def test_loads_that_lack_something_leave_it_unknown() -> None:
    assert read(SGLANG, loads({"num_running_reqs": 3, "token_usage": None, "num_waiting_reqs": "2"}), JSON) == EndpointMetrics(
        running_requests=3
    )
    assert read(SGLANG, loads(), JSON) == EndpointMetrics()
    assert read(SGLANG, loads(7, None, {"dp_rank": [1]}), JSON) == EndpointMetrics()


def test_loads_that_cannot_be_right_are_left_out() -> None:
    page = loads(LOAD | {"num_waiting_reqs": -1, "token_usage": 37.4, "num_running_reqs": True})

    assert read(SGLANG, page, JSON) == EndpointMetrics(max_running_requests=192)
    assert sorted(faults(SGLANG, page, JSON)) == [Fault.NEGATIVE, Fault.OUT_OF_RANGE]


@pytest.mark.parametrize("page", [b"[]", b'{"detail": "Not Found"}', b'{"loads": 3}', b"loads", b"{"])
def test_another_page_is_no_page_of_loads(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(SGLANG, page, JSON)

    assert caught.value.reason == "garbage"


def test_loads_in_prometheus_form_are_read_too() -> None:
    page = (
        'sglang_num_running_reqs{dp_rank="0"} 3\nsglang_num_running_reqs{dp_rank="1"} 4\n'
        'sglang_num_waiting_reqs{dp_rank="0"} 1\nsglang_token_usage{dp_rank="0"} 0.2\n'
    )

    assert read(SGLANG, page) == EndpointMetrics(waiting_requests=1, running_requests=7, kv_cache_usage_ratio=0.2)
