"""Where an endpoint is read, and as which engine."""

import pytest
from yarl import URL

from epp.config.settings import ScrapeSettings
from epp.errors import ConfigError
from epp.pool.endpoint import EndpointSpec, MetricsTarget
from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.page import Source, unseen
from epp.scrape.locate import Located, TakenPage, locate, metrics_url
from epp.scrape.reasons import Reason, ScrapeError
from tests.scrape.fake_pages import REFUSED, TOO_SLOW, FakePages, page, spec, vllm

EMPTY = page("")
STRANGE = page("node_cpu_seconds_total 1\n")
STEPS = page('[{"iter": 7, "numActiveRequests": 2, "numQueuedRequests": 5}]')


async def find(
    pages: FakePages, wanted: EndpointSpec | None = None, **settings: object
) -> tuple[Located, EndpointMetrics | None]:
    async def take(url: URL) -> TakenPage:
        return TakenPage(page=await pages.get(url), began_at_s=1.0, in_flight_at_begin=0)

    options = ScrapeSettings(**settings)  # type: ignore[arg-type]
    located, _, metrics = await locate(wanted or spec(), EngineCatalog(), options, take, unseen)
    return located, metrics


async def fault(pages: FakePages, wanted: EndpointSpec | None = None) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        await find(pages, wanted)
    return caught.value


async def test_an_engine_is_recognised_by_its_page_with_one_request() -> None:
    pages = FakePages({"/metrics": vllm(4, 2)})

    located, metrics = await find(pages)

    assert located.engine.name == "vllm"
    assert metrics is not None
    assert (metrics.waiting_requests, metrics.running_requests) == (4, 2)
    assert pages.asked == ["10.0.0.1:8000/metrics"]


async def test_an_engine_with_a_port_of_its_own_for_metrics_is_found_there() -> None:
    pages = FakePages({"10.0.0.1:8002/metrics": page('nv_trt_llm_request_metrics{request_type="waiting"} 3\n')})

    located, metrics = await find(pages)

    assert located.engine.name == "triton-tensorrt-llm"
    assert located.url == URL("http://10.0.0.1:8002/metrics")
    assert metrics is not None
    assert metrics.waiting_requests == 3


async def test_the_destructive_json_of_trtllm_serve_is_read_only_where_its_prometheus_page_is_missing() -> None:
    located, metrics = await find(FakePages({"/metrics": STEPS}))

    assert located.source.destructive
    assert metrics is not None
    assert metrics.waiting_requests == 5


async def test_the_prometheus_page_of_trtllm_serve_is_preferred_to_its_json() -> None:
    pages = FakePages({"/metrics": STEPS, "/prometheus/metrics": page("trtllm_num_requests_waiting 4\n")})

    located, metrics = await find(pages)

    assert located.url.path == "/prometheus/metrics"
    assert metrics is not None
    assert metrics.waiting_requests == 4


async def test_nothing_new_on_the_first_read_is_no_failure() -> None:
    located, metrics = await find(FakePages({"/metrics": page("[]")}), spec(engine="trtllm-serve"))

    assert located.source.destructive
    assert metrics is None


async def test_a_named_engine_is_not_looked_for() -> None:
    pages = FakePages({"/metrics": page("vllm:num_requests_waiting 1\n")})

    with pytest.raises(ScrapeError):
        await find(pages, spec(engine="ollama"))

    assert pages.asked == ["10.0.0.1:8000/api/ps"]


async def test_a_named_engine_that_nobody_knows_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="expected one of vllm"):
        await find(FakePages(), spec(engine="vlm"))


async def test_pages_of_other_things_are_named_in_the_error() -> None:
    """Field report 39: a page without load metrics is reported as such; the endpoint stays usable."""
    error = await fault(FakePages({"/metrics": STRANGE, "/v1/metrics": EMPTY}))

    assert error.reason is Reason.UNKNOWN_ENGINE
    assert str(error) == "no known load metrics on /metrics, /v1/metrics; balanced on own counts only"


async def test_the_fault_of_the_first_place_is_told_when_there_is_no_page_at_all() -> None:
    assert (await fault(FakePages())).reason is Reason.NOT_ENABLED


@pytest.mark.parametrize("silence", [REFUSED, TOO_SLOW])
async def test_a_port_that_gave_no_answer_is_not_asked_for_its_other_pages(silence: ScrapeError) -> None:
    pages = FakePages({"/metrics": silence})

    assert await fault(pages) is silence
    assert pages.asked == ["10.0.0.1:8000/metrics", "10.0.0.1:8002/metrics"]


async def test_places_that_come_down_to_one_address_are_asked_once() -> None:
    """Field report 44: with port and path given there is one place only."""
    pages = FakePages({"/internal/m": STRANGE})

    await fault(pages, spec(metrics=MetricsTarget(port=9400, path="/internal/m")))

    assert pages.asked == ["10.0.0.1:9400/internal/m"]


@pytest.mark.parametrize(
    ("target", "settings", "expected"),
    [
        (MetricsTarget(), {}, "http://10.0.0.1:8000/metrics"),
        (MetricsTarget(port=9400, path="internal/m", scheme="https"), {}, "https://10.0.0.1:9400/internal/m"),
        (MetricsTarget(), {"port": 9, "path": "/p?q=1", "scheme": "https"}, "https://10.0.0.1:9/p?q=1"),
        (MetricsTarget(port=1), {"port": 9, "path": "/p"}, "http://10.0.0.1:1/p"),
    ],
)
def test_discovery_beats_the_settings_and_the_settings_beat_the_engine(
    target: MetricsTarget, settings: dict[str, object], expected: str
) -> None:
    """Field report 44: port, path and scheme of the metrics page can be chosen, for one endpoint and for all."""
    options = ScrapeSettings(**settings)  # type: ignore[arg-type]

    assert metrics_url(spec(metrics=target), Source(path="/metrics"), options) == URL(expected)


def test_an_ipv6_address_keeps_its_brackets_and_an_engines_own_port_is_used() -> None:
    url = metrics_url(spec("[fd00::7]:8000"), Source(path="/metrics", port=8002), ScrapeSettings())

    assert str(url) == "http://[fd00::7]:8002/metrics"
