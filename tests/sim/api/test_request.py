"""Request bodies."""

import json
from typing import Any

import pytest

from epp.sim.api.prompts import BadRequestError
from epp.sim.api.request import read_body, read_chat, read_completion, read_embeddings, read_messages, read_responses
from epp.sim.text import AnswerLimits

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_the_newer_limit_of_chat_beats_the_older() -> None:
    request = read_chat({**CHAT, "max_tokens": 5, "max_completion_tokens": 7})

    assert request.limits == AnswerLimits(max_tokens=7)


def test_what_a_chat_request_says_is_read() -> None:
    request = read_chat(
        {**CHAT, "model": "m", "n": 2, "stream": True, "stream_options": {"include_usage": True}, "seed": 3,
         "min_tokens": 4, "ignore_eos": True, "max_tokens": 9}
    )  # fmt: skip

    assert (request.model, request.choices, request.stream, request.include_usage, request.request_seed) == (
        "m",
        2,
        True,
        True,
        3,
    )
    assert request.limits == AnswerLimits(max_tokens=9, min_tokens=4, ignore_eos=True)


def test_null_is_the_same_as_absent() -> None:
    request = read_chat({**CHAT, "max_tokens": None, "stream": None, "model": None, "n": None})

    assert request == read_chat(CHAT)


@pytest.mark.parametrize(
    ("member", "value"),
    [("max_tokens", 0), ("max_tokens", "5"), ("max_tokens", True), ("n", 0), ("stream", "yes"), ("model", 5), ("seed", 1.5)],
)
def test_a_wrong_member_is_named(member: str, value: object) -> None:
    with pytest.raises(BadRequestError) as caught:
        read_chat({**CHAT, member: value})

    assert caught.value.param == member
    assert str(caught.value).startswith(f"{member}: expected ")


def test_the_messages_api_needs_a_limit() -> None:
    with pytest.raises(BadRequestError, match="max_tokens"):
        read_messages(CHAT)


def test_the_responses_api_has_its_own_name_for_the_limit() -> None:
    assert read_responses({"input": "x", "max_output_tokens": 3}).limits == AnswerLimits(max_tokens=3)


def test_embeddings_have_no_answer() -> None:
    request = read_embeddings({"input": ["a", "b"], "dimensions": 8, "encoding_format": "base64"})

    assert (request.limits, request.prompts, request.dimensions, request.base64) == (None, ("a", "b"), 8, True)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="body: expected"):
        read_body(body, read_completion)


def test_a_body_is_read_with_the_reader_of_its_path() -> None:
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}

    assert read_body(json.dumps(body).encode(), read_completion).prompts == ("hi",)
