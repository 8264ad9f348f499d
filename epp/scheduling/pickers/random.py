"""`random-picker`: any candidate that the filters left, whatever the scores say."""

import random
from collections.abc import Sequence

from epp.pool.endpoint import Endpoint


class RandomPicker:
    """Names up to `max_endpoints` candidates in random order."""

    def __init__(self, name: str = "random-picker", *, rng: random.Random, max_endpoints: int = 1) -> None:
        self.name = name
        self._rng = rng
        self._max_endpoints = max_endpoints

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> tuple[Endpoint, ...]:
        return tuple(self._rng.sample(candidates, min(self._max_endpoints, len(candidates))))
