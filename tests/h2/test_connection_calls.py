"""Calls: answers, statuses, half-close, deadlines, and requests that are no calls."""

import pytest

from epp.h2.frames import END_STREAM, ErrorCode, FrameType, window_update
from epp.h2.limits import Limits
from epp.h2.stream import Status, Stream
from tests.h2.peer import REQUEST, Peer, body, message, messages, of_kind, reset_of, sent_body, status_of
from tests.h2.recorded_call import say_nothing, wait


def test_a_unary_call_is_headers_data_and_trailers() -> None:
    peer = Peer()
    frames = peer.send(peer.request(1), body(1, message(b"hello"), end=True))

    assert [found.kind for found in frames] == [FrameType.HEADERS, FrameType.DATA, FrameType.HEADERS]
    assert frames[0].fields == {b":status": b"200", b"content-type": b"application/grpc"}
    assert frames[1].payload == message(b"hello")
    assert frames[2].fields == {b"grpc-status": b"0"}
    assert [found.ends_stream for found in frames] == [False, False, True]
    assert peer.calls[0].seen == [b"hello", "half_closed", "closed"]
    assert not peer.connection.streams
    assert peer.wakes == 0


def test_a_call_answers_each_message_when_it_comes() -> None:
    peer = Peer()
    peer.open()
    for number in range(5):
        assert sent_body(peer.send(body(1, message(b"%d" % number))), 1) == message(b"%d" % number)


def test_several_messages_in_one_frame_and_one_over_several() -> None:
    peer = Peer()
    peer.open()
    long = message(b"x" * 40_000)
    frames = peer.send(body(1, message(b"a") + message(b"") + message(b"b") + long[:3]))
    frames += peer.send(body(1, long[3:16_000]), body(1, long[16_000:32_000])) + peer.send(body(1, long[32_000:], end=True))

    assert messages(sent_body(frames, 1)) == [b"a", b"", b"b", b"x" * 40_000]


def test_calls_do_not_disturb_one_another() -> None:
    peer = Peer()
    peer.send(*(peer.request(stream_id) for stream_id in range(1, 200, 2)))
    frames = peer.send(*(body(stream_id, message(b"%d" % stream_id), end=True) for stream_id in reversed(range(1, 200, 2))))

    for stream_id in range(1, 200, 2):
        assert sent_body(frames, stream_id) == message(b"%d" % stream_id)
        assert status_of(frames, stream_id) == (0, "")
    assert all(call.ends == 1 for call in peer.calls)


def test_a_status_before_any_answer_is_a_single_headers_frame() -> None:
    peer = Peer(on_message=lambda stream, _: stream.finish(Status.INVALID_ARGUMENT, "100 % wrong: é"))
    (found,) = peer.send(peer.request(1), body(1, message(b"a"), end=True))

    assert found.ends_stream
    assert found.fields == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"3",
        b"grpc-message": b"100 %25 wrong: %C3%A9",
    }


def test_a_call_may_end_in_its_constructor() -> None:
    def refuse(stream: Stream, _: object) -> object:
        stream.finish(Status.UNAVAILABLE, "not now")
        return peer.make_call(stream, {})

    for end in (False, True):
        peer = Peer()
        peer.connection._methods = {b"/test.Echo/Echo": refuse}  # type: ignore[dict-item]
        assert status_of(peer.send(peer.request(1, end=end)), 1) == (14, "not now")
        assert peer.calls[0].seen == ["closed"]
        assert len(peer.connection.streams) == (0 if end else 1)


def test_a_call_that_has_ended_sees_no_further_message_of_the_same_frame() -> None:
    peer = Peer(on_message=lambda stream, _: stream.finish())
    for stream_id, end in ((1, False), (3, True)):
        peer.send(peer.request(stream_id), body(stream_id, message(b"1") + message(b"2"), end=end))

    assert [call.seen for call in peer.calls] == [[b"1", "closed"], [b"1", "closed"]]


def test_a_call_that_ended_first_takes_and_forgets_what_still_comes() -> None:
    peer = Peer(on_message=lambda stream, _: stream.finish())
    call = peer.open()
    peer.send(body(1, message(b"last")))
    frames = [found for _ in range(200) for found in peer.send(body(1, bytes(16_000)))]

    assert sum(int.from_bytes(update.payload, "big") for update in of_kind(frames, FrameType.WINDOW_UPDATE, 1)) > 2_000_000
    assert call.seen == [b"last", "closed"]
    assert 1 in peer.connection.streams
    peer.send(body(1, b"", end=True))
    assert not peer.connection.streams


def test_half_close_leaves_the_answers_going_on() -> None:
    peer = Peer(on_half_closed=wait)
    call = peer.open()
    peer.send(body(1, message(b"a"), end=True))
    call.stream.send(b"later")
    call.stream.finish(Status.OK)
    frames = peer.hear()

    assert sent_body(frames, 1) == message(b"later")
    assert status_of(frames, 1) == (0, "")
    assert call.seen == [b"a", "half_closed", "closed"]


def test_answers_out_of_turn_ask_to_be_written() -> None:
    peer = Peer(on_message=say_nothing)
    call = peer.open()
    assert peer.wakes == 0
    call.stream.send(b"late")
    assert peer.wakes == 1
    call.stream.finish()
    assert peer.wakes == 2
    call.stream.send(b"too late")
    call.stream.finish()
    assert peer.wakes == 2
    assert sent_body(peer.hear(), 1) == message(b"late")


def test_a_stream_that_ends_within_a_message_is_an_internal_error() -> None:
    peer = Peer()
    call = peer.open()
    frames = peer.send(body(1, message(b"abc")[:-1], end=True))

    assert status_of(frames, 1) == (13, "the stream ended in the middle of a message")
    assert call.seen == ["closed"]


def test_a_message_over_the_limit_ends_the_call_with_resource_exhausted() -> None:
    peer = Peer(Limits(max_message_bytes=1_000))
    call = peer.open()
    frames = peer.send(body(1, message(b"fits") + message(b"x" * 1_001)))

    assert sent_body(frames, 1) == message(b"fits")
    assert status_of(frames, 1) == (8, "a message of 1001 bytes; the limit is 1000")
    assert call.seen == [b"fits", "closed"]
    assert peer.tally.hits == {"message_too_long": 1}
    assert not call.stream.has_half_a_message


def test_a_compressed_message_ends_the_call_with_unimplemented() -> None:
    peer = Peer()
    call = peer.open()

    frames = peer.send(body(1, message(b"abc", compressed=1)))
    assert status_of(frames, 1) == (12, "compressed messages are not supported")
    assert call.seen == ["closed"]


@pytest.mark.parametrize("path", [b"/test.Echo/Other", b"/", b"*", b"/\xff"])
def test_an_unknown_method_is_unimplemented(path: bytes) -> None:
    peer = Peer()
    fields = tuple((name, path if name == b":path" else value) for name, value in REQUEST)
    frames = peer.send(peer.request(1, fields=fields, end=True))

    status, text = status_of(frames, 1)
    assert status == 12
    assert text.startswith("unknown method ")
    assert not peer.connection.streams


@pytest.mark.parametrize(("field", "value", "status"), [(b":method", b"GET", b"405"), (b"content-type", b"text/html", b"415")])
@pytest.mark.parametrize("end", [True, False])
def test_a_request_that_is_no_grpc_gets_a_plain_answer(field: bytes, value: bytes, status: bytes, end: bool) -> None:
    peer = Peer()
    fields = tuple((name, value if name == field else as_ever) for name, as_ever in REQUEST)
    frames = peer.send(peer.request(1, fields=fields, end=end))

    assert [found.kind for found in frames] == [FrameType.HEADERS, FrameType.DATA]
    assert frames[0].fields[b":status"] == status
    assert int(frames[0].fields[b"content-length"]) == len(frames[1].payload)
    assert frames[1].flags == END_STREAM
    assert b"gRPC" in frames[1].payload
    assert peer.calls == []
    if not end:
        assert peer.send(body(1, b"<form>", end=True)) == []
    assert not peer.connection.streams


def test_a_plain_answer_waits_for_windows_too() -> None:
    peer = Peer(window=0)
    fields = tuple((name, b"GET" if name == b":method" else value) for name, value in REQUEST)

    assert [found.kind for found in peer.send(peer.request(1, fields=fields, end=True))] == [FrameType.HEADERS]
    (first,) = peer.send(window_update(1, 10))
    assert (len(first.payload), first.ends_stream) == (10, False)
    (rest,) = peer.send(window_update(1, 1_000))
    assert rest.ends_stream
    assert not peer.connection.streams


# ── content-length ──


@pytest.mark.parametrize(("length", "sent"), [(b"8", 8), (b"0008", 8), (b"0", 0)])
def test_a_body_of_the_declared_length_is_taken(length: bytes, sent: int) -> None:
    peer = Peer()
    call = peer.open(1, (b"content-length", length))
    peer.send(body(1, message(b"abc")[:sent], end=True))

    assert call.seen[-1] == "closed"


@pytest.mark.parametrize(
    "bodies",
    [
        (body(1, message(b"abcd")),),
        (body(1, message(b"ab"), end=True),),
        (body(1, message(b"")), body(1, b"ab"), body(1, b"cd")),
        (Peer().request(1, end=True, fields=((b"x-trailer", b"1"),)),),
    ],
)
def test_a_body_of_another_length_resets_the_stream(bodies: tuple[bytes, ...]) -> None:
    peer = Peer()
    call = peer.open(1, (b"content-length", b"8"))
    frames = peer.send(*bodies)

    assert reset_of(frames, 1) is ErrorCode.PROTOCOL_ERROR
    assert call.seen[-1] == "cancelled"


@pytest.mark.parametrize("length", [b"-1", b"x", b"", b"1e3", b"9" * 19, b"\xb2"])
def test_a_length_that_is_no_number_resets_the_stream_with_the_first_byte(length: bytes) -> None:
    peer = Peer()
    peer.open(1, (b"content-length", length))

    assert reset_of(peer.send(body(1, b"\0")), 1) is ErrorCode.PROTOCOL_ERROR


def test_a_declared_body_on_a_request_without_one_resets_the_stream() -> None:
    peer = Peer()

    assert reset_of(peer.send(peer.request(1, (b"content-length", b"5"), end=True)), 1) is ErrorCode.PROTOCOL_ERROR
    assert peer.calls == []
