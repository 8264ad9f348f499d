"""Both ends of a connection over a network that cuts and delays bytes, driven by random actions.

The client is Python's `h2`, which raises when the server overruns a window or sends a frame that its state does not allow.
"""

from collections import Counter
from collections.abc import Sequence

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epp.h2.limits import Limits
from epp.h2.stream import Stream
from tests.h2.h2_client import H2Client
from tests.h2.peer import REQUEST, message, messages

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine

LIMITS = Limits(
    max_concurrent_streams=6,
    stream_window_bytes=65_535,
    connection_window_bytes=150_000,
    max_message_bytes=40_000,
    pending_high_bytes=20_000,
)
MOST_HELD_BYTES = LIMITS.pending_high_bytes + LIMITS.stream_window_bytes + LIMITS.max_message_bytes
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([300, 16_379, 16_380, 40_000]))
CUTS = st.one_of(st.integers(1, 30), st.sampled_from([100, 1_000, 20_000, 1_000_000]))


def answer_now(stream: Stream, payload: bytes | None) -> None:
    if payload is None:
        stream.finish()
    else:
        stream.send(payload)


class Traffic(RuleBasedStateMachine):
    """Streams by their number; what a stream's answers must be in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[Stream, bytes | None]] = []
        self.client = H2Client(
            LIMITS, on_message=self.answer_soon_or_late, on_half_closed=self.answer_soon_or_late, reads=False
        )
        self.client.exchange()
        self.sent: dict[int, list[bytes]] = {}
        self.queued: dict[int, bytearray] = {}
        self.closing: set[int] = set()
        self.closed: set[int] = set()
        self.reset: set[int] = set()
        self.messages_sent = 0

    def answer_soon_or_late(self, stream: Stream, payload: bytes | None = None) -> None:
        """Echoes a message, or ends the call; on every other stream later, out of turn."""
        if stream.id % 4 == 3:
            self.late.append((stream, payload))
        else:
            answer_now(stream, payload)

    # ── what the client does ──

    @rule(end=st.booleans(), more=st.sampled_from([(), ((b"x-a", b"1"),), ((b"x-long", b"v" * 20_000),)]))
    def open(self, end: bool, more: Sequence[tuple[bytes, bytes]]) -> None:
        if self.client.h2.open_outbound_streams >= self.client.h2.remote_settings.max_concurrent_streams:
            return
        if self.client.h2.open_outbound_streams >= LIMITS.max_concurrent_streams:
            return
        stream_id = self.client.open(*more, end=end, fields=list(REQUEST))
        self.sent[stream_id], self.queued[stream_id] = [], bytearray()
        if end:
            self.closed.add(stream_id)

    def sending(self) -> list[int]:
        """Streams on which the client may still begin a message."""
        return [stream_id for stream_id in self.sent if stream_id not in self.closing | self.closed | self.reset]

    @precondition(lambda self: self.sending())
    @rule(data=st.data(), size=SIZES, copies=st.sampled_from([1, 1, 1, 2, 50]))
    def send(self, data: st.DataObject, size: int, copies: int) -> None:
        stream_id = data.draw(st.sampled_from(self.sending()))
        for _ in range(copies if size < 1_000 else 1):
            self.messages_sent += 1
            payload = (b"%d " % self.messages_sent * (size // 2 + 1))[:size]
            self.sent[stream_id].append(payload)
            self.queued[stream_id] += message(payload)
        self.flush()

    @precondition(lambda self: self.sending())
    @rule(data=st.data())
    def half_close(self, data: st.DataObject) -> None:
        self.closing.add(data.draw(st.sampled_from(self.sending())))
        self.flush()

    @precondition(lambda self: set(self.sent) - self.reset)
    @rule(data=st.data(), code=st.sampled_from([ErrorCodes.CANCEL, ErrorCodes.NO_ERROR]))
    def cancel(self, data: st.DataObject, code: ErrorCodes) -> None:
        stream_id = data.draw(st.sampled_from(sorted(set(self.sent) - self.reset)))
        if self.client.answers[stream_id].ended and stream_id in self.closed:
            return  # nothing is left to cancel
        self.client.h2.reset_stream(stream_id, code)
        self.reset.add(stream_id)
        self.queued[stream_id].clear()

    @rule()
    def flush(self) -> None:
        """Send what waits at the client, as far as the server's windows allow."""
        h2 = self.client.h2
        for stream_id, queued in self.queued.items():
            if stream_id in self.reset | self.closed:
                continue
            while queued:
                allowed = min(h2.local_flow_control_window(stream_id), h2.max_outbound_frame_size, len(queued))
                if allowed <= 0:
                    break
                h2.send_data(stream_id, bytes(queued[:allowed]))
                del queued[:allowed]
            if not queued and stream_id in self.closing:
                h2.end_stream(stream_id)
                self.closed.add(stream_id)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """Give back the windows of one stream, or of all."""
        if self.sent:
            chosen = data.draw(st.sampled_from([*self.sent, None]))
            for stream_id in self.sent if chosen is None else [chosen]:
                if stream_id not in self.reset:
                    self.client.read(stream_id)

    def settled(self) -> bool:
        return not self.client.unacknowledged_settings

    @precondition(settled)
    @rule(window=st.sampled_from([0, 1, 100, 65_535, 200_000]))
    def change_window(self, window: int) -> None:
        self.client.change({SettingCodes.INITIAL_WINDOW_SIZE: window})

    @rule(size=st.sampled_from([0, 100, 4_096]))
    def change_table(self, size: int) -> None:
        if self.client.h2.encoder.header_table_size != size:  # `hpack` forgets a change that is followed by none
            self.client.h2.encoder.header_table_size = size

    @rule(payload=st.binary(min_size=8, max_size=8))
    def ping(self, payload: bytes) -> None:
        self.client.h2.ping(payload)

    # ── what the server does ──

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, len(self.late)))):
            answer_now(*self.late.pop(0))

    @rule()
    def pause(self) -> None:
        self.client.connection.write_paused = True

    @rule()
    def resume(self) -> None:
        self.client.connection.resume_writing()

    @rule()
    def tick(self) -> None:
        self.client.clock.advance(0.5)
        self.client.connection.expire(self.client.clock.monotonic_s())

    # ── what the network does ──

    @rule(size=CUTS)
    def pass_to_server(self, size: int) -> None:
        self.client.pass_to_server(size)

    @rule(size=CUTS)
    def pass_to_client(self, size: int) -> None:
        self.client.pass_to_client(size)
        self.flush()

    # ── what must hold ──

    @invariant()
    def both_sides_are_well(self) -> None:
        assert not self.client.connection.ended, self.client.tally.hits
        assert not self.client.goaways
        assert self.client.tally.hits == Counter()

    @invariant()
    def calls_end_at_most_once(self) -> None:
        assert all(call.ends <= 1 for call in self.client.calls.values())

    @invariant()
    def memory_is_bounded(self) -> None:
        for stream in self.client.connection.streams.values():
            held = stream.pending_bytes + len(stream._buffer)
            assert stream.pending_bytes == sum(map(len, stream.pending))
            assert held <= MOST_HELD_BYTES + (0 if stream.id % 4 == 1 else 1_000_000), "late answers are the call's own"
        assert len(self.client.connection.streams) <= LIMITS.max_concurrent_streams

    @invariant()
    def answers_come_in_order(self) -> None:
        for stream_id, answer in self.client.answers.items():
            whole = b"".join(map(message, self.sent[stream_id]))
            assert whole.startswith(answer.body)

    def teardown(self) -> None:
        """Everything that was held back comes to an end: each call that was not cancelled is answered whole."""
        client, h2 = self.client, self.client.h2
        client.connection.resume_writing()
        client.exchange()
        client.change({SettingCodes.INITIAL_WINDOW_SIZE: 2**20})
        h2.increment_flow_control_window(2**29)
        self.closing |= set(self.sending())
        for _ in range(1_000):
            self.flush()
            client.exchange()
            while self.late:
                answer_now(*self.late.pop(0))
            client.exchange()
            for stream_id in self.sent:
                if stream_id not in self.reset:
                    client.read(stream_id)
            client.exchange()
            if not any(self.queued.values()) and not client.connection.streams:
                break
        self.both_sides_are_well()
        for stream_id, expected in self.sent.items():
            if stream_id in self.reset:
                continue
            answer = client.answers[stream_id]
            assert messages(bytes(answer.body)) == expected
            assert (answer.status, answer.reset_code) == (0, None)
            assert client.calls[stream_id].seen[-1] == "closed"
        assert all(call.ends == 1 for call in client.calls.values())
        assert not client.connection._blocked


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
