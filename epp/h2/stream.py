"""One stream: one gRPC call."""

import struct
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from epp.h2.sending import SendingHalf

MESSAGE_PREFIX_BYTES = 5
PREFIX = struct.Struct(">BI")
"""Compressed flag and length (gRPC over HTTP/2, "Length-Prefixed-Message")."""
JOINED_BYTES = 4_096
"""Pieces that wait are joined up to this size: a piece costs some 200 bytes more than it holds."""

FREE_BYTES = 66_000
"""So much of a message that is not whole is not charged: a proxy's usual piece of 64 KiB comes over several frames, and no
lack of memory elsewhere may end its call."""


class Status(IntEnum):
    """gRPC status codes that a server of ours gives."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Call(Protocol):
    """What a method makes of a stream. Everything is called synchronously; answers go through `Stream.send`."""

    def message(self, message: bytes) -> None:
        """The peer sent a message."""
        ...

    def half_closed(self) -> None:
        """The peer sends no more."""
        ...

    def drained(self) -> None:
        """Nothing that was sent is waiting for the peer any more."""
        ...

    def closed(self, *, cancelled: bool) -> None:
        """The call is over, called exactly once; `cancelled` if the peer reset it or went away."""
        ...


Metadata = Mapping[bytes, bytes]
Method = Callable[["Stream", Metadata], Call]
"""Makes the call of a new stream."""


class Stream:
    """State of one stream, and the way for a call to answer.

    Attributes:
        send_window: Bytes that the peer takes on this stream; negative after it shrank its window.
        receive_window: Bytes that the peer may still send.
        consumed: Received bytes for which no WINDOW_UPDATE was sent yet.
        pending_bytes: Bytes that were sent by the call and wait for the peer's windows.
        refusal: Why the next message cannot be taken, as status and text; the messages before it were taken.
        remote_closed: The peer sends no more.
        finished: The call has given its status.
    """

    __slots__ = (
        "_account",
        "_buffer",
        "_charged_bytes",
        "_connection",
        "_max_message_bytes",
        "_needed_bytes",
        "call",
        "consumed",
        "content_bytes_left",
        "deadline_s",
        "finished",
        "headers_sent",
        "id",
        "pending",
        "pending_bytes",
        "receive_window",
        "refusal",
        "remote_closed",
        "send_window",
        "trailers",
    )

    def __init__(self, connection: "SendingHalf", stream_id: int, send_window: int, receive_window: int) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._account = connection.account
        self._charged_bytes = 0
        self._needed_bytes = MESSAGE_PREFIX_BYTES
        self._max_message_bytes = connection.limits.max_message_bytes
        self.id = stream_id
        self.call: Call | None = None
        self.send_window = send_window
        self.receive_window = receive_window
        self.consumed = 0
        self.content_bytes_left: int | None = None
        self.pending: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.refusal: tuple[Status, str] | None = None
        self.headers_sent = False
        self.trailers: bytes | None = None
        self.deadline_s: float | None = None
        self.remote_closed = False
        self.finished = False

    def send(self, message: bytes) -> None:
        """Send one message; what the peer's windows do not take now waits."""
        self._connection.send_message(self, message)

    def finish(self, status: Status = Status.OK, text: str = "") -> None:
        """End the call, after everything that was sent before. Further calls do nothing."""
        self._connection.finish(self, status, text)

    # ── what waits for the peer ──

    def hold(self, piece: bytes) -> None:
        """Keep bytes until the peer's windows allow them."""
        pending = self.pending
        self.pending_bytes += len(piece)
        if pending and len(pending[-1]) + len(piece) <= JOINED_BYTES:
            pending[-1] = memoryview(bytes(pending[-1]) + piece)
        else:
            pending.append(memoryview(piece))

    def drop(self) -> None:
        """Nothing more is sent or taken."""
        self.pending.clear()
        self.pending_bytes = 0
        self.trailers = None
        self.forget_input()

    # ── messages out of DATA frames ──

    def take(self, received: bytes, start: int, stop: int) -> list[bytes]:
        """The messages that the payload `received[start:stop]` completes, up to one that sets `refusal`.

        A message that comes in a frame of its own is copied once, out of what was received; one over several frames
        twice: into the buffer, and out of it when it is whole.
        """
        buffer = self._buffer
        if not buffer and stop - start >= MESSAGE_PREFIX_BYTES and not received[start]:
            length = int.from_bytes(received[start + 1 : start + MESSAGE_PREFIX_BYTES], "big")
            if length == stop - start - MESSAGE_PREFIX_BYTES and length <= self._max_message_bytes:
                return [received[start + MESSAGE_PREFIX_BYTES : stop]]
        more = len(buffer) + stop - start - FREE_BYTES - self._charged_bytes
        if more > 0:
            if not self._account.take(more):
                self.refusal = Status.RESOURCE_EXHAUSTED, "too much is held already of messages that are not whole"
                return []
            self._charged_bytes += more
        buffer += memoryview(received)[start:stop]
        return self._cut_messages(buffer) if len(buffer) >= self._needed_bytes else []

    def _cut_messages(self, buffer: bytearray) -> list[bytes]:
        messages: list[bytes] = []
        at, size = 0, len(buffer)
        self._needed_bytes = MESSAGE_PREFIX_BYTES
        with memoryview(buffer) as view:
            while size - at >= MESSAGE_PREFIX_BYTES:
                if buffer[at]:
                    self.refusal = Status.UNIMPLEMENTED, "compressed messages are not supported"
                    break
                length = int.from_bytes(view[at + 1 : at + MESSAGE_PREFIX_BYTES], "big")
                if length > self._max_message_bytes:
                    limit = self._max_message_bytes
                    self.refusal = Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes; the limit is {limit}"
                    break
                end = at + MESSAGE_PREFIX_BYTES + length
                if end > size:
                    self._needed_bytes = end - at
                    break
                messages.append(bytes(view[at + MESSAGE_PREFIX_BYTES : end]))
                at = end
        del buffer[:at]
        self._give_back(max(0, len(buffer) - FREE_BYTES))
        return messages

    def _give_back(self, still_charged_bytes: int) -> None:
        if self._charged_bytes > still_charged_bytes:
            self._account.give_back(self._charged_bytes - still_charged_bytes)
            self._charged_bytes = still_charged_bytes

    @property
    def takes_whole_messages(self) -> bool:
        """Whether the next DATA frame may be a whole message that needs no further checks."""
        return not (self._buffer or self.remote_closed or self.content_bytes_left is not None)

    @property
    def has_half_a_message(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def forget_input(self) -> None:
        """Free what has come of a message that nobody waits for."""
        self._buffer.clear()
        self._give_back(0)
