"""Frames that cost a peer nothing end the connection when there are too many; ordinary traffic never does."""

from collections.abc import Callable

import pytest

from epp.h2.frames import ACK, END_HEADERS, ErrorCode, FrameType, SettingId, frame, reset, settings, window_update
from epp.h2.limits import Limits
from tests.h2.peer import Peer, body, goaway_of, message
from tests.h2.recorded_call import say_nothing

FEW = Limits(control_burst=100, control_per_second=10.0)
MORE_THAN_ENOUGH = 150


def unknown(_: Peer, __: int) -> bytes:
    return b"\0\0\0" + b"\x99\0" + bytes(4)


FLOODS: dict[str, Callable[[Peer, int], bytes]] = {
    "settings": lambda _, __: settings({SettingId.HEADER_TABLE_SIZE: 4_096}),
    "settings acks": lambda _, __: frame(FrameType.SETTINGS, ACK, 0),
    "pings": lambda _, __: frame(FrameType.PING, 0, 0, bytes(8)),
    "ping acks": lambda _, __: frame(FrameType.PING, ACK, 0, bytes(8)),
    "empty frames": lambda _, __: body(1, b""),
    "padded empty frames": lambda _, __: frame(FrameType.DATA, 0x8, 1, b"\xff" + bytes(255)),
    "priorities": lambda _, __: frame(FrameType.PRIORITY, 0, 9, b"\0\0\0\x03\x05"),
    "goaways": lambda _, __: frame(FrameType.GOAWAY, 0, 0, bytes(8)),
    "unknown frames": unknown,
    "rapid resets": lambda peer, turn: peer.request(2 * turn + 3) + reset(2 * turn + 3, ErrorCode.CANCEL),
    "resets of streams that were reset": lambda peer, _: reset(1, ErrorCode.CANCEL),
    "malformed requests": lambda peer, turn: peer.request(2 * turn + 3, (b"Upper", b"1")),
    "zero updates": lambda peer, turn: peer.request(2 * turn + 3) + window_update(2 * turn + 3, 0),
}


@pytest.mark.parametrize("flood", list(FLOODS))
def test_a_flood_ends_the_connection_and_is_counted(flood: str) -> None:
    peer = Peer(FEW, on_message=say_nothing)
    call = peer.open(1)
    frames = [found for turn in range(MORE_THAN_ENOUGH) for found in peer.send(FLOODS[flood](peer, turn))]

    code, why = goaway_of(frames)
    assert code is ErrorCode.ENHANCE_YOUR_CALM
    assert why.startswith("too many ")
    assert peer.tally.hits[why.removeprefix("too many ").replace(" ", "_")] == 1
    assert call.seen == ["cancelled"]


@pytest.mark.parametrize("flood", list(FLOODS))
def test_the_same_frames_at_an_allowed_pace_do_not(flood: str) -> None:
    peer = Peer(FEW, on_message=say_nothing)
    peer.open(1)
    for turn in range(MORE_THAN_ENOUGH):
        peer.send(FLOODS[flood](peer, turn))
        peer.clock.advance(0.2)

    assert not peer.connection.ended


def test_a_flood_in_one_read_is_stopped_within_it() -> None:
    peer = Peer(FEW)
    frames = peer.send(frame(FrameType.PING, 0, 0, bytes(8)) * 100_000)

    assert goaway_of(frames) == (ErrorCode.ENHANCE_YOUR_CALM, "too many pings")
    assert len(frames) <= 101


def test_refused_streams_are_a_flood_too() -> None:
    peer = Peer(Limits(max_concurrent_streams=1, control_burst=100, control_per_second=10.0))
    frames = peer.send(*(peer.request(stream_id) for stream_id in range(1, 2 * MORE_THAN_ENOUGH, 2)))

    assert goaway_of(frames) == (ErrorCode.ENHANCE_YOUR_CALM, "too many stream faults")


def test_continuations_without_end_are_a_flood() -> None:
    peer = Peer(FEW)
    endless = frame(FrameType.CONTINUATION, 0, 1) * MORE_THAN_ENOUGH

    assert goaway_of(peer.send(frame(FrameType.HEADERS, 0, 1), endless)) == (
        ErrorCode.ENHANCE_YOUR_CALM,
        "too many continuations",
    )


def test_headers_on_a_stream_that_was_reset_are_a_flood() -> None:
    peer = Peer(FEW)
    peer.open(1)
    peer.send(window_update(1, 0))
    late = frame(FrameType.HEADERS, END_HEADERS, 1, b"\x88") * MORE_THAN_ENOUGH

    assert goaway_of(peer.send(late)) == (ErrorCode.ENHANCE_YOUR_CALM, "too many late headers")


def test_empty_data_on_a_stream_that_was_reset_is_a_flood() -> None:
    peer = Peer(FEW)
    peer.open(1)
    peer.send(window_update(1, 0))

    assert goaway_of(peer.send(body(1, b"") * MORE_THAN_ENOUGH)) == (ErrorCode.ENHANCE_YOUR_CALM, "too many empty frames")


def test_changing_the_windows_of_many_streams_costs_more() -> None:
    peer = Peer(Limits(control_burst=100, control_per_second=10.0), on_message=say_nothing)
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.request(stream_id))
    frames = [found for turn in range(10) for found in peer.send(settings({SettingId.INITIAL_WINDOW_SIZE: 70_000 + turn}))]

    assert goaway_of(frames) == (ErrorCode.ENHANCE_YOUR_CALM, "too many settings")


# ── what gateways do all day ──


def test_thousands_of_streams_that_are_reset_after_their_answer_are_ordinary() -> None:
    """Envoy resets an ext_proc stream when it needs no more, be it still open …"""
    peer = Peer(FEW)
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.request(stream_id), body(stream_id, message(b"a")))
        peer.send(reset(stream_id, ErrorCode.CANCEL))

    assert not peer.connection.ended
    assert all(call.seen == [b"a", "cancelled"] for call in peer.calls)


def test_thousands_of_streams_that_are_closed_and_reset_at_once_are_ordinary() -> None:
    """… or closed by both sides by the time the reset comes."""
    peer = Peer(FEW)
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.request(stream_id), body(stream_id, message(b"a"), end=True), reset(stream_id, ErrorCode.NO_ERROR))

    assert not peer.connection.ended
    assert all(call.seen == [b"a", "half_closed", "closed"] for call in peer.calls)


def test_a_reset_is_forgiven_once_for_each_answered_stream() -> None:
    peer = Peer(FEW)
    peer.send(peer.request(1), body(1, b"", end=True))
    frames = peer.send(reset(1, ErrorCode.CANCEL) * MORE_THAN_ENOUGH)

    assert goaway_of(frames) == (ErrorCode.ENHANCE_YOUR_CALM, "too many resets")


def test_thousands_of_calls_with_an_empty_last_frame_are_ordinary() -> None:
    peer = Peer(FEW)
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.request(stream_id), body(stream_id, message(b"a")), body(stream_id, b"", end=True))

    assert not peer.connection.ended


def test_many_window_updates_are_ordinary() -> None:
    peer = Peer(FEW)
    peer.open(1)
    for _ in range(10_000):
        peer.send(window_update(0, 1), window_update(1, 1))

    assert not peer.connection.ended


def test_many_tiny_data_frames_are_ordinary() -> None:
    peer = Peer(FEW)
    call = peer.open(1)
    sent = message(b"x" * 10_000)
    peer.send(*(body(1, sent[at : at + 1]) for at in range(len(sent))))

    assert call.seen == [b"x" * 10_000]
