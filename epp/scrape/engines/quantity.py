"""From series to one number: which values are believed, and how the series of one endpoint are combined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isfinite

from epp.scrape.engines.page import Discarded, Fault
from epp.scrape.exposition import Labels, Sample
from epp.scrape.selector import Selector, parse_selector

REPLICA_LABELS = frozenset(
    {"pid", "tp_rank", "pp_rank", "moe_ep_rank", "moe_tp_rank", "attn_tp_rank", "attn_cp_rank", "cp_rank"}
)
"""Labels whose series tell the same thing again: ranks that work on the same requests, and processes of which all but one
report nothing or something old. The highest of them counts, never their sum."""
PRIORITY_LABEL = "priority"
"""SGLang with priority scheduling: the series with `priority=""` is the total, the others are its parts."""
ENGINE_LABELS = frozenset({"engine", "dp_rank"})
"""Labels that tell the engines of one endpoint apart in a family whose other labels are values."""
MOST_REQUESTS = 1e9
MOST_BLOCKS = 1e12
CLAMP_TO_FULL_RATIO = 1.1
"""A ratio up to here is a full cache with rounding or reserve in it and counts as 1; above it is a fault or another unit."""

Series = Mapping[str, Sequence[Sample]]


class Rule(Enum):
    """What kind of number it is."""

    COUNT = "count"
    """Requests: ≥ 0, summed over engines (data-parallel ranks, models)."""
    RATIO = "ratio"
    """Used part: from 0 to 1, the highest of all series."""
    TOTAL = "total"
    """A size of which every engine has its own: > 0, summed over engines."""
    EACH = "each"
    """A size that is the same everywhere: > 0, the highest of all series."""


_SUMMED = (Rule.COUNT, Rule.TOTAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A place where a number stands: the value of the selected series, or one of their labels."""

    selector: Selector
    label: str | None = None


Alternatives = tuple[tuple[Term, ...], ...]
"""Tried in order until one gives a number, so that old and new names work in one pool; the terms of one are added up."""


def value_of(*choices: str | tuple[str, ...]) -> Alternatives:
    """Alternatives from selectors; a tuple of selectors is a sum."""
    return tuple(
        tuple(Term(selector=parse_selector(text, "selector")) for text in ((choice,) if isinstance(choice, str) else choice))
        for choice in choices
    )


def label_of(selector: str, label: str) -> Alternatives:
    """The one alternative that reads a number from a label."""
    return ((Term(selector=parse_selector(selector, "selector"), label=label),),)


def read_number(alternatives: Alternatives, rule: Rule, series: Series, discarded: Discarded) -> float | None:
    """The number that a page gives, or None when none of the alternatives is there with a value that can be believed."""
    for terms in alternatives:
        numbers = [number for term in terms if (number := _read_term(term, rule, series, discarded)) is not None]
        if numbers:
            return sum(numbers) if rule in _SUMMED else max(numbers)
    return None


def read_by_engine(term: Term, rule: Rule, series: Series, discarded: Discarded) -> dict[frozenset[tuple[str, str]], float]:
    """The number of each engine; the key is what is left of its labels without replicas and without the term's own ones."""
    parts: dict[frozenset[tuple[str, str]], dict[str, float]] = {}
    ignored = REPLICA_LABELS | term.selector.fixed_labels | {PRIORITY_LABEL}
    for labels, number in _believed(term, rule, series, discarded):
        if term.label is None:
            key = frozenset(item for item in labels.items() if item[0] not in ignored)
        else:
            key = frozenset(item for item in labels.items() if item[0] in ENGINE_LABELS)
        by_priority = parts.setdefault(key, {})
        priority = labels.get(PRIORITY_LABEL, "")
        by_priority[priority] = max(number, by_priority.get(priority, number))
    return {key: p[""] if "" in p else sum(p.values()) for key, p in parts.items()}


def _read_term(term: Term, rule: Rule, series: Series, discarded: Discarded) -> float | None:
    samples = series.get(term.selector.name)
    if samples is None:
        return None
    if rule in _SUMMED and len(samples) > 1:
        by_engine = read_by_engine(term, rule, series, discarded)
        return sum(by_engine.values()) if by_engine else None
    return max((number for _, number in _believed(term, rule, series, discarded)), default=None)


def _believed(term: Term, rule: Rule, series: Series, discarded: Discarded) -> Iterator[tuple[Labels, float]]:
    for labels, value in series.get(term.selector.name, ()):
        if term.selector.matchers and not term.selector.matches(labels):
            continue
        number = value if term.label is None else _number_in(labels.get(term.label, ""))
        checked = None if number is None else believe(number, rule, discarded)
        if checked is not None:
            yield labels, checked


def _number_in(text: str) -> float | None:
    """The number in a label; None for what engines write before they know it (`None`, nothing)."""
    try:
        return float(text)
    except ValueError:
        return None


def believe(number: float, rule: Rule, discarded: Discarded) -> float | None:
    """The number as it counts, or None when it cannot be right; unknown is better than wrong."""
    if not isfinite(number):
        discarded(Fault.NOT_A_NUMBER)
        return None
    if number < 0:
        discarded(Fault.NEGATIVE)
        return None
    if rule is Rule.RATIO:
        if number > 1:
            discarded(Fault.OUT_OF_RANGE)
            return 1.0 if number <= CLAMP_TO_FULL_RATIO else None
        return number
    if number > (MOST_REQUESTS if rule is Rule.COUNT else MOST_BLOCKS):
        discarded(Fault.OUT_OF_RANGE)
        return None
    if rule is Rule.COUNT:
        return number
    return number if number >= 1 else None  # a size of 0 is one that the engine does not know yet
