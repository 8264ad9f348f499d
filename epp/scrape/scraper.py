"""Keeps the record of one endpoint up to date from its metrics page."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from yarl import URL

from epp.clock import Clock
from epp.config.settings import ScrapeSettings
from epp.errors import EppError
from epp.pool.endpoint import Endpoint, EndpointState
from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.change_log import ChangeLog
from epp.scrape.engines.page import Fault
from epp.scrape.fetch import MetricsPage
from epp.scrape.locate import Located, TakenPage, locate, named_engine, read_page
from epp.scrape.pace import Pace
from epp.scrape.reasons import ANSWERED, Reason, ScrapeError

LOCATE_AGAIN_AFTER_S = 5.0
"""When a page that could be read cannot be read for so long, another engine may be behind the address now."""
REFUSALS_TO_DEMOTE = 2
"""Scrapes in a row that find no connection to the serving port, before requests are kept away from it."""
READS_TO_TELL_LACK = 200
"""Gauges may be absent until the first request; what is still missing at this read is missing in this version."""

_PROCESS_START_LINE = b"\nprocess_start_time_seconds"

Sleep = Callable[[float], Awaitable[None]]


class Fetcher(Protocol):
    """Gets a page or raises `ScrapeError`, within the time that a scrape may take."""

    async def get(self, url: URL, *, keep: bool = True) -> MetricsPage:
        """Without `keep` no connection stays open afterwards."""
        ...

    def drop(self, url: URL) -> None:
        """Close what is kept for the page at `url`."""
        ...


class ScrapeObserver(Protocol):
    """Where scrapes are counted."""

    def scrape_ended(self, endpoint: Endpoint, duration_s: float, page_bytes: int) -> None:
        """A page was read."""
        ...

    def scrape_failed(self, endpoint: Endpoint, reason: str) -> None:
        """A scrape gave nothing; `reason` is one of a small set of words (`epp.scrape.reasons.Reason`)."""
        ...

    def value_discarded(self, endpoint: Endpoint, fault: str) -> None:
        """A value on a page cannot be right and was left out; `fault` is one of `epp.scrape.engines.page.Fault`."""
        ...


class Scraper:
    """Reads one endpoint again and again, and touches nothing but its record.

    A scrape that fails leaves the last values where they are, since a server that is busy is slow to answer; the own
    count goes on meanwhile, and the age of the values grows.

    Attributes:
        endpoint: The record.
        first_ended: Set once the first scrape has ended, well or not.
        changes: What was told about it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fetcher: Fetcher,
        catalog: EngineCatalog,
        settings: ScrapeSettings,
        pace: Pace,
        clock: Clock,
        observer: ScrapeObserver,
        changes: ChangeLog,
        sleep: Sleep = asyncio.sleep,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """Args:
        sleep: Waits so many seconds.
        cpu_s: CPU time that the thread has used so far, in seconds.
        """
        self.endpoint = endpoint
        self.first_ended = asyncio.Event()
        self.changes = changes
        self._spec = endpoint.spec
        self._fetcher = fetcher
        self._catalog = catalog
        self._settings = settings
        self._pace = pace
        self._clock = clock
        self._observer = observer
        self._sleep = sleep
        self._cpu_s = cpu_s
        self._others_cpu_s = 0.0
        self._located: Located | None = None
        self._process_start: bytes | str | None = None
        self._process_start_at = 0
        self._failing_since_s: float | None = None
        self._requests = 0
        self._reads = 0
        self._refusals = 0

    async def run(self, start_delay_s: float = 0.0) -> None:
        """Scrape until cancelled."""
        if start_delay_s:
            await self._sleep(start_delay_s)
        try:
            while True:
                began_at_s = self._clock.monotonic_s()
                await self.scrape()
                await self._sleep(self._pace.pause_s(self._clock.monotonic_s() - began_at_s))
        finally:
            if self._located is not None:
                self._fetcher.drop(self._located.url)

    async def scrape(self) -> None:
        """Scrape once; every error ends here, so that no endpoint can disturb another."""
        self._requests = 0
        self._others_cpu_s = 0.0
        began_cpu_s = self._cpu_s()
        try:
            await self._scrape()
        except ScrapeError as error:
            self._failed(error.reason, str(error))
        except EppError as error:  # the user named an engine that nobody knows
            self._failed(Reason.UNKNOWN_ENGINE, str(error))
        except Exception as error:  # noqa: BLE001 - a bug in reading one page must not end the scrapes of the others
            self._failed(Reason.INTERNAL, f"internal error: {type(error).__name__}", with_stack=True)
        finally:
            self.first_ended.set()
        self._pace.own_s = self._cpu_s() - began_cpu_s - self._others_cpu_s
        self._pace.requests_per_scrape = max(1, self._requests)
        self.endpoint.scrape_interval_s = self._pace.interval_s

    async def _scrape(self) -> None:
        if self._located is None:
            located, taken, metrics = await locate(self._spec, self._catalog, self._settings, self._take, self._discarded)
            self._use(located)
            self._note_process_start(taken.page)
        else:
            located = self._located
            taken = await self._take(located.url)
            self._note_process_start(taken.page)
            metrics = self._read(located, taken.page)
        self._succeeded(taken, metrics)

    async def _take(self, url: URL) -> TakenPage:
        began_at_s = self._clock.monotonic_s()
        in_flight = self.endpoint.in_flight_requests
        self._requests += 1
        waits_cpu_s = self._cpu_s()
        try:
            # Some servers (Triton) end only when the last connection has: one that drains must not wait for ours.
            page = await self._fetcher.get(url, keep=self.endpoint.state is not EndpointState.DRAINING)
        finally:
            self._others_cpu_s += self._cpu_s() - waits_cpu_s
        return TakenPage(page=page, began_at_s=began_at_s, in_flight_at_begin=in_flight)

    def _use(self, located: Located) -> None:
        if self.endpoint.engine is not None and self.endpoint.engine != located.engine.name:
            self.endpoint.forget_metrics()
        self._located = located
        self._reads = 0
        self.endpoint.engine = located.engine.name
        self._pace.min_interval_s = located.source.min_interval_s

    def _read(self, located: Located, page: MetricsPage) -> EndpointMetrics | None:
        try:
            metrics = read_page(located, page, self._discarded)
        except ScrapeError:
            self._check_engine(located, page)
            raise
        if metrics is not None and not metrics.has_load:
            self._check_engine(located, page)
        return metrics

    def _check_engine(self, located: Located, page: MetricsPage) -> None:
        """A page that says nothing in this engine's words may be another engine's, put in its place meanwhile."""
        if named_engine(self._spec, self._catalog) is not None:
            return
        found = self._catalog.recognise(page.body, page.content_type)
        if found is not None and found.name != located.engine.name:
            self._located = None
            self.endpoint.forget_metrics()
            raise ScrapeError(Reason.GARBAGE, f"expected a page of {located.engine.name}, found one of {found.name}")

    def _discarded(self, fault: Fault) -> None:
        self._observer.value_discarded(self.endpoint, fault.value)

    def _note_process_start(self, page: MetricsPage) -> None:
        """The numbers of a process that is no more mean nothing, even while the new one gives none."""
        known = self._process_start
        if isinstance(known, bytes) and page.body.find(known, self._process_start_at, self._process_start_at + 2_048) >= 0:
            return  # where it stood before, or nearly there
        start = page.process_start or _process_start_line(page.body)
        if isinstance(start, bytes):
            self._process_start_at = max(0, page.body.find(start) - 1_024)
        if start is None or start == known:
            return
        if self._process_start is not None:
            self.endpoint.forget_metrics()
        self._process_start = start

    def _succeeded(self, taken: TakenPage, metrics: EndpointMetrics | None) -> None:
        endpoint = self.endpoint
        if metrics is not None:
            endpoint.scraped(metrics, began_at_s=taken.began_at_s, in_flight_at_begin=taken.in_flight_at_begin)
            self._tell_lack(metrics)
        else:
            # Nothing new: the last values still hold, with the own count of their time; only their age begins anew.
            endpoint.scraped(
                endpoint.metrics or EndpointMetrics(),
                began_at_s=taken.began_at_s,
                in_flight_at_begin=endpoint.in_flight_at_scrape,
            )
        self._failing_since_s = None
        self._refusals = 0
        self._pace.succeeded(taken.page.server_s)
        self.changes.succeeded()
        took_s = self._clock.monotonic_s() - taken.began_at_s
        self._observer.scrape_ended(endpoint, took_s, len(taken.page.body))

    def _reads_serving_port(self) -> bool:
        source_port = None if self._located is None else self._located.source.port
        port = self._spec.metrics.port or self._settings.port or source_port
        return port is None or self._spec.address.endswith(f":{port}")

    def _tell_lack(self, metrics: EndpointMetrics) -> None:
        self._reads += 1
        if self._reads == READS_TO_TELL_LACK and self._located is not None:
            self.changes.lacking(self._located.engine.name, self._located.engine.missing(metrics))

    def _failed(self, reason: Reason, sentence: str, *, with_stack: bool = False) -> None:
        self.endpoint.scrape_failed(sentence)
        self._pace.failed(reason)
        self.changes.failed(reason, sentence, with_stack=with_stack)
        self._observer.scrape_failed(self.endpoint, reason.value)
        now_s = self._clock.monotonic_s()
        self._refusals = self._refusals + 1 if reason is Reason.REFUSED and self._reads_serving_port() else 0
        if self._refusals >= REFUSALS_TO_DEMOTE:
            self.endpoint.refused_connections(now_s)
        elif reason in ANSWERED:
            self.endpoint.accepted_connection(now_s)
        if reason is Reason.TIMEOUT:
            return
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s >= LOCATE_AGAIN_AFTER_S:
            self._located = None


def _process_start_line(body: bytes) -> bytes | None:
    """The line that tells when the process began; None on pages without it."""
    at = body.find(_PROCESS_START_LINE)
    return None if at < 0 else body[at + 1 : body.find(b"\n", at + 1)]
