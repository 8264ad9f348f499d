"""`random-picker`: any candidate that the filters left, whatever the scores say."""

import random
from collections.abc import Sequence

from epp.pool.endpoint import Endpoint


class RandomPicker:
    """Names candidates in random order; `max_endpoints` as in `Picker`."""

    def __init__(self, name: str = "random-picker", *, rng: random.Random, max_endpoints: int | None = None) -> None:
        self.name = name
        self.max_endpoints = max_endpoints
        self._rng = rng

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float], count: int) -> tuple[Endpoint, ...]:
        return tuple(self._rng.sample(candidates, min(count, len(candidates))))
