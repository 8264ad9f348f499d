"""What Envoy tells in one ext_proc session, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from epp.extproc.upstream_errors import Origin


class BodyMode(Enum):
    """`ProcessingMode.BodySendMode`: how Envoy hands over a body."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@dataclass(slots=True)
class RequestHeaders:
    """The first message.

    Attributes:
        headers: First value of each header, lower-case names, pseudo-headers included.
        end_of_stream: No body follows.
        subset: Addresses the request may go to; None when there is no hint, empty when the hint is empty.
        request_body_mode: How the request body will come.
        response_body_mode: How the response body will come.
    """

    headers: Mapping[str, str]
    end_of_stream: bool = False
    subset: frozenset[str] | None = None
    request_body_mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body_mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


@dataclass(slots=True)
class BodyChunk:
    """A piece of the request body; a long one is a view of the message that brought it."""

    body: bytes | memoryview
    end_of_stream: bool = False


@dataclass(slots=True)
class RequestTrailers:
    """The request ended with trailers."""


@dataclass(slots=True)
class ResponseHeaders:
    """The model server, or Envoy in its place, begins to answer.

    Attributes:
        served: Address that really took the request, where the metadata tell.
        origin: Who made the answer.
        upstream: Address to which Envoy sent the request last, where it tells.
        attempts: How often it sent the request, ≥ 1.
    """

    headers: Mapping[str, str]
    end_of_stream: bool = False
    served: str | None = None
    origin: Origin = Origin.UNKNOWN
    upstream: str | None = None
    attempts: int = 1


@dataclass(slots=True)
class ResponseChunk:
    """A piece of the response body."""

    body: bytes
    end_of_stream: bool = False


@dataclass(slots=True)
class ResponseTrailers:
    """The response ended with trailers."""


Event = RequestHeaders | BodyChunk | RequestTrailers | ResponseHeaders | ResponseChunk | ResponseTrailers
