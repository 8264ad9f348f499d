"""SGLang of August 2026; with old names the pages of early 2026 (`cache_config_info` in place of plain gauges)."""

from collections.abc import Iterable, Mapping
from typing import Any

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import Engine, Page, Refresh, Reply, ServerStatus, StopStyle, Traits, View, json_reply
from epp.sim.engines.bounds import token_gaps
from epp.sim.engines.sglang_page import SglangPage
from epp.sim.exposition import TEXT_FORMAT, HistogramFamily, PageWriter, Style

DECODE_LOG_INTERVAL_STEPS = 40
"""SGLang's `--decode-log-interval`: gauges are brought up to date after so many decode steps."""
HEALTH_DELAY_S = 1.0
"""`/health` generates a token and sleeps this long before it first looks whether it came."""

_QUEUE_S = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
)  # fmt: skip
_FIRST_TOKEN_S = (
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0,
)  # fmt: skip
_REQUEST_S = (*_FIRST_TOKEN_S, 600.0, 1200.0, 1800.0, 2400.0)
_TOKEN_GAP_S = (
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
_TOKENS = (
    100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0, 8000.0, 9000.0, 10000.0,
    12500.0, 15000.0, 17500.0, 20000.0, 22500.0, 25000.0, 27500.0, 30000.0, 35000.0, 40000.0, 60000.0, 80000.0, 100000.0,
    200000.0, 300000.0, 400000.0, 600000.0, 800000.0, 1000000.0, 1100000.0,
)  # fmt: skip


class Sglang(Engine):
    """The HTTP server of SGLang."""

    traits = Traits(name="sglang", owned_by="sglang", headers_at_first_token=True, refresh=Refresh.ON_PREFILL_AND_IDLE)

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self.refresh_s = DECODE_LOG_INTERVAL_STEPS / config.decode_tokens_per_s

    def histograms(self) -> Iterable[HistogramFamily]:
        served = {"engine_type": "unified", "model_name": self.config.model_name}
        ranks = {**served, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        own = (
            ("queue_time_seconds", "Histogram of queueing time in seconds.", _QUEUE_S, lambda t: t.queue_s, ranks),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                _FIRST_TOKEN_S,
                lambda t: t.first_token_s,
                served,
            ),
            (
                "e2e_request_latency_seconds",
                "Histogram of End-to-end request latency in seconds",
                _REQUEST_S,
                lambda t: t.total_s,
                served,
            ),
            (
                "prompt_tokens_histogram",
                "Histogram of prompt token length.",
                _TOKENS,
                lambda t: t.prompt_tokens,
                served,
            ),
            (
                "uncached_prompt_tokens_histogram",
                "Histogram of uncached (compute) prompt token length.",
                _TOKENS,
                lambda t: t.prompt_tokens - t.cached_tokens,
                served,
            ),
            (
                "generation_tokens_histogram",
                "Histogram of generation token length.",
                _TOKENS,
                lambda t: t.output_tokens,
                served,
            ),
        )
        for name, text, bounds, value, values in own:
            yield HistogramFamily(name=f"sglang:{name}", text=text, bounds=bounds, value=value, labels=values)
        yield HistogramFamily(
            name="sglang:inter_token_latency_seconds",
            text="Histogram of inter-token latency in seconds.",
            bounds=_TOKEN_GAP_S,
            value=lambda t: t.per_token_s,
            weight=token_gaps,
            labels=served,
        )

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.PYTHON_MULTIPROCESS)
        SglangPage(self.config, page, view).write(self.board)
        return Reply(body=page.page(), content_type=TEXT_FORMAT)

    def pages(self) -> Mapping[str, Page]:
        return {
            "/health": self._health,
            "/health_generate": self._health,
            "/v1/loads": self._loads,
            "/get_load": lambda view: json_reply([_load(view.live, view.wall_s)]),
            "/model_info": lambda _: json_reply({"model_path": self.config.model_name, "is_generation": True}),
            "/server_info": lambda _: json_reply(
                {
                    "served_model_name": self.config.model_name,
                    "max_running_requests": self.config.slots,
                    "page_size": self.config.kv_block_tokens,
                    "kv_events": None,
                }
            ),
        }

    def _health(self, view: View) -> Reply:
        if view.status is ServerStatus.STOPPING:
            return Reply(status=503)
        return Reply(delay_s=HEALTH_DELAY_S)

    def _loads(self, view: View) -> Reply:
        load = _load(view.live, view.wall_s)
        if view.query.get("format", "json") == "prometheus":
            page = PageWriter(style=Style.OTHER)
            for name, value in load.items():
                if name not in {"timestamp", "dp_rank"}:
                    page.gauge(f"sglang_{name}", name.replace("_", " "), float(value), 'dp_rank="0"')
            return Reply(body=page.page(), content_type=TEXT_FORMAT)
        head = {"timestamp": view.wall_s, "version": "0.6.0", "accelerator": "simulated", "num_accelerators": 1}
        return json_reply({**head, "loads": [load]})

    def stop_style(self) -> StopStyle:
        return StopStyle(listener_closes=False, kept_connections_close=False, idle_check_s=self.config.sigterm_watchdog_s)

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return json_reply({"object": "error", "message": message, "type": kind, "param": param, "code": status}, status)

    def model_entry(self, name: str, created: int, *, parent: str | None) -> dict[str, Any]:
        return {
            **super().model_entry(name, created, parent=parent),
            "root": name,
            "parent": parent,
            "max_model_len": None if parent else self.config.kv_blocks * self.config.kv_block_tokens,
        }


def _load(state: EngineState, wall_s: float) -> dict[str, Any]:
    counters = state.counters
    looked_up = counters.looked_up_blocks
    return {
        "timestamp": wall_s,
        "dp_rank": 0,
        "num_running_reqs": state.running_requests,
        "num_waiting_reqs": state.waiting_requests,
        "num_waiting_uncached_tokens": state.waiting_tokens,
        "num_used_tokens": state.used_tokens,
        "num_total_tokens": state.used_tokens + state.waiting_tokens,
        "num_active_tokens": state.context_tokens,
        "max_total_num_tokens": state.total_tokens,
        "max_running_requests": state.slot_count,
        "token_usage": state.kv_usage_ratio,
        "cache_hit_rate": counters.reused_blocks / looked_up if looked_up else 0.0,
        "utilization": state.running_requests / state.slot_count,
    }
