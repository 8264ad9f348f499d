"""vLLM 0.32; with old names 0.7 (V0 engine).

What the model has no notion of (FLOPs, multi-modal cache, KV transfer) stays 0, as on a server that does not use it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import AtStop, Engine, Page, Reply, StopStyle, Traits, View, WhileLoading, json_reply
from epp.sim.engines.bounds import FIRST_TOKEN_S, TOKEN_GAP_S, one_two_five, request_phase_families, token_gaps
from epp.sim.engines.lora import LoraCombinations
from epp.sim.engines.process import ProcessFamilies
from epp.sim.engines.vllm_page import VllmPage
from epp.sim.exposition import TEXT_FORMAT, HistogramFamily, PageWriter, Style

VERSION = "0.32.0"
OLD_VERSION = "0.7.3"

_HTTP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip


class Vllm(Engine):
    """The API server of vLLM."""

    traits = Traits(
        name="vllm",
        owned_by="vllm",
        # One block is the null block; `num_gpu_blocks` counts it.
        reserved_blocks=1,
        while_loading=WhileLoading.SILENT,
        checks_model=True,
        load_headers=True,
        # `--disable-log-stats` takes only the families of the engine away.
        page_stays_when_disabled=True,
    )

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._process = ProcessFamilies()
        self._lora = LoraCombinations(config.max_lora)

    def histograms(self) -> Iterable[HistogramFamily]:
        values = {"model_name": self.config.model_name}
        if not self.config.old_metric_names:
            values["engine"] = "0"
        tokens = one_two_five(max(2000, self._context_tokens()))
        own = (
            ("request_prompt_tokens", "Number of prefill tokens processed.", tokens, lambda t: t.prompt_tokens, None),
            (
                "request_generation_tokens",
                "Number of generation tokens processed.",
                tokens,
                lambda t: t.output_tokens,
                None,
            ),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                FIRST_TOKEN_S,
                lambda t: t.first_token_s,
                None,
            ),
            (self._gap_name(), self._gap_text(), TOKEN_GAP_S, lambda t: t.per_token_s, token_gaps),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                TOKEN_GAP_S,
                lambda t: t.per_token_s,
                None,
            ),
            (
                "request_num_preemptions",
                "Histogram of the number of times a request was preempted.",
                (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
                lambda t: t.preemptions,
                None,
            ),
            (
                "request_prefill_kv_computed_tokens",
                "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
                tokens,
                lambda t: t.prompt_tokens - t.cached_tokens,
                None,
            ),
        )
        for name, text, bounds, value, weight in own:
            yield HistogramFamily(name=f"vllm:{name}", text=text, bounds=bounds, value=value, weight=weight, labels=values)
        yield from request_phase_families("vllm:", values)
        yield HistogramFamily(
            name="http_request_duration_highr_seconds",
            text="Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            bounds=_HTTP_S,
            value=lambda t: t.total_s,
        )

    def _gap_name(self) -> str:
        return "time_per_output_token_seconds" if self.config.old_metric_names else "inter_token_latency_seconds"

    def _gap_text(self) -> str:
        old = "Histogram of time per output token in seconds."
        return old if self.config.old_metric_names else "Histogram of inter-token latency in seconds."

    def _context_tokens(self) -> int:
        return (self.config.kv_blocks - self.traits.reserved_blocks) * self.config.kv_block_tokens

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.PYTHON, created_s=view.started_wall_s)
        self._process.write(page, started_wall_s=view.started_wall_s)
        VllmPage(self.config, page, view).write(self._lora, self.board, engine_families=self.config.metrics_enabled)
        return Reply(body=page.page(), content_type=TEXT_FORMAT)

    def pages(self) -> Mapping[str, Page]:
        version = OLD_VERSION if self.config.old_metric_names else VERSION
        return {
            "/health": lambda _: Reply(),
            "/ping": lambda _: Reply(),
            "/version": lambda _: json_reply({"version": version}),
            "/load": lambda view: json_reply({"server_load": _inference_active(view)}),
        }

    def stop_style(self) -> StopStyle:
        timeout_s = self.config.shutdown_timeout_s
        if timeout_s == 0:
            return StopStyle(at_stop=AtStop.ABORT)
        return StopStyle(listener_closes=False, kept_connections_close=False, new_requests_fail=True, deadline_s=timeout_s)

    def load_headers(self, state: EngineState) -> Mapping[str, float]:
        return {
            "kv_cache_usage_perc": state.kv_usage_ratio,
            "num_requests_waiting": float(state.waiting_requests),
        }

    def model_entry(self, name: str, created: int, *, parent: str | None) -> dict[str, Any]:
        return {
            **super().model_entry(name, created, parent=parent),
            "root": name,
            "parent": parent,
            "max_model_len": self._context_tokens(),
            "permission": [],
        }


def _inference_active(view: View) -> int:
    return sum(count for (_, method), count in view.http.active.items() if method == "POST")
