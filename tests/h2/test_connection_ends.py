"""PING, GOAWAY both ways, and the two steps of a graceful end."""

import pytest

from epp.h2.control import SHUTDOWN_PING
from epp.h2.frames import ACK, MAX_WINDOW_BYTES, ErrorCode, FrameType, frame
from tests.h2.peer import Frame, Peer, body, goaway_of, message, of_kind, reset_of, sent_body, status_of
from tests.h2.recorded_call import say_nothing

SHUTDOWN_ACK = frame(FrameType.PING, ACK, 0, SHUTDOWN_PING)


def last_id(found: Frame) -> int:
    return int.from_bytes(found.payload[:4], "big")


def test_a_ping_comes_back_as_it_was() -> None:
    (found,) = Peer().send(frame(FrameType.PING, 0, 0, b"\0abcdef\xff"))

    assert (found.kind, found.flags, found.stream_id, found.payload) == (FrameType.PING, ACK, 0, b"\0abcdef\xff")


def test_an_answer_to_a_ping_is_not_answered() -> None:
    assert Peer().send(frame(FrameType.PING, ACK, 0, bytes(8))) == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(FrameType.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.PING, ACK, 0, bytes(9)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_wrong_ping_or_goaway_ends_the_connection(wrong: bytes, code: ErrorCode) -> None:
    assert goaway_of(Peer().send(wrong))[0] is code


def test_the_server_asks_whether_the_peer_is_there() -> None:
    peer = Peer()
    peer.connection.ping()
    (found,) = peer.hear()

    assert (found.kind, found.flags, len(found.payload)) == (FrameType.PING, 0, 8)
    assert found.payload != SHUTDOWN_PING
    peer.connection.lost()
    peer.connection.ping()
    assert peer.hear() == []


def test_goaway_of_the_peer_leaves_its_calls_running() -> None:
    peer = Peer()
    peer.open(1)
    frames = peer.send(frame(FrameType.GOAWAY, 0, 0, bytes(8) + b"bye"), body(1, message(b"a"), end=True))

    assert sent_body(frames, 1) == message(b"a")
    assert status_of(frames, 1) == (0, "")


def test_the_end_comes_in_two_steps_and_loses_no_call() -> None:
    peer = Peer()
    running = peer.open(1)
    peer.connection.announce_shutdown()
    first, ping = peer.hear()
    assert (first.kind, first.code, last_id(first)) == (FrameType.GOAWAY, ErrorCode.NO_ERROR, MAX_WINDOW_BYTES)
    assert (ping.kind, ping.flags) == (FrameType.PING, 0)

    # A request that was on its way before the peer read the first step is served.
    frames = peer.send(peer.request(3), body(3, message(b"on its way"), end=True))
    assert sent_body(frames, 3) == message(b"on its way")

    (second,) = peer.send(frame(FrameType.PING, ACK, 0, ping.payload))
    assert (second.kind, second.code, last_id(second)) == (FrameType.GOAWAY, ErrorCode.NO_ERROR, 3)

    assert reset_of(peer.send(peer.request(5), body(5, message(b"too late"))), 5) is ErrorCode.REFUSED_STREAM
    frames = peer.send(body(1, message(b"still"), end=True))
    assert sent_body(frames, 1) == message(b"still")
    assert running.seen == [b"still", "half_closed", "closed"]
    assert not peer.connection.ended


def test_the_second_step_can_be_taken_without_an_answer() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.announce_shutdown()
    peer.hear()
    peer.connection.finish_shutdown()
    (second,) = peer.hear()

    assert last_id(second) == 1
    assert peer.send(SHUTDOWN_ACK) == []


def test_both_steps_are_taken_once() -> None:
    peer = Peer()
    for _ in range(2):
        peer.connection.announce_shutdown()
    assert len(peer.hear()) == 2
    assert len(peer.send(SHUTDOWN_ACK, SHUTDOWN_ACK)) == 1
    peer.connection.announce_shutdown()
    assert peer.hear() == []


def test_an_answer_to_a_ping_that_was_not_sent_shuts_nothing_down() -> None:
    peer = Peer()

    assert peer.send(SHUTDOWN_ACK) == []
    assert not of_kind(peer.send(peer.request(1)), FrameType.RST_STREAM)


def test_the_second_step_does_not_come_before_the_first() -> None:
    peer = Peer()
    peer.connection.finish_shutdown()

    assert peer.hear() == []


def test_no_later_goaway_names_a_later_stream() -> None:
    peer = Peer()
    peer.open(1)
    peer.connection.announce_shutdown()
    peer.send(SHUTDOWN_ACK, peer.request(3), peer.request(5))
    peer.connection.close(ErrorCode.NO_ERROR)
    frames = peer.hear()

    assert last_id(frames[-1]) == 1


def test_closing_cancels_calls_and_says_why_once() -> None:
    peer = Peer(on_message=say_nothing)
    call = peer.open(3)
    peer.connection.close(ErrorCode.NO_ERROR, "shut down")
    peer.connection.close(ErrorCode.NO_ERROR, "shut down")
    frames = peer.hear()

    assert len(frames) == 1
    assert goaway_of(frames) == (ErrorCode.NO_ERROR, "shut down")
    assert last_id(frames[0]) == 3
    assert call.seen == ["cancelled"]
    assert peer.connection.ended


def test_an_ended_connection_announces_nothing() -> None:
    peer = Peer()
    peer.connection.lost()
    peer.connection.announce_shutdown()
    peer.connection.finish_shutdown()

    assert peer.hear() == []


def test_a_refused_stream_may_be_opened_again_elsewhere_and_its_data_is_ignored() -> None:
    peer = Peer()
    peer.connection.announce_shutdown()
    peer.send(SHUTDOWN_ACK, peer.request(1))

    assert peer.send(body(1, message(b"a"), end=True)) == []
    assert peer.calls == []
