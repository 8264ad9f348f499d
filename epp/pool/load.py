"""How much work a model server has, and what one more request there would cost."""

from typing import NamedTuple

from epp.pool.metrics import EndpointMetrics

WAITING_COST_REQUESTS = 64.0
"""Cost of a queue as long as the running batch, in running requests.

A request that waits behind `waiting` others is served after about `waiting / running` service times, while one more
request in a running batch slows the batch by a percent or two; so a queue of a whole batch counts like 64 running requests.
"""
WAITING_COST_FLOOR = 4.0
"""A waiting request never counts less than this many running ones, however large the batch."""
KV_PRESSURE_FROM_RATIO = 0.8
"""Above this use of the KV cache a new long prompt may have to wait or to evict others."""
KV_PRESSURE_REQUESTS = 10.0
"""Cost of a KV cache that is full, in running requests. Bounded: a gauge that sticks at 1.0 must not make a black hole."""


class LoadEstimate(NamedTuple):
    """The load of one endpoint now.

    Attributes:
        waiting_requests: Queued in the server, as scraped and corrected; ≥ 0.
        running_requests: In execution or on the way there, ≥ 0; with the waiting ones never below the own count.
        cost_requests: What the next request would find, in running requests, before the endpoint's weight: comparable
            within a pool, not a prediction of time. Includes the KV cache, which below 80 % use only breaks ties.
    """

    waiting_requests: float
    running_requests: float
    cost_requests: float


def estimate_load(metrics: EndpointMetrics | None, in_flight: int, in_flight_at_scrape: int) -> LoadEstimate:
    """Combine the last scrape with the own count.

    load = what the scrape says + (own count now − own count when the scrape began), and at least the own count.
    New requests join the queue where there is one; requests that ended are taken from the queue first, since the
    server admits the next one at once.

    Args:
        metrics: The last scrape; None when nothing is known, then the own count is all there is.
        in_flight: Own count now.
        in_flight_at_scrape: Own count when that scrape began.
    """
    if metrics is None or not metrics.has_load:
        kv_cost = 0.0 if metrics is None else _kv_cost(metrics.kv_cache_usage_ratio)
        return LoadEstimate(0.0, float(in_flight), in_flight + kv_cost)
    waiting = metrics.waiting_requests or 0.0
    running = metrics.running_requests or 0.0
    moved = in_flight - in_flight_at_scrape
    if moved > 0:
        if waiting > 0:
            waiting += moved
        else:
            running += moved
    elif moved < 0:
        from_queue = min(waiting, -moved)
        waiting -= from_queue
        running = max(0.0, running + moved + from_queue)
    running = max(running, in_flight - waiting)
    cost = running
    if waiting > 0:
        cost += waiting * max(WAITING_COST_FLOOR, WAITING_COST_REQUESTS / max(running, 1.0))
    return LoadEstimate(waiting, running, cost + _kv_cost(metrics.kv_cache_usage_ratio))


def estimated_cost(metrics: EndpointMetrics | None, in_flight: int, in_flight_at_scrape: int) -> float:
    """`estimate_load(…).cost_requests`, without the rest where there is no queue: it is asked for at each pick and end."""
    if metrics is None or metrics.waiting_requests:
        return estimate_load(metrics, in_flight, in_flight_at_scrape).cost_requests
    running = (metrics.running_requests or 0.0) + (in_flight - in_flight_at_scrape if metrics.has_load else 0)
    return (max(in_flight, running)) + _kv_cost(metrics.kv_cache_usage_ratio)


def _kv_cost(usage: float | None) -> float:
    if usage is None:
        return 0.0
    pressure = (usage - KV_PRESSURE_FROM_RATIO) / (1.0 - KV_PRESSURE_FROM_RATIO)
    return usage if pressure <= 0 else usage + KV_PRESSURE_REQUESTS * pressure
