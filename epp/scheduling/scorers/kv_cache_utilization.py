"""`kv-cache-utilization-scorer`: `1 − used part of the KV cache` (the reference pickers' formula)."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.freshness import without_fresh_metrics
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest
from epp.scheduling.scores import at_best_average

USE_NOBODY_KNOWS = 0.5


class KvCacheUtilizationScorer:
    """An endpoint that does not tell its use, or whose metrics are stale, is at best average (0.5 when none tells)."""

    def __init__(self, name: str = "kv-cache-utilization-scorer", *, staleness_s: float) -> None:
        self.name = name
        self._staleness_s = staleness_s

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        told = [None if e.metrics is None else e.metrics.kv_cache_usage_ratio for e in candidates]
        stale = without_fresh_metrics(candidates, moment.now_s, self._staleness_s)
        unknown = sorted({*stale, *(i for i, ratio in enumerate(told) if ratio is None)})
        if len(unknown) == len(told):
            return [1.0 - (USE_NOBODY_KNOWS if ratio is None else ratio) for ratio in told]
        ratios = at_best_average([0.0 if ratio is None else ratio for ratio in told], unknown)
        return [1.0 - ratio for ratio in ratios]
