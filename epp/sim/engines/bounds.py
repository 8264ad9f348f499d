"""Histograms that several engines have: bounds of their buckets, and what a finished request counts in them."""

from collections.abc import Iterable, Mapping, Sequence

from epp.sim.exposition import HistogramFamily
from epp.sim.job import JobTimes

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


def one_two_five(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `largest`."""
    bounds: list[float] = []
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor > largest:
                return tuple(bounds)
            bounds.append(float(step * factor))
        step *= 10


def token_gaps(times: JobTimes) -> int:
    """Pauses between the tokens of one answer."""
    return times.output_tokens - 1


def request_phase_families(
    prefix: str, labels: Mapping[str, str], bounds: Sequence[float] = REQUEST_S
) -> Iterable[HistogramFamily]:
    """Time in each phase of a request, under the names that vLLM and LMDeploy share."""
    wanted = (
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda t: t.total_s),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", lambda t: t.queue_s),
        (
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            lambda t: t.prefill_s + t.decode_s,
        ),
        (
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            lambda t: t.prefill_s,
        ),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", lambda t: t.decode_s),
    )
    for name, text, value in wanted:
        yield HistogramFamily(name=prefix + name, text=text, bounds=bounds, value=value, labels=labels)
