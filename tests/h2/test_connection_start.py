"""How a connection begins: preface, SETTINGS both ways, and what comes instead of them."""

import pytest

from epp.h2.frames import ACK, PREFACE, ErrorCode, FrameType, SettingId, frame, settings
from epp.h2.limits import Limits
from tests.h2.peer import Peer, body, goaway_of, message, of_kind, sent_body, status_of

HELLO = PREFACE + settings({})


def test_the_server_speaks_first_and_tells_its_limits() -> None:
    peer = Peer(Limits(max_concurrent_streams=7, stream_window_bytes=70_000, connection_window_bytes=100_000), greet=False)
    told, window = peer.hear()

    assert (told.kind, told.flags, told.stream_id) == (FrameType.SETTINGS, 0, 0)
    pairs = [told.payload[at : at + 6] for at in range(0, len(told.payload), 6)]
    assert {int.from_bytes(pair[:2], "big"): int.from_bytes(pair[2:], "big") for pair in pairs} == {3: 7, 4: 70_000, 6: 65_536}
    assert (window.kind, window.stream_id) == (FrameType.WINDOW_UPDATE, 0)
    assert int.from_bytes(window.payload, "big") == 100_000 - 65_535


def test_the_preface_and_a_whole_call_may_come_cut_at_every_byte() -> None:
    whole = HELLO + Peer().request(1) + body(1, message(b"hello"), end=True)
    for at in range(len(whole) + 1):
        peer = Peer(greet=False)
        frames = peer.send(whole[:at]) + peer.send(whole[at:])
        assert sent_body(frames, 1) == message(b"hello")
        assert status_of(frames, 1) == (0, "")
        assert peer.calls[0].seen == [b"hello", "half_closed", "closed"]


def test_the_preface_and_a_whole_call_may_come_byte_by_byte() -> None:
    peer = Peer(greet=False)
    whole = HELLO + peer.request(1) + body(1, message(b"hello"), end=True)
    frames = [found for at in range(len(whole)) for found in peer.send(whole[at : at + 1])]

    assert sent_body(frames, 1) == message(b"hello")
    assert not peer.connection.streams


@pytest.mark.parametrize("at", range(len(PREFACE)))
def test_a_wrong_byte_anywhere_in_the_preface_ends_the_connection_at_once(at: int) -> None:
    peer = Peer(greet=False)
    peer.send(PREFACE[:at])

    code, why = goaway_of(peer.send(bytes([PREFACE[at] ^ 0x20])))
    assert (code, why) == (ErrorCode.PROTOCOL_ERROR, "expected the HTTP/2 connection preface")
    assert peer.connection.ended
    assert not peer.connection.greeted


@pytest.mark.parametrize("spoken", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\0" * 100])
def test_another_protocol_ends_the_connection(spoken: bytes) -> None:
    assert goaway_of(Peer(greet=False).send(spoken))[0] is ErrorCode.PROTOCOL_ERROR


def test_an_ended_connection_takes_and_says_nothing_more() -> None:
    peer = Peer(greet=False)
    peer.send(b"GET /")

    assert peer.send(HELLO + peer.request(1)) == []
    assert peer.calls == []


def test_the_connection_counts_as_greeted_after_the_preface_only() -> None:
    peer = Peer(greet=False)
    assert not peer.connection.greeted
    peer.send(PREFACE[:-1])
    assert not peer.connection.greeted
    peer.send(PREFACE[-1:])
    assert peer.connection.greeted


@pytest.mark.parametrize(
    "first", [FrameType.PING, FrameType.HEADERS, FrameType.DATA, FrameType.WINDOW_UPDATE, FrameType.GOAWAY]
)
def test_the_first_frame_must_be_settings(first: FrameType) -> None:
    code, why = goaway_of(Peer(greet=False).send(PREFACE, frame(first, 0, 0, bytes(8))))

    assert (code, why) == (ErrorCode.PROTOCOL_ERROR, "expected SETTINGS as the first frame")


def test_settings_are_acknowledged_each_time() -> None:
    peer = Peer(greet=False)
    peer.hear()
    frames = peer.send(HELLO, settings({SettingId.HEADER_TABLE_SIZE: 0}), settings({}))

    assert [(found.kind, found.flags, found.payload) for found in frames] == [(FrameType.SETTINGS, ACK, b"")] * 3


def test_an_acknowledgement_is_not_acknowledged() -> None:
    assert Peer().send(frame(FrameType.SETTINGS, ACK, 0)) == []


def test_unknown_settings_are_ignored() -> None:
    peer = Peer()
    (found,) = peer.send(frame(FrameType.SETTINGS, 0, 0, b"\x00\x63" + bytes(4) + b"\xff\xff" + b"\xff" * 4))

    assert (found.kind, found.flags) == (FrameType.SETTINGS, ACK)


def setting(key: SettingId, value: int) -> bytes:
    return frame(FrameType.SETTINGS, 0, 0, key.to_bytes(2, "big") + value.to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (setting(SettingId.INITIAL_WINDOW_SIZE, 2**31), ErrorCode.FLOW_CONTROL_ERROR),
        (setting(SettingId.INITIAL_WINDOW_SIZE, 2**32 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (setting(SettingId.MAX_FRAME_SIZE, 16_383), ErrorCode.PROTOCOL_ERROR),
        (setting(SettingId.MAX_FRAME_SIZE, 2**24), ErrorCode.PROTOCOL_ERROR),
        (setting(SettingId.ENABLE_PUSH, 2), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_wrong_settings_end_the_connection(wrong: bytes, code: ErrorCode) -> None:
    peer = Peer()
    frames = peer.send(wrong)

    assert goaway_of(frames)[0] is code
    assert not of_kind(frames, FrameType.SETTINGS)
    assert peer.tally.hits == {code.name.lower(): 1}


@pytest.mark.parametrize(
    "right",
    [
        setting(SettingId.INITIAL_WINDOW_SIZE, 0),
        setting(SettingId.INITIAL_WINDOW_SIZE, 2**31 - 1),
        setting(SettingId.MAX_FRAME_SIZE, 16_384),
        setting(SettingId.MAX_FRAME_SIZE, 2**24 - 1),
        setting(SettingId.ENABLE_PUSH, 0),
        setting(SettingId.ENABLE_PUSH, 1),
        setting(SettingId.HEADER_TABLE_SIZE, 0),
        setting(SettingId.MAX_CONCURRENT_STREAMS, 0),
        setting(SettingId.MAX_HEADER_LIST_SIZE, 0),
    ],
)
def test_settings_at_the_ends_of_their_range_are_taken(right: bytes) -> None:
    (found,) = Peer().send(right)

    assert (found.kind, found.flags) == (FrameType.SETTINGS, ACK)


def test_answers_keep_to_the_frame_size_that_the_peer_takes() -> None:
    answer = b"x" * 100_000
    for size in (16_384, 20_000, 2**24 - 1):
        peer = Peer(on_message=lambda stream, _: stream.send(answer))
        peer.open()
        frames = peer.send(setting(SettingId.MAX_FRAME_SIZE, size), body(1, message(b"go"), end=True))
        assert sent_body(frames, 1) == message(answer)
        assert max(len(found.payload) for found in frames) == min(size, len(answer) + 5)


def test_a_frame_longer_than_ours_may_be_ends_the_connection_by_its_header_alone() -> None:
    peer = Peer()
    peer.open()

    code, why = goaway_of(peer.send(b"\x00\x40\x01" + bytes([FrameType.DATA, 0]) + b"\0\0\0\x01"))
    assert (code, why) == (ErrorCode.FRAME_SIZE_ERROR, "a frame of 16385 bytes; at most 16384")
    assert peer.calls[0].seen == ["cancelled"]


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    peer = Peer()
    peer.open()
    sent = bytearray(body(1, message(b"hello")))
    sent[5] |= 0x80

    assert sent_body(peer.send(bytes(sent)), 1) == message(b"hello")
