"""`queue-scorer`: requests that wait in the server; `(max − n) / (max − min)`, all equal is 1.0."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import lowest_is_best


class QueueScorer:
    """Reads `Endpoint.load.waiting_requests`: the last scrape, corrected by own picks since."""

    def __init__(self, name: str = "queue-scorer") -> None:
        self.name = name

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        return lowest_is_best([e.load.waiting_requests for e in candidates])
