"""A DATA frame that is one whole message takes a short way: every rule of the long one must hold on it, too."""

import tracemalloc

from epp.h2.frames import END_HEADERS, ErrorCode, FrameType, frame
from epp.h2.limits import Limits
from epp.h2.stream import Stream
from tests.h2.peer import Peer, body, goaway_of, message, of_kind, reset_of, sent_body, status_of
from tests.h2.recorded_call import say_nothing, wait

SMALL = Limits(stream_window_bytes=70_000, connection_window_bytes=100_000, pending_high_bytes=0)
TEN_KB = message(b"x" * 9_995)


def test_a_whole_message_over_the_window_of_its_stream_resets_it() -> None:
    peer = Peer(SMALL, window=0)  # its answers wait, so its window stays shut
    call = peer.open()
    peer.send(*(body(1, TEN_KB) for _ in range(7)))
    assert call.stream.receive_window == 0

    assert reset_of(peer.send(body(1, message(b""))), 1) is ErrorCode.FLOW_CONTROL_ERROR
    assert call.seen == [b"x" * 9_995] * 7 + ["cancelled"]


def test_a_whole_message_over_the_window_of_the_connection_ends_it() -> None:
    peer = Peer(SMALL, on_message=say_nothing)
    first, second = peer.open(1), peer.open(3)
    peer.connection._consumed = -100_000  # as if nothing were given back
    peer.send(*(body(stream_id, TEN_KB) for stream_id in (1, 3) for _ in range(5)))

    assert goaway_of(peer.send(body(1, message(b""))))[0] is ErrorCode.FLOW_CONTROL_ERROR
    assert (len(first.seen), len(second.seen)) == (6, 6)


def test_a_whole_message_in_a_frame_that_is_too_long_ends_the_connection() -> None:
    peer = Peer()
    call = peer.open()

    assert goaway_of(peer.send(body(1, message(b"x" * 16_380))))[0] is ErrorCode.FRAME_SIZE_ERROR
    assert call.seen == ["cancelled"]


def test_a_whole_message_in_the_longest_frame_is_taken() -> None:
    peer = Peer()
    call = peer.open()
    peer.send(body(1, message(b"x" * 16_379)))

    assert call.seen == [b"x" * 16_379]


def test_a_whole_message_may_not_come_between_headers_and_continuation() -> None:
    peer = Peer()
    call = peer.open(1)
    frames = peer.send(frame(FrameType.HEADERS, 0, 3, b""), body(1, message(b"a")))

    assert goaway_of(frames) == (ErrorCode.PROTOCOL_ERROR, "expected CONTINUATION")
    assert call.seen == ["cancelled"]


def test_a_whole_message_is_not_delivered_to_a_call_that_has_ended_and_whose_answer_waits() -> None:
    def answer_and_end(stream: Stream, payload: bytes) -> None:
        stream.send(payload)
        stream.finish()

    peer = Peer(on_message=answer_and_end, window=0)
    call = peer.open()
    peer.send(body(1, message(b"a")), body(1, message(b"b")), body(1, message(b"c")))

    assert call.seen == [b"a"]
    assert call.stream.pending_bytes == 6


def test_what_looks_like_a_whole_message_within_another_is_a_part_of_it() -> None:
    peer = Peer()
    call = peer.open()
    inner = message(b"inner")
    outer = message(inner + inner)
    peer.send(body(1, outer[:5]), body(1, inner), body(1, inner), body(1, message(b"next")))

    assert call.seen == [inner + inner, b"next"]


def test_a_whole_message_behind_the_end_of_a_stream_that_still_answers_resets_it() -> None:
    peer = Peer(on_half_closed=wait)
    call = peer.open()
    peer.send(body(1, message(b"a"), end=True))

    assert reset_of(peer.send(body(1, message(b"b"))), 1) is ErrorCode.STREAM_CLOSED
    assert call.seen == [b"a", "half_closed", "cancelled"]


def test_a_whole_message_on_a_stream_that_ended_or_never_began_ends_the_connection() -> None:
    for stream_id, code in ((1, ErrorCode.STREAM_CLOSED), (3, ErrorCode.PROTOCOL_ERROR), (0, ErrorCode.PROTOCOL_ERROR)):
        peer = Peer()
        peer.open(1)
        peer.send(body(1, b"", end=True))
        assert goaway_of(peer.send(body(stream_id, message(b"a"))))[0] is code


def test_a_whole_message_counts_for_content_length() -> None:
    peer = Peer()
    peer.open(1, (b"content-length", b"12"))

    assert not of_kind(peer.send(body(1, message(b"a"))), FrameType.RST_STREAM)
    assert reset_of(peer.send(body(1, message(b"bc"))), 1) is ErrorCode.PROTOCOL_ERROR


def test_a_whole_message_that_ends_its_call_and_stream() -> None:
    peer = Peer(on_message=lambda stream, _: stream.finish())
    call = peer.open()
    frames = peer.send(body(1, message(b"a")), frame(FrameType.HEADERS, 0x1 | END_HEADERS, 1, b""))

    assert status_of(frames, 1) == (0, "")
    assert call.seen == [b"a", "closed"]
    assert not peer.connection.streams


def test_whole_messages_give_the_window_back() -> None:
    peer = Peer(SMALL)
    peer.open()
    frames = [found for _ in range(100) for found in peer.send(body(1, TEN_KB))]

    given = {
        stream_id: sum(int.from_bytes(found.payload, "big") for found in of_kind(frames, FrameType.WINDOW_UPDATE, stream_id))
        for stream_id in (0, 1)
    }
    assert len(sent_body(frames, 1)) == 1_000_000
    assert 1_000_000 - 70_000 <= given[1] <= 1_000_000
    assert 1_000_000 - 100_000 <= given[0] <= 1_000_000


def test_calls_that_are_over_leave_nothing_behind() -> None:
    peer = Peer()

    def serve(first: int, count: int) -> None:
        for stream_id in range(first, first + 2 * count, 2):
            peer.send(peer.request(stream_id), body(stream_id, message(b"a" * 1_000)), body(stream_id, b"", end=True))
        peer.calls.clear()

    serve(1, 1_000)
    tracemalloc.start()
    try:
        serve(2_001, 200)
        before = tracemalloc.get_traced_memory()[0]
        serve(2_401, 3_000)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert after - before < 20_000
