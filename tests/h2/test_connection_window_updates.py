"""WINDOW_UPDATEs that are wrong, or come too late."""

import pytest

from epp.h2.frames import ErrorCode, SettingId, settings, window_update
from tests.h2.peer import Frame, Peer, body, goaway_of, message, reset_of, sent_body
from tests.h2.recorded_call import RecordedCall, say_nothing, wait


def size_of(frames: list[Frame], stream_id: int = 1) -> int:
    return len(sent_body(frames, stream_id))


def initial_window(size: int) -> bytes:
    return settings({SettingId.INITIAL_WINDOW_SIZE: size})


def waiting(peer: Peer, size: int, stream_id: int = 1) -> RecordedCall:
    """A call that has sent one message of `size` bytes in all."""
    call = peer.open(stream_id)
    call.stream.send(b"x" * (size - 5))
    return call


def quiet(window: int, connection_window: int = 2**30) -> Peer:
    return Peer(on_message=say_nothing, on_half_closed=wait, window=window, connection_window=connection_window)


def test_a_window_over_2_to_the_31_resets_the_stream() -> None:
    peer = quiet(window=100)
    call = peer.open()
    assert peer.send(window_update(1, 2**31 - 1 - 100)) == []
    assert reset_of(peer.send(window_update(1, 1)), 1) is ErrorCode.FLOW_CONTROL_ERROR
    assert call.seen == ["cancelled"]


def test_a_window_over_2_to_the_31_by_settings_ends_the_connection() -> None:
    peer = quiet(window=100)
    peer.open()
    peer.send(window_update(1, 2**31 - 1 - 100))

    assert goaway_of(peer.send(initial_window(101)))[0] is ErrorCode.FLOW_CONTROL_ERROR


def test_a_window_of_the_connection_over_2_to_the_31_ends_it() -> None:
    peer = quiet(window=100, connection_window=65_535)
    assert peer.send(window_update(0, 2**31 - 1 - 65_535)) == []
    assert goaway_of(peer.send(window_update(0, 1)))[0] is ErrorCode.FLOW_CONTROL_ERROR


def test_an_update_by_zero_resets_a_stream_and_ends_a_connection() -> None:
    peer = quiet(window=100)
    peer.open()
    assert reset_of(peer.send(window_update(1, 0)), 1) is ErrorCode.PROTOCOL_ERROR
    assert goaway_of(peer.send(window_update(0, 0)))[0] is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("stream_id", [3, 2, 2**31 - 1])
def test_an_update_on_an_idle_stream_ends_the_connection(stream_id: int) -> None:
    peer = quiet(window=100)
    peer.open(1)
    assert goaway_of(peer.send(window_update(stream_id, 1)))[0] is ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("increment", [1, 0, 2**31 - 1])
def test_an_update_on_a_closed_stream_is_ignored(increment: int) -> None:
    peer = Peer()
    peer.open(1)
    peer.send(body(1, message(b"a"), end=True))

    assert peer.send(window_update(1, increment)) == []
    assert not peer.connection.ended


@pytest.mark.parametrize("size", [0, 3, 5])
def test_an_update_of_a_wrong_size_ends_the_connection(size: int) -> None:
    payload = bytes(size)
    assert goaway_of(Peer().send(size.to_bytes(3, "big") + b"\x08\0" + bytes(4) + payload))[0] is ErrorCode.FRAME_SIZE_ERROR


def test_the_reserved_bit_of_an_increment_is_ignored() -> None:
    peer = quiet(window=0)
    waiting(peer, 10)
    peer.hear()
    assert size_of(peer.send(b"\0\0\x04\x08\0\0\0\0\x01" + b"\x80\0\0\x03")) == 3
