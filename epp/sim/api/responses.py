"""Answers of the Responses API: one output item, and a stream of typed events with numbers in order."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from epp.sim.api.exchange import Choice, Exchange, Format, named_event


class ResponsesFormat(Format):
    """/v1/responses."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._numbers = count()
        self._item_id = f"msg_{exchange.id}"

    def whole(self) -> dict[str, Any]:
        choice = self.exchange.choices[0]
        usage = {
            "input_tokens": self.exchange.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.exchange.cached_tokens},
            "output_tokens": self.exchange.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.exchange.prompt_tokens + self.exchange.answer_tokens,
        }
        cut = choice.answer.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        reason = {"reason": "max_output_tokens"} if cut else None
        output = [self._item(status, [_part(choice.answer.text)])]
        return self._response(status, output, usage) | {"incomplete_details": reason}

    def opening(self) -> bytes:
        start = self._response("in_progress", [], None)
        return (
            self._event("response.created", response=start)
            + self._event("response.in_progress", response=start)
            + self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
            + self._event("response.content_part.added", **self._place(), part=_part(""))
        )

    def tokens(self, choice: Choice, tokens: Sequence[str]) -> bytes:
        return b"".join(
            self._event("response.output_text.delta", **self._place(), delta=token, logprobs=[]) for token in tokens
        )

    def closing(self, choice: Choice) -> bytes:
        text = choice.answer.text
        done = self.whole()
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=done["output"][0])
            + self._event(f"response.{done['status']}", response=done)
        )

    def ending(self) -> bytes:
        return b""

    def _response(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": f"resp_{self.exchange.id}",
            "object": "response",
            "created_at": self.exchange.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.exchange.model,
            "output": output,
            "usage": usage,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **members: Any) -> bytes:
        return named_event(kind, {"type": kind, "sequence_number": next(self._numbers), **members})


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
