"""TensorRT-LLM's `trtllm-serve`, about 1.3: a Prometheus page, and iteration statistics as JSON that reading removes."""

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import Engine, Page, Refresh, Reply, StopStyle, Traits, View, WhileLoading, json_reply
from epp.sim.engines.bounds import FIRST_TOKEN_S, REQUEST_S, TOKEN_GAP_S
from epp.sim.exposition import TEXT_FORMAT, HistogramFamily, PageWriter, Style, labels

MAX_ROWS = 1000
"""Iterations kept for a reader of the JSON page."""
PID = "412"
"""Gauges carry the worker's process id."""

_CACHED_TOKENS = (
    "Process-lifetime total prompt tokens served from KV cache. Resets only when the serving process restarts, not when "
    "the KV cache is flushed or evicted."
)
_PREFILL_S = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class Trtllm(Engine):
    """The OpenAI server of TensorRT-LLM, with `return_perf_metrics` and `enable_iter_perf_stats`."""

    traits = Traits(
        name="trtllm-serve",
        owned_by="tensorrt_llm",
        metrics_paths=("/prometheus/metrics",),
        while_loading=WhileLoading.ANSWERED,
        refresh=Refresh.ON_FINISH,
    )

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._served = {"engine_type": "pytorch", "model_name": config.model_name}
        self._rows: deque[dict[str, Any]] = deque(maxlen=MAX_ROWS)
        self._seen = (0, 0, 0)

    def histograms(self) -> Iterable[HistogramFamily]:
        served = {"engine_type": "pytorch", "model_name": self.config.model_name}
        own = (
            (
                "e2e_request_latency_seconds",
                "Histogram of end to end request latency in seconds.",
                REQUEST_S,
                lambda t: t.total_s,
            ),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                FIRST_TOKEN_S,
                lambda t: t.first_token_s,
            ),
            (
                "time_per_output_token_seconds",
                "Histogram of time per output token in seconds.",
                TOKEN_GAP_S,
                lambda t: t.per_token_s,
            ),
            (
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                REQUEST_S,
                lambda t: t.queue_s,
            ),
            (
                "request_prefill_time_seconds",
                "Histogram of prefill (context) phase duration in seconds (first_token_time - first_scheduled_time).",
                _PREFILL_S,
                lambda t: t.prefill_s,
            ),
            (
                "request_decode_time_seconds",
                "Histogram of decode (generation) phase duration in seconds (last_token_time - first_token_time).",
                REQUEST_S,
                lambda t: t.decode_s,
            ),
        )
        for name, text, bounds, value in own:
            yield HistogramFamily(name=f"trtllm_{name}", text=text, bounds=bounds, value=value, labels=served)

    @property
    def watches(self) -> bool:
        return True

    def note(self, state: EngineState, wall_s: float) -> None:
        """Keep a row of iteration statistics, unless nothing has happened since the last one."""
        counters = state.counters
        ended = counters.finished_requests + counters.aborted_requests
        seen = (_iterations(state, self.config), counters.submitted_requests, ended)
        if seen != self._seen:
            self._seen = seen
            self._rows.append(_row(state, seen[0], wall_s))

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.PYTHON_MULTIPROCESS)
        state = view.gauges
        if state is not None and state.counters.finished_requests:
            self._counters(page, state)
            self._gauges(page, state)
            page.board(self.board)
        page.gauge(
            "trtllm_kv_cache_config_info",
            "KV cache configuration info",
            1,
            labels(
                **self._served,
                cache_dtype="auto",
                enable_block_reuse=str(self.config.prefix_caching),
                enable_partial_reuse=str(self.config.prefix_caching),
                free_gpu_memory_fraction="0.9",
                pid=PID,
            ),
        )
        return Reply(body=page.page(), content_type=TEXT_FORMAT)

    def _counters(self, page: PageWriter, state: EngineState) -> None:
        counters, body = state.counters, labels(**self._served)
        reasons = {
            "stop": counters.finished_requests - counters.length_limited_requests,
            "length": counters.length_limited_requests,
        }
        samples = [(labels(**self._served, finished_reason=name), value) for name, value in reasons.items()]
        page.family("trtllm_request_success_total", "counter", "Count of successfully processed requests.", samples)
        missed = counters.looked_up_blocks - counters.reused_blocks
        for name, text, value in (
            ("prompt_tokens_total", "Cumulative number of prompt (input) tokens processed.", counters.prompt_tokens),
            (
                "generation_tokens_total",
                "Cumulative number of generation (output) tokens produced.",
                state.generated_tokens,
            ),
            (
                "kv_cache_reused_blocks_total",
                "Cumulative number of KV cache blocks reused (cache hits)",
                counters.reused_blocks,
            ),
            ("kv_cache_missed_blocks_total", "Cumulative number of KV cache blocks missed (cache misses)", missed),
            (
                "prompt_cached_tokens_total",
                _CACHED_TOKENS,
                counters.cached_tokens,
            ),
            (
                "num_requests_completed_total",
                "Total number of completed requests across iterations",
                counters.finished_requests,
            ),
        ):
            page.counter(f"trtllm_{name}", text, value, body)

    def _gauges(self, page: PageWriter, state: EngineState) -> None:
        body = labels(**self._served, pid=PID)
        decoding = state.running_requests - state.prefilling_requests
        for name, text, value in (
            ("kv_cache_hit_rate", "KV cache hit rate", _hit_rate(state)),
            ("kv_cache_utilization", "KV cache utilization", state.kv_usage_ratio),
            ("num_requests_running", "Number of active requests", state.running_requests),
            ("num_requests_waiting", "Number of queued requests", state.waiting_requests),
            ("max_num_active_requests", "Maximum number of active requests", state.slot_count),
            ("max_batch_size_static", "Static maximum batch size", state.slot_count),
            ("max_batch_size_runtime", "Runtime maximum batch size", state.slot_count),
            ("kv_cache_max_blocks", "Maximum number of KV cache blocks", state.total_blocks),
            ("kv_cache_free_blocks", "Number of free KV cache blocks", state.total_blocks - state.used_blocks),
            ("kv_cache_used_blocks", "Number of used KV cache blocks", state.used_blocks),
            ("kv_cache_tokens_per_block", "Number of tokens per KV cache block", state.block_tokens),
            ("num_context_requests", "Number of context (prefill) requests", state.prefilling_requests),
            ("num_generation_requests", "Number of generation (decode) requests", decoding),
            ("num_paused_requests", "Number of paused requests", 0),
            ("num_scheduled_requests", "Number of scheduled requests", state.running_requests),
            ("total_context_tokens", "Total number of context tokens", state.prefilling_tokens),
        ):
            page.gauge(f"trtllm_{name}", text, value, body)

    def pages(self) -> Mapping[str, Page]:
        own: dict[str, Page] = {
            "/health": lambda _: Reply(),
            "/version": lambda _: json_reply({"version": "1.3.0"}),
            "/server_info": lambda _: json_reply(
                {
                    "max_batch_size": self.config.slots,
                    "tokens_per_block": self.config.kv_block_tokens,
                    "kv_cache_hash_algo": "v1",
                }
            ),
        }
        if self.config.metrics_enabled:
            own["/metrics"] = self._iterations_page
        return own

    def _iterations_page(self, view: View) -> Reply:
        self.note(view.live, view.wall_s)
        rows = list(self._rows)
        self._rows.clear()
        return json_reply(rows)

    def stop_style(self) -> StopStyle:
        return StopStyle()

    def loading_reply(self, path: str) -> Reply:
        return json_reply({"error": "server is starting"}, 503, x_trtllm_server_state="starting", Retry_After="1")


def _iterations(state: EngineState, config: SimConfig) -> int:
    return int(state.counters.busy_s * config.decode_tokens_per_s)


def _hit_rate(state: EngineState) -> float:
    looked_up = state.counters.looked_up_blocks
    return state.counters.reused_blocks / looked_up if looked_up else 0.0


def _row(state: EngineState, iteration: int, wall_s: float) -> dict[str, Any]:
    counters = state.counters
    missed = counters.looked_up_blocks - counters.reused_blocks
    moment = datetime.fromtimestamp(wall_s, UTC)
    return {
        "timestamp": moment.strftime("%m-%d-%Y %H:%M:%S.%f"),
        "iter": iteration,
        "numActiveRequests": state.running_requests,
        "numQueuedRequests": state.waiting_requests,
        "numCompletedRequests": counters.finished_requests,
        "maxNumActiveRequests": state.slot_count,
        "maxBatchSizeStatic": state.slot_count,
        "maxBatchSizeRuntime": state.slot_count,
        "kvCacheStats": {
            "allocNewBlocks": missed,
            "allocTotalBlocks": missed,
            "cacheHitRate": _hit_rate(state),
            "freeNumBlocks": state.total_blocks - state.used_blocks,
            "maxNumBlocks": state.total_blocks,
            "missedBlocks": missed,
            "reusedBlocks": counters.reused_blocks,
            "tokensPerBlock": state.block_tokens,
            "usedNumBlocks": state.used_blocks,
        },
        "staticBatchingStats": None,
        "inflightBatchingStats": {
            "numScheduledRequests": state.running_requests,
            "numContextRequests": state.prefilling_requests,
            "numGenRequests": state.running_requests - state.prefilling_requests,
            "numPausedRequests": 0,
            "numCtxTokens": state.prefilling_tokens,
            "microBatchId": 0,
            "avgNumDecodedTokensPerIter": 1.0,
        },
        "specDecodingStats": None,
    }
