"""The product's decision and exchange, put together as `epp serve` does it, without sockets."""

import itertools
import random
from collections import deque

from prometheus_client import CollectorRegistry

from epp.clock import SystemClock
from epp.config.settings import LimitSettings, RequestSettings, ScrapeSettings
from epp.endpoint_picker import EndpointPicker, Pick
from epp.extproc.budget import BufferBudget
from epp.extproc.exchange import Exchange
from epp.pool.endpoint import EndpointSpec, endpoint_address
from epp.pool.metrics import EndpointMetrics
from epp.pool.state import PoolState
from epp.scheduling.catalog import Workshop, default_profile
from epp.scheduling.request import InferenceRequest
from epp.telemetry.logging import configure_logging
from epp.telemetry.metrics import Metrics
from tests.fakes.observer import SilentLog

_IN_FLIGHT = 64
_SEED = 7


class PickerInProcess:
    """A pool of busy vLLM servers with fresh metrics, and a picker that counts into real metrics.

    Attributes:
        exchange: For sessions.
    """

    def __init__(self, endpoint_count: int) -> None:
        self.clock = SystemClock()
        self.metrics = Metrics(CollectorRegistry())
        self.pool = PoolState(self.clock, name="bench", source="static")
        addresses = [endpoint_address(f"10.0.{n // 250}.{n % 250 + 1}", 8000) for n in range(endpoint_count)]
        self.pool.sync([EndpointSpec(address=address, name=f"e{n}") for n, address in enumerate(addresses)])
        rng = random.Random(_SEED)
        profile = default_profile(Workshop(rng=rng, staleness_s=ScrapeSettings().staleness_s))
        self._picker = EndpointPicker(self.pool, profile, clock=self.clock, observer=self.metrics, log=SilentLog())
        self._rng = rng
        self._picks: deque[Pick] = deque()
        self._numbers = itertools.count()
        limits = LimitSettings()
        self.exchange = Exchange(
            pick=self._picker.pick,
            clock=self.clock,
            observer=self.metrics,
            bugs=configure_logging("error", "json")("bench"),
            limits=limits,
            requests=RequestSettings(),
            budget=BufferBudget(limits.max_buffered_bytes),
            next_request_id=lambda: "bench",
        )

    def scrape_all(self) -> None:
        """Every endpoint tells something new."""
        for endpoint in self.pool.endpoints:
            metrics = EndpointMetrics(
                waiting_requests=float(self._rng.randrange(3)),
                running_requests=float(self._rng.randrange(40)),
                kv_cache_usage_ratio=self._rng.random(),
            )
            endpoint.scraped(metrics, began_at_s=self.clock.monotonic_s(), in_flight_at_begin=endpoint.in_flight_requests)

    def next_request(self) -> InferenceRequest:
        """A request; before it, the oldest one that was picked ends once there are many."""
        if len(self._picks) >= _IN_FLIGHT:
            self._picks.popleft().release()
        return InferenceRequest(request_id=f"r{next(self._numbers)}", model="m")

    def pick(self, request: InferenceRequest) -> None:
        """Decide and count."""
        self._picks.append(self._picker.pick(request))
