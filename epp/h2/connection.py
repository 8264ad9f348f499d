"""One HTTP/2 connection that carries gRPC, as a protocol without I/O.

`receive` takes bytes and calls the methods' calls; `take_output` gives the bytes to write. No task, no await and no
exception per message: whoever drives it writes once for all that one read of the socket brought.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn

from epp.h2.frames import (
    ACK,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PREFACE,
    SETTINGS_ACK,
    STREAM_MASK,
    ConnectionFaultError,
    ErrorCode,
    FrameType,
    SettingId,
    StreamFaultError,
    frame,
    goaway,
    reset,
)
from epp.h2.limits import Account, Limits, Tally, Unlimited
from epp.h2.receiving import ReceivingHalf
from epp.h2.stream import Method, Status

SHUTDOWN_PING = b"shutdown"
STREAMS_PER_TOKEN = 256
"""A change of all streams' windows is as much work as another control frame for each so many streams."""


class Connection(ReceivingHalf):
    """The server's side of one connection: cuts frames, and handles those that are about the connection.

    Args:
        methods: By path, such as `/grpc.health.v1.Health/Check`.
        now_s: Monotonic clock.
        tally: Counts the limits that were hit.
        wake: Called when there is output that no call of the driver brought about (a call answers later).
        account: Counts what is held of messages that are not whole, with others; None to count nothing.
    """

    __slots__ = ("_greeted", "_handlers", "_rest", "_settled")

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

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer, cut anywhere. Nothing in them raises; a fault ends the connection with GOAWAY."""
        if self.ended:
            return
        self._driven = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            at = 0 if self._greeted else self._greet(data)
            self._rest = data[self._frames(data, at) :]
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

    def announce_shutdown(self) -> None:
        """First step of a graceful end: tell the peer to open no more streams here; those on their way are served."""
        if self._refuse_above is None and not self.ended:
            self._out.append(goaway(MAX_WINDOW_BYTES, ErrorCode.NO_ERROR, "shutting down"))
            self._out.append(frame(FrameType.PING, 0, 0, SHUTDOWN_PING))
            self._refuse_above = MAX_WINDOW_BYTES

    def finish_shutdown(self) -> None:
        """Second step, when the peer has read the first one (or time is up): later streams are refused."""
        if self._refuse_above == MAX_WINDOW_BYTES and not self.ended:
            self._refuse_above = self._last_id
            self._out.append(goaway(self._last_id, ErrorCode.NO_ERROR, "shutting down"))

    @property
    def shutdown_heard(self) -> bool:
        """Whether the peer knows that it must open no more streams here, or is not there any more."""
        return self.ended or not self._greeted or self._refuse_above not in (None, MAX_WINDOW_BYTES)

    def ping(self) -> None:
        """Ask whether the peer is still there; any bytes of it are an answer."""
        if not self.ended:
            self._out.append(frame(FrameType.PING, 0, 0, b"keepaliv"))

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
            if self._block is not None and (kind != FrameType.CONTINUATION or stream_id != self._block_id):
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

    # ── frames about the connection, and those that end or open streams' windows ──

    def _on_reset(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stop - start != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM: expected 4 bytes")
        if stream_id == 0 or self._is_idle(stream_id):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is idle")
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._late_resets:  # it crossed our end of the stream, as gateways do that cancel after the answer
                self._late_resets -= 1
            else:
                self._spend("resets")
            return
        if not stream.headers_sent:
            self._spend("resets")  # opened and thrown away before we could answer: the rapid-reset attack
        self._end(stream, cancelled=True)

    def _on_window_update(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stop - start != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE: expected 4 bytes")
        increment = int.from_bytes(data[start:stop], "big") & STREAM_MASK
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._send_window += increment
            if self._send_window > MAX_WINDOW_BYTES:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._unblock_all()
            return
        if self._is_idle(stream_id):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}, which is idle")
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if increment == 0:
            raise StreamFaultError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW_BYTES:
            raise StreamFaultError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large")
        if stream.pending:
            self._unblock(stream)

    def _on_settings(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id != 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if stop != start:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            self._spend("settings")
            return
        if (stop - start) % 6:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS: expected a multiple of 6 bytes")
        if self._settled:
            self._spend("settings")
        self._settled = True
        stream_window = self._peer_stream_window
        for at in range(start, stop, 6):
            key, value = int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 6], "big")
            if key == SettingId.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
                stream_window = value
            else:
                self._set(key, value)
        self._out.append(SETTINGS_ACK)
        if stream_window != self._peer_stream_window:
            self._change_stream_windows(stream_window)

    def _change_stream_windows(self, stream_window: int) -> None:
        """RFC 9113, section 6.9.2: the windows of open streams change by as much, and may become negative."""
        self._spend("settings", len(self.streams) // STREAMS_PER_TOKEN)
        change, self._peer_stream_window = stream_window - self._peer_stream_window, stream_window
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW_BYTES:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
        if change > 0:
            for stream in [stream for stream in self.streams.values() if stream.pending]:
                self._unblock(stream)

    def _set(self, key: int, value: int) -> None:
        if key == SettingId.MAX_FRAME_SIZE:
            if not MIN_MAX_FRAME_BYTES <= value <= MAX_MAX_FRAME_BYTES:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
            self._peer_max_frame = value
        elif key == SettingId.ENABLE_PUSH and value > 1:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH: expected 0 or 1")

    def _on_ping(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id != 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if stop - start != 8:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "PING: expected 8 bytes")
        payload = data[start:stop]
        if flags & ACK:
            self._spend("pings")
            if payload == SHUTDOWN_PING:
                self.finish_shutdown()
            return
        self._spend("pings")
        self._out.append(frame(FrameType.PING, ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id != 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if stop - start < 8:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY: expected at least 8 bytes")
        self._spend("goaways")  # the peer opens no more streams; those that run are served

    def _on_priority(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id == 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if stop - start != 5:
            self._priority_fault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY: expected 5 bytes")
        if int.from_bytes(data[start : start + 4], "big") & STREAM_MASK == stream_id:
            self._priority_fault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        self._spend("priorities")

    def _priority_fault(self, stream_id: int, code: ErrorCode, why: str) -> NoReturn:
        if stream_id in self.streams:
            raise StreamFaultError(stream_id, code, why)
        raise ConnectionFaultError(code, why)  # there is no stream that could be reset

    def _on_push_promise(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
