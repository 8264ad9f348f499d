"""Finds endpoints that hold requests and make no progress.

A stuck engine looks perfect from outside: health is 200, its metrics show nothing running. What gives it away is that
our requests never come back.
"""

from epp.clock import Clock
from epp.pool.endpoint import Endpoint
from epp.pool.state import PoolState

PATIENCE_WITHOUT_PROOF = 10
"""How many times longer to wait where the metrics do not contradict: long prompts and long queues are slow, not stuck."""


class StallWatch:
    """Demotes stuck endpoints; a good answer restores them (`Endpoint.answered`).

    An endpoint is stuck when `stalled_requests` or more of its requests have had no answer, and nothing at all came from
    it, for `stall_after_s`, while its own metrics say that nothing runs or waits there; ten times as long otherwise.
    """

    def __init__(self, pool: PoolState, clock: Clock, *, stall_after_s: float, stalled_requests: int) -> None:
        self._pool = pool
        self._clock = clock
        self._stall_after_s = stall_after_s
        self._stalled_requests = stalled_requests
        self._last_progress: dict[Endpoint, tuple[int, float]] = {}

    def look(self) -> list[Endpoint]:
        """Look at every endpoint once (call it about each second); returns those that were demoted now."""
        now_s = self._clock.monotonic_s()
        endpoints = self._pool.endpoints
        self._last_progress = {e: self._last_progress.get(e, (e.progress_events, now_s)) for e in endpoints}
        return [e for e in endpoints if self._is_newly_stuck(e, now_s)]

    def _is_newly_stuck(self, endpoint: Endpoint, now_s: float) -> bool:
        events, since_s = self._last_progress[endpoint]
        if endpoint.unanswered_requests < self._stalled_requests or endpoint.progress_events != events:
            self._last_progress[endpoint] = endpoint.progress_events, now_s
            return False
        metrics = endpoint.metrics
        says_idle = metrics is not None and metrics.has_load and not (metrics.waiting_requests or metrics.running_requests)
        patience_s = self._stall_after_s * (1 if says_idle else PATIENCE_WITHOUT_PROOF)
        if now_s - since_s < patience_s or endpoint.health.demoted_because is not None:
            return False
        why = f"{endpoint.unanswered_requests} requests without an answer and no progress for {now_s - since_s:.0f} s"
        endpoint.health.demote(why, now_s, self._pool.picks_total)
        return True
