"""What Envoy says: bytes of `ProcessingRequest` → events.

The messages that come with every request are read straight from their bytes (a tenth of the cost of building a message
and walking over it); a message of any other shape goes through the generated classes. Both ways give equal events.
Header names arrive in lower case, and values in `raw_value` (`value` in older versions). A header without a value counts as
absent.
"""

import struct
from collections.abc import Callable

from google.protobuf.message import DecodeError

from epp.errors import EppError
from epp.extproc.events import (
    BodyChunk,
    BodyMode,
    Event,
    RequestHeaders,
    RequestTrailers,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.extproc.names import (
    ATTEMPT_COUNT,
    CODE_DETAILS,
    DESTINATION_SERVED,
    LB_NAMESPACE,
    SUBSET,
    SUBSET_NAMESPACE,
    UPSTREAM_ADDRESS,
)
from epp.extproc.raw_message import RawHeaders, UnexpectedShapeError, read_varint
from epp.extproc.upstream_errors import origin_of_details
from epp.pb.envoy.config.core.v3.base_pb2 import Metadata
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest

EMPTY_METADATA = b"\x42\x00"  # metadata_context = 8
LONG_BODY_BYTES = 4_096
"""Pieces of request bodies over this length are not copied out of their message."""


class MessageError(EppError):
    """A gRPC message that is no ProcessingRequest."""


def decode(message: bytes) -> Event | None:
    """The event in `message`; None for one of a kind that this version does not know.

    Raises:
        MessageError: `message` is not a ProcessingRequest.
    """
    if message:
        read = _READERS.get(message[0])
        if read is not None:
            try:
                return read(message)
            except (IndexError, UnexpectedShapeError):
                pass
    return decode_by_classes(message)


# ── straight from the bytes; the comments name the fields of ProcessingRequest and below ──


def _only_field(message: bytes) -> tuple[int, int]:
    """Where the one field of `message` begins and ends."""
    length, at = read_varint(message, 1)
    _expect_end(message, at + length)
    return at, at + length


def _expect_end(message: bytes, at: int) -> None:
    """Nothing more may come but the empty metadata that Envoy puts into each message."""
    if at != len(message) and message[at:] != EMPTY_METADATA:
        raise UnexpectedShapeError


def _body(message: bytes) -> tuple[int, int, bool]:
    """HttpBody: where `body` = 1 begins and ends, and `end_of_stream` = 2."""
    at, stop = _only_field(message)
    start = at
    if at < stop and message[at] == 0x0A:
        length, start = read_varint(message, at + 1)
        at = start + length
    if at == stop:
        return start, at, False
    if at + 2 == stop and message[at] == 0x10 and message[at + 1] <= 1:
        return start, at, message[at + 1] == 1
    raise UnexpectedShapeError


def _request_body(message: bytes) -> BodyChunk:
    start, stop, end_of_stream = _body(message)
    long = stop - start > LONG_BODY_BYTES
    return BodyChunk(memoryview(message)[start:stop] if long else message[start:stop], end_of_stream)


def _response_body(message: bytes) -> ResponseChunk:
    start, stop, end_of_stream = _body(message)
    return ResponseChunk(message[start:stop], end_of_stream)


def _http_headers(message: bytes, proof: str) -> tuple[RawHeaders, bool, int]:
    """HttpHeaders: `headers` = 1, `end_of_stream` = 3; and where the field ends.

    Without the header `proof` in the form that is looked for, the values may be in another field: not read here.
    """
    length, at = read_varint(message, 1)
    stop = at + length
    if message[at] != 0x0A:
        raise UnexpectedShapeError
    length, at = read_varint(message, at + 1)
    headers = RawHeaders(message, at, at + length)
    at += length
    end_of_stream = False
    if at + 2 == stop and message[at] == 0x18 and message[at + 1] <= 1:
        end_of_stream = message[at + 1] == 1
        at += 2
    if at != stop or stop > len(message) or headers.get(proof) is None:
        raise UnexpectedShapeError
    return headers, end_of_stream, stop


def _request_headers_raw(message: bytes) -> RequestHeaders:
    headers, end_of_stream, at = _http_headers(message, ":path")
    event = RequestHeaders(headers, end_of_stream)
    if message.startswith(EMPTY_METADATA, at):
        at += len(EMPTY_METADATA)
    if at == len(message):
        return event
    # protocol_config = 11: `request_body_mode` = 1, `response_body_mode` = 2
    if message[at] != 0x5A:
        raise UnexpectedShapeError
    length, at = read_varint(message, at + 1)
    if at + length != len(message):
        raise UnexpectedShapeError
    event.request_body_mode = event.response_body_mode = BodyMode.NONE
    while at < len(message):
        tag, value = message[at], message[at + 1]
        if tag == 0x08:
            event.request_body_mode = _mode(value)
        elif tag == 0x10:
            event.response_body_mode = _mode(value)
        elif tag != 0x18:
            raise UnexpectedShapeError
        at += 2
    return event


def _response_headers_raw(message: bytes) -> ResponseHeaders:
    headers, end_of_stream, at = _http_headers(message, ":status")
    event = ResponseHeaders(headers, end_of_stream)
    if at != len(message) and message[at:] != EMPTY_METADATA:
        _beside_response(event, message, at)
    return event


def _beside_response(event: ResponseHeaders, message: bytes, at: int) -> None:
    """metadata_context = 8 that does not speak of who served, and attributes = 9: one map of names to values."""
    stop = len(message)
    if message[at] == 0x42:
        length, at = read_varint(message, at + 1)
        if message.find(_SERVED, at, at + length) >= 0:
            raise UnexpectedShapeError
        at += length
    if at == stop:
        return
    if message[at] != 0x4A:
        raise UnexpectedShapeError
    length, at = read_varint(message, at + 1)
    if at + length != stop:
        raise UnexpectedShapeError
    details, upstream = _attribute_text(message, _DETAILS, at), _attribute_text(message, _UPSTREAM, at)
    if not details or not upstream:
        raise UnexpectedShapeError
    event.origin, event.upstream = origin_of_details(details), upstream
    if message.find(_FIRST_ATTEMPT, at) < 0:
        raise UnexpectedShapeError


def _attribute_text(message: bytes, key: bytes, at: int) -> str | None:
    """The text behind `key`, an entry's name and the tag of its value; no name or value holds a line feed as it does."""
    at = message.find(key, at)
    if at < 0:
        return None
    at += len(key)
    value_length, at = read_varint(message, at)
    stop = at + value_length
    if message[at] != 0x1A:  # string_value = 3
        raise UnexpectedShapeError
    length, at = read_varint(message, at + 1)
    if at + length != stop:
        raise UnexpectedShapeError
    return str(message[at:stop], "utf-8", "replace")


def _attribute_key(name: str) -> bytes:
    """`key` = 1 of an entry of the map `fields`, and the tag of its `value` = 2."""
    return b"\x0a" + bytes((len(name),)) + name.encode() + b"\x12"


_SERVED = DESTINATION_SERVED.encode()
_DETAILS, _UPSTREAM = _attribute_key(CODE_DETAILS), _attribute_key(UPSTREAM_ADDRESS)
_FIRST_ATTEMPT = _attribute_key(ATTEMPT_COUNT) + b"\x09\x11" + struct.pack("<d", 1.0)
"""number_value = 2, and 1 in it: the other numbers come seldom."""


_READERS: dict[int, Callable[[bytes], Event]] = {
    0x12: _request_headers_raw,  # request_headers = 2
    0x1A: _response_headers_raw,  # response_headers = 3
    0x22: _request_body,  # request_body = 4
    0x2A: _response_body,  # response_body = 5
}


# ── by the generated classes ──


def decode_by_classes(message: bytes) -> Event | None:
    """The event in `message`; None for one of a kind that this version does not know.

    Raises:
        MessageError: `message` is not a ProcessingRequest.
    """
    try:
        request = ProcessingRequest.FromString(message)
    except DecodeError:
        raise MessageError(f"expected a ProcessingRequest, found {len(message)} other bytes") from None
    match request.WhichOneof("request"):
        case "request_headers":
            return _request_headers(request)
        case "request_body":
            return BodyChunk(request.request_body.body, request.request_body.end_of_stream)
        case "request_trailers":
            return RequestTrailers()
        case "response_headers":
            headers = request.response_headers
            event = ResponseHeaders(_header_map(headers), headers.end_of_stream, _served(request.metadata_context))
            _read_attributes(event, request)
            return event
        case "response_body":
            return ResponseChunk(request.response_body.body, request.response_body.end_of_stream)
        case "response_trailers":
            return ResponseTrailers()
        case _:
            return None


def _read_attributes(event: ResponseHeaders, request: ProcessingRequest) -> None:
    for attributes in request.attributes.values():  # one, named like the filter
        fields = attributes.fields
        if CODE_DETAILS in fields and (details := fields[CODE_DETAILS].string_value):
            event.origin = origin_of_details(details)
        if UPSTREAM_ADDRESS in fields:
            event.upstream = fields[UPSTREAM_ADDRESS].string_value or None
        if ATTEMPT_COUNT in fields and 1 < (attempts := fields[ATTEMPT_COUNT].number_value) < 1_000:
            event.attempts = int(attempts)


def _request_headers(request: ProcessingRequest) -> RequestHeaders:
    headers = request.request_headers
    event = RequestHeaders(_header_map(headers), headers.end_of_stream, _subset(request.metadata_context))
    if request.HasField("protocol_config"):
        event.request_body_mode = _mode(request.protocol_config.request_body_mode)
        event.response_body_mode = _mode(request.protocol_config.response_body_mode)
    return event


_MODES = {mode.value: mode for mode in BodyMode}


def _mode(number: int) -> BodyMode:
    # A mode of a later Envoy: the headers are gone after their reply in the worst case.
    return _MODES.get(number, BodyMode.STREAMED)


def _header_map(message: HttpHeaders) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in message.headers.headers:
        value = header.raw_value.decode("utf-8", "surrogateescape") or header.value
        if value:
            found.setdefault(header.key, value)
    return found


def _subset(metadata: Metadata) -> frozenset[str] | None:
    """`envoy.lb.subset_hint` → the addresses in it: a list of texts, or one text with commas."""
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    hint = fields[SUBSET]
    texts = [v.string_value for v in hint.list_value.values] if hint.HasField("list_value") else [hint.string_value]
    return frozenset(address for text in texts for part in text.split(",") if (address := _bare(part.strip())))


def _bare(address: str) -> str:
    """`[fd00::7]` → `fd00::7`; addresses with a port stay as they are."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def _served(metadata: Metadata) -> str | None:
    if LB_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[LB_NAMESPACE].fields
    return (fields[DESTINATION_SERVED].string_value or None) if DESTINATION_SERVED in fields else None
