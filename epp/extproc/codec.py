"""ext_proc messages as bytes ↔ events and actions.

Envoy writes header values into `raw_value` (`value` in older versions); replies do likewise. Header names arrive in lower case.
"""

from collections.abc import Sequence

import msgspec

from epp.errors import EppError, PickError
from epp.extproc.actions import Action, Continue, Part, Piece, Refuse, RouteTo
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
from epp.extproc.names import DESTINATION, DESTINATION_SERVED, LB_NAMESPACE, REASON_HEADER, SUBSET, SUBSET_NAMESPACE
from epp.pb.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption, Metadata
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HttpHeaders,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from epp.pb.envoy.type.v3.http_status_pb2 import HttpStatus

OVERWRITE = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


class MessageError(EppError):
    """A gRPC message that is no ProcessingRequest."""


# ── what Envoy says ──


def decode(message: bytes) -> Event | None:
    """The event in `message`; None for one of a kind that this version does not know.

    Raises:
        MessageError: `message` is not a ProcessingRequest.
    """
    try:
        request = ProcessingRequest.FromString(message)
    except Exception as error:  # protobuf's DecodeError; its class differs by implementation
        raise MessageError(f"expected a ProcessingRequest, found {len(message)} other bytes") from error
    match request.WhichOneof("request"):
        case "request_headers":
            return _request_headers(request)
        case "request_body":
            return BodyChunk(request.request_body.body, request.request_body.end_of_stream)
        case "request_trailers":
            return RequestTrailers()
        case "response_headers":
            headers = request.response_headers
            return ResponseHeaders(_header_map(headers), headers.end_of_stream, _served(request.metadata_context))
        case "response_body":
            return ResponseChunk(request.response_body.body, request.response_body.end_of_stream)
        case "response_trailers":
            return ResponseTrailers()
        case _:
            return None


def _request_headers(request: ProcessingRequest) -> RequestHeaders:
    headers = request.request_headers
    event = RequestHeaders(_header_map(headers), headers.end_of_stream, _subset(request.metadata_context))
    if request.HasField("protocol_config"):
        event.request_body_mode = _mode(request.protocol_config.request_body_mode)
        event.response_body_mode = _mode(request.protocol_config.response_body_mode)
    return event


def _mode(number: int) -> BodyMode:
    try:
        return BodyMode(number)
    except ValueError:
        return BodyMode.STREAMED  # a mode of a later Envoy: the headers are gone after their reply in the worst case


def _header_map(message: HttpHeaders) -> dict[str, str]:
    found: dict[str, str] = {}
    for header in message.headers.headers:
        raw = header.raw_value
        found.setdefault(header.key, raw.decode("utf-8", "surrogateescape") if raw else header.value)
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


# ── what the session answers ──


def _wrap(part: Part, common: CommonResponse) -> ProcessingResponse:
    match part:
        case Part.REQUEST_HEADERS:
            return ProcessingResponse(request_headers=HeadersResponse(response=common))
        case Part.REQUEST_BODY:
            return ProcessingResponse(request_body=BodyResponse(response=common))
        case Part.RESPONSE_HEADERS:
            return ProcessingResponse(response_headers=HeadersResponse(response=common))
        case Part.RESPONSE_BODY:
            return ProcessingResponse(response_body=BodyResponse(response=common))
        case Part.REQUEST_TRAILERS:
            return ProcessingResponse(request_trailers=TrailersResponse())
        case Part.RESPONSE_TRAILERS:
            return ProcessingResponse(response_trailers=TrailersResponse())


CONTINUE = {part: _wrap(part, CommonResponse()).SerializeToString() for part in Part}
"""Replies that never differ, as bytes."""


def encode(action: Action) -> bytes:
    """The ProcessingResponse of one action."""
    match action:
        case Continue(part):
            return CONTINUE[part]
        case Piece(part, body, end_of_stream):
            streamed = StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
            return _wrap(part, CommonResponse(body_mutation=BodyMutation(streamed_response=streamed))).SerializeToString()
        case RouteTo():
            return _route(action)
        case Refuse(error):
            return _immediate(error)


def encode_all(actions: Sequence[Action]) -> list[bytes]:
    """The messages of `actions`, in order."""
    return [encode(action) for action in actions]


def _option(key: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode()), append_action=OVERWRITE)


def _route(action: RouteTo) -> bytes:
    mutation = HeaderMutation(
        set_headers=[_option(DESTINATION, action.destination)],
        remove_headers=action.remove_headers,
    )
    response = _wrap(action.part, CommonResponse(header_mutation=mutation, clear_route_cache=True))
    response.dynamic_metadata.get_or_create_struct(LB_NAMESPACE)[DESTINATION] = action.destination
    return response.SerializeToString()


def _immediate(error: PickError) -> bytes:
    headers = [_option("content-type", "application/json"), _option(REASON_HEADER, error.code)]
    if error.retry_after_s is not None:
        headers.append(_option("retry-after", str(error.retry_after_s)))
    body = {"error": {"message": str(error), "type": error.error_type, "code": error.code}}
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=int(error.status)),  # type: ignore[arg-type]  # the enum's numbers are HTTP's
            headers=HeaderMutation(set_headers=headers),
            body=msgspec.json.encode(body),
            details=f"epp_{error.code}",
        )
    ).SerializeToString()
