"""Engines in general: what no page makes them do, and where they are read."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import BUILT_IN
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.llamacpp import LLAMACPP
from epp.scrape.engines.nim import NIM
from epp.scrape.engines.page import Fault, PageError, PageFormat, Source
from epp.scrape.engines.trtllm_serve import TRTLLM_SERVE
from epp.scrape.engines.vllm import VLLM
from tests.scrape.engines.reading import EXPOSITION, JSON, faults, read
from tests.scrape.pages import sample_page

engines = st.sampled_from(BUILT_IN)
names = sorted({name for engine in BUILT_IN if engine.exposition for name in engine.exposition.names})
line = st.tuples(
    st.sampled_from(names),
    st.sampled_from(
        ["", "{}", '{engine="0"}', '{pid="1",priority=""}', '{request_type="waiting"}', '{kv_cache_block_type="max"}', "{"]
    ),
    st.sampled_from([" 1", " 0", " -1", " NaN", " +Inf", " 1e308", " 0.5", "", " x"]),
).map("".join)
keys = st.sampled_from(
    [
        "loads",
        "dp_rank",
        "num_running_reqs",
        "token_usage",
        "models",
        "name",
        "is_processing",
        "n_ctx",
        "numActiveRequests",
        "attentionDpRank",
        "kvCacheStats",
        "usedNumBlocks",
        "maxNumBlocks",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def _is_fine(metrics: EndpointMetrics) -> bool:
    counts = (metrics.waiting_requests, metrics.running_requests)
    sizes = (metrics.kv_cache_blocks, metrics.kv_cache_block_tokens, metrics.max_running_requests)
    usage = metrics.kv_cache_usage_ratio
    return (
        all(count is None or 0 <= count < 1e12 for count in counts)
        and all(size is None or size >= 1 for size in sizes)
        and (usage is None or 0 <= usage <= 1)
    )


@given(engines, st.lists(line, max_size=8).map("\n".join))
def test_lines_of_any_kind_give_only_numbers_that_can_be_right(engine: Engine, page: str) -> None:
    with contextlib.suppress(PageError):
        assert _is_fine(read(engine, page))


@given(engines, st.binary(), st.sampled_from([EXPOSITION, JSON]))
def test_no_bytes_raise_anything_but_a_page_error(engine: Engine, page: bytes, source: Source) -> None:
    with contextlib.suppress(PageError):
        assert _is_fine(engine.read(source, page))


@given(engines, json_values)
def test_no_json_raises_anything_but_a_page_error(engine: Engine, value: object) -> None:
    with contextlib.suppress(PageError):
        assert _is_fine(engine.read(JSON, msgspec.json.encode(value)))


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html>\n<html><body>nginx</body></html>",
        b'{"detail": "Not Found"}',
        b"\x1f\x8b\x08\x00\x00\x00",
        b"Ollama is running",
        b"\x00" * 1000,
        "garbage: größe".encode(),
    ],
)
def test_a_page_that_is_no_metrics_page_is_an_error_that_shows_its_beginning(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(VLLM, page)

    assert caught.value.reason == "garbage"
    assert str(caught.value).startswith("expected a metrics page, found '")
    assert len(str(caught.value)) < 250
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("page", [b"", b"\n \n"])
def test_an_empty_page_is_an_error_where_no_version_has_one(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(VLLM, page)

    assert caught.value.reason == "empty"


def test_a_page_of_other_metrics_tells_nothing_and_is_no_error() -> None:
    metrics = read(VLLM, b"# TYPE go_goroutines gauge\ngo_goroutines 12\n")

    assert metrics == EndpointMetrics()
    assert VLLM.missing(metrics) == ("waiting requests", "running requests", "KV-cache usage")


def test_a_bad_line_is_told_and_costs_only_itself() -> None:
    page = sample_page("vllm-busy.txt").replace(b"vllm:num_requests_waiting{", b"vllm:num_requests_waiting{x", 1)
    broken = page.replace(b'vllm:num_requests_waiting{xengine="0"', b'vllm:num_requests_waiting{xengine="0', 1)

    metrics = read(VLLM, broken)

    assert (metrics.waiting_requests, metrics.running_requests) == (None, 23)
    assert faults(VLLM, broken) == [Fault.BAD_LINE]


@pytest.mark.parametrize("cut_at", range(0, 60_000, 1499))
def test_a_page_cut_anywhere_is_read_as_far_as_it_goes(cut_at: int) -> None:
    page = sample_page("vllm-busy.txt")
    whole = read(VLLM, page)
    if cut_at == 0:
        return

    metrics = read(VLLM, page[:cut_at])

    assert metrics.waiting_requests in (None, whole.waiting_requests)
    assert metrics.kv_cache_blocks in (None, whole.kv_cache_blocks)


# ── where ──


def test_reading_goes_on_where_the_page_was_found() -> None:
    usual, odd = Source(path="/metrics"), Source(path="/v1/metrics")

    assert VLLM.sources_after(usual) == (usual,)
    assert VLLM.sources_after(odd) == (odd, usual)
    assert NIM.sources_after(usual) == (usual, odd)


def test_a_page_that_takes_from_others_is_the_last_choice_also_when_it_was_found_first() -> None:
    found = Source(path="/metrics")

    assert TRTLLM_SERVE.sources_after(found) == TRTLLM_SERVE.sources
    assert TRTLLM_SERVE.sources[-1].destructive


def test_a_found_page_is_read_in_the_form_that_the_engine_says() -> None:
    slots, metrics = LLAMACPP.sources[1], LLAMACPP.sources[0]

    assert LLAMACPP.sources_after(Source(path="/slots", format=PageFormat.JSON)) == (slots, metrics)
