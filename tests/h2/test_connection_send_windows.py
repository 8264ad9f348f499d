"""Flow control of what the server sends: streams' windows, the connection's, changes of them, and a paused socket."""

import pytest

from epp.h2.frames import FrameType, SettingId, settings, window_update
from epp.h2.stream import Status
from tests.h2.peer import Frame, Peer, message, of_kind, sent_body, status_of
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


def test_an_answer_goes_out_as_far_as_the_window_of_its_stream_allows() -> None:
    peer = quiet(window=10)
    call = waiting(peer, 30)
    frames = peer.hear()

    assert [found.kind for found in frames] == [FrameType.HEADERS, FrameType.DATA]
    assert size_of(frames) == 10
    assert size_of(peer.send(window_update(1, 1))) == 1
    assert (size_of(peer.send(window_update(1, 100))), call.seen) == (19, ["drained"])


def test_a_window_of_zero_holds_everything_but_headers_and_an_empty_status() -> None:
    peer = quiet(window=0)
    call = peer.open(1)
    call.stream.finish(Status.OK)
    assert status_of(peer.hear(), 1) == (0, "")
    waiting(peer, 6, 3)
    assert [found.kind for found in peer.hear()] == [FrameType.HEADERS]


@pytest.mark.parametrize("step", [1, 4, 5, 6, 7, 29, 30])
def test_small_updates_pass_everything_once_and_in_order(step: int) -> None:
    peer = quiet(window=0)
    call = peer.open()
    for number in range(6):
        call.stream.send(b"%d" % number * number)
    call.stream.finish(Status.OK, "done")
    whole = b"".join(message(b"%d" % number * number) for number in range(6))
    frames = peer.hear()
    while not frames[-1].ends_stream:
        assert not call.ends
        frames += peer.send(window_update(1, step))

    assert sent_body(frames, 1) == whole
    assert status_of(frames, 1) == (0, "done")
    assert call.seen == ["closed"]


def test_the_windows_of_the_connection_and_of_the_stream_both_bind() -> None:
    peer = quiet(window=20, connection_window=65_535)
    peer.connection._send_window = 30
    first, second = peer.open(1), peer.open(3)
    for call in (first, second):
        call.stream.send(b"x" * 35)
    frames = peer.hear()
    assert (size_of(frames, 1), size_of(frames, 3)) == (20, 10)

    frames = peer.send(window_update(0, 100))
    assert (size_of(frames, 1), size_of(frames, 3)) == (0, 10)
    frames = peer.send(window_update(3, 100), window_update(1, 5))
    assert (size_of(frames, 1), size_of(frames, 3)) == (5, 20)
    assert (first.stream.pending_bytes, second.stream.pending_bytes) == (15, 0)


def test_whole_messages_use_up_both_windows() -> None:
    peer = quiet(window=40, connection_window=65_535)
    peer.connection._send_window = 60
    first, second = peer.open(1), peer.open(3)
    for call in (first, first, first, second, second):
        call.stream.send(b"x" * 10)
    frames = peer.hear()

    assert (size_of(frames, 1), size_of(frames, 3)) == (40, 20)
    assert (first.stream.send_window, second.stream.send_window, peer.connection._send_window) == (0, 20, 0)


def test_streams_take_turns_when_the_connection_opens_bit_by_bit() -> None:
    peer = quiet(window=1_000, connection_window=65_535)
    peer.connection._send_window = 0
    for stream_id in (1, 3, 5):
        waiting(peer, 100, stream_id)
    peer.hear()
    order = []
    for _ in range(9):
        order += [found.stream_id for found in peer.send(window_update(0, 10))]

    assert order == [1, 3, 5] * 3


def test_a_stream_without_a_window_delays_no_other() -> None:
    peer = quiet(window=0)
    stuck = [waiting(peer, 50_000, stream_id) for stream_id in range(1, 40, 2)]
    quick = peer.open(41)
    peer.hear()
    peer.send(window_update(41, 1_000))
    quick.stream.send(b"quick")

    assert sent_body(peer.hear(), 41) == message(b"quick")
    assert size_of(peer.send(window_update(0, 1_000_000))) == 0
    assert all(call.stream.pending_bytes == 50_000 for call in stuck)


def test_streams_that_wait_for_their_own_window_are_not_visited_for_the_connections() -> None:
    peer = quiet(window=0)
    for stream_id in range(1, 40, 2):
        waiting(peer, 100, stream_id)

    assert len(peer.connection._blocked) == 0
    peer.connection._send_window = 0
    frames = peer.send(window_update(1, 10))
    assert (size_of(frames), list(peer.connection._blocked)) == (0, [1])
    assert size_of(peer.send(window_update(0, 1))) == 1


# ── changes by SETTINGS ──


def test_a_larger_initial_window_lets_waiting_streams_go_on() -> None:
    peer = quiet(window=10)
    calls = [waiting(peer, 30, stream_id) for stream_id in (1, 3)]
    peer.hear()
    frames = peer.send(initial_window(25))

    assert (size_of(frames, 1), size_of(frames, 3)) == (15, 15)
    frames = peer.send(initial_window(1_000))
    assert [call.seen for call in calls] == [["drained"], ["drained"]]


def test_a_smaller_initial_window_may_leave_a_window_negative() -> None:
    peer = quiet(window=20)
    call = waiting(peer, 50)
    peer.hear()
    peer.send(initial_window(5))
    assert call.stream.send_window == -15
    assert size_of(peer.send(window_update(1, 15))) == 0
    assert size_of(peer.send(window_update(1, 1))) == 1
    assert size_of(peer.send(initial_window(15))) == 10


def test_a_new_stream_begins_with_the_window_that_was_said_last() -> None:
    peer = quiet(window=10)
    peer.send(initial_window(7))
    waiting(peer, 30)

    assert size_of(peer.hear()) == 7


def test_of_equal_settings_in_one_frame_the_last_counts() -> None:
    peer = quiet(window=10)
    call = waiting(peer, 1_000)
    peer.hear()
    twice = initial_window(2**31 - 1)[9:] + initial_window(30)[9:]
    frames = peer.send(b"\0\0\x0c" + b"\x04\0" + bytes(4) + twice)

    assert size_of(frames) == 20
    assert call.stream.send_window == 0


def test_the_initial_window_does_not_change_the_connections() -> None:
    peer = quiet(window=100, connection_window=65_535)
    peer.connection._send_window = 10
    waiting(peer, 50)

    assert size_of(peer.hear()) == 10
    assert size_of(peer.send(initial_window(1_000))) == 0


# ── a socket that does not take more ──


def test_data_waits_while_writing_is_paused_and_goes_on_in_order() -> None:
    peer = quiet(window=2**20)
    first = peer.open(1)
    peer.connection.write_paused = True
    first.stream.send(b"one")
    first.stream.send(b"two")
    second = waiting(peer, 100_000, 3)
    assert of_kind(peer.hear(), FrameType.DATA) == []
    assert not of_kind(peer.send(window_update(1, 5), window_update(0, 5)), FrameType.DATA)

    peer.connection.resume_writing()
    frames = peer.hear()
    assert sent_body(frames, 1) == message(b"one") + message(b"two")
    assert size_of(frames, 3) == 100_000
    assert (first.seen, second.seen) == (["drained"], ["drained"])


def test_a_status_waits_behind_paused_data() -> None:
    peer = quiet(window=2**20)
    call = peer.open()
    peer.connection.write_paused = True
    call.stream.send(b"one")
    call.stream.finish()
    assert [found.kind for found in peer.hear()] == [FrameType.HEADERS]
    assert not call.ends

    peer.connection.resume_writing()
    assert [found.kind for found in peer.hear()] == [FrameType.DATA, FrameType.HEADERS]
    assert call.seen == ["closed"]


def test_a_message_over_several_frames_that_nothing_holds_back_is_not_reported_as_drained() -> None:
    peer = quiet(window=2**20)
    assert waiting(peer, 100_000).seen == []
    assert peer.send(window_update(1, 1))[-1].kind == FrameType.DATA
