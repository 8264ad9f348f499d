"""NVIDIA NIM for LLMs: vLLM inside, names without a prefix."""

from collections.abc import Iterable, Mapping

from epp.sim.config import SimConfig
from epp.sim.engines.base import AtStop, Engine, Page, Reply, StopStyle, Traits, View, WhileLoading, json_reply
from epp.sim.engines.bounds import FIRST_TOKEN_S, one_two_five, request_phase_families
from epp.sim.engines.process import ProcessFamilies
from epp.sim.exposition import TEXT_FORMAT, HistogramFamily, PageWriter, Style, labels


class Nim(Engine):
    """The server of a NIM container."""

    traits = Traits(
        name="nim",
        owned_by="system",
        metrics_paths=("/v1/metrics",),
        reserved_blocks=1,
        while_loading=WhileLoading.SILENT,
        checks_model=True,
    )

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._process = ProcessFamilies()
        self._values = {"model_name": config.model_name}

    def histograms(self) -> Iterable[HistogramFamily]:
        values = {"model_name": self.config.model_name}
        tokens = one_two_five(20000)
        yield HistogramFamily(
            name="time_to_first_token_seconds",
            text="Histogram of time to first token in seconds.",
            bounds=FIRST_TOKEN_S,
            value=lambda t: t.first_token_s,
            labels=values,
        )
        for name, text, value in (
            ("request_prompt_tokens", "Number of prefill tokens processed.", lambda t: t.prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", lambda t: t.output_tokens),
        ):
            yield HistogramFamily(name=name, text=text, bounds=tokens, value=value, labels=values)
        yield from request_phase_families("", values)

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.PYTHON, created_s=view.started_wall_s)
        self._process.write(page, started_wall_s=view.started_wall_s)
        state, counters, body = view.live, view.live.counters, labels(**self._values)
        for name, text, value in (
            ("num_requests_running", "Number of requests currently running on GPU.", state.running_requests),
            ("num_requests_waiting", "Number of requests waiting to be processed.", state.waiting_requests),
            ("num_request_max", "Max number of concurrently running requests.", state.slot_count),
            ("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", state.kv_usage_ratio),
        ):
            page.gauge(name, text, value, body)
        for name, text, value in (
            ("prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens),
            ("generation_tokens_total", "Number of generation tokens processed.", state.generated_tokens),
        ):
            page.counter(name, text, value, body)
        reasons = {
            "stop": counters.finished_requests - counters.length_limited_requests,
            "length": counters.length_limited_requests,
        }
        samples = [(labels(**self._values, finished_reason=name), value) for name, value in reasons.items()]
        page.family("request_success_total", "counter", "Count of successfully processed requests.", samples)
        page.board(self.board)
        return Reply(body=page.page(), content_type=TEXT_FORMAT)

    def pages(self) -> Mapping[str, Page]:
        return {
            "/v1/health/live": lambda _: json_reply({"object": "health-response", "message": "live"}),
            "/v1/health/ready": lambda _: json_reply({"object": "health-response", "message": "ready"}),
        }

    def stop_style(self) -> StopStyle:
        timeout_s = self.config.shutdown_timeout_s
        if timeout_s == 0:
            return StopStyle(at_stop=AtStop.ABORT)
        return StopStyle(listener_closes=False, kept_connections_close=False, new_requests_fail=True, deadline_s=timeout_s)
