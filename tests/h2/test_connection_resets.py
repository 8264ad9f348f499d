"""RST_STREAM in every state of a stream, and what comes late."""

import pytest

from epp.h2.connection import Connection
from epp.h2.frames import END_HEADERS, END_STREAM, ErrorCode, FrameType, frame, reset, window_update
from epp.h2.limits import Limits
from epp.h2.sending import CLOSED_REMEMBERED
from tests.h2.peer import Peer, body, goaway_of, message, of_kind, reset_of, sent_body, status_of
from tests.h2.recorded_call import say_nothing, wait

CANCEL = reset(1, ErrorCode.CANCEL)


def test_a_reset_cancels_a_call_that_has_not_answered() -> None:
    peer = Peer(on_message=say_nothing)
    call = peer.open()

    assert peer.send(body(1, message(b"a")), CANCEL) == []
    assert call.seen == [b"a", "cancelled"]
    assert not peer.connection.streams


def test_a_reset_cancels_a_call_whose_answers_wait() -> None:
    peer = Peer(window=0)
    call = peer.open()
    peer.send(body(1, message(b"a")), CANCEL)

    assert call.seen == [b"a", "cancelled"]
    assert (call.stream.pending_bytes, len(peer.connection._blocked)) == (0, 0)
    assert peer.send(window_update(0, 1_000)) == []


def test_a_reset_cancels_a_call_whose_status_waits() -> None:
    peer = Peer(window=0)
    call = peer.open()
    peer.send(body(1, message(b"a"), end=True), CANCEL)

    assert call.seen == [b"a", "half_closed", "cancelled"]
    assert call.stream.trailers is None


def test_a_reset_of_a_half_closed_call_cancels_it() -> None:
    peer = Peer(on_half_closed=wait)
    call = peer.open()
    peer.send(body(1, message(b"a"), end=True), CANCEL)

    assert call.seen == [b"a", "half_closed", "cancelled"]


def test_a_reset_after_the_status_only_closes_the_stream() -> None:
    peer = Peer(on_message=lambda stream, _: stream.finish())
    call = peer.open()
    peer.send(body(1, message(b"a")))
    assert (call.seen, list(peer.connection.streams)) == ([b"a", "closed"], [1])
    peer.send(CANCEL)
    assert (call.seen, list(peer.connection.streams)) == ([b"a", "closed"], [])


def test_a_reset_within_a_message_frees_what_came_of_it() -> None:
    peer = Peer()
    call = peer.open()
    peer.send(body(1, message(b"x" * 10_000)[:9_000]), CANCEL)

    assert not call.stream.has_half_a_message


def test_a_reset_on_a_closed_stream_is_ignored() -> None:
    peer = Peer()
    peer.open()
    peer.send(body(1, b"", end=True))

    assert peer.send(CANCEL, CANCEL) == []
    assert not peer.connection.ended


@pytest.mark.parametrize("stream_id", [0, 2, 3])
def test_a_reset_of_an_idle_stream_ends_the_connection(stream_id: int) -> None:
    peer = Peer()
    peer.open(1)

    assert goaway_of(peer.send(reset(stream_id, ErrorCode.CANCEL)))[0] is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_reset_of_a_wrong_size_ends_the_connection(size: int) -> None:
    peer = Peer()
    peer.open(1)

    assert goaway_of(peer.send(frame(FrameType.RST_STREAM, 0, 1, bytes(size))))[0] is ErrorCode.FRAME_SIZE_ERROR


def test_a_cancelled_call_can_say_what_it_likes_and_nothing_goes_out() -> None:
    peer = Peer(on_message=say_nothing)
    call = peer.open()
    peer.send(CANCEL)
    call.stream.send(b"late")
    call.stream.finish()

    assert (peer.hear(), peer.wakes) == ([], 0)


def test_a_reset_at_each_byte_of_a_call_ends_it_once() -> None:
    request = Peer().request(1) + body(1, message(b"hello") + message(b"there"))
    for at in range(len(request) + 1):
        peer = Peer()
        peer.send(request[:at])
        peer.connection.lost()
        assert [call.ends for call in peer.calls] == [1] * len(peer.calls)
        assert not peer.connection.streams


# ── frames that crossed our reset ──


def reset_by_us() -> Peer:
    peer = Peer()
    peer.open(1)
    assert reset_of(peer.send(window_update(1, 0)), 1) is ErrorCode.PROTOCOL_ERROR
    return peer


@pytest.mark.parametrize(
    "late",
    [
        body(1, message(b"a")),
        body(1, b"", end=True),
        window_update(1, 5),
        reset(1, ErrorCode.CANCEL),
        frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x01x\x01y"),
        frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\x03\0"),
    ],
)
def test_what_crossed_our_reset_is_ignored(late: bytes) -> None:
    peer = reset_by_us()

    assert peer.send(late) == []
    assert len(peer.calls) == 1
    assert sent_body(peer.send(peer.request(3), body(3, message(b"fine"))), 3) == message(b"fine")


def test_a_header_block_that_crossed_our_reset_still_changes_the_table() -> None:
    peer = reset_by_us()
    peer.send(peer.request(1, (b"x-a", b"inserted"), end=True))

    assert peer.open(3, (b"x-a", b"inserted")).metadata[b"x-a"] == b"inserted"


def test_streams_that_were_reset_long_ago_are_given_the_benefit_of_the_doubt() -> None:
    peer = Peer(Limits(control_burst=10 * CLOSED_REMEMBERED))
    for stream_id in range(1, 4 * CLOSED_REMEMBERED, 2):
        peer.send(peer.request(stream_id), window_update(stream_id, 0))

    assert len(peer.connection._closed_by_us) == CLOSED_REMEMBERED
    assert peer.send(body(1, message(b"late"))) == []
    assert not peer.connection.ended


# ── too many streams ──


def test_a_stream_over_the_limit_is_refused_and_the_others_go_on() -> None:
    peer = Peer(Limits(max_concurrent_streams=2))
    frames = peer.send(
        peer.request(1), peer.request(3), peer.request(5), body(5, message(b"on its way")), body(1, message(b"a"))
    )

    assert reset_of(frames, 5) is ErrorCode.REFUSED_STREAM
    assert sent_body(frames, 1) == message(b"a")
    assert peer.tally.hits == {"streams": 1}
    assert len(peer.calls) == 2


def test_a_stream_that_ended_makes_room() -> None:
    peer = Peer(Limits(max_concurrent_streams=1))
    for stream_id in range(1, 30, 2):
        frames = peer.send(peer.request(stream_id), body(stream_id, message(b"a"), end=True))
        assert status_of(frames, stream_id) == (0, "")


def test_a_stream_that_the_peer_keeps_open_after_its_status_takes_room() -> None:
    peer = Peer(Limits(max_concurrent_streams=1), on_message=lambda stream, _: stream.finish())
    peer.send(peer.request(1), body(1, message(b"a")))

    assert reset_of(peer.send(peer.request(3)), 3) is ErrorCode.REFUSED_STREAM
    assert not of_kind(peer.send(CANCEL, peer.request(5)), FrameType.RST_STREAM)


def test_a_lost_connection_cancels_each_call_once() -> None:
    peer = Peer(window=0, on_half_closed=wait)
    peer.send(*(peer.request(stream_id) for stream_id in (1, 3, 5)), body(3, message(b"a")), body(5, b"", end=True))
    connection: Connection = peer.connection
    connection.lost()
    connection.lost()
    connection.close(ErrorCode.NO_ERROR)

    assert [call.seen[-1] for call in peer.calls] == ["cancelled"] * 3
    assert all(call.ends == 1 for call in peer.calls)
    assert not connection.streams
