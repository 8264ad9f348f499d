"""Header blocks: checks of requests and fields, and the few blocks that a server sends."""

from urllib.parse import quote, unquote

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from epp.h2.frames import ConnectionFaultError, ErrorCode, StreamFaultError
from epp.h2.header_blocks import (
    RESPONSE_HEADERS,
    HeaderBlock,
    HeaderDecoder,
    check_field,
    check_request,
    percent_encoded,
    plain_response,
    trailers,
)
from tests.h2.peer import REQUEST

PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def decoded(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(bytes(name), bytes(value)) for name, value in Decoder().decode(block, raw=True)]


def refused(*fields: tuple[bytes, bytes]) -> str:
    with pytest.raises(StreamFaultError) as caught:
        check_request(5, HeaderBlock(fields))
    assert (caught.value.stream_id, caught.value.code) == (5, ErrorCode.PROTOCOL_ERROR)
    return str(caught.value)


# ── requests ──


def test_a_request_becomes_a_mapping() -> None:
    assert check_request(1, HeaderBlock([*REQUEST, (b"x-a", b"1")])) == {**dict(REQUEST), b"x-a": b"1"}


def test_the_first_of_equal_names_counts() -> None:
    assert check_request(1, HeaderBlock([*REQUEST, (b"x-a", b"1"), (b"x-a", b"2")]))[b"x-a"] == b"1"


def test_a_checked_block_is_not_checked_again() -> None:
    block = HeaderBlock(list(REQUEST))

    assert check_request(1, block) is check_request(3, block)


def test_a_block_that_was_refused_is_refused_again() -> None:
    block = HeaderBlock([*REQUEST, (b"Upper", b"1")])

    for stream_id in (1, 3):
        with pytest.raises(StreamFaultError) as caught:
            check_request(stream_id, block)
        assert caught.value.stream_id == stream_id


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":path"])
def test_each_needed_pseudo_header_must_be_there(missing: bytes) -> None:
    assert "expected :method, :scheme and :path" in refused(*(field for field in REQUEST if field[0] != missing))


def test_an_empty_path_is_refused() -> None:
    refused(*((name, b"" if name == b":path" else value) for name, value in REQUEST))


@pytest.mark.parametrize("name", [b":status", b":unknown", b":", b":Method"])
def test_an_unknown_pseudo_header_is_refused(name: bytes) -> None:
    assert "out of place" in refused((name, b"1"), *REQUEST)


@pytest.mark.parametrize("name", [b":method", b":path", b":scheme", b":authority"])
def test_a_pseudo_header_given_twice_is_refused(name: bytes) -> None:
    assert "out of place" in refused((name, b"x"), *REQUEST)


def test_a_pseudo_header_after_a_regular_one_is_refused() -> None:
    assert "out of place" in refused((b"x-a", b"1"), *REQUEST)


# ── fields ──


@pytest.mark.parametrize(
    "name", [b"", b"Upper", b"with space", b"tab\t", b"colon:", b":status", b"caf\xc3\xa9", b"nul\0", b"del\x7f"]
)
def test_a_name_that_is_no_lower_case_token_is_refused(name: bytes) -> None:
    with pytest.raises(StreamFaultError, match="expected a lower-case token"):
        check_field(1, name, b"1")


@pytest.mark.parametrize("value", [b"a\0b", b"a\r", b"\nb"])
def test_a_value_that_could_split_a_header_is_refused(value: bytes) -> None:
    with pytest.raises(StreamFaultError, match="NUL, CR or LF"):
        check_field(1, b"x-a", value)


@pytest.mark.parametrize("value", [b"", b"\t inner ", b"\xff\xfe bytes", b"a:b,c;d"])
def test_any_other_value_is_taken(value: bytes) -> None:
    check_field(1, b"x-a", value)


@pytest.mark.parametrize("name", [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"])
def test_headers_of_http1_connections_are_refused(name: bytes) -> None:
    with pytest.raises(StreamFaultError, match="of the connection"):
        check_field(1, name, b"x")


def test_te_may_only_ask_for_trailers() -> None:
    check_field(1, b"te", b"trailers")
    with pytest.raises(StreamFaultError, match="te"):
        check_field(1, b"te", b"gzip")


# ── limits of a block ──


def test_a_header_list_up_to_the_limit_is_taken_and_a_longer_one_ends_the_connection() -> None:
    limit = 32 + 3 + 100
    for size, fits in ((100, True), (101, False)):
        decoder, block = HeaderDecoder(max_header_list_bytes=limit), Encoder().encode([(b"x-a", b"v" * size)])
        if fits:
            assert decoder.decode(block).fields == [(b"x-a", b"v" * size)]
        else:
            with pytest.raises(ConnectionFaultError) as caught:
                decoder.decode(block)
            assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_that_names_a_large_entry_again_and_again_ends_the_connection() -> None:
    decoder = HeaderDecoder(max_header_list_bytes=65_536)
    decoder.decode(b"\x40" + b"\x01a" + b"\x7f" + bytes([0x80 | (3900 - 127) & 0x7F, (3900 - 127) >> 7]) + b"v" * 3900)

    with pytest.raises(ConnectionFaultError, match="header list larger than") as caught:
        decoder.decode(b"\xbe" * 10_000)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xff\xff\xff\xff\xff\x0f",  # an index far beyond the table
        b"\x40\x03ab",  # a name that is cut
        b"\x00\x01a\x05b",  # a value that is cut
        b"\x3f\xff\xff\xff\x7f",  # a table larger than allowed
        b"\x88\x20",  # a size update behind a field
        b"\x7f" + b"\x80" * 100_000,  # an integer without end
        b"\x00\x81\xff\x01a",  # Huffman coding that ends in the middle
        b"\x00",
        b"\x40",
        b"\xff",
    ],
)
def test_a_broken_block_is_a_compression_error(block: bytes) -> None:
    with pytest.raises(ConnectionFaultError) as caught:
        HeaderDecoder(max_header_list_bytes=65_536).decode(block)
    assert caught.value.code is ErrorCode.COMPRESSION_ERROR


# ── blocks of ours ──


def test_the_headers_of_a_response_read_as_meant() -> None:
    assert decoded(RESPONSE_HEADERS) == [(b":status", b"200"), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize("length", [1, 126, 127, 128, 254, 255, 256, 1_000])
def test_trailers_of_any_length_read_as_meant(length: int) -> None:
    assert decoded(trailers(13, "m" * length)) == [(b"grpc-status", b"13"), (b"grpc-message", b"m" * length)]


def test_trailers_without_a_text_say_only_the_status() -> None:
    assert decoded(trailers(0, "")) == [(b"grpc-status", b"0")]


def test_a_plain_response_tells_its_length() -> None:
    assert decoded(plain_response(415, b"why\n")) == [
        (b":status", b"415"),
        (b"content-type", b"text/plain"),
        (b"content-length", b"4"),
    ]


@given(st.text(max_size=300))
def test_a_message_is_percent_encoded_as_the_reference_does(text: str) -> None:
    sent = "".join(character if not 0xD800 <= ord(character) <= 0xDFFF else "?" for character in text)

    assert percent_encoded(text).decode("ascii") == quote(sent, safe=PRINTABLE)
    assert unquote(percent_encoded(text).decode("ascii"), errors="strict") == sent


def test_a_long_message_is_cut_so_that_it_always_fits_one_frame() -> None:
    assert unquote(percent_encoded("x" * 5_000).decode()) == "x" * 1_000
    assert len(trailers(13, "\U0001f600" * 5_000)) < 16_384
