"""One request together with its jobs, and the shape of an answer's format."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from epp.sim.api.request import ApiRequest
from epp.sim.job import Job
from epp.sim.text import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to one prompt.

    Attributes:
        index: Its place in the response, from 0.
        job: Its work in the engine.
        answer: What it will say.
    """

    index: int
    job: Job
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and what becomes of it.

    Attributes:
        id: Hexadecimal part of the response's id.
        created: Unix time in seconds.
        model: Name of the model in the response.
        choices: The answers, those to the first prompt first.
    """

    request: ApiRequest
    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts, each counted once however many answers it gets."""
        return sum(choice.job.prompt_tokens for choice in self._one_a_prompt())

    @property
    def cached_tokens(self) -> int:
        """Those of them that were found in the KV cache."""
        return sum(choice.job.cached_tokens for choice in self._one_a_prompt())

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(choice.job.output_tokens for choice in self.choices)

    def _one_a_prompt(self) -> Sequence[Choice]:
        return self.choices[:: self.request.choices]

    def openai_usage(self) -> dict[str, Any]:
        """`usage` of chat completions and completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.answer_tokens,
            "completion_tokens": self.answer_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Format(ABC):
    """How one API writes an answer, whole or as server-sent events.

    A stream is `opening`, then for each choice `tokens` (any number of times) and `closing`, then `ending`.
    """

    streams: ClassVar[bool] = True

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    def opening(self) -> bytes:
        """What comes before the first token."""
        return b""

    def tokens(self, choice: Choice, tokens: Sequence[str]) -> bytes:
        """Events for tokens that are ready, one each."""
        raise NotImplementedError

    def closing(self, choice: Choice) -> bytes:
        """What ends one choice."""
        raise NotImplementedError

    def ending(self) -> bytes:
        """What ends the stream."""
        raise NotImplementedError


def data_event(body: object) -> bytes:
    """An event without a name."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    """An event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(body) + b"\n\n"
