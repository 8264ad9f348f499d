"""`max-score-picker`: the highest total wins, random among equals."""

import random
from collections.abc import Sequence

from epp.pool.endpoint import Endpoint


class MaxScorePicker:
    """Names up to `max_endpoints` candidates, best first; equal totals come in random order."""

    def __init__(self, name: str = "max-score-picker", *, rng: random.Random, max_endpoints: int = 1) -> None:
        self.name = name
        self._rng = rng
        self._max_endpoints = max_endpoints

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> tuple[Endpoint, ...]:
        if self._max_endpoints == 1:
            best = max(totals)
            ties = [e for e, total in zip(candidates, totals, strict=True) if total == best]
            return (ties[0] if len(ties) == 1 else self._rng.choice(ties),)
        order = list(range(len(candidates)))
        self._rng.shuffle(order)
        order.sort(key=totals.__getitem__, reverse=True)
        return tuple(candidates[i] for i in order[: self._max_endpoints])
