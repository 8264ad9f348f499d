"""`kv-cache-utilization-scorer`: `1 − used part of the KV cache` (the reference pickers' formula)."""

from collections.abc import Sequence

from epp.pool.endpoint import Endpoint
from epp.scheduling.plugin import Moment
from epp.scheduling.request import InferenceRequest


class KvCacheUtilizationScorer:
    """An endpoint that does not tell its use gets the average of those that do (0.5 when none does): never the best."""

    def __init__(self, name: str = "kv-cache-utilization-scorer") -> None:
        self.name = name

    def score(self, request: InferenceRequest, candidates: Sequence[Endpoint], moment: Moment) -> Sequence[float]:
        ratios = [None if e.metrics is None else e.metrics.kv_cache_usage_ratio for e in candidates]
        known = [ratio for ratio in ratios if ratio is not None]
        otherwise = sum(known) / len(known) if known else 0.5
        return [1.0 - (otherwise if ratio is None else ratio) for ratio in ratios]
