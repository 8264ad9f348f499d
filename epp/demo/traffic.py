"""The requests of the demo: what they ask and when they come. The same seed makes the same requests."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

RATE_PER_S = 30.0
"""Mean arrivals a second; the pauses between them are exponential, as between independent clients."""
STREAMING_SHARE = 0.5
CONVERSATION_SHARE = 0.25
"""Requests that begin with one of `CONVERSATIONS` long system prompts."""
LONG_SHARE = 0.15
"""Requests with a long document of their own."""
CONVERSATIONS = 5
SYSTEM_PROMPT_WORDS = 500
LONG_WORDS = (1_000, 3_000)
SHORT_WORDS = (8, 60)
ANSWER_TOKENS = (20, 180)
"""Shortest and longest answer; short ones are more frequent."""

_WORDS = (
    "server", "queue", "token", "cache", "answer", "prompt", "model", "router", "river", "winter", "garden", "letter", "number",
    "window", "forest", "summer", "engine", "copper", "island", "market", "silver", "thread", "yellow", "bridge", "candle",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One chat request.

    Attributes:
        number: From 0.
        at_s: When it is sent, in seconds after the start of the traffic.
        messages: In the form of the OpenAI API.
        answer_tokens: How long the answer is to be.
    """

    number: int
    at_s: float
    streaming: bool
    messages: tuple[dict[str, str], ...]
    answer_tokens: int

    def body(self, model: str) -> dict[str, Any]:
        """The JSON of the request."""
        return {
            "model": model,
            "messages": list(self.messages),
            "max_tokens": self.answer_tokens,
            "ignore_eos": True,
            "stream": self.streaming,
        }


def plan_traffic(seed: int, *, rate_per_s: float = RATE_PER_S) -> Iterator[PlannedRequest]:
    """Requests without end, in the order of their times."""
    source = random.Random(seed)  # noqa: S311 - makes up traffic
    system_prompts = [_words(source, SYSTEM_PROMPT_WORDS) for _ in range(CONVERSATIONS)]
    at_s, number = 0.0, 0
    while True:
        at_s += source.expovariate(rate_per_s)
        yield PlannedRequest(
            number=number,
            at_s=at_s,
            streaming=source.random() < STREAMING_SHARE,
            messages=_messages(source, system_prompts),
            answer_tokens=round(source.triangular(*ANSWER_TOKENS, ANSWER_TOKENS[0])),
        )
        number += 1


def _messages(source: random.Random, system_prompts: list[str]) -> tuple[dict[str, str], ...]:
    kind = source.random()
    question = {"role": "user", "content": _words(source, source.randint(*SHORT_WORDS))}
    if kind < CONVERSATION_SHARE:
        return {"role": "system", "content": source.choice(system_prompts)}, question
    if kind < CONVERSATION_SHARE + LONG_SHARE:
        return ({"role": "user", "content": _words(source, source.randint(*LONG_WORDS))},)
    return (question,)


def _words(source: random.Random, count: int) -> str:
    return " ".join(source.choices(_WORDS, k=count))
