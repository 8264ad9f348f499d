"""Answers from bytes, cut in every place."""

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.scrape.reasons import Reason, ScrapeError
from epp.scrape.response import MAX_COMPRESSED_BYTES, MAX_HEAD_BYTES, MAX_INTERIM_ANSWERS, Response

HEAD = b"HTTP/1.1 200 OK\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 11\r\nContent-Type: text/plain\r\n\r\nhello world"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n6 \r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + WITH_LENGTH
UNTIL_CLOSE = HEAD + b"\r\nhello world"


def read(*pieces: bytes, limit: int = 1000, closed: bool = False) -> Response:
    response = Response(limit)
    for piece in pieces:
        response.feed(piece)
    if closed:
        response.end()
    return response


def fault(*pieces: bytes, limit: int = 1000, closed: bool = False) -> Reason:
    with pytest.raises(ScrapeError) as caught:
        read(*pieces, limit=limit, closed=closed).body()
    return caught.value.reason


@given(answer=st.sampled_from([WITH_LENGTH, CHUNKED, INTERIM]), cuts=st.lists(st.integers(0, 250), max_size=8))
def test_an_answer_is_the_same_wherever_it_is_cut(answer: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(answer)]
    response = read(*(answer[a:b] for a, b in pairwise(edges)))

    assert response.complete
    assert response.reusable
    assert (response.status, response.body()) == (200, b"hello world")


@pytest.mark.parametrize("answer", [WITH_LENGTH, CHUNKED, INTERIM])
def test_an_answer_is_complete_with_its_last_byte_and_not_before(answer: bytes) -> None:
    response = Response(1000)
    for at in range(len(answer)):
        assert response.complete is False
        response.feed(answer[at : at + 1])

    assert read(answer).complete


def test_a_body_without_a_length_ends_with_the_connection_and_is_the_last_one() -> None:
    response = read(UNTIL_CLOSE)
    before = response.complete
    response.end()

    assert (before, response.complete) == (False, True)
    assert not response.reusable
    assert response.body() == b"hello world"


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nmore", False),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n0\r\n\r\n", False),
    ],
)
def test_whether_the_connection_can_be_used_again(head: bytes, reusable: bool) -> None:
    response = read(head)

    assert response.complete
    assert response.reusable is reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b"a: b\r\n folded\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: +1\r\n\r\n",
        HEAD + b"content-length: 1_0\r\n\r\n",
        HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\n",
        HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello world\r\n",
        HEAD + b"x: " + b"y" * MAX_HEAD_BYTES,
        HEAD + b"transfer-encoding: chunked\r\n\r\n5;" + b"x" * (MAX_HEAD_BYTES + 1),
        HEAD + b"content-encoding: br\r\ncontent-length: 1\r\n\r\nx",
        HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc",
        HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hello", mtime=0)[:-4],
    ],
)
def test_what_is_no_answer_is_never_guessed_at(answer: bytes) -> None:
    assert fault(answer, closed=True) is Reason.GARBAGE


def test_two_lengths_that_agree_are_one() -> None:
    assert read(HEAD + b"content-length: 2\r\nContent-Length: 2\r\n\r\nhi").body() == b"hi"


@pytest.mark.parametrize("answer", [b"", HEAD, WITH_LENGTH[:-1], CHUNKED[:-1]])
def test_an_answer_that_is_cut_is_a_fault_of_the_connection(answer: bytes) -> None:
    assert fault(answer, closed=True) is Reason.CONNECT


@pytest.mark.parametrize(
    "answer",
    [
        WITH_LENGTH.partition(b"hello")[0],
        CHUNKED,
        UNTIL_CLOSE,
        HEAD + b"content-length: 99999999999999999999\r\n\r\n",
        HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 10_000, mtime=0),
    ],
)
def test_a_body_over_the_limit_is_refused_as_early_as_it_is_known(answer: bytes) -> None:
    limit = 60 if b"gzip" in answer else 10

    assert fault(answer, limit=limit, closed=True) is Reason.TOO_LARGE


def test_a_compressed_body_may_be_exactly_as_long_as_the_limit() -> None:
    packed = gzip.compress(b"x" * 500, mtime=0)
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)

    assert read(head + packed, limit=500).body() == b"x" * 500


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from([b"", HEAD, CHUNKED[:60]]))
def test_any_bytes_end_in_an_answer_or_in_a_fault(pieces: list[bytes], start: bytes) -> None:
    try:
        read(start, *pieces, closed=True).body()
    except ScrapeError as error:
        assert str(error)


def chunks_of(content: bytes, size: int) -> bytes:
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def test_a_page_of_tiny_chunks_is_refused() -> None:
    assert fault(chunks_of(b"x" * 100_000, 1), limit=1_000_000) is Reason.GARBAGE


def test_a_page_that_comes_line_by_line_is_not() -> None:
    assert len(read(chunks_of(b"x" * 240_000, 60), limit=1_000_000).body()) == 240_000


def test_trailers_come_to_an_end() -> None:
    assert fault(chunks_of(b"x", 1)[:-2] + b"a: b\r\n" * 100_000) is Reason.GARBAGE


def test_interim_answers_come_to_an_end() -> None:
    assert fault(b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_INTERIM_ANSWERS + 1) + WITH_LENGTH) is Reason.GARBAGE


def test_a_compressed_page_that_is_long_without_need_is_not_unpacked() -> None:
    unpacked = zlib.compressobj(wbits=31)
    parts = [unpacked.compress(b"a 1\n")]
    parts += [unpacked.flush(zlib.Z_FULL_FLUSH) + unpacked.compress(b"a") for _ in range(10)]
    body = b"".join(parts) + b"\0" * MAX_COMPRESSED_BYTES
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)

    assert fault(head + body, limit=8 << 20) is Reason.TOO_LARGE
