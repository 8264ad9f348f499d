"""Arbitrary bytes as a program that a hostile peer runs against a `Connection`, and what must hold whatever it does.

The bytes are instructions: well-formed frames, frames of any kind with any payload, raw bytes, and what the driver and the
calls do in between (time, a paused socket, answers out of turn, shutdown). So a fuzzer that changes bytes gets deep quickly.
"""

from collections.abc import Callable, Mapping

from epp.h2.connection import Connection
from epp.h2.control import SHUTDOWN_PING
from epp.h2.frames import END_HEADERS, END_STREAM, PREFACE, ErrorCode, FrameType, reset, settings
from epp.h2.header_blocks import REMEMBERED_BLOCKS
from epp.h2.limits import Limits, Tally
from epp.h2.sending import CLOSED_REMEMBERED
from epp.h2.stream import Status, Stream
from tests.fakes.clock import FakeClock
from tests.h2.fuzz_requests import BLOCKS, literal
from tests.h2.peer import Frame, body, cut, message
from tests.h2.recorded_call import RecordedCall

LIMITS = Limits(
    max_concurrent_streams=5,
    max_header_list_bytes=2_000,
    max_header_block_bytes=3_000,
    max_message_bytes=20_000,
    stream_window_bytes=65_535,
    connection_window_bytes=80_000,
    pending_high_bytes=1_000,
    control_burst=60,
    control_per_second=10.0,
)
ANSWER_BYTES = 20_000
MOST_PENDING_BYTES = LIMITS.pending_high_bytes + LIMITS.stream_window_bytes + LIMITS.max_message_bytes
MOST_STEPS = 2_000


class Program:
    """Runs bytes as instructions; raises AssertionError, or whatever comes out of the connection, when something is wrong.

    Args:
        chunk: How many bytes the connection gets at once; None leaves that to the instructions.

    Attributes:
        output: All that the connection said.
    """

    def __init__(self, code: bytes, chunk: int | None = None) -> None:
        self._code = code
        self._at = 0
        self._cuts = chunk is None
        self.output = bytearray()
        self._clock = FakeClock()
        self._calls: list[RecordedCall] = []
        self._said: dict[int, set[str]] = {}
        self._chunk = chunk or 1 << 20
        self.connection = Connection(
            {
                b"/echo": self._method(lambda stream, payload: stream.send(payload)),
                b"/late": self._method(lambda stream, payload: None),
                b"/refuse": self._refuse,
            },
            LIMITS,
            now_s=self._clock.monotonic_s,
            tally=Tally(),
        )

    def run(self) -> None:
        """Run to the end, then take the connection away: every call must have ended, once."""
        start = self._byte()
        self._feed((b"" if start & 1 else PREFACE) + (b"" if start & 2 else settings({})))
        for _ in range(MOST_STEPS):
            if self._at >= len(self._code):
                break
            _INSTRUCTIONS[self._byte() % len(_INSTRUCTIONS)](self)
            self._check()
        self.connection.lost()
        self._check()
        assert [call.ends for call in self._calls] == [1] * len(self._calls)
        assert not self.connection.streams
        assert not self.connection._blocked

    @property
    def seen(self) -> list[list[bytes | str]]:
        """What happened to each call."""
        return [call.seen for call in self._calls]

    # ── instructions ──

    def request(self) -> None:
        stream_id, choice = self._stream_id(), self._byte()
        flags = END_HEADERS | (END_STREAM if choice & 0x80 else 0)
        self._frame(FrameType.HEADERS, flags, stream_id, BLOCKS[choice % len(BLOCKS)])

    def request_in_pieces(self) -> None:
        """HEADERS and CONTINUATIONs, with an end or without."""
        stream_id, choice, size = self._stream_id(), self._byte(), self._byte() + 1
        whole = BLOCKS[choice % len(BLOCKS)] + literal(b"x-long", bytes(100)) * (choice & 0x3)
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        self._frame(FrameType.HEADERS, 0, stream_id, pieces[0])
        for piece in pieces[1:]:
            self._frame(FrameType.CONTINUATION, 0, stream_id, piece)
        if choice & 0x80:
            self._frame(FrameType.CONTINUATION, END_HEADERS, stream_id, b"")

    def continuation(self) -> None:
        stream_id, choice = self._stream_id(), self._byte()
        self._frame(FrameType.CONTINUATION, END_HEADERS if choice & 0x80 else 0, stream_id, bytes(choice) * 16)

    def priority(self) -> None:
        stream_id, parent, size = self._stream_id(), self._stream_id(), self._byte() % 8
        self._frame(FrameType.PRIORITY, 0, stream_id, parent.to_bytes(4, "big") + bytes(size % 4))

    def ping_answer(self) -> None:
        self._frame(FrameType.PING, 1, 0, SHUTDOWN_PING)

    def messages(self) -> None:
        stream_id, choice = self._stream_id(), self._byte()
        payload = message(self._bytes(choice & 0x3F)) * (50 if choice & 0x40 else 1)
        self._feed(body(stream_id, payload, end=bool(choice & 0x80)))

    def long_data(self) -> None:
        stream_id, size = self._stream_id(), self._byte() * 64
        self._feed(body(stream_id, message(bytes(size))))

    def any_frame(self) -> None:
        kind, flags, stream_id = self._byte() % 12, self._byte(), self._stream_id()
        self._frame(kind, flags, stream_id, self._bytes(self._byte()))

    def setting(self) -> None:
        key, shift = self._byte() % 8, self._byte() % 32
        value = (self._byte() << shift) & 0xFFFFFFFF
        self._frame(FrameType.SETTINGS, 0, 0, key.to_bytes(2, "big") + value.to_bytes(4, "big"))

    def window(self) -> None:
        stream_id, shift = self._stream_id(), self._byte() % 32
        self._frame(FrameType.WINDOW_UPDATE, 0, stream_id, ((self._byte() << shift) & 0xFFFFFFFF).to_bytes(4, "big"))

    def reset(self) -> None:
        self._feed(reset(self._stream_id(), ErrorCode.CANCEL))

    def raw(self) -> None:
        self._feed(self._bytes(self._byte()))

    def chunks(self) -> None:
        size = self._byte() + 1
        if self._cuts:
            self._chunk = size

    def time(self) -> None:
        self._clock.advance(self._byte() / 100)
        self.connection.expire(self._clock.monotonic_s())

    def pause(self) -> None:
        self.connection.write_paused = True

    def resume(self) -> None:
        self.connection.resume_writing()

    def shutdown(self) -> None:
        choice = self._byte() % 4
        (self.connection.announce_shutdown, self.connection.finish_shutdown, self.connection.ping, self._close)[choice]()

    def late_answer(self) -> None:
        choice = self._byte()
        if self._calls:
            stream = self._calls[choice % len(self._calls)].stream
            waits = stream.pending_bytes > LIMITS.pending_high_bytes  # a call looks at that before it sends
            if not waits:
                stream.send(bytes(ANSWER_BYTES if choice & 0x80 else choice))

    def late_end(self) -> None:
        choice = self._byte()
        if self._calls:
            self._calls[choice % len(self._calls)].stream.finish(Status.OK if choice & 0x80 else Status.INTERNAL, "x")

    # ── what must hold ──

    def _check(self) -> None:
        connection = self.connection
        output = b"".join(connection.take_output())
        self.output += output
        for found in cut(output):
            self._check_order(found)
        for stream in connection.streams.values():
            assert stream.pending_bytes == sum(map(len, stream.pending))
            assert stream.pending_bytes <= MOST_PENDING_BYTES
            assert len(stream._buffer) <= LIMITS.max_message_bytes + 16_384
            assert stream.receive_window >= 0
        assert connection._send_window >= 0
        assert len(connection.streams) <= LIMITS.max_concurrent_streams
        assert len(connection._rest) <= 16_384 + 9
        assert len(connection._block or b"") <= 16_384
        assert len(connection._decoder._known) <= REMEMBERED_BLOCKS
        assert len(connection._closed_by_us) <= CLOSED_REMEMBERED
        assert set(connection._blocked) <= set(connection.streams)
        if connection.ended:
            assert not connection.streams

    def _check_order(self, found: Frame) -> None:
        """RFC 9113, section 5.1: what may be said on a stream after what."""
        assert found.kind in (0, 1, 3, 4, 6, 7, 8), f"a server says no {found}"
        assert len(found.payload) <= max(16_384, self.connection._peer_max_frame)
        said = self._said.setdefault(found.stream_id, set())
        if found.stream_id == 0:
            assert "goaway for a fault" not in said, f"{found} behind the end of the connection"
            if found.kind == FrameType.GOAWAY and self.connection.ended:
                said.add("goaway for a fault")
            return
        assert found.kind in (FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE)
        assert "reset" not in said, f"{found} behind RST_STREAM"
        if found.kind in (FrameType.DATA, FrameType.HEADERS):
            assert "end" not in said, f"{found} behind END_STREAM"
            assert found.kind == FrameType.HEADERS or "headers" in said, "DATA before HEADERS"
            said.add("headers")
        if found.kind == FrameType.RST_STREAM:
            said.add("reset")
        if found.ends_stream:
            said.add("end")

    # ── reading and feeding ──

    def _byte(self) -> int:
        self._at += 1
        return self._code[self._at - 1] if self._at <= len(self._code) else 0

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._code[self._at - size : self._at]

    def _stream_id(self) -> int:
        """Mostly small odd numbers, so that instructions meet on the same streams."""
        choice = self._byte()
        return choice >> 1 if choice >= 0xC0 else (choice & 0x1F) * 2 + 1 if choice >= 8 else 0

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self._feed(len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload)

    def _feed(self, received: bytes) -> None:
        for at in range(0, len(received), self._chunk):
            self.connection.receive(received[at : at + self._chunk])

    def _close(self) -> None:
        self.connection.close(ErrorCode.NO_ERROR)

    def _method(self, on_message: Callable[[Stream, bytes], None]) -> Callable[[Stream, Mapping[bytes, bytes]], RecordedCall]:
        def make(stream: Stream, metadata: Mapping[bytes, bytes]) -> RecordedCall:
            self._calls.append(RecordedCall(stream, metadata, on_message, lambda stream: stream.finish()))
            return self._calls[-1]

        return make

    def _refuse(self, stream: Stream, metadata: Mapping[bytes, bytes]) -> RecordedCall:
        stream.finish(Status.UNAVAILABLE, "refused")
        return self._method(lambda stream, payload: None)(stream, metadata)


_INSTRUCTIONS: tuple[Callable[[Program], None], ...] = (
    Program.request,
    Program.messages,
    Program.long_data,
    Program.any_frame,
    Program.setting,
    Program.window,
    Program.reset,
    Program.raw,
    Program.chunks,
    Program.time,
    Program.pause,
    Program.resume,
    Program.shutdown,
    Program.late_answer,
    Program.late_end,
    Program.request,
    Program.request_in_pieces,
    Program.continuation,
    Program.priority,
    Program.ping_answer,
)
