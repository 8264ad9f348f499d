"""One HTTP/2 connection that carries gRPC, as a protocol without I/O.

`receive` takes bytes and calls the methods' calls; `take_output` gives the bytes to write. No task, no await and no
exception per message: whoever drives it writes once for all that one read of the socket brought.
"""

from collections.abc import Callable, Mapping

from epp.h2.control import ControlledHalf
from epp.h2.frames import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PREFACE,
    STREAM_MASK,
    ConnectionFaultError,
    ErrorCode,
    FrameType,
    StreamFaultError,
    goaway,
    reset,
)
from epp.h2.limits import Account, Limits, Tally, Unlimited
from epp.h2.stream import Method, Status


class Connection(ControlledHalf):
    """The server's side of one connection: cuts frames, and hands each to the half that it is about.

    Args:
        methods: By path, such as `/grpc.health.v1.Health/Check`.
        now_s: Monotonic clock.
        tally: Counts the limits that were hit.
        wake: Called when there is output that no call of the driver brought about (a call answers later).
        account: Counts what is held of messages that are not whole, with others; None to count nothing.

    Attributes:
        reads_with_whole_frames: How often what came completed a frame; only its change matters.
    """

    __slots__ = ("_greeted", "_handlers", "_rest", "reads_with_whole_frames")

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        *,
        now_s: Callable[[], float],
        tally: Tally,
        wake: Callable[[], None] = lambda: None,
        account: Account | None = None,
    ) -> None:
        super().__init__(methods, limits, now_s=now_s, tally=tally, wake=wake, account=account or Unlimited())
        self.reads_with_whole_frames = 0
        self._rest = b""
        self._greeted = False
        self._settled = False
        self._handlers: dict[int, Callable[[int, int, bytes, int, int], None]] = {
            FrameType.DATA: self._on_data,
            FrameType.HEADERS: self._on_headers,
            FrameType.PRIORITY: self._on_priority,
            FrameType.RST_STREAM: self._on_reset,
            FrameType.SETTINGS: self._on_settings,
            FrameType.PUSH_PROMISE: self._on_push_promise,
            FrameType.PING: self._on_ping,
            FrameType.GOAWAY: self._on_goaway,
            FrameType.WINDOW_UPDATE: self._on_window_update,
            FrameType.CONTINUATION: self._on_continuation,
        }

    # ── the driver's side ──

    @property
    def greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._greeted

    @property
    def has_half_a_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest)

    @property
    def shutdown_heard(self) -> bool:
        """Whether the peer knows that it must open no more streams here, or is not there any more."""
        return self.ended or not self._greeted or self._refuse_above not in (None, MAX_WINDOW_BYTES)

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer, cut anywhere. Nothing in them raises; a fault ends the connection with GOAWAY."""
        if self.ended:
            return
        self._driven = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            at = self._frames(data, 0 if self._greeted else self._greet(data))
            self._rest = data[at:]
            self.reads_with_whole_frames += at > 0
        except ConnectionFaultError as fault:
            if fault.code is not ErrorCode.ENHANCE_YOUR_CALM:  # counted by what there was too much of
                self._tally.hits[fault.code.name.lower()] += 1
            self.close(fault.code, str(fault))
        finally:
            self._driven = False

    def close(self, code: ErrorCode, why: str = "") -> None:
        """Say GOAWAY and end: every call is cancelled."""
        if not self.ended:
            # Never a later stream than an earlier GOAWAY said (RFC 9113, section 6.8).
            last_id = self._last_id if self._refuse_above is None else min(self._last_id, self._refuse_above)
            self._out.append(goaway(last_id, code, why))
            self.lost()

    def lost(self) -> None:
        """The connection is gone: every call is cancelled."""
        self.ended = True
        self._rest = b""
        for stream in list(self.streams.values()):
            self._end(stream, cancelled=True)

    def expire(self, now_s: float) -> None:
        """End the calls whose deadline (`grpc-timeout`) is over."""
        for stream in [s for s in self.streams.values() if s.deadline_s is not None and s.deadline_s <= now_s]:
            call, stream.call = stream.call, None
            answered = stream.finished
            if not answered:
                stream.drop()  # the status does not wait for what the peer did not take in time
                self.finish(stream, Status.DEADLINE_EXCEEDED, "deadline exceeded")
            self._reset(stream, ErrorCode.CANCEL if answered else ErrorCode.NO_ERROR)
            if call is not None:
                call.closed(cancelled=True)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.write_paused = False
        self._unblock_all()

    # ── cutting frames ──

    def _greet(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "expected the HTTP/2 connection preface")
            return 0
        self._greeted = True
        return len(PREFACE)

    def _frames(self, data: bytes, at: int) -> int:
        """Handle whole frames from `at` on; returns where the first one begins that is not whole."""
        end = len(data)
        unpack = FRAME_HEADER.unpack_from
        handlers = self._handlers
        while self._greeted and not self.ended and end - at >= FRAME_HEADER_BYTES:
            head, flags, stream_id = unpack(data, at)
            kind, size = head & 0xFF, head >> 8
            start = at + FRAME_HEADER_BYTES
            if kind == 0 and flags == 0 and start + size <= end and self._take_plain_data(stream_id, data, start, size):
                at = start + size
                continue
            if size > MIN_MAX_FRAME_BYTES:
                raise ConnectionFaultError(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes; at most {MIN_MAX_FRAME_BYTES}"
                )
            if not self._settled and kind != FrameType.SETTINGS:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "expected SETTINGS as the first frame")
            if self._block is not None and (kind != FrameType.CONTINUATION or stream_id & STREAM_MASK != self._block_id):
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "expected CONTINUATION")
            if start + size > end:
                break
            at = start + size
            handler = handlers.get(kind)
            if handler is None:
                self._spend("unknown frames")
                continue
            try:
                handler(flags, stream_id & STREAM_MASK, data, start, at)
            except StreamFaultError as fault:
                self._fault_of_stream(fault)
        return at

    def _fault_of_stream(self, fault: StreamFaultError) -> None:
        if fault.code is not ErrorCode.REFUSED_STREAM:
            self._tally.hits[fault.code.name.lower()] += 1
        self._spend("stream faults")
        self._out.append(reset(fault.stream_id, fault.code))
        self._closed(fault.stream_id)
        stream = self.streams.get(fault.stream_id)
        if stream is not None:
            self._end(stream, cancelled=True)
