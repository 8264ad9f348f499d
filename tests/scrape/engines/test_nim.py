"""NIM: vLLM's names without their prefix, and its own names."""

import pytest

from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.nim import NIM
from tests.scrape.engines.reading import read

PAGE = """# HELP num_requests_running Number of requests currently running on GPU.
# TYPE num_requests_running gauge
num_requests_running{model_name="meta/llama-3.1-8b-instruct"} 12.0
# HELP num_requests_waiting Number of requests waiting to be processed.
# TYPE num_requests_waiting gauge
num_requests_waiting{model_name="meta/llama-3.1-8b-instruct"} 3.0
# TYPE num_request_max gauge
num_request_max{model_name="meta/llama-3.1-8b-instruct"} 256.0
# TYPE gpu_cache_usage_perc gauge
gpu_cache_usage_perc{model_name="meta/llama-3.1-8b-instruct"} 0.42
# TYPE prompt_tokens_total counter
prompt_tokens_total{model_name="meta/llama-3.1-8b-instruct"} 4110.0
"""


def test_names_without_a_prefix_are_read() -> None:
    assert read(NIM, PAGE) == EndpointMetrics(
        waiting_requests=3, running_requests=12, kv_cache_usage_ratio=0.42, max_running_requests=256
    )


def test_names_of_its_own_are_read() -> None:
    page = "nim_request_queue_depth 5\nnim_requests_running 6\nkv_cache_usage_perc 0.5\n"

    assert read(NIM, page) == EndpointMetrics(waiting_requests=5, running_requests=6, kv_cache_usage_ratio=0.5)


def test_the_usual_path_comes_second() -> None:
    assert [source.path for source in NIM.sources] == ["/v1/metrics", "/metrics"]


@pytest.mark.parametrize(
    "page", [PAGE, PAGE.replace("gauge", "gauge\r"), "nim_requests_running 0\n", "# TYPE num_requests_waiting gauge\n"]
)
def test_it_is_recognised(page: str) -> None:
    assert EngineCatalog().recognise(page.encode(), "text/plain") is NIM


def test_the_same_names_with_a_prefix_are_not_its_own() -> None:
    page = PAGE.replace("num_requests", "vllm:num_requests").replace("gpu_cache", "vllm:gpu_cache")

    recognised = EngineCatalog().recognise(page.encode(), None)

    assert recognised is not None
    assert recognised.name == "vllm"


@pytest.mark.parametrize("page", ["num_requests_waiting_by_reason 1\n", "my_num_requests_waiting 1\n", "num_requests 3\n"])
def test_names_that_only_resemble_its_own_are_not_its_own(page: str) -> None:
    assert EngineCatalog().recognise(page.encode(), None) is None
