"""Request bodies of the OpenAI and Anthropic APIs, as far as an engine looks at them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from epp.sim.api.prompts import (
    BadRequestError,
    chat_text,
    completion_texts,
    messages_text,
    responses_text,
    tools_text,
)
from epp.sim.text import AnswerLimits

DEFAULT_DIMENSIONS = 64
"""Length of an embedding when the request does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """What is asked for.

    Attributes:
        model: The model or adapter; None when the request names none.
        prompts: Each prompt as one text.
        choices: Answers to each prompt.
        limits: Bounds of each answer; None asks for embeddings.
        stream: Whether the answer is sent piece by piece.
        include_usage: Whether a stream ends with token counts.
        request_seed: Seed of the request itself.
        dimensions: Length of embeddings.
        base64: Whether embeddings are sent as base64 of little-endian floats.
    """

    model: str | None
    prompts: tuple[str, ...]
    choices: int = 1
    limits: AnswerLimits | None = field(default_factory=AnswerLimits)
    stream: bool = False
    include_usage: bool = False
    request_seed: int = 0
    dimensions: int = DEFAULT_DIMENSIONS
    base64: bool = False


Reader = Callable[[Mapping[str, Any]], ApiRequest]


def read_body(body: bytes, reader: Reader) -> ApiRequest:
    """The request in `body`, or a `BadRequestError`."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadRequestError("body", "JSON", body) from None
    if not isinstance(decoded, dict):
        raise BadRequestError("body", "a JSON object", decoded)
    return reader(decoded)


def read_chat(body: Mapping[str, Any]) -> ApiRequest:
    """POST /v1/chat/completions."""
    prompt = chat_text(body.get("messages"), before=tools_text(body.get("tools")))
    return _generation(body, (prompt,), ("max_completion_tokens", "max_tokens"))


def read_completion(body: Mapping[str, Any]) -> ApiRequest:
    """POST /v1/completions."""
    return _generation(body, completion_texts(body.get("prompt")), ("max_tokens",))


def read_responses(body: Mapping[str, Any]) -> ApiRequest:
    """POST /v1/responses."""
    return _generation(body, (responses_text(body),), ("max_output_tokens",))


def read_messages(body: Mapping[str, Any]) -> ApiRequest:
    """POST /v1/messages; `max_tokens` is required there."""
    if body.get("max_tokens") is None:
        raise BadRequestError("max_tokens", "an integer of at least 1", None)
    return _generation(body, (messages_text(body),), ("max_tokens",))


def read_embeddings(body: Mapping[str, Any]) -> ApiRequest:
    """POST /v1/embeddings."""
    return ApiRequest(
        model=_model(body),
        prompts=completion_texts(body.get("input"), param="input"),
        limits=None,
        dimensions=_integer(body, "dimensions", 1) or DEFAULT_DIMENSIONS,
        base64=body.get("encoding_format") == "base64",
    )


def _generation(body: Mapping[str, Any], prompts: tuple[str, ...], limit_names: tuple[str, ...]) -> ApiRequest:
    max_tokens = next((value for name in limit_names if (value := _integer(body, name, 1)) is not None), None)
    options = body.get("stream_options")
    return ApiRequest(
        model=_model(body),
        prompts=prompts,
        choices=_integer(body, "n", 1) or 1,
        limits=AnswerLimits(
            max_tokens=max_tokens,
            min_tokens=_integer(body, "min_tokens", 0) or 0,
            ignore_eos=_boolean(body, "ignore_eos"),
        ),
        stream=_boolean(body, "stream"),
        include_usage=isinstance(options, Mapping) and _boolean(options, "include_usage"),
        request_seed=_integer(body, "seed", -(1 << 63)) or 0,
    )


def _model(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequestError("model", "text", model)
    return model


def _integer(body: Mapping[str, Any], name: str, minimum: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < minimum:
        raise BadRequestError(name, f"an integer of at least {minimum}", value)
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise BadRequestError(name, "true or false", value)
    return value
