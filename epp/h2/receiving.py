"""What a connection receives on its streams: requests, messages, trailers."""

from collections.abc import Callable, Mapping

from epp.h2.frames import (
    END_HEADERS,
    END_STREAM,
    MIN_MAX_FRAME_BYTES,
    PADDED,
    PRIORITY_FLAG,
    STREAM_MASK,
    ConnectionFaultError,
    ErrorCode,
    StreamFaultError,
    reset,
    window_update,
)
from epp.h2.grpc import check_grpc, deadline_in_s
from epp.h2.header_blocks import HeaderDecoder, Headers, check_field, check_request
from epp.h2.limits import Account, Allowance, Limits, Tally
from epp.h2.sending import SendingHalf
from epp.h2.stream import MESSAGE_PREFIX_BYTES, PREFIX, Metadata, Method, Status, Stream


class ReceivingHalf(SendingHalf):
    """Makes calls of requests and feeds them with messages."""

    __slots__ = (
        "_allowance",
        "_block",
        "_block_flags",
        "_block_id",
        "_consumed",
        "_decoder",
        "_half_connection_window",
        "_half_stream_window",
        "_last_id",
        "_methods",
        "_now_s",
        "_receive_window",
        "_refuse_above",
        "_tally",
    )

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        limits: Limits,
        *,
        now_s: Callable[[], float],
        tally: Tally,
        wake: Callable[[], None],
        account: Account,
    ) -> None:
        super().__init__(limits, wake, account)
        self._half_connection_window = limits.connection_window_bytes >> 1
        self._half_stream_window = limits.stream_window_bytes >> 1
        self._methods = methods
        self._now_s = now_s
        self._tally = tally
        self._decoder = HeaderDecoder(max_header_list_bytes=limits.max_header_list_bytes)
        self._allowance = Allowance(limits.control_burst, limits.control_per_second, now_s())
        self._last_id = 0
        self._refuse_above: int | None = None
        self._block: bytearray | None = None
        self._block_id = 0
        self._block_flags = 0
        self._receive_window = limits.connection_window_bytes
        self._consumed = 0

    # ── DATA ──

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFaultError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        self._consumed += size
        if self._consumed >= self._half_connection_window:
            self._give_connection_window()
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._data_on_closed(stream_id, stream)
            if size == 0:
                self._spend("empty frames")
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
            self._count_content(stream, stop - start, end=bool(flags & END_STREAM))
        if flags & END_STREAM:
            stream.remote_closed = True
        if not stream.finished and stop > start:
            self._deliver(stream, data, start, stop)
        if flags & END_STREAM:
            self._half_closed(stream)
        elif stream.consumed >= self._half_stream_window:
            self._give_stream_window(stream)

    def _take_plain_data(self, stream_id: int, data: bytes, start: int, size: int) -> bool:
        """Handle a DATA frame that is one whole message and nothing else, as most are; False for any other, untouched.

        The same as `_on_data` with what cannot apply left out.
        """
        stream = self.streams.get(stream_id)
        if (
            stream is None
            or not stream.takes_whole_messages
            or not MESSAGE_PREFIX_BYTES <= size <= stream.receive_window
            or size > self._receive_window
            or size > MIN_MAX_FRAME_BYTES
            or self._block is not None
        ):
            return False
        compressed, length = PREFIX.unpack_from(data, start)
        call = stream.call
        if compressed or length != size - MESSAGE_PREFIX_BYTES or call is None or stream.finished:
            return False
        if length > self.limits.max_message_bytes:
            return False
        self._receive_window -= size
        self._consumed += size
        if self._consumed >= self._half_connection_window:
            self._give_connection_window()
        stream.receive_window -= size
        stream.consumed += size
        call.message(data[start + MESSAGE_PREFIX_BYTES : start + size])
        if stream.consumed >= self._half_stream_window and not stream.remote_closed:
            self._give_stream_window(stream)
        return True

    def _give_connection_window(self) -> None:
        self._out.append(window_update(0, self._consumed))
        self._receive_window += self._consumed
        self._consumed = 0

    def _deliver(self, stream: Stream, data: bytes, start: int, stop: int) -> None:
        call = stream.call
        assert call is not None, "a stream without a call is finished"
        for message in stream.take(data, start, stop):
            call.message(message)
            if stream.finished:
                return
        if stream.refusal is not None:
            status, text = stream.refusal
            if status is Status.RESOURCE_EXHAUSTED:
                self._tally.hits["message_too_long"] += 1
            self.finish(stream, status, text)

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
        if not self._may_be_late(stream_id):
            raise ConnectionFaultError(ErrorCode.STREAM_CLOSED, f"DATA on stream {stream_id}, which is closed")

    def _count_content(self, stream: Stream, size: int, *, end: bool) -> None:
        assert stream.content_bytes_left is not None, "called for streams with a content-length"
        stream.content_bytes_left -= size
        if stream.content_bytes_left < 0 or (end and stream.content_bytes_left):
            raise StreamFaultError(stream.id, ErrorCode.PROTOCOL_ERROR, "content-length does not fit the body")

    # ── HEADERS ──

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
        received = self._decoder.decode(block)  # always, since it may change the table
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._request_trailers(stream, flags, received.fields)
            return
        if stream_id <= self._last_id:
            if self._may_be_late(stream_id):
                self._spend("late headers")
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
        self._open(stream_id, check_request(stream_id, received), end_stream=bool(flags & END_STREAM))

    def _open(self, stream_id: int, request: Metadata, *, end_stream: bool) -> None:
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

    def _request_trailers(self, stream: Stream, flags: int, headers: Headers) -> None:
        if stream.remote_closed:
            raise StreamFaultError(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not flags & END_STREAM:
            raise StreamFaultError(stream.id, ErrorCode.PROTOCOL_ERROR, "second HEADERS without END_STREAM")
        for name, value in headers:
            check_field(stream.id, name, value)
        if stream.content_bytes_left is not None:
            self._count_content(stream, 0, end=True)
        stream.remote_closed = True
        self._half_closed(stream)

    # ── faults ──

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or stream_id % 2 == 0

    def _spend(self, what: str, tokens: int = 1) -> None:
        if not self._allowance.take(self._now_s(), tokens):
            self._tally.hits[what.replace(" ", "_")] += 1
            raise ConnectionFaultError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")


def _without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    if stop == start or data[start] >= stop - start:
        raise ConnectionFaultError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return start + 1, stop - data[start]
