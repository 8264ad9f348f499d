"""Messages as bytes, with `envoy-data-plane` (betterproto, no descriptor pool in common) as the independent second opinion."""

import contextlib
import json
from typing import Any

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc_filter
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google import protobuf
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoEndpointError
from epp.extproc.actions import Action, Continue, Part, Piece, Refuse, RouteTo
from epp.extproc.decoder import MessageError, decode
from epp.extproc.encoder import encode
from epp.extproc.events import (
    BodyChunk,
    BodyMode,
    RequestHeaders,
    RequestTrailers,
    ResponseChunk,
    ResponseHeaders,
    ResponseTrailers,
)


def header_map(*pairs: tuple[str, bytes]) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=k, raw_value=v) for k, v in pairs])


def metadata(namespace: str, fields: dict[str, Any]) -> core.Metadata:
    message = core.Metadata()
    structs: Any = message.filter_metadata
    structs[namespace] = _struct(fields)
    return message


def _struct(fields: dict[str, Any]) -> Any:
    return protobuf.Struct.from_dict(fields)


def response(action: Action) -> Any:
    return ext_proc.ProcessingResponse.parse(encode(action))


def test_request_headers_are_read_from_raw_values_and_the_first_of_equal_names_counts() -> None:
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(
            headers=header_map((":path", b"/v1/completions"), ("x", b"1"), ("x", b"2"), ("odd", b"\xff\xc3\xa9")),
            end_of_stream=True,
        )
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert event.headers == {":path": "/v1/completions", "x": "1", "odd": "\udcff\u00e9"}
    assert event.end_of_stream
    assert event.subset is None
    assert event.request_body_mode is BodyMode.FULL_DUPLEX_STREAMED


def test_headers_without_raw_values_are_read_too() -> None:
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(headers=core.HeaderMap(headers=[core.HeaderValue(key=":path", value="/x")]))
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert event.headers == {":path": "/x"}


@pytest.mark.parametrize("mode", list(BodyMode))
def test_the_body_modes_are_those_that_the_first_message_tells(mode: BodyMode) -> None:
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(),
        protocol_config=ext_proc.ProtocolConfiguration(
            request_body_mode=ext_proc_filter.ProcessingModeBodySendMode(mode.value),
            response_body_mode=ext_proc_filter.ProcessingModeBodySendMode(mode.value),
        ),
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert (event.request_body_mode, event.response_body_mode) == (mode, mode)


def test_bodies_and_trailers() -> None:
    body = ext_proc.HttpBody(body=b"abc", end_of_stream=True)
    assert decode(bytes(ext_proc.ProcessingRequest(request_body=body))) == BodyChunk(b"abc", end_of_stream=True)
    assert decode(bytes(ext_proc.ProcessingRequest(response_body=body))) == ResponseChunk(b"abc", end_of_stream=True)
    trailers = ext_proc.HttpTrailers()
    assert decode(bytes(ext_proc.ProcessingRequest(request_trailers=trailers))) == RequestTrailers()
    assert decode(bytes(ext_proc.ProcessingRequest(response_trailers=trailers))) == ResponseTrailers()


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (["10.0.0.1:8000", "10.0.0.2"], {"10.0.0.1:8000", "10.0.0.2"}),
        ("10.0.0.1:8000, 10.0.0.2", {"10.0.0.1:8000", "10.0.0.2"}),
        ("[fd00::7]:8000,[fd00::8],fd00::9", {"[fd00::7]:8000", "fd00::8", "fd00::9"}),
        ([], set()),
        ("", set()),
    ],
)
def test_the_subset_hint_is_a_list_or_a_text_with_commas(hint: Any, expected: set[str]) -> None:
    """Field report 12: empty and absent are not the same."""
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(),
        metadata_context=metadata("envoy.lb.subset_hint", {"x-gateway-destination-endpoint-subset": hint}),
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert event.subset == frozenset(expected)


def test_metadata_without_the_hint_means_all() -> None:
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(), metadata_context=metadata("envoy.lb.subset_hint", {"other": "x"})
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert event.subset is None


def test_who_served_stands_in_the_metadata_of_the_response() -> None:
    message = ext_proc.ProcessingRequest(
        response_headers=ext_proc.HttpHeaders(headers=header_map((":status", b"200"))),
        metadata_context=metadata("envoy.lb", {"x-gateway-destination-endpoint-served": "10.0.0.2:8000"}),
    )
    assert decode(bytes(message)) == ResponseHeaders({":status": "200"}, served="10.0.0.2:8000")


def test_the_pick_is_the_same_in_header_and_metadata() -> None:
    message = response(RouteTo("[fd00::7]:8000,10.0.0.2:8000", Part.REQUEST_HEADERS, ("x-prefiller-host-port",)))
    common = message.request_headers.response
    assert common.clear_route_cache
    (option,) = common.header_mutation.set_headers
    assert option.header.key == "x-gateway-destination-endpoint"
    assert option.header.raw_value == b"[fd00::7]:8000,10.0.0.2:8000"
    assert option.header.value == ""
    assert option.append_action == core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    assert common.header_mutation.remove_headers == ["x-prefiller-host-port"]
    assert message.dynamic_metadata.to_dict() == {
        "envoy.lb": {"x-gateway-destination-endpoint": "[fd00::7]:8000,10.0.0.2:8000"}
    }


def test_the_pick_can_stand_in_the_reply_to_the_body() -> None:
    message = response(RouteTo("10.0.0.1:8000", Part.REQUEST_BODY))
    assert message.request_headers is None
    (option,) = message.request_body.response.header_mutation.set_headers
    assert option.header.raw_value == b"10.0.0.1:8000"
    assert message.request_body.response.body_mutation is None


@pytest.mark.parametrize("part", list(Part))
def test_going_on_changes_nothing(part: Part) -> None:
    message = response(Continue(part))
    set_fields = [p.value for p in Part if getattr(message, p.value) is not None]
    assert set_fields == [part.value]
    common = getattr(getattr(message, part.value), "response", None)
    assert common is None or (common.header_mutation is None and common.body_mutation is None)


def test_pieces_are_streamed_replies() -> None:
    message = response(Piece(Part.RESPONSE_BODY, b"abc", True))
    streamed = message.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"abc", True)


def test_a_refusal_is_json_with_a_reason() -> None:
    message = response(Refuse(NoEndpointError("pool is empty"))).immediate_response
    assert message.status.code == 503
    headers = {o.header.key: o.header.raw_value for o in message.headers.set_headers}
    assert headers == {"content-type": b"application/json", "x-epp-reason": b"no_endpoints", "retry-after": b"1"}
    assert json.loads(message.body) == {"error": {"message": "pool is empty", "type": "server_error", "code": "no_endpoints"}}


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_event_or_a_message_error(message: bytes) -> None:
    with contextlib.suppress(MessageError):
        decode(message)
