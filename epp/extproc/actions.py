"""What a session answers, as plain values; the codec turns each into one message."""

from dataclasses import dataclass
from enum import Enum

from epp.errors import PickError


class Part(Enum):
    """Which message of Envoy an answer belongs to; the value is the field's name in `ProcessingResponse`."""

    __hash__ = object.__hash__  # members are singletons; `Enum`'s own hash is a call of Python code

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


@dataclass(slots=True)
class Continue:
    """Go on, nothing is changed."""

    part: Part


@dataclass(slots=True)
class RouteTo:
    """Send the request to `destination`.

    Attributes:
        destination: `ip:port`, or several with commas.
        part: The message this answers: the headers, or the body where Envoy still holds the headers then.
        remove_headers: Request headers of the client that must not reach the model server.
        content_length: What the header must say from now on, in bytes; None leaves it as it is.
        body: What the body that this answers becomes; None leaves it as it is.
    """

    destination: str
    part: Part = Part.REQUEST_HEADERS
    remove_headers: tuple[str, ...] = ()
    content_length: int | None = None
    body: bytes | None = None


@dataclass(slots=True)
class Piece:
    """A piece of a body that is handed back (FULL_DUPLEX_STREAMED)."""

    part: Part
    body: bytes | memoryview
    end_of_stream: bool


@dataclass(slots=True)
class NewBody:
    """Put `body` in the place of the chunk that this answers (STREAMED); empty takes the chunk away."""

    part: Part
    body: bytes


@dataclass(slots=True)
class Refuse:
    """Answer the client in the model server's place, and end the call."""

    error: PickError


Action = Continue | RouteTo | Piece | NewBody | Refuse
