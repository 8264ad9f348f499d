"""NVIDIA NIM for LLMs: vLLM's names without their prefix, under `/v1/metrics`; newer ones also have names of their own."""

from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import Source
from epp.scrape.engines.quantity import value_of

NIM = Engine(
    name="nim",
    sources=(Source(path="/v1/metrics"), Source(path="/metrics")),
    recognise=(b"nim_", b"num_requests_waiting", b"num_requests_running", b"gpu_cache_usage_perc"),
    exposition=ExpositionPage(
        # newer ones that run vLLM pass its names through
        waiting=value_of("num_requests_waiting", "nim_request_queue_depth", "vllm:num_requests_waiting"),
        running=value_of("num_requests_running", "nim_requests_running", "vllm:num_requests_running"),
        kv_usage=value_of(
            "gpu_cache_usage_perc", "kv_cache_usage_perc", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
        ),
        max_running=value_of("num_request_max"),
    ),
)
