"""Reading messages, with `envoy-data-plane` (betterproto, no descriptor pool in common) as the independent second opinion."""

import contextlib
from typing import Any

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc_filter
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.google import protobuf
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.decoder import EMPTY_METADATA, MessageError, decode, decode_by_classes
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
from epp.extproc.raw_message import KNOWN_NAMES, RawHeaders, varint
from epp.extproc.upstream_errors import Origin


def header_map(*pairs: tuple[str, bytes]) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=k, raw_value=v) for k, v in pairs])


def metadata(namespace: str, fields: dict[str, Any]) -> core.Metadata:
    message = core.Metadata()
    structs: Any = message.filter_metadata
    structs[namespace] = _struct(fields)
    return message


def _struct(fields: dict[str, Any]) -> Any:
    return protobuf.Struct.from_dict(fields)


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


def attributes(**fields: str | float) -> dict[str, Any]:
    names = {name.replace("__", "."): value for name, value in fields.items()}
    return {"envoy.filters.http.ext_proc": _struct(names)}


def test_who_answered_stands_in_the_attributes_of_the_response() -> None:
    """Field report 13: this is how a refused connection becomes known."""
    message = ext_proc.ProcessingRequest(
        response_headers=ext_proc.HttpHeaders(headers=header_map((":status", b"503"))),
        attributes=attributes(
            response__code_details="upstream_reset_before_response_started{remote_connection_failure|delayed}",
            upstream__address="[fd00::7]:8000",
            upstream__request_attempt_count=3.0,
        ),
    )
    headers = {":status": "503"}
    expected = ResponseHeaders(headers, origin=Origin.REFUSED, upstream="[fd00::7]:8000", attempts=3)
    assert decode(bytes(message)) == expected


REAL = bytes.fromhex(
    "1a290a270a0e0a073a7374617475731a033230300a150a0e636f6e74656e742d6c656e6774681a03313030"  # headers
    "42430a410a08656e766f792e6c6212350a330a1e782d676174657761792d64657374696e6174696f6e2d656e64706f696e7412111a0f"
    "3132372e302e302e313a3433393731"  # metadata: what was picked
    "4a9c010a1b656e766f792e66696c746572732e687474702e6578745f70726f63127d"  # attributes
    "0a2b0a1e757073747265616d2e726571756573745f617474656d70745f636f756e74120911000000000000f03f"
    "0a270a15726573706f6e73652e636f64655f64657461696c73120e1a0c7669615f757073747265616d"
    "0a250a10757073747265616d2e6164647265737312111a0f3132372e302e302e313a3433393731"
)
"""What Envoy 1.40 sent."""


def test_the_usual_attributes_are_read_without_the_classes() -> None:
    event = decode(REAL)
    assert isinstance(event, ResponseHeaders)
    assert isinstance(event.headers, RawHeaders), "the quick way"
    assert (event.origin, event.upstream, event.attempts) == (Origin.ENDPOINT, "127.0.0.1:43971", 1)
    assert as_plain(event) == as_plain(decode_by_classes(REAL))


ADDRESSES = st.sampled_from(["10.0.0.1:8000", "[fd00::7]:8000", ""]) | st.text(max_size=200)
DETAILS = st.sampled_from(["via_upstream", "upstream_reset_before_response_started{overflow}", ""]) | st.text(max_size=200)


@given(
    st.dictionaries(st.sampled_from(["response.code_details", "upstream.address", "x"]), ADDRESSES | DETAILS),
    st.none() | st.sampled_from([0.0, 1.0, 2.0, 1e18, -1.0]),
    st.none()
    | st.sampled_from(["x-gateway-destination-endpoint", "x-gateway-destination-endpoint-served", "response.code_details"]),
)
def test_what_stands_beside_the_response_is_the_same_whichever_way_it_is_read(
    texts: dict[str, str], attempts: float | None, key: str | None
) -> None:
    fields: dict[str, Any] = dict(texts)
    if attempts is not None:
        fields["upstream.request_attempt_count"] = attempts
    message = ext_proc.ProcessingRequest(
        response_headers=ext_proc.HttpHeaders(headers=header_map((":status", b"200"))),
        attributes={"envoy.filters.http.ext_proc": _struct(fields)},
    )
    if key is not None:
        message.metadata_context = metadata("envoy.lb", {key: "10.0.0.2:8000"})
    data = bytes(message)
    assert as_plain(decode(data)) == as_plain(decode_by_classes(data))


def test_an_attribute_that_is_no_utf_8_costs_no_request() -> None:
    """The reason in the code details comes from the transport."""
    event = decode(REAL.replace(b"via_upstream", b"via_upstrea\xff"))
    assert isinstance(event, ResponseHeaders)
    assert (event.origin, event.upstream) == (Origin.ENVOY, "127.0.0.1:43971")


@pytest.mark.parametrize("value", [None, True, float("nan"), ["via_upstream"], {"a": "b"}])
@pytest.mark.parametrize("key", ["response.code_details", "upstream.address", "upstream.request_attempt_count"])
def test_an_attribute_of_another_type_is_as_if_it_were_not_there(key: str, value: object) -> None:
    headers = ext_proc.HttpHeaders(headers=header_map((":status", b"503")))
    message = ext_proc.ProcessingRequest(response_headers=headers, attributes={"f": _struct({key: value})})
    assert decode(bytes(message)) == ResponseHeaders({":status": "503"})


def test_a_cut_message_with_attributes_raises_nothing_but_a_message_error() -> None:
    for at in range(len(REAL)):
        with contextlib.suppress(MessageError):
            decode(REAL[:at])


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_an_event_or_a_message_error(message: bytes) -> None:
    with contextlib.suppress(MessageError):
        decode(message)


HEADER_TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
HEADER_NAMES = st.sampled_from([*KNOWN_NAMES, "x", "content-typ", "x-request-id2"]) | HEADER_TEXTS.map(str.lower)
HEADER_PAIRS = st.lists(st.tuples(HEADER_NAMES, HEADER_TEXTS), max_size=8)
MODES = st.integers(0, 6)


def as_plain(event: Event | None) -> object:
    """An event in a form in which both ways of reading can be compared."""
    if isinstance(event, (RequestHeaders, ResponseHeaders)):
        return type(event), dict(event.headers), {f: getattr(event, f) for f in event.__slots__ if f != "headers"}
    if isinstance(event, (BodyChunk, ResponseChunk)):
        return type(event), bytes(event.body), event.end_of_stream
    return event


@given(
    HEADER_PAIRS,
    st.booleans(),
    st.booleans(),
    st.none() | st.tuples(MODES, MODES, st.booleans()),
    st.booleans(),
    st.sampled_from(["request", "response"]),
    st.booleans(),
)
def test_headers_are_the_same_whichever_way_they_are_read(
    pairs: list[tuple[str, str]],
    has_proof: bool,
    end: bool,
    config: tuple[int, int, bool] | None,
    in_raw: bool,
    side: str,
    empty_metadata: bool,
) -> None:
    """The quick way looks names up in the bytes; the generated classes are the reference."""
    if has_proof:
        pairs = [(":path" if side == "request" else ":status", "/x"), *pairs]
    values = [core.HeaderValue(key=k, raw_value=v.encode()) if in_raw else core.HeaderValue(key=k, value=v) for k, v in pairs]
    headers = ext_proc.HttpHeaders(headers=core.HeaderMap(headers=values), end_of_stream=end)
    message = (
        ext_proc.ProcessingRequest(request_headers=headers)
        if side == "request"
        else ext_proc.ProcessingRequest(response_headers=headers)
    )
    if empty_metadata:
        message.metadata_context = core.Metadata()
    if config is not None:
        message.protocol_config = ext_proc.ProtocolConfiguration(
            request_body_mode=ext_proc_filter.ProcessingModeBodySendMode(config[0] % 5),
            response_body_mode=ext_proc_filter.ProcessingModeBodySendMode(config[1] % 5),
            send_body_without_waiting_for_header_response=config[2],
        )
    data = bytes(message)
    quick, reference = decode(data), decode_by_classes(data)
    assert as_plain(quick) == as_plain(reference)
    assert isinstance(quick, (RequestHeaders, ResponseHeaders))
    assert isinstance(reference, (RequestHeaders, ResponseHeaders))
    for name in (*KNOWN_NAMES, "x", "nobody"):
        assert quick.headers.get(name) == reference.headers.get(name), name


# Repeated, since so much that is drawn byte by byte is often too much for hypothesis.
LONG_BODIES = st.tuples(st.binary(min_size=1, max_size=50), st.integers(4_000, 20_000)).map(
    lambda drawn: (drawn[0] * drawn[1])[: drawn[1]]
)


@given(st.binary(max_size=300) | LONG_BODIES, st.booleans(), st.booleans(), st.booleans())
def test_bodies_are_the_same_whichever_way_they_are_read(
    body: bytes, end: bool, of_request: bool, empty_metadata: bool
) -> None:
    http_body = ext_proc.HttpBody(body=body, end_of_stream=end)
    message = (
        ext_proc.ProcessingRequest(request_body=http_body)
        if of_request
        else ext_proc.ProcessingRequest(response_body=http_body)
    )
    if empty_metadata:
        message.metadata_context = core.Metadata()
    data = bytes(message)
    assert data.endswith(EMPTY_METADATA) or not empty_metadata
    assert as_plain(decode(data)) == as_plain(decode_by_classes(data))


@given(st.sampled_from([b"\x12", b"\x1a", b"\x22", b"\x2a"]), st.binary(max_size=200))
def test_bytes_that_begin_like_a_message_are_read_as_the_reference_reads_them_or_not_at_all(tag: bytes, rest: bytes) -> None:
    data = tag + rest
    try:
        reference = decode_by_classes(data)
    except MessageError:
        return  # what is no message may be taken for one, but nothing else may happen
    assert as_plain(decode(data)) == as_plain(reference)


def test_a_message_cut_anywhere_raises_nothing_but_a_message_error() -> None:
    headers = ext_proc.HttpHeaders(headers=header_map((":path", b"/x"), ("content-type", b"a" * 200)), end_of_stream=True)
    for message in (
        ext_proc.ProcessingRequest(request_headers=headers),
        ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=b"x" * 300, end_of_stream=True)),
    ):
        whole = bytes(message)
        for at in range(len(whole)):
            with contextlib.suppress(MessageError):
                event = decode(whole[:at])
                if isinstance(event, RequestHeaders):
                    dict(event.headers)


def test_metadata_beside_the_headers_is_read_by_the_classes() -> None:
    """Field report 12: the quick way must not overlook the subset hint."""
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(headers=header_map((":path", b"/x"))),
        metadata_context=metadata("envoy.lb.subset_hint", {"x-gateway-destination-endpoint-subset": "10.0.0.1"}),
    )
    event = decode(bytes(message))
    assert isinstance(event, RequestHeaders)
    assert event.subset == frozenset({"10.0.0.1"})


@given(st.binary(max_size=200), st.booleans())
def test_headers_of_any_bytes_can_be_asked_for(rest: bytes, request: bool) -> None:
    """A peer that is no Envoy may send any map: asking it must not raise."""
    proof = b"\x0a\x05:path\x1a\x01/" if request else b"\x0a\x07:status\x1a\x03200"
    header_map_bytes = b"\x0a" + bytes([len(proof)]) + proof + rest[:100]
    http_headers = b"\x0a" + bytes([len(header_map_bytes)]) + header_map_bytes
    message = (b"\x12" if request else b"\x1a") + varint(len(http_headers)) + http_headers
    with contextlib.suppress(MessageError):
        event = decode(message)
        if isinstance(event, (RequestHeaders, ResponseHeaders)):
            for name in (*KNOWN_NAMES, "other"):
                event.headers.get(name)
            dict(event.headers)
