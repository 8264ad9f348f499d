"""Where the metrics page of a simulated server comes from, faults included."""

import asyncio
import time
from collections.abc import Callable, Mapping

from epp.clock import Clock
from epp.sim.config import SimConfig
from epp.sim.driver import EngineDriver
from epp.sim.engines.base import Engine, Refresh, Reply, ServerStatus, View
from epp.sim.faults import Faults
from epp.sim.gauges import Gauges
from epp.sim.http_counters import HttpCounters


class MetricsSource:
    """Makes views of the engine and the metrics page out of them.

    Attributes:
        hits: Requests for the metrics page.
        gauges: When what the page says is brought up to date.
    """

    def __init__(
        self,
        *,
        config: SimConfig,
        engine: Engine,
        driver: EngineDriver,
        faults: Faults,
        http: HttpCounters,
        clock: Clock,
        status: Callable[[], ServerStatus],
    ) -> None:
        self.hits = 0
        self.gauges = _make_gauges(config, engine, driver, clock)
        self._config = config
        self._engine = engine
        self._driver = driver
        self._faults = faults
        self._http = http
        self._clock = clock
        self._status = status
        self._started_wall_s = clock.wall_s()
        self._frozen_page: Reply | None = None

    def view(self, query: Mapping[str, str]) -> View:
        """The server as it is."""
        self.gauges.before_read()
        return View(
            status=self._status(),
            gauges=self.gauges.state,
            live=self._driver.state(),
            gauges_at_wall_s=self.gauges.published_wall_s,
            wall_s=self._clock.wall_s(),
            started_wall_s=self._started_wall_s,
            http=self._http,
            query=query,
        )

    def freeze(self) -> None:
        """From now on the page stays as it is."""
        self._frozen_page = self._engine.metrics(self.view({}))

    def thaw(self) -> None:
        """Let the page change again."""
        self._frozen_page = None

    async def reply(self, query: Mapping[str, str]) -> Reply:
        """The answer to one scrape."""
        self.hits += 1
        if not self._config.metrics_enabled and not self._engine.traits.page_stays_when_disabled:
            return self._engine.metrics_disabled()
        batch_tokens = self._engine.traits.metrics_wait_for_batch_tokens
        if batch_tokens is not None:
            await asyncio.sleep(self._driver.batch_end_in_s(batch_tokens))
        if self._faults.metrics_delay_s:
            await asyncio.sleep(self._faults.metrics_delay_s)
        if self._faults.metrics_status is not None:
            return Reply(status=self._faults.metrics_status)
        if self._config.metrics_delay_s:
            # Pages are rendered on the loop that sends tokens, so this holds up the streams too.
            time.sleep(self._config.metrics_delay_s)  # noqa: ASYNC251
        return self._frozen_page or self._engine.metrics(self.view(query))


def _make_gauges(config: SimConfig, engine: Engine, driver: EngineDriver, clock: Clock) -> Gauges:
    if config.metrics_refresh_s is None:
        return Gauges(engine.traits.refresh, engine.refresh_s, driver.state, clock)
    refresh = Refresh.NEVER if config.metrics_refresh_s else Refresh.ALWAYS
    return Gauges(refresh, config.metrics_refresh_s, driver.state, clock)
