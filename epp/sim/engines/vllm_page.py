"""The families of vLLM's metrics page."""

from collections import Counter

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import View
from epp.sim.engines.lora import LoraCombinations
from epp.sim.exposition import HistogramBoard, PageWriter, labels

_BY_REASON = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = "
    "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals "
    "vllm:num_requests_waiting."
)
_SLEEP = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 "
    "means sleep level 1; discard_all = 1 means sleep level 2."
)
_BY_TIER = (
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, "
    "p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
    "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
)
_UNUSED_COUNTERS = (
    ("external_prefix_cache_queries", ("External prefix cache queries from KV connector cross-instance cache sharing, in "
     "terms of number of queried tokens.")),
    ("external_prefix_cache_hits", ("External prefix cache hits from KV connector cross-instance cache sharing, in terms "
     "of number of cached tokens.")),
    ("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
    ("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
)  # fmt: skip
_UNUSED_COST_COUNTERS = (
    ("estimated_flops_per_gpu", ("Estimated number of floating point operations per GPU (for Model Flops Utilization "
     "calculations).")),
    ("estimated_read_bytes_per_gpu", ("Estimated number of bytes read from memory per GPU (for Model Flops Utilization "
     "calculations).")),
    ("estimated_write_bytes_per_gpu", ("Estimated number of bytes written to memory per GPU (for Model Flops Utilization "
     "calculations).")),
)  # fmt: skip
_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "gpu_memory_utilization": "0.92",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_caching_hash_algo": "sha256",
    "sliding_window": "None",
    "user_specified_block_size": "False",
}


_UNCOUNTED_PATHS = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}


class VllmPage:
    """Writes one page."""

    def __init__(self, config: SimConfig, page: PageWriter, view: View) -> None:
        assert view.gauges is not None
        self._config = config
        self._page = page
        self._view = view
        self._state: EngineState = view.gauges
        self._values = {"model_name": config.model_name}
        if not config.old_metric_names:
            self._values["engine"] = "0"
        self._labels = labels(**self._values)

    def write(self, lora: LoraCombinations, board: HistogramBoard, *, engine_families: bool) -> None:
        """All families; without the engine's own when statistics are off."""
        if engine_families:
            if self._config.old_metric_names:
                self._old_gauges()
            else:
                self._gauges()
                self._cache_counters()
            self._token_counters()
            self._page.board(board)
            self._cache_config()
            if self._config.lora_adapters:
                lora.write(self._page, self._state, self._view.gauges_at_wall_s)
        self._http()

    def _with(self, **values: str) -> str:
        return labels(**self._values, **values)

    def _load_gauges(self) -> None:
        page, state = self._page, self._state
        text = "Number of requests in model execution batches."
        page.gauge("vllm:num_requests_running", text, state.running_requests, self._labels)
        text = "Number of requests waiting to be processed."
        page.gauge("vllm:num_requests_waiting", text, state.waiting_requests, self._labels)

    def _gauges(self) -> None:
        page, state = self._page, self._state
        for name, text in _UNUSED_COST_COUNTERS:
            page.counter(f"vllm:{name}_total", text, 0, self._labels)
        self._load_gauges()
        page.family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            _BY_REASON,
            [
                (self._with(reason="capacity"), state.waiting_requests - state.deferred_requests),
                (self._with(reason="deferred"), state.deferred_requests),
            ],
        )
        awake = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        samples = [(self._with(sleep_state=name), value) for name, value in awake.items()]
        page.family("vllm:engine_sleep_state", "gauge", _SLEEP, samples)
        text = "KV-cache usage. 1 means 100 percent usage."
        page.gauge("vllm:kv_cache_usage_perc", text, state.kv_usage_ratio, self._labels)

    def _old_gauges(self) -> None:
        page, state = self._page, self._state
        self._load_gauges()
        page.gauge("vllm:num_requests_swapped", "Number of requests swapped to CPU.", 0, self._labels)
        text = "GPU KV-cache usage. 1 means 100 percent usage."
        page.gauge("vllm:gpu_cache_usage_perc", text, state.kv_usage_ratio, self._labels)
        text = "CPU KV-cache usage. 1 means 100 percent usage."
        page.gauge("vllm:cpu_cache_usage_perc", text, 0, self._labels)
        page.gauge("vllm:cpu_prefix_cache_hit_rate", "CPU prefix cache block hit rate.", -1, self._labels)
        looked_up = state.counters.looked_up_blocks
        hit_rate = state.counters.reused_blocks / looked_up if looked_up else -1.0
        page.gauge("vllm:gpu_prefix_cache_hit_rate", "GPU prefix cache block hit rate.", hit_rate, self._labels)

    def _cache_counters(self) -> None:
        page, counters = self._page, self._state.counters
        text = "Prefix cache queries, in terms of number of queried tokens."
        page.counter("vllm:prefix_cache_queries_total", text, counters.prompt_tokens, self._labels)
        text = "Prefix cache hits, in terms of number of cached tokens."
        page.counter("vllm:prefix_cache_hits_total", text, counters.cached_tokens, self._labels)
        for name, text in _UNUSED_COUNTERS:
            page.counter(f"vllm:{name}_total", text, 0, self._labels)
        sources = {
            "local_compute": counters.prompt_tokens - counters.cached_tokens,
            "local_cache_hit": counters.cached_tokens,
            "external_kv_transfer": 0,
        }
        samples = [(self._with(source=name), value) for name, value in sources.items()]
        page.family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.", samples)
        text = "Number of cached prompt tokens (local + external)."
        page.counter("vllm:prompt_tokens_cached_total", text, counters.cached_tokens, self._labels)
        tiers = {"device": counters.cached_tokens, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}
        samples = [(self._with(source=name), value) for name, value in tiers.items()]
        page.family("vllm:prompt_tokens_cached_by_source_total", "counter", _BY_TIER, samples)
        page.family(
            "vllm:admission_rejections_total",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            [
                (
                    labels(model_name=self._config.model_name, reason="max_num_queued_reqs"),
                    counters.rejected_requests,
                ),
                (labels(model_name=self._config.model_name, reason="max_num_queued_tokens"), 0),
            ],
        )

    def _token_counters(self) -> None:
        page, counters = self._page, self._state.counters
        text = "Cumulative number of preemption from the engine."
        page.counter("vllm:num_preemptions_total", text, counters.preemptions, self._labels)
        text = "Number of prefill tokens processed."
        page.counter("vllm:prompt_tokens_total", text, counters.prompt_tokens, self._labels)
        text = "Number of generation tokens processed."
        page.counter("vllm:generation_tokens_total", text, self._state.generated_tokens, self._labels)
        reasons = {
            "stop": counters.finished_requests - counters.length_limited_requests,
            "length": counters.length_limited_requests,
            "abort": counters.aborted_requests,
            "error": 0,
            "repetition": 0,
        }
        samples = [(self._with(finished_reason=name), value) for name, value in reasons.items()]
        page.family("vllm:request_success_total", "counter", "Count of successfully processed requests.", samples)

    def _cache_config(self) -> None:
        config = self._config
        values = _CACHE_CONFIG | {
            "block_size": str(config.kv_block_tokens),
            "enable_prefix_caching": str(config.prefix_caching),
            "num_gpu_blocks": str(config.kv_blocks),
            "kv_cache_size_tokens": str(self._state.total_tokens),
        }
        if not config.old_metric_names:
            values["engine"] = "0"
        text = "Information of the LLMEngine CacheConfig"
        self._page.gauge("vllm:cache_config_info", text, 1, labels(**values))

    def _http(self) -> None:
        classes: Counter[tuple[str, str, int]] = Counter()
        for (path, method, status), value in self._view.http.responses.items():
            if path not in _UNCOUNTED_PATHS:
                classes[path, method, status // 100] += value
        samples = [
            (labels(handler=path, method=method, status=f"{hundred}xx"), float(value))
            for (path, method, hundred), value in classes.items()
        ]
        if samples:
            text = "Total number of requests by method, status and handler."
            self._page.family("http_requests_total", "counter", text, samples)
