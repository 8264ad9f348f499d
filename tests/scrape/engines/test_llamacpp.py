"""llama.cpp: the metrics page with and without the cache, and slots where there is no metrics page."""

import msgspec
import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.llamacpp import LLAMACPP
from epp.scrape.engines.page import PageError, PageFormat
from tests.scrape.engines.reading import JSON, read
from tests.scrape.pages import sample_page


def test_slots_stand_in_where_metrics_are_off() -> None:
    assert [(source.path, source.format) for source in LLAMACPP.sources] == [
        ("/metrics", PageFormat.EXPOSITION),
        ("/slots", PageFormat.JSON),
    ]


def test_the_cache_is_read_where_the_page_still_has_it() -> None:
    assert read(LLAMACPP, sample_page("llamacpp-2025-04-busy.txt")).kv_cache_usage_ratio == 0.427917
    assert read(LLAMACPP, sample_page("llamacpp-busy.txt")).kv_cache_usage_ratio is None


def test_the_part_of_the_cache_that_busy_slots_own_is_used() -> None:
    slots = [{"id": 0, "n_ctx": 3000, "is_processing": True}, {"id": 1, "n_ctx": 1000, "is_processing": False}]

    assert read(LLAMACPP, msgspec.json.encode(slots), JSON) == EndpointMetrics(
        running_requests=1, kv_cache_usage_ratio=0.75, max_running_requests=2
    )


def test_slots_without_a_size_tell_only_how_many_are_busy() -> None:
    slots = [{"is_processing": True}, {"is_processing": True}, {"is_processing": False}, {"is_processing": 1}, "x"]

    assert read(LLAMACPP, msgspec.json.encode(slots), JSON) == EndpointMetrics(running_requests=2, max_running_requests=3)


@pytest.mark.parametrize("page", [b"[]", b"{}", b'{"error": {"code": 501, "type": "not_supported_error"}}', b"[1]"])
def test_another_page_is_no_page_of_slots(page: bytes) -> None:
    with pytest.raises(PageError) as caught:
        read(LLAMACPP, page, JSON)

    assert caught.value.reason == "garbage"


def test_values_with_six_digits_are_read() -> None:
    assert read(LLAMACPP, "llamacpp:requests_processing 1.5e+01\nllamacpp:requests_deferred 9.21477e+06\n") == EndpointMetrics(
        waiting_requests=9214770, running_requests=15
    )
