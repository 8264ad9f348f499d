"""A peer that speaks HTTP/2 frame by frame with a `Connection` in memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpack import Decoder, Encoder

from epp.h2.connection import Connection
from epp.h2.frames import (
    END_HEADERS,
    END_STREAM,
    PREFACE,
    ErrorCode,
    FrameType,
    SettingId,
    frame,
    settings,
)
from epp.h2.limits import Limits, Tally
from epp.h2.stream import Stream
from tests.fakes.clock import FakeClock
from tests.h2.recorded_call import RecordedCall, echo, finish

PATH = b"/test.Echo/Echo"
REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH),
    (b":authority", b"epp"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
GENEROUS_WINDOW = 2**30
"""What a peer gives when a test is about something else than windows."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame that came out of the connection."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def ends_stream(self) -> bool:
        """Whether it is the last one of its stream."""
        return bool(self.flags & END_STREAM) and self.kind in (FrameType.DATA, FrameType.HEADERS)

    @property
    def code(self) -> ErrorCode:
        """The error code of RST_STREAM or GOAWAY."""
        at = 0 if self.kind == FrameType.RST_STREAM else 4
        return ErrorCode(int.from_bytes(self.payload[at : at + 4], "big"))

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The fields of HEADERS; a server of ours compresses nothing with a table, so each block stands alone."""
        return {bytes(name): bytes(value) for name, value in Decoder().decode(self.payload, raw=True)}


def cut(output: bytes) -> list[Frame]:
    """Frames out of bytes; they must be whole."""
    found, at = [], 0
    while at < len(output):
        size = int.from_bytes(output[at : at + 3], "big")
        stream_id = int.from_bytes(output[at + 5 : at + 9], "big")
        found.append(Frame(output[at + 3], output[at + 4], stream_id, output[at + 9 : at + 9 + size]))
        at += 9 + size
    assert at == len(output), "the connection wrote half a frame"
    return found


def message(payload: bytes, *, compressed: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return bytes([compressed]) + len(payload).to_bytes(4, "big") + payload


def messages(payload: bytes) -> list[bytes]:
    """The gRPC messages in the bytes of a whole stream."""
    found, at = [], 0
    while at < len(payload):
        assert payload[at] == 0, "a compressed message"
        end = at + 5 + int.from_bytes(payload[at + 1 : at + 5], "big")
        assert end <= len(payload), "half a message"
        found.append(payload[at + 5 : end])
        at = end
    return found


def body(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    """A DATA frame."""
    return frame(FrameType.DATA, END_STREAM if end else 0, stream_id, payload)


def of_kind(frames: list[Frame], kind: FrameType, stream_id: int | None = None) -> list[Frame]:
    """The frames of one kind, on one stream if it is given."""
    return [found for found in frames if found.kind == kind and stream_id in (None, found.stream_id)]


def sent_body(frames: list[Frame], stream_id: int) -> bytes:
    """What the DATA frames of a stream hold together."""
    return b"".join(found.payload for found in of_kind(frames, FrameType.DATA, stream_id))


class Peer:
    """The client's side of a connection, by hand.

    Args:
        on_message: What calls do with a message; they send it back by default.
        on_half_closed: What calls do when this side of the stream is closed; they end with OK by default.
        greet: Say the preface and SETTINGS, with the largest windows, and read what the server says first.
        window: Of each stream, for what the server sends.

    Attributes:
        calls: In the order of their requests.
        wakes: How often the connection asked to be written.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_message: Callable[[Stream, bytes], None] = echo,
        on_half_closed: Callable[[Stream], None] = finish,
        greet: bool = True,
        window: int = GENEROUS_WINDOW,
        connection_window: int = GENEROUS_WINDOW,
    ) -> None:
        self.clock = FakeClock()
        self.tally = Tally()
        self.wakes = 0
        self.calls: list[RecordedCall] = []
        self._on_message = on_message
        self._on_half_closed = on_half_closed
        self._encoder = Encoder()
        self.connection = Connection(
            {PATH: self.make_call},
            limits or Limits(),
            now_s=self.clock.monotonic_s,
            tally=self.tally,
            wake=self._wake,
        )
        if greet:
            self.send(PREFACE, settings({SettingId.INITIAL_WINDOW_SIZE: window}))
            if connection_window > 65_535:
                self.send(frame(FrameType.WINDOW_UPDATE, 0, 0, (connection_window - 65_535).to_bytes(4, "big")))

    def make_call(self, stream: Stream, metadata: Mapping[bytes, bytes]) -> RecordedCall:
        """The method at `PATH`."""
        call = RecordedCall(stream, metadata, self._on_message, self._on_half_closed)
        self.calls.append(call)
        return call

    def send(self, *frames: bytes) -> list[Frame]:
        """Let the connection receive these bytes at once; returns what it says."""
        self.connection.receive(b"".join(frames))
        return self.hear()

    def hear(self) -> list[Frame]:
        """What the connection has to say."""
        return cut(b"".join(self.connection.take_output()))

    def request(
        self,
        stream_id: int,
        *more: tuple[bytes, bytes],
        end: bool = False,
        fields: tuple[tuple[bytes, bytes], ...] = REQUEST,
    ) -> bytes:
        """HEADERS of a request, with the peer's table as it is."""
        block = self._encoder.encode([*fields, *more])
        return frame(FrameType.HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)

    def open(self, stream_id: int = 1, *more: tuple[bytes, bytes]) -> RecordedCall:
        """Begin a call."""
        self.send(self.request(stream_id, *more))
        return self.calls[-1]

    def _wake(self) -> None:
        self.wakes += 1


def goaway_of(frames: list[Frame]) -> tuple[ErrorCode, str]:
    """Why the connection ended: the last frame must be GOAWAY."""
    assert frames, "the connection said nothing"
    assert frames[-1].kind == FrameType.GOAWAY, f"expected GOAWAY, found {frames[-1]}"
    return frames[-1].code, frames[-1].payload[8:].decode()


def reset_of(frames: list[Frame], stream_id: int) -> ErrorCode:
    """The code with which the connection reset a stream."""
    (found,) = of_kind(frames, FrameType.RST_STREAM, stream_id)
    return found.code


def status_of(frames: list[Frame], stream_id: int) -> tuple[int, str]:
    """The gRPC status and its text (still percent-encoded) that ended a stream."""
    last = of_kind(frames, FrameType.HEADERS, stream_id)[-1]
    assert last.ends_stream
    return int(last.fields[b"grpc-status"]), last.fields.get(b"grpc-message", b"").decode()
