"""Calls of a client that is not ours: Python's `h2`."""

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.h2.frames import FrameType
from epp.h2.limits import Limits
from tests.h2.h2_client import Answer, H2Client
from tests.h2.peer import REQUEST, cut, message
from tests.h2.recorded_call import say_nothing, wait


def called(client: H2Client, *payloads: bytes) -> list[bytes]:
    """The answers to a whole call."""
    stream_id = client.open()
    client.send(stream_id, b"".join(map(message, payloads)), end=True)
    client.exchange()
    answer = client.answers[stream_id]
    assert answer.status == 0
    assert answer.fields[b":status"] == b"200"
    return answer.messages


def test_a_unary_call() -> None:
    client = H2Client()

    assert called(client, b"hello") == [b"hello"]
    assert not client.connection.streams
    assert not client.connection.ended


def test_many_calls_one_after_the_other_with_a_warm_table() -> None:
    client = H2Client()
    for number in range(300):
        assert called(client, b"%d" % number) == [b"%d" % number]
    assert client.h2.open_outbound_streams == 0


def test_many_calls_at_once() -> None:
    client = H2Client()
    streams = [client.open((b"x-number", b"%d" % number)) for number in range(500)]
    for stream_id in reversed(streams):
        client.send(stream_id, message(b"%d" % stream_id), end=True)
    client.exchange()

    assert [client.answers[stream_id].messages for stream_id in streams] == [[b"%d" % stream_id] for stream_id in streams]
    assert [client.calls[stream_id].metadata[b"x-number"] for stream_id in streams] == [b"%d" % n for n in range(500)]


def test_both_sides_stream_in_turns() -> None:
    client = H2Client()
    stream_id = client.open()
    for number in range(100):
        client.send(stream_id, message(b"%d" % number))
        client.exchange()
        assert client.answers[stream_id].messages[-1] == b"%d" % number
    client.h2.end_stream(stream_id)
    client.exchange()

    assert client.answers[stream_id].status == 0


@pytest.mark.parametrize("size", [16_379, 16_380, 65_530, 65_531, 1_000_000, 20_000_000])
def test_large_messages_go_both_ways_through_the_windows(size: int) -> None:
    client = H2Client(settings={SettingCodes.INITIAL_WINDOW_SIZE: 100_000})

    (answer,) = called(client, bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    assert len(answer) == size
    assert answer[:256] == bytes(range(256))


@pytest.mark.parametrize("window", [1, 10, 1_000])
def test_a_client_with_a_tiny_window_gets_everything(window: int) -> None:
    client = H2Client(settings={SettingCodes.INITIAL_WINDOW_SIZE: window})

    assert called(client, b"a" * 500, b"", b"b" * 500) == [b"a" * 500, b"", b"b" * 500]


def test_a_window_that_shrinks_and_grows_in_the_middle_of_an_answer() -> None:
    client = H2Client(reads=False)
    stream_id = client.open()
    client.send(stream_id, message(b"x" * 60_000) + message(b"y" * 60_000))
    client.exchange()
    assert len(client.answers[stream_id].body) == 65_535
    for window in (0, 1, 100, 50_000, 0, 200_000):
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        client.exchange()
        client.h2.increment_flow_control_window(10_000)
        client.h2.increment_flow_control_window(100, stream_id)
        client.exchange()
    client.h2.end_stream(stream_id)
    client.exchange()

    assert client.answers[stream_id].messages == [b"x" * 60_000, b"y" * 60_000]
    assert client.answers[stream_id].status == 0


def test_frames_of_another_size_after_a_change_of_settings() -> None:
    client = H2Client(settings={SettingCodes.MAX_FRAME_SIZE: 50_000, SettingCodes.INITIAL_WINDOW_SIZE: 10**6})
    client.exchange()
    stream_id = client.open()
    client.send(stream_id, message(b"x" * 50_000), end=True)
    client.pass_to_server()

    sizes = [len(found.payload) for found in cut(bytes(client.to_client)) if found.kind == FrameType.DATA]
    assert sizes == [50_000, 5]


def test_headers_over_continuations() -> None:
    client = H2Client()
    stream_id = client.open((b"x-long", b"v" * 50_000))
    client.send(stream_id, message(b"a"), end=True)
    raw = [found.kind for found in cut(client.h2.data_to_send()[24:])]
    assert FrameType.CONTINUATION in raw
    client = H2Client()
    stream_id = client.open((b"x-long", b"v" * 50_000))
    client.send(stream_id, message(b"a"), end=True)
    client.exchange()

    assert client.answers[stream_id].status == 0
    assert client.calls[stream_id].metadata[b"x-long"] == b"v" * 50_000


def test_a_table_that_the_client_does_not_use_or_changes() -> None:
    for size in (0, 100, 4_096):
        client = H2Client()
        client.h2.encoder.header_table_size = size
        for _ in range(3):
            assert called(client, b"a") == [b"a"]


def test_padding_and_priority() -> None:
    client = H2Client()
    stream_id = client.h2.get_next_available_stream_id()
    client.answers[stream_id] = Answer()
    client.h2.send_headers(stream_id, list(REQUEST), priority_weight=200, priority_depends_on=0, priority_exclusive=True)
    client.h2.prioritize(stream_id, weight=3)
    for pad in (0, 1, 255):
        client.h2.send_data(stream_id, message(b"p%d" % pad), pad_length=pad)
    client.h2.end_stream(stream_id)
    client.exchange()

    assert client.answers[stream_id].messages == [b"p0", b"p1", b"p255"]


def test_request_trailers() -> None:
    client = H2Client()
    stream_id = client.open()
    client.send(stream_id, message(b"a"))
    client.h2.send_headers(stream_id, [(b"x-trailer", b"1")], end_stream=True)
    client.exchange()

    assert (client.answers[stream_id].messages, client.answers[stream_id].status) == ([b"a"], 0)


def test_a_ping() -> None:
    client = H2Client()
    client.h2.ping(b"01234567")
    client.exchange()

    assert client.pings_answered == [b"01234567"]


def test_a_reset_by_the_client() -> None:
    client = H2Client(on_message=say_nothing)
    stream_id = client.open()
    client.send(stream_id, message(b"a"))
    client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
    client.exchange()

    assert client.calls[stream_id].seen == [b"a", "cancelled"]


def test_refusals_are_answers() -> None:
    client = H2Client(Limits(max_message_bytes=10))
    unknown = client.open(fields=[(name, b"/no/where" if name == b":path" else value) for name, value in REQUEST], end=True)
    browser = client.open(fields=[(name, b"GET" if name == b":method" else value) for name, value in REQUEST], end=True)
    long = client.open()
    client.send(long, message(b"x" * 11), end=True)
    client.exchange()

    assert client.answers[unknown].status == 12
    assert (client.answers[browser].fields[b":status"], client.answers[browser].ended) == (b"405", True)
    assert client.answers[long].status == 8


def test_too_many_streams_are_refused() -> None:
    client = H2Client(Limits(max_concurrent_streams=2))
    streams = [client.open() for _ in range(3)]  # before it has read the server's SETTINGS
    client.exchange()

    assert client.answers[streams[2]].reset_code == ErrorCodes.REFUSED_STREAM
    assert len(client.connection.streams) == 2


def test_a_deadline() -> None:
    client = H2Client(on_half_closed=wait)
    stream_id = client.open((b"grpc-timeout", b"1S"), end=True)
    client.exchange()
    client.clock.advance(2.0)
    client.connection.expire(client.clock.monotonic_s())
    client.exchange()

    assert client.answers[stream_id].status == 4


def test_goaway_of_the_client() -> None:
    client = H2Client(on_message=say_nothing)
    client.open()
    client.exchange()
    client.h2.close_connection()
    client.pass_to_server()

    assert not client.connection.ended  # its call runs on


def test_goaway_of_the_server_in_two_steps() -> None:
    client = H2Client()
    stream_id = client.open()
    client.exchange()
    client.connection.announce_shutdown()
    client.send(stream_id, message(b"a"), end=True)  # before it has read the GOAWAY
    client.pass_to_server()
    client.pass_to_client(9 + 8 + len("shutting down"))  # `h2` takes a GOAWAY for the end and reads nothing behind it

    assert client.goaways[0].last_stream_id == 2**31 - 1
    assert client.goaways[0].error_code == ErrorCodes.NO_ERROR


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=3_000), min_size=1, max_size=20), st.integers(1, 3_000), st.integers(1, 5_000))
def test_any_messages_come_back_whatever_the_window_and_the_cuts(sent: list[bytes], window: int, size: int) -> None:
    client = H2Client(settings={SettingCodes.INITIAL_WINDOW_SIZE: window})
    stream_id = client.open()
    client.send(stream_id, b"".join(map(message, sent)), end=True)
    while client.pass_to_server(size) or client.pass_to_client(size):
        pass

    assert client.answers[stream_id].messages == sent
    assert client.answers[stream_id].status == 0
