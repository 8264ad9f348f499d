"""gRPC messages out of the bytes of a stream, and what waits for the peer."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.h2.connection import Connection
from epp.h2.limits import Limits, Tally
from epp.h2.stream import FREE_BYTES, JOINED_BYTES, Status, Stream
from tests.h2.peer import message

pytestmark = pytest.mark.timeout(600)  # guards against hanging; some examples take long on a busy machine


def a_stream(max_message_bytes: int = 1 << 20) -> Stream:
    connection = Connection({}, Limits(max_message_bytes=max_message_bytes), now_s=lambda: 0.0, tally=Tally())
    return Stream(connection, 1, 65_535, 65_535)


def taken(stream: Stream, payload: bytes) -> list[bytes]:
    return stream.take(payload, 0, len(payload))


@pytest.mark.parametrize("payload", [b"", b"a", b"\0\0\0\0\0", b"x" * 70_000])
def test_a_message_in_a_frame_of_its_own(payload: bytes) -> None:
    assert taken(a_stream(), message(payload)) == [payload]


def test_a_message_is_taken_out_of_the_middle_of_what_was_received() -> None:
    received = b"before" + message(b"payload") + b"after"

    assert a_stream().take(received, 6, 6 + 12) == [b"payload"]


def test_messages_cut_at_every_byte_are_the_same() -> None:
    sent = [b"", b"first", b"", b"x" * 300, b"\1\0\0\0\5"]
    joined = b"".join(map(message, sent))
    for at in range(len(joined) + 1):
        stream = a_stream()
        assert taken(stream, joined[:at]) + taken(stream, joined[at:]) == sent
        assert not stream.has_half_a_message


@given(st.lists(st.binary(max_size=50), max_size=20), st.data())
def test_messages_cut_anywhere_are_the_same(sent: list[bytes], cuts: st.DataObject) -> None:
    joined = b"".join(map(message, sent))
    stream, found, at = a_stream(), list[bytes](), 0
    while at < len(joined):
        end = cuts.draw(st.integers(at + 1, min(len(joined), at + 60)))
        found += stream.take(joined, at, end)
        at = end

    assert found == sent


@pytest.mark.parametrize("size", range(1, 5))
def test_half_a_prefix_is_half_a_message(size: int) -> None:
    stream = a_stream()

    assert taken(stream, message(b"abc")[:size]) == []
    assert stream.has_half_a_message


def test_thousands_of_empty_messages_fit_one_frame() -> None:
    assert taken(a_stream(), message(b"") * 3_276) == [b""] * 3_276


# ── refusals ──


def test_a_message_of_the_largest_size_is_taken_and_one_byte_more_refused() -> None:
    stream = a_stream(max_message_bytes=100)

    assert taken(stream, message(b"x" * 100)) == [b"x" * 100]
    assert stream.refusal is None
    assert taken(stream, message(b"x" * 101)) == []
    assert stream.refusal == (Status.RESOURCE_EXHAUSTED, "a message of 101 bytes; the limit is 100")


def test_a_message_is_refused_by_its_prefix_before_it_has_come() -> None:
    stream = a_stream(max_message_bytes=100)
    taken(stream, b"\0\xff\xff\xff\xff")

    assert stream.refusal == (Status.RESOURCE_EXHAUSTED, "a message of 4294967295 bytes; the limit is 100")


class Purse:
    """An account of `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.left = self.limit = limit

    def take(self, size_bytes: int) -> bool:
        if size_bytes > self.left:
            return False
        self.left -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.left += size_bytes
        assert self.left <= self.limit


def charged_stream(purse: Purse) -> Stream:
    return Stream(Connection({}, Limits(), now_s=lambda: 0.0, tally=Tally(), account=purse), 1, 65_535, 65_535)


def test_only_the_long_part_of_half_a_message_is_charged_and_given_back_when_it_is_whole() -> None:
    purse = Purse(1_000)
    stream = charged_stream(purse)
    payload = message(b"x" * (FREE_BYTES + 995))
    assert taken(stream, payload[:FREE_BYTES]) == []
    assert purse.left == 1_000
    assert taken(stream, payload[FREE_BYTES:-1]) == []
    assert purse.left == 1
    assert taken(stream, payload[-1:]) == [b"x" * (FREE_BYTES + 995)]
    assert purse.left == 1_000


def test_what_the_account_does_not_give_ends_the_call_and_a_forgotten_message_is_given_back() -> None:
    purse = Purse(1_000)
    stream = charged_stream(purse)
    taken(stream, message(b"x" * 200_000)[: FREE_BYTES + 1_000])
    assert (stream.refusal, purse.left) == (None, 0)
    taken(stream, b"x")
    assert (stream.refusal or (None,))[0] is Status.RESOURCE_EXHAUSTED
    stream.drop()
    assert purse.left == 1_000


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compressed_message_is_refused(flag: int) -> None:
    stream = a_stream()
    taken(stream, message(b"abc", compressed=flag))

    assert stream.refusal == (Status.UNIMPLEMENTED, "compressed messages are not supported")


def test_messages_before_a_refused_one_are_taken_however_the_bytes_are_cut() -> None:
    joined = message(b"good") + message(b"") + message(b"bad", compressed=1) + message(b"never read")
    for at in range(len(joined)):
        stream = a_stream()
        found = taken(stream, joined[:at])
        if stream.refusal is None:
            found += taken(stream, joined[at:])
        assert (found, stream.refusal and stream.refusal[0]) == ([b"good", b""], Status.UNIMPLEMENTED)


# ── cost ──


def test_a_long_message_byte_by_byte_takes_its_own_size_in_memory_and_no_copies() -> None:
    size = 300_000
    sent, stream = message(b"x" * size), a_stream()
    tracemalloc.start()
    try:
        found = [part for at in range(len(sent)) for part in stream.take(sent, at, at + 1)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found == [b"x" * size]
    assert peak < 3 * size


def test_the_buffer_is_looked_at_once_a_message_not_once_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    cut = Stream._cut_messages

    def counted(stream: Stream, buffer: bytearray) -> list[bytes]:
        nonlocal looks
        looks += 1
        return cut(stream, buffer)

    monkeypatch.setattr(Stream, "_cut_messages", counted)
    sent, stream = message(b"x" * 10_000), a_stream()
    for at in range(len(sent)):
        stream.take(sent, at, at + 1)

    assert looks == 2  # at the prefix and at the end


# ── what waits for the peer ──


def test_small_pieces_that_wait_are_joined_in_order() -> None:
    stream = a_stream()
    pieces = [b"%06d" % number for number in range(2_000)]
    for piece in pieces:
        stream.hold(piece)

    assert b"".join(stream.pending) == b"".join(pieces)
    assert stream.pending_bytes == 12_000
    assert len(stream.pending) <= 12_000 // JOINED_BYTES + 1


def test_a_large_piece_that_waits_is_not_copied() -> None:
    stream, piece = a_stream(), b"x" * 100_000
    stream.hold(piece)
    stream.hold(b"small")

    assert stream.pending[0].obj is piece
    assert [len(waiting) for waiting in stream.pending] == [100_000, 5]


def test_dropping_leaves_nothing() -> None:
    stream = a_stream()
    stream.hold(b"out")
    taken(stream, b"\0\0\0\0\5in")
    stream.drop()

    assert (list(stream.pending), stream.pending_bytes, stream.has_half_a_message) == ([], 0, False)
