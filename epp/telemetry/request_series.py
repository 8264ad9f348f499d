"""The numbers of all requests that share their labels."""

from collections import defaultdict

from epp.telemetry import buckets
from epp.telemetry.distribution import Distribution


class RequestSeries:
    """Counters of one combination of model, target model and priority.

    Attributes:
        running_requests: Began and not ended.
        requests_total: Began, or ended without having begun.
        errors: Requests that failed, by error code.
        duration_s: From the first header to the end of the response, of requests that were served to the end.
        first_token_s: Until the first byte of a streamed response.
        whole_response_s: Until the end of a response that is not streamed, which is when its first token can be read.
        time_per_token_s: Between two tokens of a streamed response, on average over the response.
        normalized_time_per_token_s: Duration divided by the number of tokens that came out.
    """

    __slots__ = (
        "cached_tokens",
        "duration_s",
        "errors",
        "first_token_s",
        "model",
        "normalized_time_per_token_s",
        "output_tokens",
        "priority",
        "prompt_tokens",
        "request_bytes",
        "requests_total",
        "response_bytes",
        "running_requests",
        "target_model",
        "time_per_token_s",
        "whole_response_s",
    )

    def __init__(self, model: str, target_model: str, priority: str) -> None:
        self.model = model
        self.target_model = target_model
        self.priority = priority
        self.running_requests = 0
        self.requests_total = 0
        self.errors: defaultdict[str, int] = defaultdict(int)
        self.duration_s = Distribution(buckets.LATENCY_S)
        self.request_bytes = Distribution(buckets.REQUEST_BYTES)
        self.response_bytes = Distribution(buckets.RESPONSE_BYTES)
        self.prompt_tokens = Distribution(buckets.PROMPT_TOKENS)
        self.output_tokens = Distribution(buckets.OUTPUT_TOKENS)
        self.cached_tokens = Distribution(buckets.PROMPT_TOKENS)
        self.first_token_s = Distribution(buckets.LATENCY_S)
        self.whole_response_s = Distribution(buckets.LATENCY_S)
        self.time_per_token_s = Distribution(buckets.TIME_PER_TOKEN_S)
        self.normalized_time_per_token_s = Distribution(buckets.NORMALIZED_TIME_PER_TOKEN_S)
