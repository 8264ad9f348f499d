"""Prompts of every API as one text."""

from typing import Any

import pytest

from epp.sim.api.prompts import (
    MEDIA_TOKENS,
    BadRequestError,
    chat_text,
    completion_texts,
    messages_text,
    responses_text,
)
from epp.sim.text import count_tokens


def test_the_next_turn_of_a_chat_begins_with_the_last_one_and_its_answer() -> None:
    first = [{"role": "user", "content": "hi"}]
    answered = [*first, {"role": "assistant", "content": "hello "}, {"role": "user", "content": "and now"}]

    assert chat_text(answered).startswith(chat_text(first) + "hello ")


def test_content_parts_count_as_their_text_and_media_as_a_fixed_number_of_tokens() -> None:
    text = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    image = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "hi"}]}
    ]

    assert chat_text(text) == chat_text([{"role": "user", "content": "hi"}])
    assert count_tokens(chat_text(image)) - count_tokens(chat_text(text)) == MEDIA_TOKENS


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("four chars..", [3]),
        (["aaaa", "bbbbbbbb"], [1, 2]),
        ([1, 2, 3, 70000], [4]),
        ([[1, 2], [3]], [2, 1]),
    ],
)
def test_every_shape_of_a_completion_prompt_is_read(prompt: object, tokens: list[int]) -> None:
    assert [count_tokens(text) for text in completion_texts(prompt)] == tokens


@pytest.mark.parametrize("prompt", [None, 5, [], [None], ["a", 1], [[]], [["a"]], {"a": 1}, [True]])
def test_another_shape_is_a_bad_request_that_names_the_member(prompt: object) -> None:
    with pytest.raises(BadRequestError) as caught:
        completion_texts(prompt)

    assert str(caught.value).startswith("prompt")


@pytest.mark.parametrize("messages", [None, [], "hi", [5], [{"role": "user", "content": 5}]])
def test_messages_of_another_shape_are_a_bad_request(messages: object) -> None:
    with pytest.raises(BadRequestError, match="messages"):
        chat_text(messages)


def test_the_responses_api_takes_text_or_items() -> None:
    items: dict[str, Any] = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}

    assert responses_text({"input": "hi"}) == responses_text(items)
    assert responses_text({"input": "hi", "instructions": "be brief"}).startswith("<|system|>be brief")


def test_the_messages_api_puts_the_system_prompt_first() -> None:
    body = {"system": [{"type": "text", "text": "be brief"}], "messages": [{"role": "user", "content": "hi"}]}

    assert messages_text(body) == "<|system|>be brief<|end|><|user|>hi<|end|><|assistant|>"
