"""Who made an answer: the endpoint, or Envoy in its place because it did not get one.

Envoy tells by its attribute `response.code_details`, if the filter's `response_attributes` asks for it, and else only by
the text that it answers (`Utility::resetReasonToString` and `Filter::onUpstreamReset` in its source, 1.30 to 1.40).
"""

from enum import Enum


class Origin(Enum):
    """Who made an answer, and what that says of the endpoint.

    Members with a text are what `lost_connection` tells people of the endpoint.
    """

    UNKNOWN = "unknown"
    ENDPOINT = "endpoint"
    """The endpoint, or Envoy that waited in vain for the endpoint's answer."""
    ENVOY = "envoy"
    """Envoy, for reasons of its own: nothing is known of the endpoint."""
    REFUSED = "refused a connection"
    BROKEN = "broke off a connection before it answered"

    @property
    def is_lost_connection(self) -> bool:
        """Whether the endpoint did not take the connection, or did not keep it until its answer."""
        return self is Origin.REFUSED or self is Origin.BROKEN


VIA_UPSTREAM = "via_upstream"
_RESET = "upstream_reset_before_response_started{"
_REASONS = {
    "connection_failure": Origin.REFUSED,  # before Envoy 1.24
    "local_connection_failure": Origin.REFUSED,
    "remote_connection_failure": Origin.REFUSED,
    "connection_timeout": Origin.REFUSED,
    "connection_termination": Origin.BROKEN,
    "remote_reset": Origin.BROKEN,
    "remote_refused_stream_reset": Origin.BROKEN,
    "protocol_error": Origin.BROKEN,
}
"""What Envoy calls the end of a connection or stream; all others are its own limits and decisions."""

_TEXT = b"upstream connect error or disconnect/reset before headers. "
_REASON_MARK = b"reset reason: "
DOUBTFUL_STATUSES = frozenset({502, 503, 504})
"""What Envoy answers in an endpoint's place."""


def origin_of_details(details: str) -> Origin:
    """From `response.code_details`, such as `upstream_reset_before_response_started{connection_termination}`."""
    if details == VIA_UPSTREAM:
        return Origin.ENDPOINT
    if details.startswith(_RESET):
        reason = details[len(_RESET) :].rstrip("}")
        for end in ("|", ","):  # what follows is the error of the transport
            reason = reason.partition(end)[0]
        return _REASONS.get(reason, Origin.ENVOY)
    return Origin.ENDPOINT if details.startswith("upstream_") or details == "response_timeout" else Origin.ENVOY


def origin_of_body(beginning: bytes) -> Origin:
    """From the first bytes of an answer with one of `DOUBTFUL_STATUSES`, in plain text."""
    if beginning.startswith(_TEXT):
        _, _, reason = beginning.partition(_REASON_MARK)
        words = reason.partition(b",")[0].decode("latin-1").strip().replace(" ", "_")
        return _REASONS.get(words, Origin.ENVOY)
    return Origin.ENVOY if beginning == b"no healthy upstream" else Origin.ENDPOINT
