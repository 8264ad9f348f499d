"""Flow control of what the peer sends."""

import pytest

from epp.h2.frames import END_STREAM, PADDED, ErrorCode, FrameType, frame
from epp.h2.limits import Limits
from tests.h2.peer import Frame, Peer, body, goaway_of, message, of_kind, reset_of, sent_body
from tests.h2.recorded_call import say_nothing

SMALL = Limits(stream_window_bytes=65_535, connection_window_bytes=100_000)


def given_back(frames: list[Frame], stream_id: int) -> int:
    """Bytes of WINDOW_UPDATEs."""
    return sum(int.from_bytes(found.payload, "big") for found in of_kind(frames, FrameType.WINDOW_UPDATE, stream_id))


def test_nothing_is_given_back_before_half_of_a_window_is_used() -> None:
    peer = Peer(SMALL, on_message=say_nothing)
    peer.open()

    assert peer.send(body(1, message(b"x" * 16_000)), body(1, message(b"x" * 16_000))) == []
    frames = peer.send(body(1, message(b"x" * 800)))
    assert given_back(frames, 1) == 2 * 16_005 + 805
    assert given_back(frames, 0) == 0
    frames = peer.send(body(1, message(b"x" * 16_000)), body(1, message(b"x" * 1_200)))
    assert given_back(frames, 0) == 3 * 16_005 + 805 + 1_205


def test_a_peer_that_keeps_to_its_windows_can_send_for_ever() -> None:
    peer = Peer(SMALL, on_message=say_nothing)
    peer.open(1)
    peer.open(3)
    windows = {0: 100_000, 1: 65_535, 3: 65_535}
    sent = 0
    while sent < 3_000_000:
        for stream_id in (1, 3):
            size = min(16_384, windows[0], windows[stream_id])
            assert size > 0, "both windows closed"
            frames = peer.send(body(stream_id, bytes(size - size % 5)))
            sent += size
            windows[0] -= size - size % 5
            windows[stream_id] -= size - size % 5
            for each in windows:
                windows[each] += given_back(frames, each)
    assert not peer.connection.ended


def test_padding_counts_for_the_windows() -> None:
    peer = Peer(SMALL, on_message=say_nothing)
    call = peer.open()
    padded = frame(FrameType.DATA, PADDED, 1, b"\xff" + message(b"a") + bytes(255))
    frames = [found for _ in range(150) for found in peer.send(padded)]

    assert len(padded) - 9 == 262
    assert given_back(frames, 1) >= 32_767
    assert given_back(frames, 1) % 262 == 0
    assert call.seen == [b"a"] * 150


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abcd", b"\xff" + bytes(254)])
def test_more_padding_than_payload_ends_the_connection(payload: bytes) -> None:
    peer = Peer()
    peer.open()

    code, why = goaway_of(peer.send(frame(FrameType.DATA, PADDED, 1, payload)))
    assert (code, why) == (ErrorCode.PROTOCOL_ERROR, "more padding than payload")


def test_padding_may_be_all_that_ends_a_stream() -> None:
    peer = Peer()
    call = peer.open()
    peer.send(body(1, message(b"a")), frame(FrameType.DATA, PADDED | END_STREAM, 1, b"\x04" + bytes(4)))

    assert call.seen == [b"a", "half_closed", "closed"]


def test_one_byte_over_the_window_of_a_stream_resets_it_alone() -> None:
    peer = Peer(Limits(stream_window_bytes=70_000, pending_high_bytes=0), window=0)
    first, other = peer.open(1), peer.open(3)
    frames = peer.send(*(body(1, message(b"x" * 9_995)) for _ in range(7)))
    assert given_back(frames, 1) == 0  # its answers wait, so its window stays shut
    assert not of_kind(frames, FrameType.RST_STREAM)

    frames = peer.send(body(1, b"x"), body(3, message(b"fine"), end=True))
    assert reset_of(frames, 1) is ErrorCode.FLOW_CONTROL_ERROR
    assert first.seen[-1] == "cancelled"
    assert other.seen == [b"fine", "half_closed"]


def test_one_byte_over_the_window_of_the_connection_ends_it() -> None:
    peer = Peer(SMALL, on_message=say_nothing)
    calls = [peer.open(stream_id) for stream_id in (1, 3)]
    peer.connection._consumed = -100_000  # as if nothing were given back
    peer.send(*(body(stream_id, message(b"x" * 12_495)) for stream_id in (1, 3) for _ in range(4)))
    assert not peer.connection.ended

    code, why = goaway_of(peer.send(body(1, b"x")))
    assert (code, why) == (ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
    assert [call.seen[-1] for call in calls] == ["cancelled", "cancelled"]


def test_what_comes_for_a_stream_that_we_reset_is_given_back_to_the_connection() -> None:
    peer = Peer(SMALL)
    peer.open(1, (b"content-length", b"1"))
    frames = peer.send(body(1, bytes(10)))
    assert reset_of(frames, 1) is ErrorCode.PROTOCOL_ERROR
    late = [found for _ in range(20) for found in peer.send(body(1, bytes(10_000)))]

    assert given_back(late, 0) >= 150_000
    assert given_back(late, 1) == 0
    assert not peer.connection.ended


def test_data_on_stream_0_or_on_an_idle_stream_ends_the_connection() -> None:
    for stream_id in (0, 3, 2):
        peer = Peer()
        peer.open(1)
        assert goaway_of(peer.send(body(stream_id, b"x")))[0] is ErrorCode.PROTOCOL_ERROR


def test_data_behind_the_end_of_a_stream_that_still_answers_resets_it() -> None:
    peer = Peer(window=0)
    call = peer.open()
    peer.send(body(1, message(b"a"), end=True))

    assert reset_of(peer.send(body(1, b"more")), 1) is ErrorCode.STREAM_CLOSED
    assert call.seen == [b"a", "half_closed", "cancelled"]


def test_data_behind_the_end_of_a_call_ends_the_connection() -> None:
    peer = Peer()
    peer.open()
    peer.send(body(1, message(b"a"), end=True))

    assert goaway_of(peer.send(body(1, b"more")))[0] is ErrorCode.STREAM_CLOSED


# ── a peer that does not read ──


def test_a_stream_whose_answers_wait_gets_no_window_and_the_others_do() -> None:
    limits = Limits(stream_window_bytes=100_000, connection_window_bytes=1_000_000, pending_high_bytes=50_000)
    peer = Peer(limits, window=0)
    stuck, quick = peer.open(1), peer.open(3)
    peer.send(frame(FrameType.WINDOW_UPDATE, 0, 3, (2**30).to_bytes(4, "big")))
    given = {1: 0, 3: 0}
    for _ in range(9):
        frames = peer.send(body(1, message(b"s" * 9_995)), body(3, message(b"q" * 9_995)))
        assert sent_body(frames, 3) == message(b"q" * 9_995)
        for stream_id in given:
            given[stream_id] += given_back(frames, stream_id)

    assert given[1] <= 50_000  # granted while less than pending_high_bytes was waiting
    assert given[3] >= 50_000
    assert stuck.stream.pending_bytes == 90_000
    assert quick.stream.pending_bytes == 0


def test_a_stream_holds_no_more_than_its_window_and_what_may_wait() -> None:
    limits = Limits(stream_window_bytes=100_000, connection_window_bytes=1_000_000, pending_high_bytes=50_000)
    peer = Peer(limits, window=0)
    call = peer.open()
    window, sent = 100_000, 0
    while window >= 1_000:
        frames = peer.send(body(1, message(b"s" * 995)))
        sent += 1_000
        window += given_back(frames, 1) - 1_000
        assert sent < 10_000_000, "the window never closes"

    assert call.stream.pending_bytes <= 100_000 + 50_000


def test_the_window_opens_again_when_the_peer_has_read_enough() -> None:
    limits = Limits(stream_window_bytes=100_000, connection_window_bytes=1_000_000, pending_high_bytes=50_000)
    peer = Peer(limits, window=0)
    call = peer.open()
    frames = peer.send(*(body(1, message(b"s" * 9_995)) for _ in range(10)))
    owed = 100_000 - given_back(frames, 1)
    assert owed > 0
    frames = []
    while not of_kind(frames, FrameType.WINDOW_UPDATE, 1):
        frames = peer.send(frame(FrameType.WINDOW_UPDATE, 0, 1, (1_000).to_bytes(4, "big")))

    assert given_back(frames, 1) == owed
    assert 40_000 < call.stream.pending_bytes <= 50_000
