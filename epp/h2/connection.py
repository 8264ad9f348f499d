"""One HTTP/2 connection that carries gRPC, as a protocol without I/O.

`receive` takes bytes and calls the methods' calls; `take_output` gives the bytes to write. No task, no await and no
exception per message: whoever drives it writes once for all that one read of the socket brought.
"""

from collections.abc import Callable, Mapping

from epp.h2.frames import (
    ACK,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_MAX_FRAME_BYTES,
    MAX_WINDOW_BYTES,
    MIN_MAX_FRAME_BYTES,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
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
    settings,
    window_update,
)
from epp.h2.grpc import check_grpc, deadline_in_s
from epp.h2.header_blocks import (
    RESPONSE_HEADERS,
    HeaderDecoder,
    check_field,
    check_request,
    plain_response,
    trailers,
)
from epp.h2.limits import Allowance, Limits, Tally
from epp.h2.stream import CompressedMessageError, MessageTooLongError, Method, Status, Stream

CLOSED_REMEMBERED = 1_024
"""Streams that we ended and on which frames may still be on their way: those are ignored, not faults."""
SHUTDOWN_PING = b"shutdown"
_HEADERS_KIND = FrameType.HEADERS
_FINAL_FLAGS = END_STREAM | END_HEADERS


class Connection:
    """The server's side of one connection.

    Args:
        methods: By path, such as `/grpc.health.v1.Health/Check`.
        now_s: Monotonic clock.
        tally: Counts the limits that were hit.
        wake: Called when there is output that no call of the driver brought about (a call answers later).

    Attributes:
        streams: Open ones, by id.
        ended: Nothing more is read or will be sent after the output that is there.
        write_paused: The peer does not read: data waits in the streams. Set by the driver.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        *,
        now_s: Callable[[], float],
        tally: Tally,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.limits = limits
        self.streams: dict[int, Stream] = {}
        self.ended = False
        self.write_paused = False
        self._methods = methods
        self._now_s = now_s
        self._tally = tally
        self._wake = wake
        self._driven = False
        self._decoder = HeaderDecoder(max_header_list_bytes=limits.max_header_list_bytes)
        self._allowance = Allowance(limits.control_burst, limits.control_per_second, now_s())
        self._rest = b""
        self._greeted = False
        self._settled = False
        self._last_id = 0
        self._refuse_above: int | None = None
        self._closed_by_us: dict[int, None] = {}
        self._block: bytearray | None = None
        self._block_id = 0
        self._block_flags = 0
        self._send_window = DEFAULT_WINDOW_BYTES
        self._receive_window = limits.connection_window_bytes
        self._consumed = 0
        self._peer_stream_window = DEFAULT_WINDOW_BYTES
        self._peer_max_frame = MIN_MAX_FRAME_BYTES
        self._blocked: dict[int, Stream] = {}
        self._out: list[bytes | memoryview] = [
            settings(
                {
                    SettingId.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                    SettingId.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    SettingId.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
                }
            ),
            window_update(0, limits.connection_window_bytes - DEFAULT_WINDOW_BYTES),
        ]
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
        """Take bytes from the peer, cut anywhere. Never raises; a fault ends the connection with GOAWAY."""
        if self.ended:
            return
        self._driven = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            at = 0 if self._greeted else self._greet(data)
            self._rest = data[self._frames(data, at) :]
        except ConnectionFaultError as fault:
            self._tally.hits[fault.code.name.lower()] += 1
            self.close(fault.code, str(fault))
        self._driven = False

    def take_output(self) -> list[bytes | memoryview]:
        """What must be written now, in order."""
        out, self._out = self._out, []
        return out

    def close(self, code: ErrorCode, why: str = "") -> None:
        """Say GOAWAY and end: every call is cancelled."""
        if not self.ended:
            self._out.append(goaway(self._last_id, code, why))
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

    def ping(self) -> None:
        """Ask whether the peer is still there; any bytes of it are an answer."""
        self._out.append(frame(FrameType.PING, 0, 0, b"keepaliv"))

    def expire(self, now_s: float) -> None:
        """End the calls whose deadline (`grpc-timeout`) is over."""
        for stream in [s for s in self.streams.values() if s.deadline_s is not None and s.deadline_s <= now_s]:
            self.finish(stream, Status.DEADLINE_EXCEEDED, "deadline exceeded")
            self._reset(stream, ErrorCode.CANCEL)

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.write_paused = False
        self._pump_blocked()

    # ── the calls' side ──

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send one gRPC message on `stream`, now or as the peer's windows allow."""
        if stream.finished or self.ended:
            return
        if not stream.headers_sent:
            self._send_response_headers(stream)
        size = len(message) + 5
        prefix = b"\0" + len(message).to_bytes(4, "big")
        if (
            not stream.pending
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._peer_max_frame
            and not self.write_paused
        ):
            stream.send_window -= size
            self._send_window -= size
            self._out.append(FRAME_HEADER.pack(size << 8, 0, stream.id) + prefix + message)
        else:
            stream.pending.append(memoryview(prefix + message))
            stream.pending_bytes += size
            self._pump(stream)
        if not self._driven:
            self._wake()

    def finish(self, stream: Stream, status: Status, text: str) -> None:
        """Give the status of a call, behind everything that was sent before."""
        if stream.finished or self.ended:
            return
        stream.finished = True
        block = trailers(status, text)
        stream.trailers = block if stream.headers_sent else RESPONSE_HEADERS + block
        if not stream.pending:
            self._send_trailers(stream)
        if not self._driven:
            self._wake()

    # ── frames ──

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

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._consumed += size
        if self._consumed >= self.limits.connection_window_bytes >> 1:
            self._out.append(window_update(0, self._consumed))
            self._receive_window += self._consumed
            self._consumed = 0
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._data_on_closed(stream_id, stream)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFaultError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window")
        stream.consumed += size
        if flags & PADDED:
            start, stop = _without_padding(data, start, stop)
        if stop == start and not flags & END_STREAM:
            self._spend("empty frames")
        if stream.content_bytes_left is not None:
            self._count_content(stream, stop - start, bool(flags & END_STREAM))
        if flags & END_STREAM:
            stream.remote_closed = True
        if not stream.finished and stop > start:
            self._deliver(stream, data, start, stop)
        if flags & END_STREAM:
            self._half_closed(stream)
        elif stream.consumed >= self.limits.stream_window_bytes >> 1:
            self._give_stream_window(stream)

    def _deliver(self, stream: Stream, data: bytes, start: int, stop: int) -> None:
        call = stream.call
        assert call is not None, "a stream without a call is finished"
        try:
            messages = stream.take(data, start, stop)
        except MessageTooLongError as error:
            self._tally.hits["message_too_long"] += 1
            limit = self.limits.max_message_bytes
            self.finish(stream, Status.RESOURCE_EXHAUSTED, f"a message of {error.args[0]} bytes; the limit is {limit}")
            return
        except CompressedMessageError:
            self.finish(stream, Status.UNIMPLEMENTED, "compressed messages are not supported")
            return
        for message in messages:
            call.message(message)

    def _half_closed(self, stream: Stream) -> None:
        call = stream.call
        if call is not None and not stream.finished:
            if stream.has_half_a_message:
                self.finish(stream, Status.INTERNAL, "the stream ended in the middle of a message")
            else:
                call.half_closed()
        self._end_if_over(stream)

    def _data_on_closed(self, stream_id: int, stream: Stream | None) -> None:
        if stream_id == 0 or (stream is None and self._is_idle(stream_id)):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        if stream is not None:
            raise StreamFaultError(stream_id, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        if stream_id not in self._closed_by_us:
            raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, f"DATA on stream {stream_id}, which is closed")

    def _on_headers(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & PADDED:
            start, stop = _without_padding(data, start, stop)
        if flags & PRIORITY_FLAG:
            if stop - start < 5:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            if int.from_bytes(data[start : start + 4], "big") & STREAM_MASK == stream_id:
                raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
            start += 5
        if flags & END_HEADERS:
            self._header_block(flags, stream_id, data[start:stop])
        else:
            self._block = bytearray(data[start:stop])
            self._block_id, self._block_flags = stream_id, flags

    def _on_continuation(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if self._block is None:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._spend("continuations")
        self._block += data[start:stop]
        if len(self._block) > self.limits.max_header_block_bytes:
            raise ConnectionFaultError(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header block of more than {self.limits.max_header_block_bytes} bytes"
            )
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._header_block(self._block_flags, stream_id, block)

    def _header_block(self, flags: int, stream_id: int, block: bytes) -> None:
        headers = self._decoder.decode(block)  # always, since it may change the table
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._request_trailers(stream, flags, headers)
            return
        if stream_id <= self._last_id:
            if stream_id in self._closed_by_us:
                return
            raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        self._last_id = stream_id
        if self._refuse_above is not None and stream_id > self._refuse_above:
            self._closed(stream_id)
            self._out.append(reset(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if len(self.streams) >= self.limits.max_concurrent_streams:
            self._tally.hits["streams"] += 1
            raise StreamFaultError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        self._open(stream_id, check_request(stream_id, headers), end_stream=bool(flags & END_STREAM))

    def _open(self, stream_id: int, request: dict[bytes, bytes], *, end_stream: bool) -> None:
        stream = Stream(self, stream_id, self._peer_stream_window, self.limits.stream_window_bytes)
        length = request.get(b"content-length")
        if length is not None:
            stream.content_bytes_left = int(length) if length.isdigit() and len(length) < 19 else -1
            if end_stream and stream.content_bytes_left:
                raise StreamFaultError(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length does not fit the body")
        self.streams[stream_id] = stream
        stream.remote_closed = end_stream
        method = self._methods.get(request[b":path"])
        refusal = check_grpc(request)
        if refusal is not None:
            self._answer_plainly(stream, *refusal)
        elif method is None:
            self.finish(stream, Status.UNIMPLEMENTED, f"unknown method {request[b':path'][:200].decode('utf-8', 'replace')}")
        else:
            timeout = request.get(b"grpc-timeout")
            if timeout is not None:
                stream.deadline_s = deadline_in_s(timeout, self._now_s())
            stream.call = method(stream, request)
        if end_stream:
            self._half_closed(stream)
        else:
            self._end_if_over(stream)

    def _request_trailers(self, stream: Stream, flags: int, headers: object) -> None:
        if stream.remote_closed:
            raise StreamFaultError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not flags & END_STREAM:
            raise StreamFaultError(stream.id, ErrorCode.PROTOCOL_ERROR, "second HEADERS without END_STREAM")
        for name, value in headers:  # type: ignore[attr-defined]
            check_field(stream.id, name, value)
        stream.remote_closed = True
        self._half_closed(stream)

    def _on_reset(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stop - start != 4:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM: expected 4 bytes")
        if stream_id == 0 or self._is_idle(stream_id):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}, which is idle")
        stream = self.streams.get(stream_id)
        if stream is None:
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
            self._pump_blocked()
            return
        if self._is_idle(stream_id):
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on stream {stream_id}, which is idle")
        stream = self.streams.get(stream_id)
        if increment == 0:
            raise StreamFaultError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if stream is None:
            return
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW_BYTES:
            raise StreamFaultError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large")
        self._pump(stream)

    def _on_settings(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if stream_id != 0:
            raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if stop != start:
                raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            return
        if (stop - start) % 6:
            raise ConnectionFaultError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS: expected a multiple of 6 bytes")
        if self._settled:
            self._spend("settings")
        self._settled = True
        for at in range(start, stop, 6):
            self._set(int.from_bytes(data[at : at + 2], "big"), int.from_bytes(data[at + 2 : at + 6], "big"))
        self._out.append(SETTINGS_ACK)
        self._pump_blocked()

    def _set(self, key: int, value: int) -> None:
        if key == SettingId.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW_BYTES:
                raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
            change, self._peer_stream_window = value - self._peer_stream_window, value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW_BYTES:
                    raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is too large")
        elif key == SettingId.MAX_FRAME_SIZE:
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
            raise StreamFaultError(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY: expected 5 bytes")
        if int.from_bytes(data[start : start + 4], "big") & STREAM_MASK == stream_id:
            raise StreamFaultError(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        self._spend("priorities")

    def _on_push_promise(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    # ── sending ──

    def _send_response_headers(self, stream: Stream) -> None:
        stream.headers_sent = True
        self._out.append(
            FRAME_HEADER.pack(len(RESPONSE_HEADERS) << 8 | _HEADERS_KIND, END_HEADERS, stream.id) + RESPONSE_HEADERS
        )

    def _send_trailers(self, stream: Stream) -> None:
        assert stream.trailers is not None, "trailers are set when the call finishes"
        self._out.append(frame(FrameType.HEADERS, _FINAL_FLAGS, stream.id, stream.trailers))
        stream.trailers = None
        stream.headers_sent = True
        self._end_if_over(stream)

    def _answer_plainly(self, stream: Stream, status: int, text: bytes) -> None:
        """Answer somebody who does not speak gRPC, so that they see why."""
        stream.finished = stream.headers_sent = True
        self._out.append(frame(FrameType.HEADERS, END_HEADERS, stream.id, plain_response(status, text)))
        stream.pending.append(memoryview(text))
        stream.pending_bytes += len(text)
        self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Send what waits on `stream`, as far as the windows allow."""
        pending = stream.pending
        while pending and not self.write_paused:
            allowed = min(stream.send_window, self._send_window, self._peer_max_frame)
            if allowed <= 0:
                break
            piece = pending[0]
            size = len(piece)
            if size > allowed:
                pending[0] = piece[allowed:]
                piece, size = piece[:allowed], allowed
            else:
                pending.popleft()
            stream.send_window -= size
            self._send_window -= size
            stream.pending_bytes -= size
            plain_end = not pending and stream.finished and stream.trailers is None
            self._out.append(FRAME_HEADER.pack(size << 8, END_STREAM if plain_end else 0, stream.id))
            self._out.append(piece)
        if pending:
            self._blocked[stream.id] = stream
            return
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None:
            self._send_trailers(stream)
        elif stream.finished:
            self._end_if_over(stream)
        elif stream.call is not None:
            stream.call.drained()
        if stream.consumed >= self.limits.stream_window_bytes >> 1 and not stream.remote_closed:
            self._give_stream_window(stream)

    def _pump_blocked(self) -> None:
        """Let streams that wait send, each in its turn; the one that waited longest comes first."""
        for stream in list(self._blocked.values()):
            if self._send_window <= 0 or self.write_paused:
                return
            self._blocked.pop(stream.id, None)
            self._pump(stream)

    def _give_stream_window(self, stream: Stream) -> None:
        """Let the peer send more, unless it does not take what we have for it."""
        if stream.pending_bytes <= self.limits.pending_high_bytes and not self.ended and stream.id in self.streams:
            self._out.append(window_update(stream.id, stream.consumed))
            stream.receive_window += stream.consumed
            stream.consumed = 0

    # ── ends ──

    def _end_if_over(self, stream: Stream) -> None:
        if stream.finished and not stream.pending and stream.trailers is None and stream.remote_closed:
            self._end(stream, cancelled=False)
        elif stream.finished and not stream.pending and stream.trailers is None and stream.call is not None:
            # The call is over for us; the peer has yet to close its side. No RST_STREAM: older Envoys would throw away
            # the answer that they have not read yet.
            call, stream.call = stream.call, None
            call.closed(cancelled=False)

    def _end(self, stream: Stream, *, cancelled: bool) -> None:
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._receive_nothing_more(stream)
        call, stream.call = stream.call, None
        stream.finished = True
        if call is not None:
            call.closed(cancelled=cancelled)

    @staticmethod
    def _receive_nothing_more(stream: Stream) -> None:
        stream.pending.clear()
        stream.pending_bytes = 0
        stream.trailers = None

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        if self.streams.get(stream.id) is stream:
            self._out.append(reset(stream.id, code))
            self._closed(stream.id)
            self._end(stream, cancelled=True)

    def _fault_of_stream(self, fault: StreamFaultError) -> None:
        if fault.code is not ErrorCode.REFUSED_STREAM:
            self._tally.hits[fault.code.name.lower()] += 1
        self._spend("stream faults")
        self._out.append(reset(fault.stream_id, fault.code))
        self._closed(fault.stream_id)
        stream = self.streams.get(fault.stream_id)
        if stream is not None:
            self._end(stream, cancelled=True)

    def _closed(self, stream_id: int) -> None:
        self._closed_by_us[stream_id] = None
        while len(self._closed_by_us) > CLOSED_REMEMBERED:
            del self._closed_by_us[next(iter(self._closed_by_us))]

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or stream_id % 2 == 0

    def _count_content(self, stream: Stream, size: int, end: bool) -> None:
        assert stream.content_bytes_left is not None, "called for streams with a content-length"
        stream.content_bytes_left -= size
        if stream.content_bytes_left < 0 or (end and stream.content_bytes_left):
            raise StreamFaultError(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length does not fit the body")

    def _spend(self, what: str) -> None:
        if not self._allowance.take(self._now_s()):
            self._tally.hits[what.replace(" ", "_")] += 1
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")


def _without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    if stop == start or data[start] >= stop - start:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return start + 1, stop - data[start]
