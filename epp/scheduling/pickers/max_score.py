"""`max-score-picker`: the highest total wins, random among equals."""

import random
from collections.abc import Sequence

from epp.pool.endpoint import Endpoint


class MaxScorePicker:
    """Names candidates, best first; equal totals come in random order. `max_endpoints` as in `Picker`."""

    def __init__(self, name: str = "max-score-picker", *, rng: random.Random, max_endpoints: int | None = None) -> None:
        self.name = name
        self.max_endpoints = max_endpoints
        self._rng = rng

    def choose(self, candidates: Sequence[Endpoint], totals: Sequence[float], count: int) -> tuple[Endpoint, ...]:
        best = max(totals)
        ties = [e for e, total in zip(candidates, totals, strict=True) if total == best]
        if count == 1:
            return (ties[0] if len(ties) == 1 else self._rng.choice(ties),)
        chosen = self._some(ties, count)
        while len(chosen) < count and len(chosen) < len(candidates):  # a few looks are quicker than a sorted large pool
            best = max([total for total in totals if total < best])
            ties = [e for e, total in zip(candidates, totals, strict=True) if total == best]
            chosen += self._some(ties, count - len(chosen))
        return tuple(chosen)

    def _some(self, ties: list[Endpoint], count: int) -> list[Endpoint]:
        return ties if len(ties) == 1 else self._rng.sample(ties, min(count, len(ties)))
