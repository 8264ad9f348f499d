"""Every engine's metrics page says what the model says, read back by prometheus_client's parser."""

import re

import pytest

from epp.sim.config import SimConfig
from epp.sim.job import Job
from tests.scrape.pages import sample_page
from tests.sim.views import Bench, Samples, busy_bench

PLACES: dict[tuple[str, bool], dict[str, tuple[str, dict[str, str]]]] = {
    ("vllm", False): {
        "running": ("vllm:num_requests_running", {"engine": "0", "model_name": "m/one"}),
        "waiting": ("vllm:num_requests_waiting", {}),
        "kv": ("vllm:kv_cache_usage_perc", {}),
        "prompt": ("vllm:prompt_tokens_total", {}),
        "cached": ("vllm:prefix_cache_hits_total", {}),
        "generated": ("vllm:generation_tokens_total", {}),
        "finished": ("vllm:e2e_request_latency_seconds_count", {}),
    },
    ("vllm", True): {
        "running": ("vllm:num_requests_running", {"model_name": "m/one"}),
        "waiting": ("vllm:num_requests_waiting", {}),
        "kv": ("vllm:gpu_cache_usage_perc", {}),
        "prompt": ("vllm:prompt_tokens_total", {}),
        "generated": ("vllm:generation_tokens_total", {}),
        "finished": ("vllm:e2e_request_latency_seconds_count", {}),
    },
    ("sglang", False): {
        "running": ("sglang:num_running_reqs", {"tp_rank": "0", "engine_type": "unified"}),
        "waiting": ("sglang:num_queue_reqs", {}),
        "kv": ("sglang:token_usage", {}),
        "blocks": ("sglang:num_pages", {}),
        "block_tokens": ("sglang:page_size", {}),
        "prompt": ("sglang:prompt_tokens_total", {}),
        "cached": ("sglang:cached_tokens_total", {"cache_source": "device"}),
        "generated": ("sglang:generation_tokens_total", {}),
        "finished": ("sglang:e2e_request_latency_seconds_count", {}),
    },
    ("sglang", True): {
        "running": ("sglang:num_running_reqs", {}),
        "waiting": ("sglang:num_queue_reqs", {}),
        "kv": ("sglang:token_usage", {}),
    },
    ("trtllm-serve", False): {
        "running": ("trtllm_num_requests_running", {"pid": "412"}),
        "waiting": ("trtllm_num_requests_waiting", {}),
        "kv": ("trtllm_kv_cache_utilization", {}),
        "blocks": ("trtllm_kv_cache_max_blocks", {}),
        "block_tokens": ("trtllm_kv_cache_tokens_per_block", {}),
        "prompt": ("trtllm_prompt_tokens_total", {}),
        "cached": ("trtllm_prompt_cached_tokens_total", {}),
        "generated": ("trtllm_generation_tokens_total", {}),
        "finished": ("trtllm_e2e_request_latency_seconds_count", {}),
    },
    ("triton-tensorrt-llm", False): {
        "running": ("nv_trt_llm_request_metrics", {"request_type": "scheduled", "model": "tensorrt_llm"}),
        "waiting": ("nv_trt_llm_request_metrics", {"request_type": "waiting"}),
        "kv": ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "fraction"}),
        "blocks": ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "max"}),
        "block_tokens": ("nv_trt_llm_kv_cache_block_metrics", {"kv_cache_block_type": "tokens_per"}),
        # The parser adds `_total` to counters.
        "finished": ("nv_inference_request_success_total", {"model": "ensemble"}),
    },
    ("llamacpp", False): {
        "running": ("llamacpp:requests_processing", {}),
        "waiting": ("llamacpp:requests_deferred", {}),
        "prompt": ("llamacpp:prompt_tokens_total", {}),
        "generated": ("llamacpp:tokens_predicted_total", {}),
    },
    ("llamacpp", True): {
        "running": ("llamacpp:requests_processing", {}),
        "waiting": ("llamacpp:requests_deferred", {}),
        "kv": ("llamacpp:kv_cache_usage_ratio", {}),
    },
    ("tgi", False): {
        "running": ("tgi_batch_current_size", {}),
        "waiting": ("tgi_queue_size", {}),
        "finished": ("tgi_request_duration_count", {}),
    },
    ("lmdeploy", False): {
        "running": ("lmdeploy:num_requests_running", {"engine": "0"}),
        "waiting": ("lmdeploy:num_requests_waiting", {}),
        "kv": ("lmdeploy:gpu_cache_usage_perc", {}),
        "prompt": ("lmdeploy:prompt_tokens_total", {}),
        "cached": ("lmdeploy:cached_tokens_total", {}),
        "generated": ("lmdeploy:generation_tokens_total", {}),
        "finished": ("lmdeploy:e2e_request_latency_seconds_count", {}),
    },
    ("nim", False): {
        "running": ("num_requests_running", {}),
        "waiting": ("num_requests_waiting", {}),
        "kv": ("gpu_cache_usage_perc", {}),
        "prompt": ("prompt_tokens_total", {}),
        "generated": ("generation_tokens_total", {}),
        "finished": ("e2e_request_latency_seconds_count", {}),
    },
}


@pytest.mark.parametrize(("engine", "old"), PLACES)
def test_the_page_says_what_the_model_says(engine: str, old: bool) -> None:
    """Field report 38: old and new names carry the same quantity."""
    bench = busy_bench(engine, old_metric_names=old)
    state, samples = bench.state(), bench.samples()
    truth = {
        "running": 3,
        "waiting": 1,
        "kv": state.used_blocks / state.total_blocks,
        "blocks": state.total_blocks,
        "block_tokens": 16,
        "prompt": state.counters.prompt_tokens,
        "cached": state.counters.cached_tokens,
        "generated": state.generated_tokens,
        "finished": 2,
    }

    assert (state.running_requests, state.waiting_requests, state.counters.cached_tokens) == (3, 1, 80)
    for quantity, (name, labels) in PLACES[engine, old].items():
        assert samples.value(name, **labels) == pytest.approx(truth[quantity], rel=1e-5), quantity


@pytest.mark.parametrize(
    ("engine", "old", "sample"),
    [
        ("vllm", False, "vllm-0.32-real-busy.txt"),
        ("vllm", True, "vllm-0.7-v0engine-busy.txt"),
        ("sglang", False, "sglang-busy.txt"),
        ("sglang", True, "sglang-cacheinfo-2026-02-busy.txt"),
        ("trtllm-serve", False, "trtllm-prometheus-busy.txt"),
        ("triton-tensorrt-llm", False, "triton-trtllm-busy.txt"),
        ("llamacpp", False, "llamacpp-busy.txt"),
        ("llamacpp", True, "llamacpp-2025-04-busy.txt"),
        ("tgi", False, "tgi-busy.txt"),
        ("lmdeploy", False, "lmdeploy-busy.txt"),
    ],
)  # fmt: skip
def test_every_family_is_declared_and_labelled_as_on_the_sample_page(engine: str, old: bool, sample: str) -> None:
    bench = busy_bench(engine, old_metric_names=old)
    page = bench.engine.metrics(bench.view()).body.decode()
    real = sample_page(sample).decode()

    declared, expected = _heads(page), _heads(real)
    assert {head for head in declared if head not in expected} <= _only_in_later_or_earlier_versions(engine, old)
    for name, found in _label_names(page).items():
        wanted = _label_names(real).get(name)
        if wanted is not None and name not in {"vllm:cache_config_info", "lmdeploy:backend_config_info"}:
            assert found <= wanted, name


def _heads(page: str) -> set[str]:
    return {line.strip() for line in page.splitlines() if line.startswith("# ")}


def _label_names(page: str) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for line in page.splitlines():
        match = re.match(r"([\w:]+)(?:\{(.*)\})? ", line)
        if match and not line.startswith("#"):
            names.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return names


def _only_in_later_or_earlier_versions(engine: str, old: bool) -> set[str]:
    """Families that the V0 engine had not yet, which a simulated old server shows all the same."""
    if (engine, old) != ("vllm", True):
        return set()
    bench = busy_bench("vllm")
    return _heads(bench.engine.metrics(bench.view()).body.decode())


@pytest.mark.parametrize("engine", ["tgi", "sglang", "trtllm-serve"])
def test_a_fresh_server_of_some_engines_has_no_load_gauges(engine: str) -> None:
    bench = Bench(SimConfig(engine=engine))

    names = bench.samples().names()

    assert not names & {"tgi_queue_size", "sglang:num_running_reqs", "trtllm_num_requests_running"}


def test_vllm_tells_the_size_of_its_cache_as_labels() -> None:
    (labels,) = busy_bench("vllm").samples().labels("vllm:cache_config_info")

    assert (labels["block_size"], labels["num_gpu_blocks"], labels["engine"]) == ("16", "64", "0")
    assert "model_name" not in labels


def test_vllm_splits_waiting_requests_by_reason() -> None:
    bench = Bench(SimConfig(slots=2, max_lora=1, lora_adapters=("a", "b")))
    bench.submit(Job(prompt_tokens=100, output_tokens=50, lora="a"))
    bench.submit(Job(prompt_tokens=100, output_tokens=50, lora="b"))
    bench.pass_time(0.1)

    samples = bench.samples()

    assert samples.value("vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    assert samples.value("vllm:num_requests_waiting_by_reason", reason="capacity") == 0


def test_the_newest_series_of_vllms_adapters_is_the_truth() -> None:
    bench = Bench(SimConfig(slots=1, max_lora=1, lora_adapters=("a", "b")))
    bench.submit(Job(prompt_tokens=16, output_tokens=10, lora="a"), Job(prompt_tokens=16, output_tokens=500, lora="b"))
    bench.pass_time(0.05)
    first = bench.samples()
    bench.pass_time(5)
    second = bench.samples()

    assert first.labels("vllm:lora_requests_info") == [
        {"max_lora": "1", "running_lora_adapters": "a", "waiting_lora_adapters": "b"}
    ]
    series = {
        (sample.labels["running_lora_adapters"], sample.labels["waiting_lora_adapters"]): sample.value
        for sample in second.all
        if sample.name == "vllm:lora_requests_info"
    }
    assert len(series) == 2
    assert max(series, key=lambda pair: series[pair]) == ("b", "")


def test_vllm_without_statistics_keeps_its_page_but_not_its_gauges() -> None:
    bench = Bench(SimConfig(metrics_enabled=False))

    names = bench.samples().names()

    assert "process_start_time_seconds" in names
    assert not any(name.startswith("vllm:") for name in names)


def test_a_vllm_page_has_a_realistic_size() -> None:
    """Field report 35: pages of 40 to 60 KB are what a picker meets."""
    config = SimConfig(served_model_names=("meta-llama/Llama-3.1-8B-Instruct",))
    bench = Bench(config)

    page = bench.engine.metrics(bench.view()).body

    assert 45_000 < len(page) < 70_000


def test_tgi_has_its_thousand_buckets_and_a_summary() -> None:
    samples = busy_bench("tgi").samples()

    assert len(samples.labels("tgi_batch_next_size_bucket")) == 1025
    assert len(samples.labels("tgi_request_skipped_tokens")) == 7


def test_llamacpp_tells_when_it_started() -> None:
    bench = busy_bench("llamacpp")

    assert bench.engine.metrics(bench.view()).headers == {"Process-Start-Time-Unix": "1787460000"}


def test_a_page_of_sglang_is_recognised_as_of_several_processes() -> None:
    samples: Samples = busy_bench("sglang").samples()

    assert not any(name.endswith("_created") or name.startswith("process_") for name in samples.names())
