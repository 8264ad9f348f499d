"""What a session answers: actions → bytes of `ProcessingResponse`.

Replies that never differ are made once, a pick that changes no body once for each destination; a piece of a body gets its
head and tail by hand and is copied once. Header values go into `raw_value`: Envoy ignores `value`.
"""

from functools import lru_cache

import msgspec

from epp.errors import PickError
from epp.extproc.actions import Action, Continue, NewBody, Part, Piece, RouteTo
from epp.extproc.names import DESTINATION, LB_NAMESPACE, REASON_HEADER
from epp.extproc.raw_message import varint
from epp.pb.envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    ImmediateResponse,
    ProcessingResponse,
    TrailersResponse,
)
from epp.pb.envoy.type.v3.http_status_pb2 import HttpStatus

OVERWRITE = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
REMEMBERED_REPLIES = 4_096
"""Picks and piece heads that are kept: as many as there are endpoints and lengths in use, in most pools."""

_END_OF_STREAM = b"\x10\x01"  # StreamedBodyResponse.end_of_stream = 2


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


_PIECE_TAGS = {Part.REQUEST_BODY: b"\x1a", Part.RESPONSE_BODY: b"\x22"}
CONTINUE = {part: _wrap(part, CommonResponse()).SerializeToString() for part in Part}
"""Replies that never differ, as bytes."""


def encode(action: Action) -> bytes:
    """The ProcessingResponse of one action."""
    # `match` would look up each field of each class that it tries by name: a microsecond a message.
    if isinstance(action, Piece):
        body = action.body
        if action.end_of_stream:
            return b"".join((piece_head(action.part, len(body), True), body, _END_OF_STREAM))
        return b"".join((piece_head(action.part, len(body), False), body))
    if isinstance(action, Continue):
        return CONTINUE[action.part]
    if isinstance(action, RouteTo):
        if action.content_length is None and action.body is None:
            return _route(action.destination, action.part, action.remove_headers)
        return _route_with_changes(action)
    if isinstance(action, NewBody):
        return _wrap(action.part, CommonResponse(body_mutation=BodyMutation(body=action.body))).SerializeToString()
    return _immediate(action.error)


@lru_cache(maxsize=REMEMBERED_REPLIES)
def piece_head(part: Part, size: int, end_of_stream: bool) -> bytes:
    """What comes before a piece of `size` bytes in its message.

    ProcessingResponse.{request,response}_body > BodyResponse.response = 1 > CommonResponse.body_mutation = 3 >
    BodyMutation.streamed_response = 3 > StreamedBodyResponse.body = 1.
    """
    field = b"\x0a" + varint(size) if size else b""
    rest = size + (len(_END_OF_STREAM) if end_of_stream else 0)
    for tag in (b"\x1a", b"\x1a", b"\x0a", _PIECE_TAGS[part]):
        field = tag + varint(len(field) + rest) + field
    return field


def _option(key: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=key, raw_value=value.encode()), append_action=OVERWRITE)


@lru_cache(maxsize=REMEMBERED_REPLIES)
def _route(destination: str, part: Part, remove_headers: tuple[str, ...]) -> bytes:
    return _routing(destination, part, _pick(destination, remove_headers))


def _route_with_changes(action: RouteTo) -> bytes:
    common = _pick(action.destination, action.remove_headers)
    if action.content_length is not None:
        common.header_mutation.set_headers.append(_option("content-length", str(action.content_length)))
    if action.body is not None:
        common.body_mutation.body = action.body
    return _routing(action.destination, action.part, common)


def _pick(destination: str, remove_headers: tuple[str, ...]) -> CommonResponse:
    mutation = HeaderMutation(set_headers=[_option(DESTINATION, destination)], remove_headers=remove_headers)
    return CommonResponse(header_mutation=mutation, clear_route_cache=True)


def _routing(destination: str, part: Part, common: CommonResponse) -> bytes:
    response = _wrap(part, common)
    response.dynamic_metadata.get_or_create_struct(LB_NAMESPACE)[DESTINATION] = destination
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
