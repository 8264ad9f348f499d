"""The pool as `GET /api/v1/pool` shows it."""

from math import isfinite
from typing import Any

from epp.clock import Clock
from epp.lifecycle import Lifecycle
from epp.pool.endpoint import Endpoint
from epp.pool.metrics import EndpointMetrics, LoraState
from epp.pool.state import PoolState

NOTHING = EndpointMetrics()
"""What an endpoint says that was never scraped."""


class PoolView:
    """Spells the pool out as JSON. A number that nobody gave is null, never 0."""

    def __init__(self, pool: PoolState, lifecycle: Lifecycle, clock: Clock) -> None:
        self._pool = pool
        self._lifecycle = lifecycle
        self._clock = clock

    def as_json(self) -> dict[str, Any]:
        """The whole pool; endpoints that left and still hold requests come last, as draining."""
        pool = self._pool
        now_s = self._clock.monotonic_s()
        return {
            "pool": {"name": pool.name, "source": pool.source, **pool.details},
            "ready": self._lifecycle.ready,
            "phase": self._lifecycle.phase.value,
            "listed": pool.listed,
            "picks_total": pool.picks_total,
            "in_flight_requests": pool.in_flight_requests,
            "endpoints": [
                *(_endpoint(endpoint, now_s, leaving=False) for endpoint in pool.endpoints),
                *(_endpoint(endpoint, now_s, leaving=True) for endpoint in pool.leaving),
            ],
        }


def _endpoint(endpoint: Endpoint, now_s: float, *, leaving: bool) -> dict[str, Any]:
    spec, load, metrics = endpoint.spec, endpoint.load, endpoint.metrics or NOTHING
    return {
        "endpoint": spec.address,
        "name": spec.name,
        "engine": endpoint.engine,
        "state": endpoint.state.value,
        "reason": endpoint.reason,
        "leaving": leaving,
        "demoted_because": endpoint.health.demoted_because,
        "weight": spec.weight,
        "labels": dict(spec.labels),
        "waiting_requests": _number(metrics.waiting_requests),
        "running_requests": _number(metrics.running_requests),
        "kv_cache_usage_ratio": metrics.kv_cache_usage_ratio,
        "kv_cache_blocks": metrics.kv_cache_blocks,
        "kv_cache_block_tokens": metrics.kv_cache_block_tokens,
        "max_running_requests": metrics.max_running_requests,
        "models": sorted(metrics.models),
        "lora": _lora(metrics.lora) if metrics.lora else None,
        "in_flight_requests": endpoint.in_flight_requests,
        "load": {
            "waiting_requests": _number(load.waiting_requests),
            "running_requests": _number(load.running_requests),
            "cost_requests": _rounded(load.cost_requests),
        },
        "metrics_age_s": _rounded(endpoint.metrics_age_s(now_s)),
        "scrape_interval_s": _rounded(endpoint.scrape_interval_s),
        "scrape_error": endpoint.scrape_error,
    }


def _lora(lora: LoraState) -> dict[str, Any]:
    return {"active": sorted(lora.active), "waiting": sorted(lora.waiting), "max": lora.max_adapters}


def _number(value: float | None) -> float | int | None:
    """Counts of requests are floats inside (pages say `3.0`) and whole numbers to people."""
    if value is None or not isfinite(value):
        return None
    return int(value) if value == int(value) else _rounded(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
