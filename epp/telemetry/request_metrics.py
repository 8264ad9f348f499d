"""What requests cost and gave, counted once and shown under the names of both generations of reference pickers.

Names, labels and buckets: Gateway API Inference Extension `pkg/epp/metrics/metrics.go` (`inference_objective_*`) and llm-d
router `pkg/epp/metrics/llm_d_router_metrics.go` (`llm_d_epp_*`).
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from epp.telemetry import buckets
from epp.telemetry.distribution import Distribution, HistogramName
from epp.telemetry.labels import LabelLimit
from epp.telemetry.outcome import RequestOutcome
from epp.telemetry.request_series import RequestSeries

MODEL = ("model_name", "target_model_name")
FLOW = (*MODEL, "fairness_id", "priority")
DEFAULT_FLOW = "default-flow"
"""`fairness_id` of requests that name no flow, as in the reference pickers."""


class _Shown(NamedTuple):
    """A distribution of `RequestSeries` and its two names."""

    attribute: str
    legacy: HistogramName
    current: HistogramName


def _both(
    attribute: str,
    counted_in: tuple[float, ...],
    names: tuple[str, str],
    sentence: str,
    *,
    current_in: tuple[float, ...] | None = None,
) -> _Shown:
    legacy, current = names
    return _Shown(
        attribute,
        HistogramName(f"inference_objective_{legacy}", sentence, MODEL, counted_in=counted_in),
        HistogramName(f"llm_d_epp_{current}", sentence, FLOW, counted_in=counted_in, shown_in=current_in),
    )


_HISTOGRAMS = (
    _both(
        "duration_s",
        buckets.LATENCY_S,
        ("request_duration_seconds", "request_duration_seconds"),
        "From the request's headers to the end of the response, of responses that were complete.",
    ),
    _both("request_bytes", buckets.REQUEST_BYTES, ("request_sizes", "request_size_bytes"), "Length of request bodies."),
    _both("response_bytes", buckets.RESPONSE_BYTES, ("response_sizes", "response_size_bytes"), "Length of response bodies."),
    _both(
        "prompt_tokens",
        buckets.PROMPT_TOKENS,
        ("input_tokens", "request_input_tokens"),
        "Prompt tokens of a request, as the model server reports.",
    ),
    _both(
        "output_tokens",
        buckets.OUTPUT_TOKENS,
        ("output_tokens", "request_output_tokens"),
        "Tokens of a response, as the model server reports.",
    ),
    _both(
        "cached_tokens",
        buckets.PROMPT_TOKENS,
        ("prompt_cached_tokens", "request_cached_tokens"),
        "Prompt tokens of a request read from a prefix cache, as the model server reports.",
    ),
    _both(
        "time_per_token_s",
        buckets.TIME_PER_TOKEN_S,
        ("request_tpot_seconds", "request_streaming_tpot_seconds"),
        "Time between two tokens of a streamed response: (duration - time to first token) / (output tokens - 1).",
        current_in=buckets.STREAMING_TIME_PER_TOKEN_S,
    ),
    _both(
        "normalized_time_per_token_s",
        buckets.NORMALIZED_TIME_PER_TOKEN_S,
        ("normalized_time_per_output_token_seconds", "request_ntpot_seconds"),
        "Duration of a request divided by its output tokens.",
    ),
)
_TTFT = "Time to the first byte of a streamed response, or to the end of one that is not streamed."
_LEGACY_TTFT = HistogramName("inference_objective_request_ttft_seconds", _TTFT, MODEL, counted_in=buckets.LATENCY_S)
_CURRENT_TTFT = HistogramName(
    "llm_d_epp_request_ttft_seconds",
    _TTFT,
    (*FLOW, "streaming"),
    counted_in=buckets.LATENCY_S,
    shown_in=buckets.LATENCY_TO_120_S,
)


class RequestMetrics:
    """Counts requests; a Prometheus collector. A histogram without a value (tokens nobody reported) has no series."""

    def __init__(self, models: LabelLimit) -> None:
        self._models = models
        self._series: dict[tuple[str, str, int], RequestSeries] = {}

    def began(self, outcome: RequestOutcome) -> None:
        """Count `outcome` as running; its model, target model and priority are final."""
        series = outcome.series = self._series_of(outcome)
        series.requests_total += 1
        series.running_requests += 1

    def ended(self, outcome: RequestOutcome) -> None:
        """Count what became of it; a request that ended before it began (no body, refused) counts as well."""
        series, outcome.series = outcome.series, None
        if series is None:
            series = self._series_of(outcome)
            series.requests_total += 1
        else:
            series.running_requests -= 1
        series.request_bytes.observe(outcome.request_bytes)
        error_code = _error_code(outcome)
        if error_code is not None:
            series.errors[error_code] += 1
        elif outcome.status is not None and not outcome.cancelled:
            _count_answer(series, outcome)

    def _series_of(self, outcome: RequestOutcome) -> RequestSeries:
        model = self._models.label(outcome.model)
        target_model = self._models.label(outcome.target_model) if outcome.target_model else model
        key = model, target_model, outcome.priority
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = RequestSeries(model, target_model, str(outcome.priority))
        return series

    def collect(self) -> Iterator[Metric]:
        """The families, read by the registry."""
        everything = list(self._series.values())
        yield from _counters(everything)
        yield from _running(everything)
        by_model: dict[tuple[str, str], list[RequestSeries]] = {}
        for series in everything:
            by_model.setdefault((series.model, series.target_model), []).append(series)
        for attribute, legacy, current in _HISTOGRAMS:
            counted = attrgetter(attribute)
            yield legacy.family(
                (key, d) for key, group in by_model.items() if (d := Distribution.sum_of([counted(s) for s in group]))
            )
            yield current.family((_flow(s), d) for s in everything if (d := counted(s)))
        yield _LEGACY_TTFT.family(
            (key, d)
            for key, group in by_model.items()
            if (d := Distribution.sum_of([one for s in group for one in (s.first_token_s, s.whole_response_s)]))
        )
        yield _CURRENT_TTFT.family(
            ((*_flow(s), streaming), d)
            for s in everything
            for streaming, d in (("true", s.first_token_s), ("false", s.whole_response_s))
            if d
        )


def _error_code(outcome: RequestOutcome) -> str | None:
    """Why the request failed: the picker's own code, or `upstream_<status>`; None for success and for clients that left."""
    if outcome.error_code is not None:
        return outcome.error_code
    status = outcome.status
    if status is None or status < 400:
        return None
    return f"upstream_{status}" if status < 600 else "upstream_invalid"


def _count_answer(series: RequestSeries, outcome: RequestOutcome) -> None:
    """Count a response that was complete and good."""
    ended_at_s = outcome.ended_at_s
    assert ended_at_s is not None, "a request that was served to the end has an end"
    duration_s = ended_at_s - outcome.started_at_s
    series.duration_s.observe(duration_s)
    series.response_bytes.observe(outcome.response_bytes)
    first_byte_at_s = outcome.first_byte_at_s
    if not outcome.streaming:
        series.whole_response_s.observe(duration_s)
    elif first_byte_at_s is not None:
        series.first_token_s.observe(first_byte_at_s - outcome.started_at_s)
    if outcome.prompt_tokens is not None:
        series.prompt_tokens.observe(outcome.prompt_tokens)
    if outcome.cached_tokens is not None:
        series.cached_tokens.observe(outcome.cached_tokens)
    output_tokens = outcome.completion_tokens
    if output_tokens is not None:
        series.output_tokens.observe(output_tokens)
        if output_tokens > 0:
            series.normalized_time_per_token_s.observe(duration_s / output_tokens)
        if outcome.streaming and output_tokens > 1 and first_byte_at_s is not None:
            series.time_per_token_s.observe((ended_at_s - first_byte_at_s) / (output_tokens - 1))


def _flow(series: RequestSeries) -> tuple[str, str, str, str]:
    return series.model, series.target_model, DEFAULT_FLOW, series.priority


def _counters(everything: Iterable[RequestSeries]) -> Iterator[Metric]:
    sentence = "Requests, with those that still run."
    legacy = CounterMetricFamily("inference_objective_request_total", sentence, labels=(*MODEL, "priority"))
    current = CounterMetricFamily("llm_d_epp_request_total", sentence, labels=FLOW)
    sentence = "Requests that got an error, by the picker's own code or as upstream_<status>."
    legacy_errors = CounterMetricFamily("inference_objective_request_error_total", sentence, labels=(*MODEL, "error_code"))
    current_errors = CounterMetricFamily("llm_d_epp_request_error_total", sentence, labels=(*FLOW, "error_code"))
    failed: dict[tuple[str, str, str], int] = {}
    for series in everything:
        legacy.add_metric((series.model, series.target_model, series.priority), series.requests_total)
        current.add_metric(_flow(series), series.requests_total)
        for code, requests in series.errors.items():
            current_errors.add_metric((*_flow(series), code), requests)
            key = series.model, series.target_model, code
            failed[key] = failed.get(key, 0) + requests
    for key, requests in failed.items():
        legacy_errors.add_metric(key, requests)
    yield from (legacy, current, legacy_errors, current_errors)


def _running(everything: Iterable[RequestSeries]) -> Iterator[Metric]:
    legacy = GaugeMetricFamily("inference_objective_running_requests", "Requests that run now.", labels=("model_name",))
    current = GaugeMetricFamily("llm_d_epp_request_running", "Requests that run now.", labels=FLOW)
    running: dict[str, int] = {}
    for series in everything:
        running[series.model] = running.get(series.model, 0) + series.running_requests
        current.add_metric(_flow(series), series.running_requests)
    for model, requests in running.items():
        legacy.add_metric((model,), requests)
    yield from (legacy, current)
