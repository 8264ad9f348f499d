"""LMDeploy 0.16."""

from collections.abc import Iterable, Mapping

from epp.sim.config import SimConfig
from epp.sim.engines.base import Engine, Page, Refresh, Reply, StopStyle, Traits, View, json_reply
from epp.sim.engines.bounds import FIRST_TOKEN_S, TOKEN_GAP_S, one_two_five, request_phase_families, token_gaps
from epp.sim.engines.process import ProcessFamilies
from epp.sim.exposition import TEXT_FORMAT, HistogramFamily, PageWriter, Style, labels

LOG_INTERVAL_S = 10.0
"""Schedule gauges are brought up to date this often only."""


class Lmdeploy(Engine):
    """The API server of LMDeploy."""

    traits = Traits(name="lmdeploy", owned_by="lmdeploy", checks_model=True, refresh=Refresh.NEVER, refresh_s=LOG_INTERVAL_S)

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._process = ProcessFamilies()
        self._labels = labels(**self._values())

    def _values(self) -> dict[str, str]:
        return {"engine": "0", "model_name": self.config.model_name}

    def histograms(self) -> Iterable[HistogramFamily]:
        values = self._values()
        tokens = one_two_five(20000)
        gaps = (0.005, *TOKEN_GAP_S)
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
                "request_cached_tokens",
                "Number of prefix-cached input tokens per request.",
                tokens,
                lambda t: t.cached_tokens,
                None,
            ),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                FIRST_TOKEN_S,
                lambda t: t.first_token_s,
                None,
            ),
            (
                "time_per_output_token_seconds",
                "Histogram of time per output token in seconds.",
                gaps,
                lambda t: t.per_token_s,
                None,
            ),
            ("iter_token_latency", "Histogram of inter-token latency", gaps, lambda t: t.per_token_s, token_gaps),
        )
        for name, text, bounds, value, weight in own:
            yield HistogramFamily(name=f"lmdeploy:{name}", text=text, bounds=bounds, value=value, weight=weight, labels=values)
        yield from request_phase_families("lmdeploy:", values)

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.PYTHON_MULTIPROCESS)
        self._process.write(page, started_wall_s=view.started_wall_s)
        config = self.config
        page.gauge(
            "lmdeploy:backend_config_info",
            "information of backend_config",
            1,
            labels(
                block_size=str(config.kv_block_tokens),
                cache_max_entry_count="0.8",
                dp="1",
                enable_metrics="True",
                enable_prefix_caching=str(config.prefix_caching),
                max_batch_size=str(config.slots),
                session_len=str(config.kv_blocks * config.kv_block_tokens),
                tp="1",
            ),
        )
        self._gauges(page, view)
        self._counters(page, view)
        page.board(self.board)
        return Reply(body=page.page(), content_type=TEXT_FORMAT)

    def _gauges(self, page: PageWriter, view: View) -> None:
        state = view.gauges or view.live
        looked_up = state.counters.looked_up_blocks
        in_engine = state.running_requests + state.waiting_requests
        for name, text, value in (
            ("num_requests_succeeded", "Number of current succeeded requests.", state.counters.finished_requests),
            ("num_requests_failed", "Number of current failed requests.", state.counters.aborted_requests),
            ("num_api_requests_routed", "Number of requests routed to request handles.", in_engine),
            ("num_api_requests_waiting", "Number of requests waiting for free request handles.", 0),
            ("num_requests_running", "Number of requests in model execution batches.", state.running_requests),
            ("num_requests_waiting", "Number of requests waiting to be processed.", state.waiting_requests),
            ("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", state.kv_usage_ratio),
            (
                "prefix_cache_hit_rate",
                "Prefix-cache hit rate. 1 means 100 percent of queried prefix tokens hit.",
                state.counters.reused_blocks / looked_up if looked_up else 0.0,
            ),
        ):
            page.gauge(f"lmdeploy:{name}", text, value, self._labels)

    def _counters(self, page: PageWriter, view: View) -> None:
        counters = view.live.counters
        for name, text, value in (
            ("prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens),
            ("generation_tokens_total", "Number of generation tokens processed.", view.live.generated_tokens),
            ("cached_tokens_total", "Total prefix-cached input tokens served.", counters.cached_tokens),
        ):
            page.counter(f"lmdeploy:{name}", text, value, self._labels)
        reasons = {"SUCCESS": 0, "FINISH": counters.finished_requests, "ENGINE_STOP_ERROR": 0}
        samples = [(labels(**self._values(), finished_reason=f"ResponseType.{name}"), value) for name, value in reasons.items()]
        page.family("lmdeploy:request_success_total", "counter", "Count of successfully processed requests.", samples)

    def pages(self) -> Mapping[str, Page]:
        return {"/health": lambda _: json_reply({"status": "healthy", "message": ""})}

    def stop_style(self) -> StopStyle:
        return StopStyle()
