"""The token usage that a response states, in the ways of OpenAI, Anthropic, Ollama and those who follow them."""

import json
import re
from dataclasses import dataclass

import msgspec

MAX_USAGE_BYTES = 8192
MAX_USAGE_OBJECTS = 8
"""So many are tried in a document whose structure is not known."""
MAX_TOKENS = 2**53
USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*(?=\{)')  # in a text that the model wrote the quotes are escaped
_EVAL_COUNT = re.compile(rb'"((?:prompt_)?eval_count)"\s*:\s*(\d{1,15})\s*[,}]')
_LENIENT_READER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """What a model server says a request took; None where it does not say.

    Attributes:
        prompt_tokens: All tokens of the prompt, cached ones included, ≥ 0.
        completion_tokens: Tokens written, ≥ 0.
        cached_tokens: Tokens of the prompt that were in the KV cache, ≥ 0.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def updated(self, later: "TokenUsage") -> "TokenUsage":
        """With what a later event says. Events carry running totals; in some a zero stands for "not known here"."""
        return TokenUsage(
            prompt_tokens=_newer(self.prompt_tokens, later.prompt_tokens),
            completion_tokens=_newer(self.completion_tokens, later.completion_tokens),
            cached_tokens=_newer(self.cached_tokens, later.cached_tokens),
        )


def usage_in(raw: msgspec.Raw) -> TokenUsage | None:
    if not 0 < len(raw) <= MAX_USAGE_BYTES:
        return None
    try:
        return _usage_of(msgspec.json.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return None


def usage_somewhere_in(text: bytes) -> TokenUsage | None:
    """The last usage in a text whose structure cannot be known, because a part is missing or is no JSON."""
    for found in list(USAGE_OBJECT.finditer(text))[: -MAX_USAGE_OBJECTS - 1 : -1]:
        excerpt = text[found.end() : found.end() + MAX_USAGE_BYTES].decode("utf-8", "replace")
        try:
            usage = _usage_of(_LENIENT_READER.raw_decode(excerpt)[0])
        except (ValueError, RecursionError):
            continue
        if usage is not None:
            return usage
    counts = {found[1]: int(found[2]) for found in _EVAL_COUNT.finditer(text)}
    return known_usage(counts.get(b"prompt_eval_count"), counts.get(b"eval_count"), None)


def _usage_of(value: object) -> TokenUsage | None:
    """Read a `usage` object as OpenAI, Anthropic and the servers that follow them write it."""
    if not isinstance(value, dict):
        return None
    cached = _count(value.get("cache_read_input_tokens"))
    for key in ("prompt_tokens_details", "input_tokens_details"):
        details = value.get(key)
        if isinstance(details, dict) and cached is None:
            cached = _count(details.get("cached_tokens"))
    prompt = _count(value.get("prompt_tokens"))
    if prompt is None:
        prompt = _count(value.get("input_tokens"))
        if prompt is not None:  # Anthropic counts what was read from the cache or written to it apart
            for key in ("cache_read_input_tokens", "cache_creation_input_tokens"):
                prompt += _count(value.get(key)) or 0
    completion = _count(value.get("completion_tokens"))
    return known_usage(prompt, _count(value.get("output_tokens")) if completion is None else completion, cached)


def known_usage(prompt: int | None, completion: int | None, cached: int | None) -> TokenUsage | None:
    if prompt is None and completion is None and cached is None:
        return None
    return TokenUsage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def number_in(raw: msgspec.Raw) -> int | None:
    return _count(msgspec.json.decode(raw)) if 0 < len(raw) <= 16 and bytes(raw).isdigit() else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def _newer(known: int | None, later: int | None) -> int | None:
    return later if later or known is None else known
