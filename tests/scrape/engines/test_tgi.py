"""TGI: a page that begins empty and grows to two thousand lines."""

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.tgi import TGI
from tests.scrape.engines.reading import faults, read
from tests.scrape.pages import sample_page


def test_a_server_that_has_served_nothing_is_usable_and_unknown() -> None:
    assert read(TGI, b"") == read(TGI, b"\n") == EndpointMetrics()
    assert faults(TGI, b"") == []


def test_counters_alone_tell_no_load() -> None:
    page = b"# TYPE tgi_request_count counter\ntgi_request_count 76\n\n# TYPE tgi_request_failure counter\n"

    assert read(TGI, page) == EndpointMetrics()


def test_gauges_are_found_on_a_page_of_buckets() -> None:
    page = sample_page("tgi-saturated.txt")
    assert page.count(b"tgi_batch_next_size_bucket") > 1000

    assert read(TGI, page) == EndpointMetrics(waiting_requests=58, running_requests=70)
