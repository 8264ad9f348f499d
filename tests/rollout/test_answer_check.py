"""What counts as a whole answer."""

import pytest

from tests.rollout.answer_check import AnswerCheck

TOKEN = b'data: {"choices":[{"index":0,"text":"the ","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n'


def fault_of(body: bytes, tokens: int, piece_bytes: int) -> str | None:
    check = AnswerCheck()
    for start in range(0, len(body), piece_bytes):
        check.feed(body[start : start + piece_bytes])
    return check.fault(tokens)


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
@pytest.mark.parametrize(
    ("body", "tokens", "fault"),
    [
        (2 * TOKEN + LAST + DONE, 2, None),
        (2 * TOKEN + LAST + DONE, 3, "fewer tokens than asked for"),
        (2 * TOKEN + LAST + DONE, 1, "more tokens than asked for"),
        (2 * TOKEN + LAST, 2, "no end mark"),
        (2 * TOKEN + LAST + DONE[:-1], 2, "no end mark"),
        (2 * TOKEN + LAST + DONE + TOKEN, 2, "no end mark"),
        (TOKEN + b'data: {"error":{"code":500}}\n\n' + DONE, 1, "an error in the stream"),
        (TOKEN + LAST.replace(b"length", b"abort") + DONE, 1, "an error in the stream"),
        (2 * TOKEN + LAST + USAGE + DONE, 3, None),
        (3 * TOKEN + LAST + USAGE + DONE, 4, "fewer tokens than asked for"),
        (2 * TOKEN + LAST + USAGE + DONE, 2, "more tokens than asked for"),
        (b"", 1, "no end mark"),
    ],
)
def test_an_answer_is_whole_with_all_its_tokens_and_one_end_mark(
    body: bytes, tokens: int, fault: str | None, piece_bytes: int
) -> None:
    assert fault_of(body, tokens, piece_bytes) == fault
