"""What a connection sends: answers of calls as the peer's windows allow, and how streams end."""

import struct
from collections import OrderedDict
from collections.abc import Callable

from epp.h2.frames import (
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    MIN_MAX_FRAME_BYTES,
    ErrorCode,
    FrameType,
    SettingId,
    frame,
    reset,
    settings,
    window_update,
)
from epp.h2.header_blocks import RESPONSE_HEADERS, plain_response, trailers
from epp.h2.limits import Account, Limits
from epp.h2.stream import MESSAGE_PREFIX_BYTES, PREFIX, Status, Stream

MESSAGE_FRAME = struct.Struct(FRAME_HEADER.format + PREFIX.format.removeprefix(">"))
"""The header of a DATA frame and the prefix of the message that fills it."""

CLOSED_REMEMBERED = 1_024
"""Streams that we ended and on which frames may still be on their way: those are ignored, not faults."""
_HEADERS_KIND = FrameType.HEADERS
_FINAL_FLAGS = END_STREAM | END_HEADERS


class SendingHalf:
    """The streams of a connection and what is sent on them.

    The halves are classes that build on one another rather than objects that hold one another: a message passes through
    both, and each hop would cost as much as the work itself.

    Attributes:
        limits: Bounds of the connection.
        account: Counts what is held of messages that are not whole.
        streams: Open ones, by id.
        ended: Nothing more is read or will be sent after the output that is there.
        write_paused: The peer does not read: data waits in the streams. Set by the driver.
    """

    __slots__ = (
        "_blocked",
        "_closed_by_us",
        "_driven",
        "_forgotten_id",
        "_late_resets",
        "_out",
        "_peer_max_frame",
        "_peer_stream_window",
        "_send_window",
        "_wake",
        "account",
        "ended",
        "limits",
        "streams",
        "write_paused",
    )

    def __init__(self, limits: Limits, wake: Callable[[], None], account: Account) -> None:
        self.limits = limits
        self.account = account
        self.streams: dict[int, Stream] = {}
        self.ended = False
        self.write_paused = False
        self._wake = wake
        self._driven = False
        self._closed_by_us: OrderedDict[int, None] = OrderedDict()
        self._forgotten_id = 0
        self._late_resets = 0
        self._send_window = DEFAULT_WINDOW_BYTES
        self._peer_stream_window = DEFAULT_WINDOW_BYTES
        self._peer_max_frame = MIN_MAX_FRAME_BYTES
        self._blocked: OrderedDict[int, Stream] = OrderedDict()
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

    def take_output(self) -> list[bytes | memoryview]:
        """What must be written now, in order."""
        out, self._out = self._out, []
        return out

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send one gRPC message on `stream`, now or as the peer's windows allow."""
        if stream.finished or self.ended:
            return
        if not stream.headers_sent:
            self._send_response_headers(stream)
        length = len(message)
        size = length + MESSAGE_PREFIX_BYTES
        if (
            not stream.pending
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._peer_max_frame
            and not self.write_paused
        ):
            stream.send_window -= size
            self._send_window -= size
            self._out.append(MESSAGE_FRAME.pack(size << 8, 0, stream.id, 0, length) + message)
        else:
            stream.hold(PREFIX.pack(0, length) + message)
            self._pump(stream)
        if not self._driven:
            self._wake()

    def finish(self, stream: Stream, status: Status, text: str) -> None:
        """Give the status of a call, behind everything that was sent before."""
        if stream.finished or self.ended:
            return
        stream.finished = True
        stream.forget_input()
        block = trailers(status, text)
        stream.trailers = block if stream.headers_sent else RESPONSE_HEADERS + block
        if not stream.pending:
            self._send_trailers(stream)
        if not self._driven:
            self._wake()

    # ── frames out ──

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
        stream.hold(text)
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
        if pending and stream.send_window > 0:
            self._blocked[stream.id] = stream
            return
        # A stream that waits for its own window is not looked at each time the connection's window opens.
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None and not pending:
            self._send_trailers(stream)
        elif stream.finished:
            self._end_if_over(stream)

    def _unblock(self, stream: Stream) -> None:
        """Go on with a stream that waited; its call is told when nothing waits any more."""
        self._pump(stream)
        if not stream.pending and not stream.finished and stream.call is not None:
            stream.call.drained()
        if stream.consumed >= self.limits.stream_window_bytes >> 1 and not stream.remote_closed:
            self._give_stream_window(stream)

    def _unblock_all(self) -> None:
        """Let streams that wait for the connection send, each in its turn; the one that waited longest comes first."""
        blocked = self._blocked
        while blocked and self._send_window > 0 and not self.write_paused:
            self._unblock(blocked.popitem(last=False)[1])

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
        if self.streams.pop(stream.id, None) is not None and not cancelled:
            self._late_resets += 1
        self._blocked.pop(stream.id, None)
        stream.drop()
        call, stream.call = stream.call, None
        stream.finished = True
        if call is not None:
            call.closed(cancelled=cancelled)

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        if self.streams.get(stream.id) is stream:
            self._out.append(reset(stream.id, code))
            self._closed(stream.id)
            self._late_resets += 1
            self._end(stream, cancelled=True)

    def _closed(self, stream_id: int) -> None:
        self._closed_by_us[stream_id] = None
        if len(self._closed_by_us) > CLOSED_REMEMBERED:
            self._forgotten_id = max(self._forgotten_id, self._closed_by_us.popitem(last=False)[0])

    def _may_be_late(self, stream_id: int) -> bool:
        """Whether frames on this closed stream may have been sent before the peer saw that we ended it."""
        return stream_id in self._closed_by_us or stream_id <= self._forgotten_id
