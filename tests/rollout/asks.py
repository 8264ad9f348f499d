"""Requests of a rollout: how long their answers take, how large their prompts are. The same seed makes the same ones."""

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tests.rollout.practice import Pace

TOKENS_PER_S = 20.0
"""How fast every simulated server answers: what an answer takes is in its length, not in the speed of the machine."""
MODEL = "sim-model"
SHORTEST_S = 0.2
LONGEST_EVERY = 4
"""Each so-and-so-many-th answer is among the long ones, so that there are always some."""
_SMALLEST_PROMPT_BYTES = 500


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for a stream.

    Attributes:
        prompt_bytes: Size of its prompt.
        tokens: Length of the answer.
        number: From 0; prompts of different numbers have nothing in common.
        model: What it asks for; a simulated server has it under any name.
    """

    prompt_bytes: int
    tokens: int
    number: int = 0
    model: str = MODEL

    @property
    def takes_s(self) -> float:
        """How long an idle server takes for the answer."""
        return self.tokens / TOKENS_PER_S

    def body(self) -> bytes:
        """The JSON of the request."""
        words = f"{self.number:08} " + string.ascii_lowercase * (self.prompt_bytes // len(string.ascii_lowercase) + 1)
        document = {
            "model": self.model, "prompt": words[: self.prompt_bytes], "max_tokens": self.tokens, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        return msgspec.json.encode(document)


def plan_asks(seed: int, pace: Pace) -> Iterator[Ask]:
    """Requests without end: mostly short answers and small prompts, now and then a long answer or a large prompt."""
    source = random.Random(seed)
    number = 0
    while True:
        if number % LONGEST_EVERY == LONGEST_EVERY - 1:
            takes_s = source.uniform(0.8, 1.0) * pace.longest_s
        else:
            takes_s = source.triangular(SHORTEST_S, pace.shorter_s, SHORTEST_S)
        # Half of them have less than a quarter of the way, on a scale of doublings, from the smallest to the largest.
        size = _SMALLEST_PROMPT_BYTES * (pace.largest_prompt_bytes / _SMALLEST_PROMPT_BYTES) ** (source.random() ** 2)
        yield Ask(round(size), round(takes_s * TOKENS_PER_S), number)
        number += 1
