"""The catalog: engines by name, by label and by their page."""

import pytest

from epp.errors import ConfigError
from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import BUILT_IN, EngineCatalog
from epp.scrape.engines.custom import custom_engine
from epp.scrape.engines.json_page import MOST_JSON_BYTES
from epp.scrape.engines.page import PageFormat
from epp.scrape.exposition import LOOKED_AT_BYTES
from tests.scrape.engines.reading import read
from tests.scrape.pages import FOLDER, sample_page

CATALOG = EngineCatalog()
MINE = custom_engine({"name": "mine", "queuedRequestsSpec": "my_queue"})


def recognised(page: bytes, content_type: str | None = None, catalog: EngineCatalog = CATALOG) -> str | None:
    engine = catalog.recognise(page, content_type)
    return None if engine is None else engine.name


# ── by name ──


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vllm", "vllm"),
        ("vLLM", "vllm"),
        ("sglang", "sglang"),
        ("trtllm-serve", "trtllm-serve"),
        ("trtllm", "trtllm-serve"),
        ("triton-tensorrt-llm", "triton-tensorrt-llm"),
        ("triton", "triton-tensorrt-llm"),
        ("llama.cpp", "llamacpp"),
        ("llama-cpp", "llamacpp"),
        ("llamacpp", "llamacpp"),
        (" tgi ", "tgi"),
        ("ollama", "ollama"),
        ("lmdeploy", "lmdeploy"),
        ("nim", "nim"),
    ],
)
def test_engines_are_found_by_name_and_alias(name: str, engine: str) -> None:
    assert CATALOG.named(name).name == engine


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        CATALOG.named("vlm")

    known = "vllm, sglang, trtllm-serve, triton-tensorrt-llm, llamacpp, tgi, lmdeploy, nim, ollama"
    assert str(caught.value) == f"engine: expected one of {known}, found 'vlm'"


def test_no_two_engines_share_a_name() -> None:
    names = [name for engine in BUILT_IN for name in (engine.name, *engine.aliases)]

    assert len(names) == len(set(names))


# ── by label ──


def test_labels_of_the_reference_picker_name_the_engine() -> None:
    for key in ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"):
        engine = CATALOG.labelled({key: "sglang", "app": "x"})
        assert engine is not None
        assert engine.name == "sglang"
    assert CATALOG.labelled({"app": "vllm"}) is None
    assert CATALOG.labelled({"llm-d.ai/engine-type": "unheard-of"}) is None


def test_another_label_may_name_the_engine() -> None:
    catalog = EngineCatalog(custom=[MINE], label_key="engine")

    assert catalog.labelled({"engine": "mine"}) is MINE
    assert catalog.labelled({"llm-d.ai/engine-type": "vllm"}) is None


# ── by page ──


@pytest.mark.parametrize("file", sorted(file.name for file in FOLDER.iterdir()))
def test_every_sample_page_is_recognised_as_one_engine_and_as_no_other(file: str) -> None:
    """Field report 39."""
    prefix = file.replace(".", "-").split("-")[0]
    names = {"triton": "triton-tensorrt-llm", "trtllm": "trtllm-serve"}

    owners = [engine for engine in BUILT_IN if EngineCatalog([engine]).recognise(sample_page(file), None)]

    assert [engine.name for engine in owners] == [names.get(prefix, prefix)]


@pytest.mark.parametrize(
    ("page", "content_type"),
    [
        (b"", "text/plain; version=0.0.4"),
        (b"\n", None),
        (b"# TYPE go_goroutines gauge\ngo_goroutines 12\nhttp_requests_total 5\n", "text/plain"),
        (b'http_requests_total{path="/vllm:x"} 1\n', None),
        (b"# HELP requests about vllm:num_requests_waiting\n", None),
        (b"my_vllm:num_requests_waiting 3\n", None),
        (b"<html>vllm:\nvllm:num_requests_waiting 1</html>", "text/html; charset=utf-8"),
        (b'{"detail": "Not Found"}', "application/json"),
        (b"{", "application/json"),
        (b"{" * 5000, None),
        (b"vllm:num_requests_waiting 1\n", "application/json"),
        (b"\xff\xfe\x00", None),
    ],
)
def test_a_page_that_tells_nothing_is_nobodys(page: bytes, content_type: str | None) -> None:
    assert recognised(page, content_type) is None


@pytest.mark.parametrize(
    ("page", "engine"),
    [
        (b"# HELP vllm:num_requests_running Number.\n# TYPE vllm:num_requests_running gauge\n", "vllm"),
        (b"# TYPE vllm:prompt_tokens counter\n# EOF\n", "vllm"),
        (b"  sglang:num_queue_reqs 1\n", "sglang"),
        (b"# TYPE tgi_request_count counter\n", "tgi"),
        (b"dynamo_component_requests 1\nvllm:num_requests_running 1\nnum_requests_waiting 0\n", "vllm"),
        (b'nv_inference_count{model="m"} 1\nvllm:num_requests_running 3\n', "vllm"),
        (b'nv_inference_count{model="m"} 1\n', "triton-tensorrt-llm"),
        (b"[]", "trtllm-serve"),
        (b' {"models": []}', "ollama"),
        (b'{"loads": []}', "sglang"),
    ],
)
def test_little_is_enough_to_recognise_an_engine(page: bytes, engine: str) -> None:
    assert recognised(page) == engine


def test_an_endpoint_of_unknown_engine_is_tried_where_engines_are_read() -> None:
    probes = [(source.port, source.path) for source in CATALOG.probe_sources()]
    sources = [(source.port, source.path) for engine in BUILT_IN for source in engine.sources]

    assert probes[0] == (None, "/metrics")
    assert probes[-1] == (8002, "/metrics")
    assert set(sources) == set(probes)
    assert all(source.format is PageFormat.JSON or source.path.endswith("metrics") for source in CATALOG.probe_sources())


# ── the user's own ──


def test_a_users_engine_is_recognised_by_the_names_it_reads() -> None:
    catalog = EngineCatalog(custom=[MINE])

    assert recognised(b"my_queue 3\n", catalog=catalog) == "mine"
    assert recognised(b"my_queue_seconds 3\n", catalog=catalog) is None
    assert recognised(b"my_queue 3\nvllm:num_requests_waiting 1\n", catalog=catalog) == "vllm"
    assert catalog.names[-1] == "mine"


def test_a_users_engine_does_not_take_the_pages_of_another_whose_names_it_reads() -> None:
    half = custom_engine({"name": "half-vllm", "queuedRequestsSpec": "vllm:num_requests_waiting"})

    assert recognised(sample_page("vllm-busy.txt"), catalog=EngineCatalog(custom=[half])) == "vllm"


def test_a_users_engine_replaces_the_built_in_one_of_its_name() -> None:
    own = custom_engine({"name": "trtllm-serve", "runningRequestsSpec": "trtllm_num_scheduled_requests"})
    catalog = EngineCatalog(custom=[own])
    page = sample_page("trtllm-prometheus-busy.txt")

    engine = catalog.recognise(page, None)

    assert engine is not None
    assert engine is catalog.named("trtllm")
    assert read(engine, page) == EndpointMetrics(running_requests=18)
    assert [source.path for source in engine.sources] == ["/prometheus/metrics"]
    assert len(catalog.names) == len(BUILT_IN)


def test_pages_of_nobody_may_have_a_default_engine() -> None:
    catalog = EngineCatalog(default_engine="vllm")

    assert recognised(b"other_metric 1\n", catalog=catalog) == "vllm"
    assert recognised(b"sglang:num_queue_reqs 1\n", catalog=catalog) == "sglang"
    assert recognised(b"<html>", "text/html", catalog) is None
    assert recognised(b"", catalog=catalog) is None


def test_a_default_engine_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^defaultEngine: expected one of vllm, .*, mine, found 'vlm'"):
        EngineCatalog(custom=[MINE], default_engine="vlm")


def test_old_and_new_names_and_three_engines_work_in_one_pool() -> None:
    """Field reports 38 and 39: each page of a mixed pool gives its own load."""
    pages = {"vllm-0.7-v0engine-busy.txt": 23, "vllm-saturated.txt": 256, "sglang-busy.txt": 31, "llamacpp-busy.txt": 3}

    for file, running in pages.items():
        engine = CATALOG.recognise(sample_page(file), None)
        assert engine is not None
        assert read(engine, sample_page(file)).running_requests == running


def test_only_the_beginning_of_a_page_is_looked_at() -> None:
    """A server may send 8 MB: looking through all of it for all engines held up the picks for 3 s."""
    sign = b"\nvllm:num_requests_waiting 1\n"

    assert recognised(b"\n" * (LOOKED_AT_BYTES // 2) + sign) == "vllm"
    assert recognised(b"\n" * LOOKED_AT_BYTES + sign) is None
    assert recognised(b"x" * LOOKED_AT_BYTES + sign) is None


def test_a_name_at_the_cut_is_not_taken_for_a_shorter_one() -> None:
    line = b"\nnum_requests_waiting_for_godot 1\n"
    page = b"#" * (LOOKED_AT_BYTES - len(b"\nnum_requests_waiting")) + line

    assert recognised(page + b"a 1\n") is None


def test_the_order_of_engines_counts_and_not_that_of_lines() -> None:
    assert recognised(b"nim_x 1\nsglang:x 1\nvllm:x 1\n") == "vllm"


def test_json_of_any_length_is_not_decoded_to_tell_whose_it_is() -> None:
    page = b'{"models":[{"name":"a","model":"a","size_vram":1,"expires_at":"x"}]'

    assert recognised(page + b"," + b" " * MOST_JSON_BYTES + b'"more":[]}') is None
