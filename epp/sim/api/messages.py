"""Answers of the Anthropic Messages API."""

from collections.abc import Sequence
from typing import Any

from epp.sim.api.exchange import Choice, Format, named_event

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class MessagesFormat(Format):
    """/v1/messages. `input_tokens` leaves out what `cache_read_input_tokens` counts, as that API defines them."""

    def whole(self) -> dict[str, Any]:
        choice = self.exchange.choices[0]
        return self._message(
            [{"type": "text", "text": choice.answer.text}],
            _STOP_REASONS[choice.answer.finish_reason],
            self.exchange.answer_tokens,
        )

    def opening(self) -> bytes:
        block = {"type": "text", "text": ""}
        return named_event("message_start", {"type": "message_start", "message": self._message([], None, 0)}) + named_event(
            "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def tokens(self, choice: Choice, tokens: Sequence[str]) -> bytes:
        return b"".join(
            named_event(
                "content_block_delta",
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": token}},
            )
            for token in tokens
        )

    def closing(self, choice: Choice) -> bytes:
        delta = {"stop_reason": _STOP_REASONS[choice.answer.finish_reason], "stop_sequence": None}
        return named_event("content_block_stop", {"type": "content_block_stop", "index": 0}) + named_event(
            "message_delta", {"type": "message_delta", "delta": delta, "usage": self._usage(self.exchange.answer_tokens)}
        )

    def ending(self) -> bytes:
        return named_event("message_stop", {"type": "message_stop"})

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, answer_tokens: int) -> dict[str, Any]:
        return {
            "id": f"msg_{self.exchange.id}",
            "type": "message",
            "role": "assistant",
            "model": self.exchange.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": self._usage(answer_tokens),
        }

    def _usage(self, answer_tokens: int) -> dict[str, int]:
        cached = self.exchange.cached_tokens
        return {
            "input_tokens": self.exchange.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": answer_tokens,
        }
