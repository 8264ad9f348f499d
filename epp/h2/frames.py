"""Frames of HTTP/2 (RFC 9113, section 4.1 and 6): types, flags, error codes, and writing them."""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = struct.Struct(">IBI")
"""Length and type in the first four bytes (24 and 8 bits), flags, stream."""
FRAME_HEADER_BYTES = 9
DEFAULT_WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = 2**31 - 1
MIN_MAX_FRAME_BYTES = 16_384
MAX_MAX_FRAME_BYTES = 2**24 - 1
STREAM_MASK = 0x7FFFFFFF


class FrameType(IntEnum):
    """RFC 9113, section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class SettingId(IntEnum):
    """RFC 9113, section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFaultError(Exception):
    """The peer broke a rule that the whole connection depends on; it ends with GOAWAY."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class StreamFaultError(Exception):
    """The peer broke a rule of one stream; that stream ends with RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.stream_id = stream_id
        self.code = code


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE by 1 to 2^31−1 bytes."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(FrameType.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, why: str = "") -> bytes:
    """GOAWAY; `why` is for whoever debugs the peer."""
    return frame(FrameType.GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + why.encode()[:200])


def settings(values: dict[SettingId, int]) -> bytes:
    """SETTINGS."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values.items()))


SETTINGS_ACK = frame(FrameType.SETTINGS, ACK, 0)
