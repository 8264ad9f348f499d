"""One scraper for each endpoint of the pool, for as long as it is in the pool."""

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import NoReturn

from epp.clock import Clock
from epp.config.settings import ScrapeSettings
from epp.pool.endpoint import Endpoint, EndpointSpec, MetricsTarget
from epp.pool.state import PoolState
from epp.scrape.catalog import EngineCatalog
from epp.scrape.change_log import ChangeLog, Log
from epp.scrape.engines.engine import Engine
from epp.scrape.fetch import HttpFetcher
from epp.scrape.pace import Pace
from epp.scrape.scraper import Fetcher, ScrapeObserver, Scraper, Sleep

START_SPACING_S = 0.001
"""Endpoints that join together make their first connections so far apart."""
FIRST_ROUND_TIMEOUTS = 2.0
"""The first round is over after so many scrape timeouts at the latest (finding the engine may take several reads)."""
SUMMARY_EVERY_S = 300.0

STILL_FAILING = "scrapes still fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    scraper: Scraper
    task: asyncio.Task[None]
    reads: tuple[MetricsTarget, str | None, Engine | None]
    """What the scraper was made for; another target or engine needs another scraper."""


class Fleet:
    """Starts, restarts and ends the scrapers, so that they follow the pool.

    Attributes:
        first_round_done: Set once every endpoint of the pool's first listing had one scrape that ended, well or not;
            at once when scraping is off.
    """

    def __init__(
        self,
        pool: PoolState,
        catalog: EngineCatalog,
        settings: ScrapeSettings,
        *,
        clock: Clock,
        random: Random,
        observer: ScrapeObserver,
        log: Log,
        fetcher: AbstractAsyncContextManager[Fetcher] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Args:
        fetcher: Gets the pages; by default an `HttpFetcher`. Entered by `run`.
        sleep: Waits so many seconds.

        Raises:
            ConfigError: A header of the settings cannot be sent.
        """
        self.first_round_done = asyncio.Event()
        self._pool = pool
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._random = random
        self._observer = observer
        self._log = log
        self._opening: AbstractAsyncContextManager[Fetcher] = fetcher or HttpFetcher(settings, clock)
        self._sleep = sleep
        self._group: asyncio.TaskGroup | None = None
        self._fetcher: Fetcher | None = None
        self._running: dict[Endpoint, _Running] = {}
        if not settings.enabled:
            self.first_round_done.set()
            return
        pool.on_join(self._start)
        pool.on_leave(self._stop)
        pool.on_change(self._changed)

    async def run(self) -> NoReturn:
        """Scrape until cancelled; makes no call at all when scraping is off."""
        if not self._settings.enabled:
            await asyncio.Event().wait()
        async with self._opening as self._fetcher, asyncio.TaskGroup() as self._group:
            try:
                for endpoint in self._pool.endpoints:
                    self._start(endpoint)
                self._group.create_task(self._watch_first_round(), name="first scrape round")
                await self._summarise()
            finally:
                self._group = None
        raise AssertionError("the summary goes on for ever")

    def _start(self, endpoint: Endpoint) -> None:
        if self._group is None or self._fetcher is None or endpoint in self._running:
            return
        spec = endpoint.spec
        scraper = Scraper(
            endpoint,
            fetcher=self._fetcher,
            catalog=self._catalog,
            settings=self._settings,
            pace=Pace(interval_s=self._settings.interval_s, fair_share_s=self._fair_share_s, random=self._random),
            clock=self._clock,
            observer=self._observer,
            changes=ChangeLog(self._log, self._clock, endpoint),
            sleep=self._sleep,
        )
        others = sum(not running.scraper.first_ended.is_set() for running in self._running.values())
        task = self._group.create_task(scraper.run(others * START_SPACING_S), name=f"scrape {spec.address}")
        self._running[endpoint] = _Running(scraper=scraper, task=task, reads=self._reads(spec))

    def _stop(self, endpoint: Endpoint) -> None:
        running = self._running.pop(endpoint, None)
        if running is not None:
            running.task.cancel()
            running.scraper.first_ended.set()  # nobody waits for an endpoint that left
            endpoint.scrape_interval_s = None

    def _changed(self, endpoint: Endpoint) -> None:
        running = self._running.get(endpoint)
        if running is not None and running.reads != self._reads(endpoint.spec):
            self._stop(endpoint)
            endpoint.forget_metrics()  # they came from another page
            self._start(endpoint)

    def _reads(self, spec: EndpointSpec) -> tuple[MetricsTarget, str | None, Engine | None]:
        return spec.metrics, spec.engine, self._catalog.labelled(spec.labels)

    def _fair_share_s(self) -> float:
        return len(self._running) / self._settings.max_rate_per_second

    async def _watch_first_round(self) -> None:
        listed = asyncio.Event()
        self._pool.on_listed(listed.set)
        await listed.wait()
        founders = [running.scraper.first_ended.wait() for running in self._running.values()]
        try:
            async with asyncio.timeout(FIRST_ROUND_TIMEOUTS * self._settings.timeout_s):
                await asyncio.gather(*founders)
        except TimeoutError:
            pass
        self.first_round_done.set()

    async def _summarise(self) -> NoReturn:
        """Remind of failures that last, now and then and in one line."""
        while True:
            await self._sleep(SUMMARY_EVERY_S)
            reasons = Counter(
                running.scraper.changes.failing.value for running in self._running.values() if running.scraper.changes.failing
            )
            if reasons:
                self._log.warning(
                    STILL_FAILING, endpoints=reasons.total(), of_endpoints=len(self._running), reasons=dict(reasons)
                )
