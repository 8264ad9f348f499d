"""What is known of a request when it ends."""

from dataclasses import dataclass, field

from epp.telemetry.request_series import RequestSeries


@dataclass(slots=True, kw_only=True)
class RequestOutcome:
    """Filled while the stream runs, read once by `Metrics.request_ended`.

    Attributes:
        started_at_s: When the request's headers came, monotonic, like the other times.
        model: Model the client named; empty while unknown or when there is none.
        target_model: Model the request was sent for; empty means the same as `model`.
        priority: Of the request; 0 is the default.
        picked_at_s: When the pick was there (or refused); None when there was none.
        first_byte_at_s: When the response's first body byte came; None before.
        ended_at_s: When the stream ended; None before.
        request_bytes: Length of the request body, as far as it was seen.
        response_bytes: Length of the response body, as far as it was seen.
        status: HTTP status of the response; None when none was seen.
        error_code: Code of the answer that the picker gave instead of an endpoint (`PickError.code`); None otherwise.
        streaming: The request asked for its response as a stream of tokens.
        prompt_tokens: As the response's `usage` says; None when it does not.
        completion_tokens: Likewise.
        cached_tokens: Likewise, prompt tokens that came from a prefix cache.
        endpoint: Address that served it; None when none did.
        cancelled: The client, the server or Envoy gave up before the response was complete.
    """

    started_at_s: float
    model: str = ""
    target_model: str = ""
    priority: int = 0
    picked_at_s: float | None = None
    first_byte_at_s: float | None = None
    ended_at_s: float | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    status: int | None = None
    error_code: str | None = None
    streaming: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    endpoint: str | None = None
    cancelled: bool = False
    series: RequestSeries | None = field(default=None, repr=False)
    """Set by `Metrics.request_began`: the counters that this request belongs to."""
