"""`running-requests-size-scorer`: requests in execution; `(max − n) / (max − min)`, all equal is 1.0."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import lowest_is_best


class RunningRequestsScorer:
    """Reads `Endpoint.load.running_requests`: the last scrape, corrected by own picks since."""

    def __init__(self, name: str = "running-requests-size-scorer") -> None:
        self.name = name

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        return lowest_is_best([e.load.running_requests for e in candidates])
