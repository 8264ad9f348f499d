"""Triton with the TensorRT-LLM backend and the models that its example repository has.

The real one has its metrics on a port of their own (8002): give `metrics_port` for that.
"""

from collections.abc import Iterable, Mapping

from epp.sim.engine_state import EngineState
from epp.sim.engines.base import (
    Engine,
    Page,
    Refresh,
    Reply,
    ServerStatus,
    StopStyle,
    Traits,
    View,
    WhileLoading,
    json_reply,
)
from epp.sim.exposition import HistogramFamily, PageWriter, Style, labels, plain_number

_MODELS = ("ensemble", "preprocessing", "postprocessing", "tensorrt_llm")
_ENGINE = {"model": "tensorrt_llm", "version": "1"}
_TOKENS = (10.0, 50.0, 100.0, 500.0, 1000.0)


class Triton(Engine):
    """Triton Inference Server."""

    traits = Traits(
        name="triton-tensorrt-llm",
        owned_by="Triton Inference Server",
        while_loading=WhileLoading.ANSWERED,
        refresh=Refresh.NEVER,
        refresh_s=0.1,
        load_headers=True,
    )

    def histograms(self) -> Iterable[HistogramFamily]:
        yield HistogramFamily(
            name="nv_llm_output_token_len",
            text="TRT LLM response metrics",
            bounds=_TOKENS,
            value=lambda t: t.output_tokens,
            labels={**_ENGINE, "response_metric_type": "total_output_tokens"},
        )
        yield HistogramFamily(
            name="nv_llm_input_token_len",
            text="TRT LLM response metrics",
            bounds=_TOKENS,
            value=lambda t: t.prompt_tokens,
            labels={**_ENGINE, "response_metric_type": "total_input_tokens"},
        )

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.OTHER, number=plain_number)
        state = view.gauges or view.live
        self._requests(page, state)
        self._engine(page, state, view.gauges_at_wall_s)
        page.board(self.board)
        return Reply(body=page.page(), content_type="text/plain; charset=utf-8")

    def _requests(self, page: PageWriter, state: EngineState) -> None:
        done = state.counters.finished_requests
        for name, text in (
            ("request_success", "Number of successful inference requests, all batch sizes"),
            ("count", "Number of inferences performed (does not include cached requests)"),
            ("exec_count", "Number of model executions performed (does not include cached requests)"),
        ):
            samples = [(labels(model=model, version="1"), done) for model in _MODELS]
            page.family(f"nv_inference_{name}", "counter", text, samples)
        # The backend takes every request in at once, so none is ever pending in front of it.
        text = "Instantaneous number of pending requests awaiting execution per-model."
        samples = [(labels(model=model, version="1"), 0) for model in _MODELS]
        page.family("nv_inference_pending_request_count", "gauge", text, samples)

    def _engine(self, page: PageWriter, state: EngineState, wall_s: float) -> None:
        decoding = state.running_requests - state.prefilling_requests
        for family, text, label, values in (
            (
                "request_metrics",
                "TRT LLM request metrics",
                "request_type",
                {
                    "waiting": state.waiting_requests,
                    "context": state.prefilling_requests,
                    "scheduled": state.running_requests,
                    "max": state.slot_count,
                    "active": state.running_requests + state.waiting_requests,
                },
            ),
            (
                "kv_cache_block_metrics",
                "TRT LLM KV cache block metrics",
                "kv_cache_block_type",
                {
                    "fraction": state.kv_usage_ratio,
                    "reused": state.counters.reused_blocks,
                    "tokens_per": state.block_tokens,
                    "used": state.used_blocks,
                    "free": state.total_blocks - state.used_blocks,
                    "max": state.total_blocks,
                },
            ),
            (
                "inflight_batcher_metrics",
                "TRT LLM inflight_batcher-specific metrics",
                "inflight_batcher_specific_metric",
                {
                    "paused_requests": 0,
                    "micro_batch_id": 0,
                    "generation_requests": decoding,
                    "total_context_tokens": state.prefilling_tokens,
                },
            ),
            (
                "general_metrics",
                "General TRT LLM metrics",
                "general_type",
                {
                    "iteration_counter": int(state.counters.busy_s * self.config.decode_tokens_per_s),
                    "timestamp": int(wall_s * 1e6),
                },
            ),
        ):
            samples = [(labels(**_ENGINE, **{label: name}), value) for name, value in values.items()]
            page.family(f"nv_trt_llm_{family}", "gauge", text, samples)

    def pages(self) -> Mapping[str, Page]:
        return {
            "/v2/health/live": lambda _: Reply(),
            "/v2/health/ready": lambda view: Reply(status=400 if view.status is ServerStatus.LOADING else 200),
            "/v2": lambda _: json_reply({"name": "triton", "version": "2.73.0", "extensions": []}),
        }

    def stop_style(self) -> StopStyle:
        return StopStyle(kept_connections_close=False, waits_for_connections=True, deadline_s=self.config.exit_timeout_s)

    def load_headers(self, state: EngineState) -> Mapping[str, float]:
        return {
            "kv_cache_utilization": state.kv_usage_ratio,
            "max_token_capacity": float(state.total_tokens),
        }

    def loading_reply(self, path: str) -> Reply:
        if path == "/v2/health/live":
            return Reply()
        return self.error(400, "model 'ensemble' is not ready", "BadRequest")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return json_reply({"error": message}, status)

    def queue_full(self) -> Reply:
        return self.error(503, "Exceeds maximum queue size", "unavailable")

    def not_found(self) -> Reply:
        return json_reply({"error": "Not Found"}, 404)
