"""HEADERS and CONTINUATION: requests in pieces, with padding and priority, malformed, too large."""

import pytest

from epp.h2.frames import END_HEADERS, END_STREAM, PADDED, PRIORITY_FLAG, ErrorCode, FrameType, frame, window_update
from epp.h2.limits import Limits
from tests.h2.peer import PATH, REQUEST, Peer, body, goaway_of, message, of_kind, reset_of, sent_body, status_of

PRIORITY_FIELDS = b"\x80\0\0\x05\x10"


def block_of(peer: Peer, stream_id: int = 1, *more: tuple[bytes, bytes]) -> bytes:
    return peer.request(stream_id, *more)[9:]


def headers(flags: int, payload: bytes, stream_id: int = 1) -> bytes:
    return frame(FrameType.HEADERS, flags, stream_id, payload)


def continuation(flags: int, payload: bytes, stream_id: int = 1) -> bytes:
    return frame(FrameType.CONTINUATION, flags, stream_id, payload)


def test_a_call_sees_the_headers_of_its_request() -> None:
    call = Peer().open(1, (b"x-request-id", b"abc"), (b"x-bin-bin", b"\xff"))

    assert dict(call.metadata) == {**dict(REQUEST), b"x-request-id": b"abc", b"x-bin-bin": b"\xff"}


def test_a_block_may_be_cut_at_every_byte_between_headers_and_continuation() -> None:
    size = len(block_of(Peer()))
    for at in range(size + 1):
        peer = Peer()
        block = block_of(peer)
        peer.send(headers(0, block[:at]), continuation(END_HEADERS, block[at:]))
        assert peer.calls[0].metadata[b":path"] == PATH


def test_the_reserved_bit_of_a_continuation_is_ignored() -> None:
    peer = Peer()
    block = block_of(peer)
    rest = bytearray(continuation(END_HEADERS, block[5:]))
    rest[5] |= 0x80
    peer.send(headers(0, block[:5]), bytes(rest))

    assert len(peer.calls) == 1


def test_a_block_may_come_in_many_continuations_some_of_them_empty() -> None:
    peer = Peer()
    pieces = [continuation(0, bytes([byte])) + continuation(0, b"") for byte in block_of(peer)]
    peer.send(headers(END_STREAM, b""), *pieces, continuation(END_HEADERS, b""))

    assert peer.calls[0].seen == ["half_closed", "closed"]


@pytest.mark.parametrize(
    ("between", "stream_id"),
    [
        (FrameType.DATA, 1),
        (FrameType.HEADERS, 3),
        (FrameType.HEADERS, 1),
        (FrameType.PING, 0),
        (FrameType.SETTINGS, 0),
        (FrameType.CONTINUATION, 3),
        (FrameType.PRIORITY, 1),
    ],
)
def test_nothing_may_come_between_headers_and_continuation(between: FrameType, stream_id: int) -> None:
    peer = Peer()
    frames = peer.send(headers(0, block_of(peer)), frame(between, 0, stream_id, bytes(8)))

    assert goaway_of(frames) == (ErrorCode.PROTOCOL_ERROR, "expected CONTINUATION")
    assert peer.calls == []


@pytest.mark.parametrize("before", [b"", "whole headers"])
def test_a_continuation_needs_headers_that_have_not_ended(before: bytes | str) -> None:
    peer = Peer()
    frames = peer.send(peer.request(1) if before else b"", continuation(END_HEADERS, b""))

    assert goaway_of(frames) == (ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")


def test_padding_and_priority_of_headers_are_taken_off() -> None:
    for flags, before, padding in (
        (PADDED, b"\x03", 3),
        (PADDED, b"\x00", 0),
        (PRIORITY_FLAG, PRIORITY_FIELDS, 0),
        (PADDED | PRIORITY_FLAG, b"\xff" + PRIORITY_FIELDS, 255),
    ):
        peer = Peer()
        peer.send(headers(flags | END_HEADERS, before + block_of(peer) + bytes(padding)))
        assert peer.calls[0].metadata[b":path"] == PATH


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (PADDED, b"", ErrorCode.PROTOCOL_ERROR),
        (PADDED, b"\x01", ErrorCode.PROTOCOL_ERROR),
        (PADDED, b"\x05abcd", ErrorCode.PROTOCOL_ERROR),
        (PRIORITY_FLAG, b"\0\0\0\x05", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED | PRIORITY_FLAG, b"\x02\0\0\0\x05\0", ErrorCode.FRAME_SIZE_ERROR),
        (PRIORITY_FLAG, b"\0\0\0\x01\0", ErrorCode.PROTOCOL_ERROR),  # depends on itself
    ],
)
def test_wrong_padding_or_priority_of_headers_ends_the_connection(flags: int, payload: bytes, code: ErrorCode) -> None:
    assert goaway_of(Peer().send(headers(flags | END_HEADERS, payload)))[0] is code


@pytest.mark.parametrize("stream_id", [0, 2, 2**31 - 2])
def test_headers_come_on_odd_streams_only(stream_id: int) -> None:
    peer = Peer()

    assert goaway_of(peer.send(peer.request(stream_id)))[0] is ErrorCode.PROTOCOL_ERROR


def test_stream_numbers_may_leave_gaps_and_never_go_back() -> None:
    peer = Peer()
    peer.send(peer.request(1), peer.request(2**31 - 1))

    assert len(peer.calls) == 2
    assert goaway_of(peer.send(peer.request(3)))[0] is ErrorCode.STREAM_CLOSED
    assert [call.seen for call in peer.calls] == [["cancelled"]] * 2


def test_a_malformed_request_costs_its_own_stream_only() -> None:
    peer = Peer()
    peer.open(1)
    frames = peer.send(peer.request(3, (b"Upper", b"1")), peer.request(5), body(1, message(b"a")), body(5, message(b"b")))

    assert reset_of(frames, 3) is ErrorCode.PROTOCOL_ERROR
    assert (sent_body(frames, 1), sent_body(frames, 5)) == (message(b"a"), message(b"b"))
    assert peer.tally.hits == {"protocol_error": 1}


def test_a_malformed_request_still_changes_the_table() -> None:
    peer = Peer()
    peer.send(peer.request(1, (b"x-a", b"inserted"), (b"Upper", b"1")))

    assert peer.open(3, (b"x-a", b"inserted")).metadata[b"x-a"] == b"inserted"


def test_a_broken_block_ends_the_connection() -> None:
    assert goaway_of(Peer().send(headers(END_HEADERS, b"\x80")))[0] is ErrorCode.COMPRESSION_ERROR


def test_a_header_list_over_the_limit_ends_the_connection() -> None:
    peer = Peer(Limits(max_header_list_bytes=1_000))
    frames = peer.send(peer.request(1, (b"x-a", b"v" * 1_000)))

    assert goaway_of(frames)[0] is ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_over_the_limit_ends_the_connection_before_it_is_whole() -> None:
    peer = Peer(Limits(max_header_block_bytes=40_000))
    frames = peer.send(headers(0, b"\x20" * 16_000), continuation(0, b"\x20" * 16_000), continuation(0, b"\x20" * 16_000))

    assert goaway_of(frames) == (ErrorCode.ENHANCE_YOUR_CALM, "a header block of more than 40000 bytes")


def test_request_trailers_close_the_stream() -> None:
    peer = Peer()
    call = peer.open()
    trailers = frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x03x-t\x01v")
    frames = peer.send(body(1, message(b"a")), trailers)

    assert call.seen == [b"a", "half_closed", "closed"]
    assert status_of(frames, 1) == (0, "")


@pytest.mark.parametrize("field", [b"\0\x05:path\x01/", b"\0\x01X\x01v", b"\0\x0aconnection\x01v"])
def test_wrong_request_trailers_reset_the_stream(field: bytes) -> None:
    peer = Peer()
    call = peer.open()

    assert reset_of(peer.send(headers(END_HEADERS | END_STREAM, field)), 1) is ErrorCode.PROTOCOL_ERROR
    assert call.seen == ["cancelled"]


def test_second_headers_that_do_not_end_the_stream_reset_it() -> None:
    peer = Peer()
    call = peer.open()

    assert reset_of(peer.send(headers(END_HEADERS, b"")), 1) is ErrorCode.PROTOCOL_ERROR
    assert call.seen == ["cancelled"]


def test_priority_changes_nothing() -> None:
    peer = Peer()
    call = peer.open()

    assert peer.send(*(frame(FrameType.PRIORITY, 0, stream_id, PRIORITY_FIELDS) for stream_id in (1, 7, 2**31 - 1))) == []
    assert call.seen == []


def test_wrong_priority_resets_an_open_stream() -> None:
    for payload, code in ((bytes(4), ErrorCode.FRAME_SIZE_ERROR), (b"\0\0\0\x01\0", ErrorCode.PROTOCOL_ERROR)):
        peer = Peer()
        call = peer.open()
        assert reset_of(peer.send(frame(FrameType.PRIORITY, 0, 1, payload)), 1) is code
        assert call.seen == ["cancelled"]


def test_wrong_priority_without_a_stream_to_reset_ends_the_connection() -> None:
    for stream_id, payload in ((0, PRIORITY_FIELDS), (9, bytes(4)), (9, b"\0\0\0\x09\0")):
        frames = Peer().send(frame(FrameType.PRIORITY, 0, stream_id, payload))
        goaway_of(frames)
        assert not of_kind(frames, FrameType.RST_STREAM)


def test_a_push_promise_from_a_client_ends_the_connection() -> None:
    frames = Peer().send(frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4)))

    assert goaway_of(frames) == (ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")


def test_unknown_frames_are_ignored() -> None:
    peer = Peer()
    peer.open()
    unknown = b"\0\0\x08" + b"\xfa\xff" + b"\0\0\0\x01" + b"anything" + b"\0\0\0" + b"\x0a\0" + bytes(4)
    frames = peer.send(unknown, window_update(0, 1), body(1, message(b"a")))

    assert sent_body(frames, 1) == message(b"a")
