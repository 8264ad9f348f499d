"""`least-load-scorer`: the default. Rates by the work a server has, as scraped and corrected by own picks."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.freshness import without_fresh_metrics
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import at_best_average, lowest_is_best

RAMP_UP_S = 10.0
"""How long an endpoint that joined late, or came back, takes to its full share."""
RAMP_UP_FROM_RATIO = 0.5
"""Share at the start of the ramp, as Envoy's slow start does it: the weight grows linearly from here to 1."""


class LeastLoadScorer:
    """1.0 for the least cost, 0.0 for the highest, linear between; all equal is 1.0.

    The cost is `Endpoint.cost` (see `epp.pool.load`). An endpoint whose metrics are missing or older than the staleness
    threshold counts at least like the average of those with fresh ones: it may be idle, but nobody knows. Where no
    endpoint has fresh metrics, own counts decide alone.
    """

    def __init__(self, name: str = "least-load-scorer", *, staleness_s: float) -> None:
        self.name = name
        self._staleness_s = staleness_s

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        return lowest_is_best(self.costs(candidates, moment.now_s))

    def costs(self, candidates: Sequence[Endpoint], now_s: float) -> list[float]:
        """The cost of each candidate, ≥ 0, with ramp-up and missing knowledge taken into account."""
        costs = [e.cost for e in candidates]
        ramping_from_s = now_s - RAMP_UP_S
        for i, e in enumerate(candidates):
            if e.ramps_up_from_s > ramping_from_s:
                costs[i] /= self._ramp(now_s - e.ramps_up_from_s)
        unknown = without_fresh_metrics(candidates, now_s, self._staleness_s)
        return at_best_average(costs, unknown) if unknown else costs

    @staticmethod
    def _ramp(age_s: float) -> float:
        return RAMP_UP_FROM_RATIO + (1.0 - RAMP_UP_FROM_RATIO) * max(0.0, age_s) / RAMP_UP_S
