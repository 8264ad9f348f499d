"""Answers of /v1/chat/completions, /v1/completions and /v1/embeddings."""

import base64
import struct
from collections.abc import Sequence
from typing import Any

from epp.sim.api.exchange import Choice, Exchange, Format, data_event
from epp.sim.text import AnswerWriter

DONE = b"data: [DONE]\n\n"


def _event_around_token(exchange: Exchange, prefix: str, kind: str, choice: Choice, *, chat: bool) -> tuple[str, str]:
    """The event of one token, cut where the token goes; tokens need no escaping."""
    body = chunk(exchange, prefix, kind, [choice_chunk(choice, "", None, chat=chat)])
    text = data_event(body).decode()
    key = '"content":"' if chat else '"text":"'
    cut = text.rindex(key) + len(key)
    return text[:cut], text[cut:]


def choice_chunk(choice: Choice, text: str, finish_reason: str | None, *, chat: bool) -> dict[str, Any]:
    """The part of a chunk that belongs to one choice."""
    content = {"delta": {"content": text}} if chat else {"text": text}
    return {"index": choice.index, **content, "logprobs": None, "finish_reason": finish_reason}


def chunk(exchange: Exchange, prefix: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """One chunk of a stream."""
    return {
        "id": f"{prefix}-{exchange.id}",
        "object": kind,
        "created": exchange.created,
        "model": exchange.model,
        "choices": choices,
    }


class _CompletionsFormat(Format):
    """What chat completions and completions have in common."""

    prefix: str
    whole_kind: str
    chunk_kind: str
    chat: bool

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._around: dict[int, tuple[str, str]] = {}

    def whole(self) -> dict[str, Any]:
        choices = [self._whole_choice(choice) for choice in self.exchange.choices]
        body = chunk(self.exchange, self.prefix, self.whole_kind, choices)
        return {**body, "usage": self.exchange.openai_usage()}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = choice.answer.text
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": choice.index, **content, "logprobs": None, "finish_reason": choice.answer.finish_reason}

    def tokens(self, choice: Choice, tokens: Sequence[str]) -> bytes:
        around = self._around.get(choice.index)
        if around is None:
            around = _event_around_token(self.exchange, self.prefix, self.chunk_kind, choice, chat=self.chat)
            self._around[choice.index] = around
        before, after = around
        return "".join([f"{before}{token}{after}" for token in tokens]).encode()

    def closing(self, choice: Choice) -> bytes:
        last = choice_chunk(choice, "", choice.answer.finish_reason, chat=self.chat)
        if self.chat:
            last["delta"] = {}
        return data_event(chunk(self.exchange, self.prefix, self.chunk_kind, [last]))

    def ending(self) -> bytes:
        if not self.exchange.request.include_usage:
            return DONE
        body = chunk(self.exchange, self.prefix, self.chunk_kind, [])
        return data_event({**body, "usage": self.exchange.openai_usage()}) + DONE


class ChatFormat(_CompletionsFormat):
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    chat = True

    def opening(self) -> bytes:
        events = []
        for choice in self.exchange.choices:
            first = choice_chunk(choice, "", None, chat=True)
            first["delta"] = {"role": "assistant", "content": ""}
            events.append(data_event(chunk(self.exchange, self.prefix, self.chunk_kind, [first])))
        return b"".join(events)


class CompletionFormat(_CompletionsFormat):
    """/v1/completions."""

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"
    chat = False


class EmbeddingsFormat(Format):
    """/v1/embeddings."""

    streams = False

    def __init__(self, exchange: Exchange, writer: AnswerWriter) -> None:
        super().__init__(exchange)
        self._writer = writer

    def whole(self) -> dict[str, Any]:
        request = self.exchange.request
        vectors: list[list[float]] = [self._writer.vector(text, request.dimensions) for text in request.prompts]
        return {
            "id": f"embd-{self.exchange.id}",
            "object": "list",
            "created": self.exchange.created,
            "model": self.exchange.model,
            "data": [
                {"index": index, "object": "embedding", "embedding": _base64(vector) if request.base64 else vector}
                for index, vector in enumerate(vectors)
            ],
            "usage": {
                "prompt_tokens": self.exchange.prompt_tokens,
                "total_tokens": self.exchange.prompt_tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": self.exchange.cached_tokens},
            },
        }


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
