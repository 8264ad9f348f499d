"""Frames as `hyperframe`, another implementation, reads and writes them."""

import hyperframe.frame
import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from epp.h2.frames import (
    END_STREAM,
    FRAME_HEADER,
    SETTINGS_ACK,
    ErrorCode,
    FrameType,
    SettingId,
    frame,
    goaway,
    reset,
    settings,
    window_update,
)


def read(written: bytes) -> Frame:
    """What hyperframe finds; the bytes must be one whole frame."""
    found, size = Frame.parse_frame_header(memoryview(written[:9]))
    assert len(written) == 9 + size
    found.parse_body(memoryview(written[9:]))
    return found


def test_data_reads_as_data() -> None:
    found = read(frame(FrameType.DATA, END_STREAM, 5, b"abc"))

    assert isinstance(found, DataFrame)
    assert (found.stream_id, found.data, set(found.flags)) == (5, b"abc", {"END_STREAM"})


@pytest.mark.parametrize("increment", [1, 65_535, 2**31 - 1])
def test_a_window_update_reads_as_one(increment: int) -> None:
    found = read(window_update(7, increment))

    assert isinstance(found, WindowUpdateFrame)
    assert (found.stream_id, found.window_increment) == (7, increment)


def test_a_reset_reads_as_one() -> None:
    found = read(reset(2**31 - 1, ErrorCode.REFUSED_STREAM))

    assert isinstance(found, RstStreamFrame)
    assert (found.stream_id, found.error_code) == (2**31 - 1, 7)


def test_goaway_carries_its_reason_for_whoever_debugs_the_peer() -> None:
    found = read(goaway(9, ErrorCode.ENHANCE_YOUR_CALM, "too many pings"))

    assert isinstance(found, GoAwayFrame)
    assert (found.last_stream_id, found.error_code, found.additional_data) == (9, 11, b"too many pings")


def test_the_reason_in_goaway_is_bounded() -> None:
    assert len(goaway(9, ErrorCode.PROTOCOL_ERROR, "é" * 5_000)) == 9 + 8 + 200


def test_settings_read_as_they_were_set() -> None:
    found = read(settings({SettingId.MAX_CONCURRENT_STREAMS: 10_000, SettingId.INITIAL_WINDOW_SIZE: 2**31 - 1}))

    assert isinstance(found, SettingsFrame)
    assert found.settings == {3: 10_000, 4: 2**31 - 1}


def test_the_ack_of_settings_is_empty() -> None:
    found = read(SETTINGS_ACK)

    assert isinstance(found, SettingsFrame)
    assert (set(found.flags), found.settings) == ({"ACK"}, {})


def test_a_header_packs_length_and_type_into_the_first_four_bytes() -> None:
    assert FRAME_HEADER.pack(0x123456 << 8 | 0x9, 0x25, 3) == b"\x12\x34\x56\x09\x25\0\0\0\x03"


@pytest.mark.parametrize("kind", list(FrameType))
def test_every_type_has_the_number_that_hyperframe_knows(kind: FrameType) -> None:

    known = {cls.__name__.removesuffix("Frame").upper(): number for number, cls in hyperframe.frame.FRAMES.items()}

    assert known[kind.name.replace("_", "")] == kind
