"""Triton: one family with several quantities, values under the wrong label, several models."""

from epp.scrape.engines.page import Fault
from epp.scrape.engines.triton import TRITON
from tests.scrape.engines.reading import faults, read
from tests.scrape.pages import renamed, sample_page

FRACTION = b'kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.3112529928172386'


def blocks(kind: str, value: float, model: str = "m") -> str:
    return f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="{model}",version="1"}} {value}\n'


def requests(kind: str, value: float, model: str = "m") -> str:
    return f'nv_trt_llm_request_metrics{{model="{model}",request_type="{kind}",version="1"}} {value}\n'


def test_it_is_read_at_the_metrics_port() -> None:
    assert [(source.port, source.path) for source in TRITON.sources] == [(8002, "/metrics")]


def test_a_fraction_that_contradicts_the_block_counts_is_replaced_by_them() -> None:
    page = sample_page("triton-trtllm-busy.txt")
    shifted = renamed(page, FRACTION, FRACTION.replace(b"0.3112529928172386", b"0.4875"))

    assert read(TRITON, shifted).kv_cache_usage_ratio == 3120 / 10024
    assert faults(TRITON, shifted) == [Fault.CONTRADICTION]


def test_a_fraction_alone_or_block_counts_alone_are_enough() -> None:
    assert read(TRITON, blocks("fraction", 0.25)).kv_cache_usage_ratio == 0.25
    assert read(TRITON, blocks("used", 30) + blocks("max", 40)).kv_cache_usage_ratio == 0.75
    assert read(TRITON, blocks("used", 30)).kv_cache_usage_ratio is None


def test_block_counts_that_make_no_sense_correct_nothing() -> None:
    assert read(TRITON, blocks("fraction", 0.25) + blocks("used", 50) + blocks("max", 40)).kv_cache_usage_ratio == 0.25
    assert read(TRITON, blocks("fraction", 0.25) + blocks("used", 0) + blocks("max", 0)).kv_cache_usage_ratio == 0.25


def test_models_are_summed_and_the_fullest_cache_counts_each_checked_by_itself() -> None:
    page = (
        requests("waiting", 2, "a") + requests("waiting", 3, "b")
        + requests("scheduled", 4, "a") + requests("scheduled", 5, "b")
        + requests("max", 64, "a") + requests("max", 32, "b")
        + blocks("fraction", 0.5, "a") + blocks("used", 50, "a") + blocks("max", 100, "a")
        + blocks("fraction", 0.1, "b") + blocks("used", 90, "b") + blocks("max", 100, "b")
    )  # fmt: skip

    metrics = read(TRITON, page)

    assert (metrics.waiting_requests, metrics.running_requests) == (5, 9)
    assert metrics.kv_cache_usage_ratio == 0.9
    assert (metrics.kv_cache_blocks, metrics.max_running_requests) == (200, 96)
    assert faults(TRITON, page) == [Fault.CONTRADICTION]


def test_active_requests_stand_in_for_scheduled_ones() -> None:
    assert read(TRITON, requests("active", 7) + requests("waiting", 1)).running_requests == 7


def test_other_backends_at_least_tell_what_is_pending() -> None:
    pending = 'nv_inference_pending_request_count{{model="{}",version="1"}} {}\n'
    page = pending.format("a", 2) + pending.format("b", 3)

    metrics = read(TRITON, page)

    assert (metrics.waiting_requests, metrics.running_requests) == (5, None)
