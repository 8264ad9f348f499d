"""Which metric families of an exposition page give which quantity: the declarative part of most engines."""

from dataclasses import dataclass, field

from epp.pool.metrics import EndpointMetrics, LoraState
from epp.scrape.engines.lora import read_lora
from epp.scrape.engines.page import Discarded, Fault, PageError
from epp.scrape.engines.quantity import Alternatives, Rule, Series, Term, read_by_engine, read_number
from epp.scrape.exposition import MOST_LABEL_BYTES, MOST_LINES, PageLayout, SampleFinder
from epp.scrape.selector import Selector

AGREES_WITHIN_RATIO = 0.02
"""A published KV-cache use further than this from used blocks / all blocks is wrong; less is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpositionPage:
    """Where each quantity stands; empty or None for one that the engine does not give.

    Attributes:
        kv_blocks: Number of KV-cache blocks, of each engine.
        kv_block_tokens: Tokens in one block.
        kv_used_of: Terms for used and for all blocks. They stand in for `kv_usage` where it is missing and correct it
            where it contradicts them.
        max_running: How many requests run at once at most.
        lora: The family of vLLM's form that names the adapters.
        may_be_empty: A server that has not served anything yet has an empty page.
    """

    waiting: Alternatives = ()
    running: Alternatives = ()
    kv_usage: Alternatives = ()
    kv_blocks: Alternatives = ()
    kv_block_tokens: Alternatives = ()
    kv_used_of: tuple[Term, Term] | None = None
    max_running: Alternatives = ()
    lora: Selector | None = None
    may_be_empty: bool = False
    _finder: SampleFinder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the search for all names at once."""
        object.__setattr__(self, "_finder", SampleFinder(self.names))

    @property
    def names(self) -> frozenset[str]:
        """All names of metrics that are looked for."""
        quantities = (self.waiting, self.running, self.kv_usage, self.kv_blocks, self.kv_block_tokens, self.max_running)
        terms = [term for quantity in quantities for choice in quantity for term in choice]
        selectors = [term.selector for term in (*terms, *(self.kv_used_of or ()))]
        return frozenset(selector.name for selector in (*selectors, *((self.lora,) if self.lora else ())))

    def read(self, page: bytes, discarded: Discarded, layout: PageLayout | None = None) -> EndpointMetrics | None:
        """What the page says, or None when no wanted name is on it.

        Args:
            layout: Memory of the server that the page is from.

        Raises:
            PageError: So much of what is looked for is no page of a model server.
        """
        series, bad_lines, whole = self._finder.find(page, layout)
        if not whole:
            limits = f"{MOST_LINES} lines and {MOST_LABEL_BYTES} bytes of labels"
            raise PageError("garbage", f"expected load metrics of at most {limits}, found more")
        for _ in range(bad_lines):
            discarded(Fault.BAD_LINE)
        if not series and not bad_lines:
            return None
        return EndpointMetrics(
            waiting_requests=read_number(self.waiting, Rule.COUNT, series, discarded),
            running_requests=read_number(self.running, Rule.COUNT, series, discarded),
            kv_cache_usage_ratio=self._kv_usage(series, discarded),
            kv_cache_blocks=_whole(read_number(self.kv_blocks, Rule.TOTAL, series, discarded)),
            kv_cache_block_tokens=_whole(read_number(self.kv_block_tokens, Rule.EACH, series, discarded)),
            max_running_requests=_whole(read_number(self.max_running, Rule.TOTAL, series, discarded)),
            lora=self._lora(series),
        )

    def _lora(self, series: Series) -> LoraState | None:
        if self.lora is None or self.lora.name not in series:
            return None
        return read_lora(self.lora, series, several_processes=_has_pids(series))

    def _kv_usage(self, series: Series, discarded: Discarded) -> float | None:
        if self.kv_used_of is None:
            return read_number(self.kv_usage, Rule.RATIO, series, discarded)
        used_term, all_term = self.kv_used_of
        used = read_by_engine(used_term, Rule.COUNT, series, discarded)
        blocks = read_by_engine(all_term, Rule.TOTAL, series, discarded)
        counted = {key: used[key] / size for key, size in blocks.items() if key in used and used[key] <= size}
        published: dict[frozenset[tuple[str, str]], float] = {}
        for terms in self.kv_usage:
            published = published or read_by_engine(terms[0], Rule.RATIO, series, discarded)
        for key, ratio in published.items():
            if abs(counted.get(key, ratio) - ratio) <= AGREES_WITHIN_RATIO:
                counted[key] = ratio
            else:
                discarded(Fault.CONTRADICTION)
        return max(counted.values(), default=None)


def _has_pids(series: Series) -> bool:
    """Whether prometheus_client put the page together from several processes; it then labels some gauges with `pid`."""
    return any("pid" in sample.labels for samples in series.values() for sample in samples)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
