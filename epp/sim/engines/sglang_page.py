"""The families of SGLang's metrics page: always several processes, so no process families and no `_created`."""

from itertools import pairwise

from epp.sim.config import SimConfig
from epp.sim.engines.base import View
from epp.sim.exposition import HistogramBoard, PageWriter, Samples, labels

_EFFECTIVE = (
    "Effective prefill tokens with retracted-request re-counts excluded, updated on each log interval. mode: "
    "device_hit, host_hit, storage_hit, input. Windowed prefix cache hit rate = rate(sum of *_hit) / rate(sum of all "
    "modes); per-tier rate uses a single *_hit mode in the numerator."
)
_REALTIME = "Total number of tokens processed (updated on each log interval). mode: prefill_compute, prefill_cache, decode."
_ROUTING_KEY_BOUNDS = ("0", "1", "2", "3", "5", "7", "10", "20", "50", "100", "200", "+Inf")
_UNUSED_GAUGES = (
    ("swa_token_usage", "The token usage for SWA layers."),
    ("mamba_usage", "The token usage for Mamba layers."),
    ("num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue."),
    ("num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue."),
    ("num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue."),
    ("num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue."),
)
_UNUSED_POOL_GAUGES = (
    ("swa_available_tokens", "Number of free token slots in the SWA pool (hybrid-SWA only)."),
    ("swa_evictable_tokens", "Number of evictable (radix-cached) token slots in the SWA pool."),
    ("swa_used_tokens", "Number of actively used token slots in the SWA pool."),
    ("mamba_available_tokens", "Number of free state slots in the mamba SSM pool (hybrid-SSM only)."),
    ("mamba_evictable_tokens", "Number of evictable (radix-cached) state slots in the mamba SSM pool."),
    ("mamba_used_tokens", "Number of actively used state slots in the mamba SSM pool."),
)


class SglangPage:
    """Writes one page."""

    def __init__(self, config: SimConfig, page: PageWriter, view: View) -> None:
        self._config = config
        self._page = page
        self._view = view
        self._state = view.gauges
        self._served = {"engine_type": "unified", "model_name": config.model_name}
        self._ranks = {**self._served, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}

    def write(self, board: HistogramBoard) -> None:
        """All families; before the first request only those that are known at start."""
        if self._state is not None and self._state.counters.submitted_requests:
            self._counters()
            self._load_gauges()
        self._capacity()
        self._http()
        if self._state is not None and self._state.counters.finished_requests:
            self._page.board(board)

    def _gauge(self, name: str, text: str, value: float) -> None:
        self._page.gauge(f"sglang:{name}", text, value, labels(**self._ranks))

    def _counter(self, name: str, text: str, samples: Samples) -> None:
        self._page.family(f"sglang:{name}", "counter", text, samples)

    def _counters(self) -> None:
        assert self._state is not None
        counters, ranks, served = self._state.counters, self._ranks, self._served
        computed = counters.prompt_tokens - counters.cached_tokens
        self._counter(
            "num_retracted_requests_total",
            "Total number of retracted requests.",
            [(labels(**ranks), counters.preemptions)],
        )
        modes = {
            "prefill_compute": computed,
            "prefill_cache": counters.cached_tokens,
            "decode": self._state.generated_tokens,
        }
        self._counter("realtime_tokens_total", _REALTIME, [(labels(**ranks, mode=m), v) for m, v in modes.items()])
        if not self._config.old_metric_names:
            modes = {"input": computed, "device_hit": counters.cached_tokens, "host_hit": 0, "storage_hit": 0}
            samples = [(labels(**ranks, mode=m), v) for m, v in modes.items()]
            self._counter("prefill_effective_tokens_total", _EFFECTIVE, samples)
        self._counter(
            "evicted_tokens_total",
            "The number of device KV token slots freed by eviction.",
            [(labels(**ranks), self._state.evicted_blocks * self._state.block_tokens)],
        )
        for name, text, value in (
            ("prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens),
            ("generation_tokens_total", "Number of generation tokens processed.", self._state.generated_tokens),
            ("num_requests_total", "Number of requests processed.", counters.finished_requests),
            ("num_aborted_requests_total", "Number of requests aborted.", counters.aborted_requests),
        ):
            self._counter(name, text, [(labels(**served), value)])
        text = "Number of cached prompt tokens by source (device/host/storage)."
        self._counter("cached_tokens_total", text, [(labels(**served, cache_source="device"), counters.cached_tokens)])

    def _load_gauges(self) -> None:
        state = self._state
        assert state is not None
        decoding = state.running_requests - state.prefilling_requests
        self._gauge("num_running_reqs", "The number of running requests.", state.running_requests)
        self._gauge("num_queue_reqs", "The number of requests in the waiting queue.", state.waiting_requests)
        self._gauge("num_grammar_queue_reqs", "The number of requests in the grammar waiting queue.", 0)
        throughput = decoding * self._config.decode_tokens_per_s
        self._gauge("gen_throughput", "The generation throughput (token/s).", throughput)
        # Set to 0 on every decode report, so that is what a reader sees nearly always.
        self._gauge("cache_hit_rate", "The prefix cache hit rate.", 0)
        self._gauge("decode_sum_seq_lens", "The sum of all sequence lengths in decode.", state.context_tokens)
        self._gauge("token_usage", "The token usage.", state.kv_usage_ratio)
        self._gauge("full_token_usage", "The token usage for full attention layers.", state.kv_usage_ratio)
        self._gauge("num_used_tokens", "The number of used tokens.", state.used_tokens)
        self._gauge("utilization", "The utilization.", state.running_requests / state.slot_count)
        for name, text in _UNUSED_GAUGES:
            self._gauge(name, text, 0)
        self._page.gauge(
            "sglang:num_retracted_reqs",
            "The number of retracted requests.",
            0,
            labels(**self._ranks, pid="731"),
        )
        if not self._config.old_metric_names:
            self._pool_gauges()
        self._routing_keys()

    def _pool_gauges(self) -> None:
        state = self._state
        assert state is not None
        idle = state.idle_blocks * state.block_tokens
        free = state.total_tokens - state.used_tokens - idle
        self._gauge("kv_available_tokens", "Number of free token slots in the KV cache pool.", free)
        text = "Number of evictable (radix-cached) token slots in the KV cache pool."
        self._gauge("kv_evictable_tokens", text, idle)
        text = "Number of actively used token slots in the KV cache pool."
        self._gauge("kv_used_tokens", text, state.used_tokens)
        for name, text in _UNUSED_POOL_GAUGES:
            self._gauge(name, text, 0)
        self._gauge("fwd_occupancy", "Forward pass GPU occupancy percentage.", float("nan"))

    def _routing_keys(self) -> None:
        """A gauge with labels `gt` and `le` that is no histogram."""
        pairs = pairwise(_ROUTING_KEY_BOUNDS)
        samples = [(labels(**self._ranks, gt=low, le=high), 0.0) for low, high in pairs]
        text = "Distribution of routing keys by running request count (gt < count <= le)."
        self._page.family("sglang:routing_key_running_req_count", "gauge", text, samples)

    def _capacity(self) -> None:
        config = self._config
        pages, page_tokens = config.kv_blocks, config.kv_block_tokens
        text = "Maximum total number of tokens in the KV cache pool."
        self._gauge("max_total_num_tokens", text, pages * page_tokens)
        if config.old_metric_names:
            values = {**self._ranks, "num_pages": str(pages), "page_size": str(page_tokens)}
            text = "Cache configuration information."
            self._page.gauge("sglang:cache_config_info", text, 1, labels(**values))
        else:
            self._gauge("page_size", "KV cache page size in tokens.", page_tokens)
            self._gauge("num_pages", "Number of KV cache pages.", pages)
            self._gauge("context_len", "Maximum context length.", pages * page_tokens)

    def _http(self) -> None:
        http = self._view.http
        self._counter(
            "http_requests_total",
            "Total number of HTTP requests by endpoint and method",
            [(labels(endpoint=path, method=method), value) for (path, method), value in http.requests.items()],
        )
        self._counter(
            "http_responses_total",
            "Total number of HTTP responses by endpoint and status code",
            [
                (labels(endpoint=path, method=method, status_code=str(status)), value)
                for (path, method, status), value in http.responses.items()
            ],
        )
        self._page.family(
            "sglang:http_requests_active",
            "gauge",
            "Number of currently active HTTP requests",
            [(labels(endpoint=path, method=method), value) for (path, method), value in http.active.items()],
        )
