"""`queue-scorer`: requests that wait in the server; `(max − n) / (max − min)`, all equal is 1.0."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.freshness import without_fresh_metrics
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import at_best_average, lowest_is_best


class QueueScorer:
    """The last scrape, corrected by own picks since; stale or missing metrics are at best average."""

    def __init__(self, name: str = "queue-scorer", *, staleness_s: float) -> None:
        self.name = name
        self._staleness_s = staleness_s

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        unknown = without_fresh_metrics(candidates, moment.now_s, self._staleness_s)
        return lowest_is_best(at_best_average([e.load.waiting_requests for e in candidates], unknown))
