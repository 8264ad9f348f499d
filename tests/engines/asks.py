"""Requests to real engines."""

from collections.abc import Iterator

import msgspec

from tests.rollout.asks import Ask, plan_asks
from tests.rollout.practice import Pace


class EngineAsk(Ask):
    """The same request; the answer is to say at its end how many tokens it had."""

    def body(self) -> bytes:
        document = msgspec.json.decode(super().body())
        return msgspec.json.encode({**document, "stream_options": {"include_usage": True}})


def plan_engine_asks(seed: int, pace: Pace) -> Iterator[EngineAsk]:
    """As `plan_asks`."""
    for ask in plan_asks(seed, pace):
        yield EngineAsk(ask.prompt_bytes, ask.tokens, ask.number)
