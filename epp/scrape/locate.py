"""Where an endpoint says how loaded it is, and in which engine's words.

The engine is the one that the user named, else the one whose page it is. Of the places where an engine tells, one that
takes nothing away from other readers comes first.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from yarl import URL

from epp.config.settings import ScrapeSettings
from epp.pool.endpoint import EndpointSpec
from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.page import Discarded, PageError, PageUnchangedError, Source
from epp.scrape.exposition import PageLayout
from epp.scrape.fetch import MetricsPage
from epp.scrape.reasons import Reason, ScrapeError

_NO_ANSWER = frozenset({Reason.TIMEOUT, Reason.REFUSED, Reason.CONNECT, Reason.TLS})
_PAGE_REASONS = {"not_enabled": Reason.NOT_ENABLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPage:
    """A page and the moment its request was sent.

    Attributes:
        began_at_s: Monotonic.
        in_flight_at_begin: The endpoint's own count at that moment.
    """

    page: MetricsPage
    began_at_s: float
    in_flight_at_begin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Where and how an endpoint is read from now on.

    Attributes:
        layout: Where the wanted lines stood on its last page.
    """

    engine: Engine
    source: Source
    url: URL
    layout: PageLayout = field(default_factory=PageLayout, compare=False, repr=False)


def metrics_url(spec: EndpointSpec, source: Source, settings: ScrapeSettings) -> URL:
    """The address of a page: what discovery says of the endpoint, else the settings, else what the engine does."""
    host, _, serving_port = spec.address.rpartition(":")
    scheme = spec.metrics.scheme or settings.scheme or "http"
    port = spec.metrics.port or settings.port or source.port or serving_port
    path = spec.metrics.path or settings.path or source.path
    return URL(f"{scheme}://{host}:{port}/{path.removeprefix('/')}")


def read_page(located: Located, page: MetricsPage, discarded: Discarded) -> EndpointMetrics | None:
    """What the page says; None when nothing is new since it was last read.

    Args:
        discarded: Told each value that was left out.

    Raises:
        ScrapeError: The page is not what this engine's pages look like.
    """
    try:
        return located.engine.read(located.source, page.body, discarded, located.layout)
    except PageUnchangedError:
        return None
    except PageError as error:
        reason = _PAGE_REASONS.get(error.reason, Reason.GARBAGE)
        raise ScrapeError(reason, f"{located.url.path} as a page of {located.engine.name}: {error}") from error


def named_engine(spec: EndpointSpec, catalog: EngineCatalog) -> Engine | None:
    """The engine that the user named, for this endpoint or by one of its labels; None when the page has to tell.

    Raises:
        ConfigError: The endpoint's engine is not known.
    """
    return catalog.labelled(spec.labels) if spec.engine is None else catalog.named(spec.engine)


async def locate(
    spec: EndpointSpec,
    catalog: EngineCatalog,
    settings: ScrapeSettings,
    take: Callable[[URL], Awaitable[TakenPage]],
    discarded: Discarded,
) -> tuple[Located, TakenPage, EndpointMetrics | None]:
    """Find the page, and read it.

    Args:
        take: Gets a page or raises ScrapeError.
        discarded: Told each value on the page that was left out.

    Raises:
        ScrapeError: No page that can be used; the text tells what was wrong with the first place that was tried.
        ConfigError: The user named an engine that is not known.
    """
    search = _Search(take)
    engine = named_engine(spec, catalog)
    if engine is None:
        engine, probed = await _recognise(spec, catalog, settings, search)
        sources = engine.sources_after(probed)
    else:
        sources = engine.sources
    unreadable: ScrapeError | None = None
    for source in sources:
        located = Located(engine=engine, source=source, url=metrics_url(spec, source, settings))
        taken = await search.page(located.url)
        if taken is None:
            continue
        try:
            return located, taken, read_page(located, taken.page, discarded)
        except ScrapeError as error:
            unreadable = unreadable or error
    raise unreadable or search.first_fault or ScrapeError(Reason.UNKNOWN_ENGINE, f"{engine.name} has no metrics page")


async def _recognise(
    spec: EndpointSpec, catalog: EngineCatalog, settings: ScrapeSettings, search: "_Search"
) -> tuple[Engine, Source]:
    strange: list[str] = []
    for source in catalog.probe_sources():
        url = metrics_url(spec, source, settings)
        taken = await search.page(url)
        if taken is None:
            continue
        engine = catalog.recognise(taken.page.body, taken.page.content_type)
        if engine is not None:
            return engine, source
        if url.path not in strange:
            strange.append(url.path)
    if strange:
        raise ScrapeError(Reason.UNKNOWN_ENGINE, f"no known load metrics on {', '.join(strange)}; balanced on own counts only")
    assert search.first_fault is not None, "a catalog has places to try"
    raise search.first_fault


class _Search:
    """The pages of one search: each address is asked once, and a port that gave no answer is not asked again."""

    def __init__(self, take: Callable[[URL], Awaitable[TakenPage]]) -> None:
        self.first_fault: ScrapeError | None = None
        self._take = take
        self._pages: dict[URL, TakenPage | None] = {}
        self._silent_ports: set[int | None] = set()

    async def page(self, url: URL) -> TakenPage | None:
        """The page at `url`; None when there is none."""
        if url not in self._pages and url.port not in self._silent_ports:
            try:
                self._pages[url] = await self._take(url)
            except ScrapeError as error:
                self._pages[url] = None
                self.first_fault = self.first_fault or error
                if error.reason in _NO_ANSWER:
                    self._silent_ports.add(url.port)
        return self._pages.get(url)
