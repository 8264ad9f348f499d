"""Python's `h2`, an HTTP/2 of others, as the client of a `Connection` in memory.

It checks what it receives: a window that is overrun, a frame in the wrong state, or headers that are malformed raise out of
`exchange`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings

from epp.h2.connection import Connection
from epp.h2.limits import Limits, Tally
from epp.h2.stream import Stream
from tests.fakes.clock import FakeClock
from tests.h2.peer import PATH, REQUEST, messages
from tests.h2.recorded_call import RecordedCall, echo, finish

Fields = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Answer:
    """What came back on one stream.

    Attributes:
        fields: Of HEADERS, and of trailers if there are any.
        unread_bytes: Received, and not given back to the server's window yet.
        ended: The server closed its side.
        reset_code: Of RST_STREAM.
    """

    fields: dict[bytes, bytes] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    unread_bytes: int = 0
    ended: bool = False
    reset_code: int | None = None

    @property
    def messages(self) -> list[bytes]:
        """The gRPC messages, when all have come."""
        return messages(bytes(self.body))

    @property
    def status(self) -> int:
        """The gRPC status."""
        assert self.ended
        return int(self.fields[b"grpc-status"])


class H2Client:
    """Both ends of a connection, and the bytes that are on their way.

    Args:
        reads: Whether windows are given back as soon as data arrives; `read` does it otherwise.

    Attributes:
        to_server: Bytes that the server has not got yet; likewise `to_client`.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_message: Callable[[Stream, bytes], None] = echo,
        on_half_closed: Callable[[Stream], None] = finish,
        settings: Mapping[SettingCodes, int] | None = None,
        reads: bool = True,
    ) -> None:
        self.clock = FakeClock()
        self.tally = Tally()
        self.calls: dict[int, RecordedCall] = {}
        self._on_message, self._on_half_closed, self._reads = on_message, on_half_closed, reads
        self.connection = Connection(
            {PATH: self._make_call}, limits or Limits(), now_s=self.clock.monotonic_s, tally=self.tally, wake=self._collect
        )
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.local_settings = Settings(client=True, initial_values=dict(settings or {}))
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.pings_answered: list[bytes] = []
        self.goaways: list[ConnectionTerminated] = []
        self.unacknowledged_settings = 1
        self.to_server = bytearray()
        self.to_client = bytearray()

    # ── the network ──

    def exchange(self) -> None:
        """Let bytes flow both ways until both sides are silent."""
        while self.pass_to_server() or self.pass_to_client():
            pass

    def pass_to_server(self, size: int | None = None) -> int:
        """Let up to so many bytes arrive at the server; returns how many did."""
        self.to_server += self.h2.data_to_send()
        arrived = bytes(self.to_server[:size])
        del self.to_server[: len(arrived)]
        if arrived:
            self.connection.receive(arrived)
            self._collect()
        return len(arrived)

    def pass_to_client(self, size: int | None = None) -> int:
        """Let up to so many bytes arrive at the client; returns how many did."""
        self._collect()
        arrived = bytes(self.to_client[:size])
        del self.to_client[: len(arrived)]
        for event in self.h2.receive_data(arrived) if arrived else ():
            self._take(event)
        if self._reads:
            for stream_id in self.answers:
                self.read(stream_id)
        return len(arrived)

    def _collect(self) -> None:
        self.to_client += b"".join(self.connection.take_output())

    # ── the client's side ──

    def open(self, *more: tuple[bytes, bytes], end: bool = False, fields: Fields | None = None) -> int:
        """Begin a call; returns its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, [*(fields or REQUEST), *more], end_stream=end)
        self.answers[stream_id] = Answer()
        return stream_id

    def send(self, stream_id: int, payload: bytes, *, end: bool = False) -> None:
        """Send bytes of a stream, as the server's windows allow; bytes flow both ways meanwhile."""
        view = memoryview(payload)
        while view:
            allowed = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(view))
            if allowed:
                self.h2.send_data(stream_id, bytes(view[:allowed]))
                view = view[allowed:]
            else:
                self.exchange()
                assert self.h2.local_flow_control_window(stream_id) > 0, "the server gives no window"
        if end:
            self.h2.end_stream(stream_id)

    def change(self, settings: Mapping[SettingCodes | int, int]) -> None:
        """Send SETTINGS; `h2` mixes up the acknowledgements of those that are on their way together, so one at a time."""
        assert not self.unacknowledged_settings
        self.unacknowledged_settings += 1
        self.h2.update_settings(dict(settings))

    def read(self, stream_id: int) -> None:
        """Give back the windows of what has come on a stream."""
        answer = self.answers[stream_id]
        if answer.unread_bytes:
            self.h2.increment_flow_control_window(answer.unread_bytes)
            if not answer.ended and answer.reset_code is None:
                self.h2.increment_flow_control_window(answer.unread_bytes, stream_id)
            answer.unread_bytes = 0

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=stream_id, headers=fields) | TrailersReceived(stream_id=stream_id, headers=fields):
                assert stream_id is not None
                self.answers[stream_id].fields.update((bytes(name), bytes(value)) for name, value in fields or ())
            case DataReceived(stream_id=stream_id, data=payload, flow_controlled_length=size):
                assert stream_id is not None
                answer = self.answers[stream_id]
                answer.body += payload or b""
                answer.unread_bytes += size or 0
            case StreamEnded(stream_id=stream_id):
                assert stream_id is not None
                self.answers[stream_id].ended = True
            case StreamReset(stream_id=stream_id, error_code=code):
                assert stream_id is not None
                self.answers[stream_id].reset_code = int(code or 0)
            case PingAckReceived(ping_data=payload):
                self.pings_answered.append(payload or b"")
            case SettingsAcknowledged():
                self.unacknowledged_settings -= 1
            case ConnectionTerminated():
                self.goaways.append(event)
            case _:
                pass

    def _make_call(self, stream: Stream, metadata: Mapping[bytes, bytes]) -> RecordedCall:
        assert stream.id not in self.calls
        call = self.calls[stream.id] = RecordedCall(stream, metadata, self._on_message, self._on_half_closed)
        return call
