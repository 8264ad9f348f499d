"""trtllm-serve: the Prometheus page, and the JSON page that is gone once it has been read."""

from typing import Any

import msgspec
import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.page import Fault, PageError, PageFormat, PageUnchangedError
from epp.scrape.engines.trtllm_serve import TRTLLM_SERVE
from tests.scrape.engines.reading import JSON, faults, read
from tests.scrape.pages import renamed, sample_page


def step(iteration: int, active: object, queued: object, used: object = 100, **more: object) -> dict[str, Any]:
    cache = {"maxNumBlocks": 1000, "usedNumBlocks": used, "tokensPerBlock": 32, "cacheHitRate": 0.4}
    row = {"iter": iteration, "numActiveRequests": active, "numQueuedRequests": queued, "maxNumActiveRequests": 64}
    return {**row, "kvCacheStats": cache, "specDecodingStats": None, **more}


def steps(*rows: object) -> bytes:
    return msgspec.json.encode(rows)


def test_the_page_that_takes_nothing_away_is_read_first() -> None:
    assert [(s.path, s.format, s.destructive) for s in TRTLLM_SERVE.sources] == [
        ("/prometheus/metrics", PageFormat.EXPOSITION, False),
        ("/metrics", PageFormat.JSON, True),
    ]


def test_a_server_before_its_first_request_tells_nothing_and_is_no_failure() -> None:
    assert read(TRTLLM_SERVE, sample_page("trtllm-prometheus-fresh.txt")) == EndpointMetrics()
    assert read(TRTLLM_SERVE, b"") == EndpointMetrics()


def test_gauges_of_several_processes_are_not_summed() -> None:
    page = sample_page("trtllm-prometheus-busy.txt")
    old_process = b"\n".join(
        renamed(line, b'pid="412"', b'pid="399"').rpartition(b" ")[0] + b" 0.0"
        for line in page.split(b"\n")
        if line.startswith((b"trtllm_num_requests_running", b"trtllm_kv_cache_")) and b'pid="412"' in line
    )

    assert read(TRTLLM_SERVE, page + old_process + b"\n") == read(TRTLLM_SERVE, page)


def test_gauges_without_the_label_of_the_process_are_read_too() -> None:
    page = sample_page("trtllm-prometheus-busy.txt")

    assert read(TRTLLM_SERVE, renamed(page, b',pid="412"', b"")) == read(TRTLLM_SERVE, page)


def test_the_last_step_counts() -> None:
    metrics = read(TRTLLM_SERVE, steps(step(1, 30, 9), step(2, 31, 8), step(3, 18, 2, used=250)), JSON)

    assert metrics == EndpointMetrics(
        waiting_requests=2,
        running_requests=18,
        kv_cache_usage_ratio=0.25,
        kv_cache_blocks=1000,
        kv_cache_block_tokens=32,
        max_running_requests=64,
    )


def test_no_new_step_means_no_news_and_not_no_load() -> None:
    for page in (b"[]", b" [ ]\n", sample_page("trtllm-idle.txt")):
        with pytest.raises(PageUnchangedError) as caught:
            read(TRTLLM_SERVE, page, JSON)
        assert caught.value.reason == "unchanged"


def test_the_last_step_of_every_attention_rank_counts() -> None:
    page = steps(
        step(1, 50, 9, attentionDpRank=0),
        step(1, 50, 0, attentionDpRank=1),
        step(2, 10, 4, 100, attentionDpRank=0),
        step(2, 12, 0, 900, attentionDpRank=1),
    )

    metrics = read(TRTLLM_SERVE, page, JSON)

    assert (metrics.running_requests, metrics.waiting_requests, metrics.kv_cache_usage_ratio) == (22, 4, 0.9)
    assert (metrics.kv_cache_blocks, metrics.max_running_requests) == (2000, 128)


@pytest.mark.parametrize("cache", [None, {}, {"usedNumBlocks": 5}, {"maxNumBlocks": 0, "usedNumBlocks": 0}, 7])
def test_without_blocks_the_cache_is_unknown(cache: object) -> None:
    metrics = read(TRTLLM_SERVE, steps(step(1, 3, 1) | {"kvCacheStats": cache}), JSON)

    assert metrics.kv_cache_usage_ratio is None
    assert (metrics.running_requests, metrics.waiting_requests) == (3, 1)


def test_numbers_that_cannot_be_right_are_left_out() -> None:
    page = steps(step(1, -3, 10**400, used=5000))

    metrics = read(TRTLLM_SERVE, page, JSON)

    assert (metrics.running_requests, metrics.waiting_requests, metrics.kv_cache_usage_ratio) == (None, None, None)
    assert sorted(faults(TRTLLM_SERVE, page, JSON)) == [Fault.NEGATIVE, Fault.NOT_A_NUMBER, Fault.OUT_OF_RANGE]


@pytest.mark.parametrize("page", [b"[1, 2]", b'[{"a": 1}]', b'{"detail": "Not Found"}', b"[{", b"trtllm_num 1", b"[" * 100_000])
def test_another_page_is_no_page_of_steps(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(TRTLLM_SERVE, page, JSON)

    assert caught.value.reason == "garbage"


def test_an_empty_json_page_is_an_error() -> None:
    with pytest.raises(PageError) as caught:
        read(TRTLLM_SERVE, b"", JSON)

    assert caught.value.reason == "empty"
