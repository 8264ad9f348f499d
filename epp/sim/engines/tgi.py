"""Hugging Face's Text Generation Inference 3.3."""

from collections.abc import Iterable, Mapping

from epp.sim.config import SimConfig
from epp.sim.engine_state import EngineState
from epp.sim.engines.base import Engine, Page, Reply, StopStyle, Traits, View, json_reply
from epp.sim.exposition import Histogram, HistogramFamily, PageWriter, Style, labels, plain_number
from epp.sim.job import JobTimes

_SECONDS = tuple(0.00015 * 1.5**step for step in range(35))
_BATCHES = tuple(float(size) for size in range(1, 1025))


class Tgi(Engine):
    """The router of TGI."""

    traits = Traits(name="tgi", owned_by="tgi")

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self._batch_sizes = Histogram(_BATCHES)
        self._running = 0

    def histograms(self) -> Iterable[HistogramFamily]:
        context = self.config.kv_blocks * self.config.kv_block_tokens
        tokens = tuple(context * step / 100 for step in range(1, 101))
        own = (
            ("duration", "Total time spent processing the request", _SECONDS, lambda t: t.total_s),
            ("queue_duration", "Time spent in the queue per request", _SECONDS, lambda t: t.queue_s),
            ("inference_duration", "Request inference duration", _SECONDS, lambda t: t.prefill_s + t.decode_s),
            ("mean_time_per_token_duration", "Mean time per token per request", _SECONDS, lambda t: t.per_token_s),
            ("input_length", "Input token length per request", tokens, lambda t: t.prompt_tokens),
            ("generated_tokens", "Generated tokens per request", tokens, lambda t: t.output_tokens),
        )
        for name, text, bounds, value in own:
            yield HistogramFamily(name=f"tgi_request_{name}", text=text, bounds=bounds, value=value)

    @property
    def watches(self) -> bool:
        return True

    def note(self, state: EngineState, wall_s: float) -> None:
        """Count the size of the next batch, whenever it changes."""
        if state.running_requests and state.running_requests != self._running:
            self._batch_sizes.observe(state.running_requests)
        self._running = state.running_requests

    def metrics(self, view: View) -> Reply:
        page = PageWriter(style=Style.OTHER, number=plain_number, blank_lines=True)
        state, counters = view.live, view.live.counters
        arrived = counters.submitted_requests + counters.rejected_requests
        if not arrived:
            # The recorder knows a family from its first observation on.
            return Reply(content_type="text/plain; charset=utf-8")
        page.counter("tgi_request_count", "Total number of requests", arrived)
        page.counter("tgi_request_success", "Number of successful requests", counters.finished_requests)
        failures = {"overloaded": counters.rejected_requests, "generation": counters.aborted_requests}
        samples = [(labels(err=name), value) for name, value in failures.items() if value]
        if samples:
            page.family("tgi_request_failure", "counter", None, samples)
        page.gauge("tgi_queue_size", "Current queue size", state.waiting_requests)
        page.gauge("tgi_batch_current_size", "Current batch size", state.running_requests)
        page.gauge("tgi_batch_current_max_tokens", "Maximum tokens for the current batch", state.used_tokens)
        page.board(self.board)
        page.histogram("tgi_batch_next_size", "Batch size of the next batch", self._batch_sizes, {})
        self._skipped_tokens(page)
        return Reply(body=page.page(), content_type="text/plain; charset=utf-8")

    def _skipped_tokens(self, page: PageWriter) -> None:
        """A summary, all zero: nothing is speculated."""
        quantiles = ("0", "0.5", "0.9", "0.95", "0.99", "0.999", "1")
        samples = [(labels(quantile=quantile), 0.0) for quantile in quantiles]
        page.family("tgi_request_skipped_tokens", "summary", "Speculated tokens per request", samples)

    def pages(self) -> Mapping[str, Page]:
        return {
            "/health": lambda _: Reply(),
            "/ping": lambda _: Reply(),
            "/info": lambda view: json_reply(
                {
                    "model_id": self.config.model_name,
                    "max_concurrent_requests": 128,
                    "max_batch_total_tokens": view.live.total_tokens,
                    "max_total_tokens": view.live.total_tokens,
                    "version": "3.3.6-dev0",
                }
            ),
        }

    def stop_style(self) -> StopStyle:
        return StopStyle(deadline_s=self.config.graceful_timeout_s)

    def answer_headers(self, times: JobTimes) -> Mapping[str, str]:
        inference_s = times.prefill_s + times.decode_s
        return {
            "x-compute-type": "simulated",
            "x-total-time": _milliseconds(times.total_s),
            "x-validation-time": "0",
            "x-queue-time": _milliseconds(times.queue_s),
            "x-inference-time": _milliseconds(inference_s),
            "x-time-per-token": _milliseconds(times.per_token_s),
            "x-prompt-tokens": str(times.prompt_tokens),
            "x-generated-tokens": str(times.output_tokens),
        }

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        if status == 400:
            return json_reply({"error": f"Input validation error: {message}", "error_type": "validation"}, 422)
        return json_reply({"error": message, "error_type": kind}, status)

    def queue_full(self) -> Reply:
        return self.error(429, "Model is overloaded", "overloaded")


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
