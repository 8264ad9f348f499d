"""`least-load-scorer`: the default. Rates by the work a server has, as scraped and corrected by own picks."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import lowest_is_best

INTERVALS_TO_STALE = 3
"""A server whose page is slow to render is read less often; its metrics are not stale before this many of its intervals."""
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
        oldest_s, ramping_from_s = now_s - self._staleness_s, now_s - RAMP_UP_S
        unknown: list[int] = []
        for i, e in enumerate(candidates):
            if e.known_at_s < oldest_s and not _is_read_slowly(e, now_s):
                unknown.append(i)
            if e.ramps_up_from_s > ramping_from_s:
                costs[i] /= self._ramp(now_s - e.ramps_up_from_s)
        if unknown and len(unknown) < len(costs):
            skip = set(unknown)
            known = [cost for i, cost in enumerate(costs) if i not in skip]
            average = sum(known) / len(known)
            for i in unknown:
                costs[i] = max(costs[i], average)
        return costs

    @staticmethod
    def _ramp(age_s: float) -> float:
        return RAMP_UP_FROM_RATIO + (1.0 - RAMP_UP_FROM_RATIO) * max(0.0, age_s) / RAMP_UP_S


def _is_read_slowly(endpoint: Endpoint, now_s: float) -> bool:
    """Whether metrics older than the threshold are as fresh as they can be: the scrapes go well, at a longer interval."""
    interval_s = endpoint.scrape_interval_s
    return (
        endpoint.scrape_error is None
        and interval_s is not None
        and endpoint.known_at_s >= now_s - INTERVALS_TO_STALE * interval_s
    )
