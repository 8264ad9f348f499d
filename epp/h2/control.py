"""Frames that carry no call: SETTINGS, PING, GOAWAY, PRIORITY, and those that end a stream or open its window."""

from typing import NoReturn

from epp.h2.frames import (
    ACK,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    SETTINGS_ACK,
    STREAM_MASK,
    ConnectionFaultError,
    ErrorCode,
    FrameType,
    SettingId,
    StreamFaultError,
    frame,
    goaway,
)
from epp.h2.receiving import ReceivingHalf

SHUTDOWN_PING = b"shutdown"
STREAMS_PER_TOKEN = 256
"""A change of all streams' windows is as much work as another control frame for each so many streams."""


class ControlledHalf(ReceivingHalf):
    """What the peer and the driver say about the connection itself.

    The handlers of frames take what the header says, and where the payload lies in what was received.
    """

    __slots__ = ("_settled",)

    _settled: bool
    """The peer's first SETTINGS have come."""

    # ── the driver's side ──

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

    def ping(self) -> None:
        """Ask whether the peer is still there; any bytes of it are an answer."""
        if not self.ended:
            self._out.append(frame(FrameType.PING, 0, 0, b"keepaliv"))

    # ── frames ──

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
