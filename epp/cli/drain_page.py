"""How busy a model server's own page says it is, for `epp drain`: the engines of the scrape catalog, read for one server."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from yarl import URL

from epp.clock import SystemClock
from epp.config.settings import ScrapeSettings
from epp.drain.idle_watch import Gone, NoAnswer, PageAnswer, Silent, Told
from epp.drain.plan import Alternatives, LabelCondition, PagePlan, PageSource, SeriesTerm
from epp.drain.shutdown import ENGINES
from epp.errors import ConfigError
from epp.pool.metrics import EndpointMetrics
from epp.scrape.catalog import EngineCatalog
from epp.scrape.engines import quantity
from epp.scrape.engines.engine import Engine
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.page import PageError, PageFormat, PageUnchangedError, Source
from epp.scrape.fetch import HttpFetcher
from epp.scrape.reasons import Reason, ScrapeError
from epp.scrape.selector import parse_selector

DEFAULT_PORT = 8000
MOST_PAGE_BYTES = 8 << 20
_CONNECT_S = 0.5
_SLOT_AT_WORK = "is_processing"
_SGLANG_LOADS = "/v1/loads?include=core&format=prometheus"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPage:
    """Where one model server tells its load.

    Attributes:
        engine: How its pages are read; None when it tells nothing.
        url: The server.
        known: Whether anyone said where the server is; without an engine and a URL nobody did.
        sources: Address of each page, tried in this order.
        lag_s: See `PagePlan`.
        freezes: See `PagePlan`.
    """

    engine: Engine | None
    url: URL
    known: bool = True
    sources: tuple[tuple[URL, Source], ...] = ()
    lag_s: float = 0.0
    freezes: bool = False


def server_page(
    engine_name: str | None,
    url: str | None = None,
    metrics_url: str | None = None,
    waiting_metric: str | None = None,
    running_metric: str | None = None,
) -> ServerPage:
    """What the flags of `epp drain` say.

    Args:
        url: The server; by default the engine's own port on this machine.
        metrics_url: Where the pages are, or with a path the only page.
        waiting_metric: A selector that stands in for the engine's own metrics, as does `running_metric`.

    Raises:
        ConfigError: A flag cannot be.
    """
    named = None if engine_name is None else EngineCatalog().named(engine_name, "--engine")
    facts = None if named is None else ENGINES[named.name]
    base = _url(url or f"http://127.0.0.1:{DEFAULT_PORT if facts is None else facts.port}", "--url")
    engine = _with_metrics(named, waiting_metric, running_metric)
    if engine is None or (facts is not None and engine is named and not facts.has_load):
        if metrics_url is not None:
            raise ConfigError(
                "--metrics-url: expected beside it an --engine that tells its load, or metrics by name, found neither"
            )
        return ServerPage(engine=None, url=base, known=url is not None or named is not None)
    return ServerPage(
        engine=engine,
        url=base,
        sources=_sources(engine, base, metrics_url),
        lag_s=0.0 if facts is None else facts.page_lag_s,
        freezes=facts is not None and facts.page_freezes,
    )


def page_plan(page: ServerPage) -> PagePlan:
    """The same for the script, which reads expositions and counts one text on JSON pages."""
    engine = page.engine
    if engine is None or engine.exposition is None:
        return PagePlan(server_known=page.known)
    return PagePlan(
        sources=tuple(source for url, each in page.sources if (source := _script_source(url, each)) is not None),
        waiting=_alternatives(engine.exposition.waiting),
        running=_alternatives(engine.exposition.running),
        replica_labels=quantity.REPLICA_LABELS,
        blank_is_idle=engine.exposition.may_be_empty and not page.freezes,
        lag_s=page.lag_s,
        freezes=page.freezes,
    )


def requests_on(page: ServerPage, source: Source, body: bytes) -> PageAnswer:
    """What a page says."""
    engine = page.engine
    assert engine is not None, "a page has an engine"
    may_be_blank = engine.exposition is not None and engine.exposition.may_be_empty and not page.freezes
    if source.format is PageFormat.EXPOSITION and may_be_blank and not body.strip():
        return Told(0.0)
    try:
        metrics = engine.read(source, body)
    except PageUnchangedError:
        return Told(0.0)  # it has not taken a step since it was asked last
    except PageError as error:
        return Silent(str(error))
    return _told(metrics, needs_running=engine.exposition is None or bool(engine.exposition.running))


class EnginePage(AbstractAsyncContextManager["EnginePage"]):
    """Reads the pages of one server; implements `epp.drain.hook.Page`."""

    def __init__(self, page: ServerPage) -> None:
        self._page = page
        self._sources: Sequence[tuple[URL, Source]] = page.sources
        # Each call is limited by who calls.
        self._fetcher = HttpFetcher(ScrapeSettings(timeout_s=3600.0, max_page_bytes=MOST_PAGE_BYTES), SystemClock())

    async def __aenter__(self) -> Self:
        await self._fetcher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fetcher.__aexit__(kind, error, trace)

    async def sample(self, timeout_s: float) -> PageAnswer:
        """Read the first page that tells something; once one has, only that."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._sample()
        except TimeoutError:
            return NoAnswer("it does not answer in time, so it is probably busy")

    async def _sample(self) -> PageAnswer:
        if not self._page.known:
            return Silent("no engine is named")
        if self._page.engine is None:
            return (
                Gone("the server refuses connections") if await self._server_refuses() else Silent("this engine tells no load")
            )
        first: PageAnswer | None = None
        for url, source in self._sources:
            answer = await self._read(url, source)
            if isinstance(answer, Told):
                self._sources = ((url, source),)
                return answer
            if isinstance(answer, Gone):
                return answer
            first = first or answer
        return first or Silent("this engine tells no load")

    async def _read(self, url: URL, source: Source) -> PageAnswer:
        try:
            page = await self._fetcher.get(url)
        except ScrapeError as error:
            if error.reason is Reason.REFUSED and await self._server_refuses():
                return Gone("the server refuses connections")
            return NoAnswer(str(error)) if error.reason is Reason.TIMEOUT else Silent(str(error))
        return requests_on(self._page, source, page.body)

    async def _server_refuses(self) -> bool:
        """Whether nothing listens where the server serves."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self._page.url.host, self._page.url.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False


def _told(metrics: EndpointMetrics, *, needs_running: bool) -> PageAnswer:
    waiting, running = metrics.waiting_requests, metrics.running_requests
    if running is None and (waiting is None or (needs_running and waiting == 0)):
        return Silent("the page does not say how many requests run")
    return Told((waiting or 0.0) + (running or 0.0))


def picker_url(text: str) -> str:
    """An `--epp-url` without its path.

    Raises:
        ConfigError: It is none.
    """
    return str(_url(text, "--epp-url").origin())


def _url(text: str, where: str) -> URL:
    try:
        url = URL(text)
        valid = url.scheme in {"http", "https"} and bool(url.host) and url.port is not None
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{where}: expected a URL such as http://127.0.0.1:8000, found {text!r}")
    return url


def _with_metrics(engine: Engine | None, waiting: str | None, running: str | None) -> Engine | None:
    """The engine, or what the user's selectors make of it."""
    if waiting is None and running is None:
        return engine
    page = ExpositionPage(
        waiting=_selected(waiting, "--waiting-metric"),
        running=_selected(running, "--running-metric"),
    )
    sources = [source for source in engine.sources if source.format is PageFormat.EXPOSITION] if engine is not None else []
    name = "custom" if engine is None else engine.name
    return Engine(name=name, sources=tuple(sources) or (Source(path="/metrics"),), exposition=page)


def _selected(text: str | None, where: str) -> quantity.Alternatives:
    return () if text is None else ((quantity.Term(selector=parse_selector(text, where)),),)


def _sources(engine: Engine, base: URL, metrics_url: str | None) -> tuple[tuple[URL, Source], ...]:
    root = base if metrics_url is None else _url(metrics_url, "--metrics-url")
    if metrics_url is not None and root.raw_path_qs not in {"", "/"}:
        like = next((each for each in engine.sources if each.path == root.raw_path_qs), None)
        return ((root, Source(path=root.raw_path_qs, format=PageFormat.EXPOSITION if like is None else like.format)),)
    # SGLang renews its JSON at once when it is idle, its gauges up to 30 s later.
    ordered = sorted(engine.sources, key=lambda each: engine.name == "sglang" and each.format is not PageFormat.JSON)
    return tuple((_at(root, each, own_port=metrics_url is None), each) for each in ordered)


def _at(root: URL, source: Source, *, own_port: bool) -> URL:
    moved = root.with_port(source.port) if own_port and source.port is not None else root
    return moved.join(URL(source.path, encoded=True))


def _script_source(url: URL, source: Source) -> PageSource | None:
    if source.format is PageFormat.EXPOSITION:
        return PageSource(url=str(url))
    if url.path == "/slots":
        return PageSource(url=str(url), counted_member=_SLOT_AT_WORK)
    if url.path == "/v1/loads":
        return PageSource(url=str(url.join(URL(_SGLANG_LOADS, encoded=True))))
    return None


def _alternatives(alternatives: quantity.Alternatives) -> Alternatives:
    return tuple(tuple(_term(term) for term in terms) for terms in alternatives)


def _term(term: quantity.Term) -> SeriesTerm:
    assert term.label is None, "requests are counted by values, not by labels"
    return SeriesTerm(
        name=term.selector.name,
        conditions=tuple(
            LabelCondition(label=each.label, operator=each.operator, value=each.value) for each in term.selector.matchers
        ),
    )
