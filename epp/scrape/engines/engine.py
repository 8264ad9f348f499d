"""An engine: where its load can be read, how its pages are told from others, and what they say."""

from collections.abc import Callable
from dataclasses import dataclass

from epp.pool.metrics import EndpointMetrics
from epp.scrape.engines.exposition_page import ExpositionPage
from epp.scrape.engines.json_page import JsonPage, excerpt
from epp.scrape.engines.page import Discarded, PageError, PageFormat, Source, unseen
from epp.scrape.exposition import PageLayout, looks_like_exposition


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of model server.

    Attributes:
        name: As users and labels name it.
        aliases: Other names for it.
        sources: Where it can be read, tried in order until one can be; empty when it says nothing anywhere.
        recognise: Beginnings of metric names that only this engine has; one without `:` or `_` at its end is a whole name.
        exposition: What its exposition page gives; None when it has none.
        json: How its JSON page is read; None when it has none.
    """

    name: str
    aliases: tuple[str, ...] = ()
    sources: tuple[Source, ...]
    recognise: tuple[bytes, ...] = ()
    exposition: ExpositionPage | None = None
    json: JsonPage | None = None

    def read(
        self, source: Source, page: bytes, discarded: Discarded = unseen, layout: PageLayout | None = None
    ) -> EndpointMetrics:
        """What a page of `source` says; a quantity that is not on it, or not with a value that can be right, is None.

        Args:
            source: Where the page was read, one of `sources` or another one of the same format.
            page: Any bytes.
            discarded: Told each line and value that was left out.
            layout: Memory of the server that the page is from, which makes reading an exposition page cheaper.

        Raises:
            PageUnchangedError: There is nothing new; the last metrics still hold.
            PageError: It is no page of this engine.
        """
        if source.format is PageFormat.JSON:
            if self.json is None:
                raise PageError("garbage", f"{self.name} has no JSON page")
            return self.json.read(page, discarded)
        if self.exposition is None:
            raise PageError("garbage", f"{self.name} has no metrics page")
        metrics = self.exposition.read(page, discarded, layout)
        if metrics is not None:
            return metrics
        _judge_page_without_metrics(page, may_be_empty=self.exposition.may_be_empty)
        return EndpointMetrics()

    def sources_after(self, probed: Source) -> tuple[Source, ...]:
        """Where to read once a page of `probed` was recognised: there first, unless reading there takes from others."""
        known = next((source for source in self.sources if (source.port, source.path) == (probed.port, probed.path)), None)
        if known is not None and known.destructive:
            return self.sources
        first = known or probed
        return (first, *(source for source in self.sources if source != first))

    def missing(self, metrics: EndpointMetrics) -> tuple[str, ...]:
        """Quantities that this engine's exposition page gives in some version and that `metrics` lacks, to report once."""
        if self.exposition is None:
            return ()
        gives: tuple[tuple[str, Callable[[EndpointMetrics], object], object], ...] = (
            ("waiting requests", lambda m: m.waiting_requests, self.exposition.waiting),
            ("running requests", lambda m: m.running_requests, self.exposition.running),
            ("KV-cache usage", lambda m: m.kv_cache_usage_ratio, self.exposition.kv_usage),
        )
        return tuple(name for name, value, declared in gives if declared and value(metrics) is None)


def _judge_page_without_metrics(page: bytes, *, may_be_empty: bool) -> None:
    """Raise when a page without a wanted name is no metrics page; a page of other metrics is fine and tells nothing."""
    if not page.strip():
        if not may_be_empty:
            raise PageError("empty", "the page is empty")
    elif not looks_like_exposition(page):
        raise PageError("garbage", f"expected a metrics page, found {excerpt(page)}")
