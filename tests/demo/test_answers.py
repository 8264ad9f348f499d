"""Whether an answer is whole."""

import pytest

from epp.demo.answers import StreamCheck, fault_in_answer

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"the "},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


def checked(*pieces: bytes) -> StreamCheck:
    check = StreamCheck()
    for piece in pieces:
        check.feed(piece)
    return check


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_answer_that_ended_by_itself_or_at_its_limit_is_whole(reason: str) -> None:
    assert fault_in_answer(b'{"id": "x", "choices": [{"finish_reason": "%s", "message": {}}]}' % reason.encode()) is None


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "200 without an answer in it"),
        (b'{"choices": [{"finish_rea', "200 without an answer in it"),
        (b'{"error": {"message": "no"}}', "200 without an answer in it"),
        (b'{"choices": []}', "200 with finish_reason missing"),
        (b'{"choices": [{"finish_reason": "abort"}]}', "200 with finish_reason abort"),
        (b'{"choices": [{"message": {}}]}', "200 with finish_reason None"),
    ],
)
def test_a_200_without_a_whole_answer_is_found(body: bytes, fault: str) -> None:
    """vLLM that drains answers 200 with an empty text and `abort`; a status alone proves nothing."""
    assert fault_in_answer(body) == fault


def test_a_stream_is_whole_at_its_end_mark_however_it_was_cut_into_pieces() -> None:
    for width in (1, 2, 7, len(STREAM)):
        check = checked(*(STREAM[at : at + width] for at in range(0, len(STREAM), width)))
        assert (check.ended, check.fault) == (True, None)


def test_line_ends_of_either_kind_are_read() -> None:
    assert checked(STREAM.replace(b"\n", b"\r\n")).ended


def test_a_stream_without_its_end_mark_is_not_whole() -> None:
    assert not checked(STREAM[:-10]).ended
    assert not checked(b'data: {"text": "data: [DONE]"}\n\n').ended


def test_an_error_inside_a_stream_is_found_although_the_end_mark_follows() -> None:
    assert checked(b'data: {"error":{"message":"x","code":500}}\n\ndata: [DONE]\n\n').fault == "error event in the stream"
    assert (
        checked(b'data: {"choices":[{"finish_reason":"abort"}]}\n\ndata: [DONE]\n\n').fault == "stream with finish_reason abort"
    )
