"""Deadlines: `grpc-timeout`, looked at by `expire`."""

from epp.h2.frames import ErrorCode, FrameType, window_update
from tests.h2.peer import Peer, body, message, of_kind, reset_of, sent_body, status_of
from tests.h2.recorded_call import finish, say_nothing, wait

TIMEOUT = (b"grpc-timeout", b"1500m")


def expired(peer: Peer, after_s: float) -> None:
    peer.clock.advance(after_s)
    peer.connection.expire(peer.clock.monotonic_s())


def test_a_call_ends_with_deadline_exceeded_when_its_time_is_over_and_not_before() -> None:
    peer = Peer(on_message=say_nothing)
    call = peer.open(1, TIMEOUT)
    expired(peer, 1.4)
    assert (peer.hear(), call.seen) == ([], [])

    expired(peer, 0.2)
    frames = peer.hear()
    assert status_of(frames, 1) == (4, "deadline exceeded")
    assert reset_of(frames, 1) is ErrorCode.NO_ERROR  # after the whole answer: stop sending, and read it
    assert call.seen == ["cancelled"]
    assert not peer.connection.streams


def test_a_call_whose_peer_has_closed_its_side_needs_no_reset() -> None:
    peer = Peer(on_half_closed=wait)
    call = peer.open(1, TIMEOUT)
    peer.send(body(1, message(b"a"), end=True))
    expired(peer, 2.0)
    frames = peer.hear()

    assert status_of(frames, 1) == (4, "deadline exceeded")
    assert not of_kind(frames, FrameType.RST_STREAM)
    assert call.seen == [b"a", "half_closed", "cancelled"]


def test_the_status_does_not_wait_for_a_peer_that_takes_no_data() -> None:
    peer = Peer(window=3, on_half_closed=wait)
    call = peer.open(1, TIMEOUT)
    peer.send(body(1, message(b"a"), end=True))
    expired(peer, 2.0)

    assert status_of(peer.hear(), 1) == (4, "deadline exceeded")
    assert call.seen == [b"a", "half_closed", "cancelled"]


def test_an_answer_that_the_peer_did_not_take_in_time_is_cut() -> None:
    peer = Peer(window=0)
    call = peer.open(1, TIMEOUT)
    peer.send(body(1, message(b"a"), end=True))
    expired(peer, 2.0)

    frames = peer.hear()
    assert reset_of(frames, 1) is ErrorCode.CANCEL
    assert not of_kind(frames, FrameType.HEADERS)[1:]
    assert call.seen == [b"a", "half_closed", "cancelled"]
    assert not peer.connection.streams


def test_an_answered_call_is_not_answered_again() -> None:
    peer = Peer(on_message=lambda stream, _: finish(stream))
    call = peer.open(1, TIMEOUT)
    peer.send(body(1, message(b"a")))
    expired(peer, 2.0)

    assert not of_kind(peer.hear(), FrameType.HEADERS)
    assert call.seen == [b"a", "closed"]


def test_only_the_calls_whose_time_is_over_end() -> None:
    peer = Peer()
    peer.send(peer.request(1, TIMEOUT), peer.request(3), peer.request(5, (b"grpc-timeout", b"1H")), peer.request(7, TIMEOUT))
    expired(peer, 2.0)
    peer.hear()

    assert [call.seen for call in peer.calls] == [["cancelled"], [], [], ["cancelled"]]
    frames = peer.send(body(3, message(b"still here"), end=True), window_update(7, 5))
    assert sent_body(frames, 3) == message(b"still here")


def test_a_timeout_that_cannot_be_read_is_none() -> None:
    peer = Peer()
    call = peer.open(1, (b"grpc-timeout", b"soon"))
    expired(peer, 1e9)

    assert call.seen == []


def test_what_comes_late_for_an_expired_call_is_ignored() -> None:
    peer = Peer()
    peer.open(1, TIMEOUT)
    expired(peer, 2.0)
    peer.hear()

    assert peer.send(body(1, message(b"late")), window_update(1, 9), body(1, b"", end=True)) == []
    assert not peer.connection.ended


def test_an_ended_connection_has_no_deadlines() -> None:
    peer = Peer()
    call = peer.open(1, TIMEOUT)
    peer.connection.lost()
    expired(peer, 2.0)

    assert call.seen == ["cancelled"]
