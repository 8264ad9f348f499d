"""Prompts of every API as one text, the way a chat template makes one.

The text of an answer, appended to the text of its prompt, is how the next turn of the same chat begins, so a chat finds
its own past in the KV cache.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from epp.sim.text import CHARS_PER_TOKEN

MEDIA_TOKENS = 256
"""What an image, a sound or a file counts for."""


class BadRequestError(Exception):
    """The body is not what the API expects.

    Attributes:
        param: The member at fault.
    """

    def __init__(self, param: str, expected: str, found: object) -> None:
        super().__init__(f"{param}: expected {expected}, found {type(found).__name__}")
        self.param = param


def chat_text(messages: object, *, param: str = "messages", before: str = "") -> str:
    """Messages with `role` and `content` (text, or a list of content parts), after `before` (tools, instructions)."""
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(param, "a list with at least one message", messages)
    turns = [before]
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise BadRequestError(f"{param}[{index}]", "an object", message)
        content = content_text(message.get("content"), param=f"{param}[{index}].content")
        calls = message.get("tool_calls")
        turns.append(f"<|{message.get('role', 'user')}|>{content}{_json_text(calls) if calls else ''}<|end|>")
    turns.append("<|assistant|>")
    return "".join(turns)


def content_text(content: object, *, param: str) -> str:
    """Text, or content parts of which those with text are read and others count as media."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequestError(param, "text or a list of parts", content)
    return "".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    mark = f"{zlib.crc32(msgspec.json.encode(part)):08x}"
    return mark * (MEDIA_TOKENS * CHARS_PER_TOKEN // len(mark))


def tools_text(tools: object) -> str:
    """Tool definitions, which templates put first."""
    return f"<|tools|>{_json_text(tools)}<|end|>" if tools else ""


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def completion_texts(prompt: object, *, param: str = "prompt") -> tuple[str, ...]:
    """A text, a list of texts, token ids, or a list of lists of token ids."""
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise BadRequestError(param, "text, texts, token ids or lists of token ids", prompt)
    if all(isinstance(item, str) for item in prompt):
        return tuple(prompt)
    if _are_token_ids(prompt):
        return (_token_text(prompt),)
    return tuple(_nested(prompt, param))


def _nested(prompts: Sequence[Any], param: str) -> Iterator[str]:
    for index, item in enumerate(prompts):
        if not isinstance(item, list) or not _are_token_ids(item):
            raise BadRequestError(f"{param}[{index}]", "a list of token ids", item)
        yield _token_text(item)


def _are_token_ids(items: Sequence[Any]) -> bool:
    return bool(items) and all(type(item) is int for item in items)


def _token_text(ids: Sequence[int]) -> str:
    return "".join(f"{token & 0xFFFF:04x}" for token in ids)


def responses_text(body: Mapping[str, Any]) -> str:
    """`instructions` and `input` of the Responses API (text, or items with role and content)."""
    before = tools_text(body.get("tools"))
    if body.get("instructions") is not None:
        before += f"<|system|>{content_text(body['instructions'], param='instructions')}<|end|>"
    given = body.get("input")
    if isinstance(given, str):
        return f"{before}<|user|>{given}<|end|><|assistant|>"
    return chat_text(given, param="input", before=before)


def messages_text(body: Mapping[str, Any]) -> str:
    """`system` and `messages` of the Anthropic API."""
    before = tools_text(body.get("tools"))
    if body.get("system") is not None:
        before += f"<|system|>{content_text(body['system'], param='system')}<|end|>"
    return chat_text(body.get("messages"), before=before)
