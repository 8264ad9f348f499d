"""Writing messages, with `envoy-data-plane` (betterproto, no descriptor pool in common) as the independent second opinion."""

import json
from typing import Any

import pytest
from betterproto2 import which_one_of
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoEndpointError
from epp.extproc.actions import Action, Continue, NewBody, Part, Piece, Refuse, RouteTo
from epp.extproc.encoder import encode
from epp.pb.envoy.service.ext_proc.v3.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    ProcessingResponse,
    StreamedBodyResponse,
)


def response(action: Action) -> Any:
    return ext_proc.ProcessingResponse.parse(encode(action))


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


@pytest.mark.parametrize("part", [Part.REQUEST_HEADERS, Part.REQUEST_BODY])
def test_the_pick_can_bring_another_length_and_another_body(part: Part) -> None:
    message = response(RouteTo("10.0.0.1:8000", part, ("x-prefiller-host-port",), 1234, b"{}"))
    common = getattr(message, part.value).response
    assert {o.header.key: o.header.raw_value for o in common.header_mutation.set_headers} == {
        "x-gateway-destination-endpoint": b"10.0.0.1:8000",
        "content-length": b"1234",
    }
    assert {o.append_action for o in common.header_mutation.set_headers} == {
        core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    }
    assert common.header_mutation.remove_headers == ["x-prefiller-host-port"]
    assert common.body_mutation.body == b"{}"
    assert common.clear_route_cache
    assert message.dynamic_metadata.to_dict() == {"envoy.lb": {"x-gateway-destination-endpoint": "10.0.0.1:8000"}}


def test_what_one_request_changes_is_not_remembered_for_the_next() -> None:
    plain = encode(RouteTo("10.0.0.9:8000"))
    assert encode(RouteTo("10.0.0.9:8000", content_length=5)) != plain
    assert encode(RouteTo("10.0.0.9:8000")) == plain


@pytest.mark.parametrize("body", [b"", b"{}", bytes(200_000)])
def test_a_new_body_takes_the_place_of_the_chunk_also_when_it_is_empty(body: bytes) -> None:
    message = response(NewBody(Part.REQUEST_BODY, body))
    mutation = message.request_body.response.body_mutation
    assert which_one_of(mutation, "mutation") == ("body", body)
    assert message.request_body.response.header_mutation is None


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


@given(
    st.sampled_from([Part.REQUEST_BODY, Part.RESPONSE_BODY]),
    st.binary(max_size=300) | st.sampled_from([bytes(62_000), bytes(16_384), b""]),
    st.booleans(),
)
def test_a_piece_put_together_by_hand_is_what_the_classes_would_write(part: Part, body: bytes, end: bool) -> None:
    streamed = StreamedBodyResponse(body=body, end_of_stream=end)
    reply = BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))
    fields: dict[str, BodyResponse] = {part.value: reply}
    assert encode(Piece(part, body, end)) == ProcessingResponse(**fields).SerializeToString()  # type: ignore[arg-type]
    assert encode(Piece(part, memoryview(body), end)) == encode(Piece(part, body, end))
