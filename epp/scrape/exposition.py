"""Reads wanted samples out of a metrics page, and nothing else of it.

A page of a model server has hundreds of lines, most of them histogram buckets; a handful say how loaded it is. One pass of
a compiled pattern finds the lines that begin with a wanted name, only those are parsed, and the parsed labels of a line
are remembered, since between two scrapes only values change.

Both forms are read, whatever the content type says: the Prometheus text format 0.0.4 and OpenMetrics 1.0 (`# EOF`,
exemplars, no `.0`). Grammar: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

REMEMBERED_LABELS = 4096
"""Label blocks that are remembered per finder; beyond it the memory starts anew (a page that invents labels)."""
LONGEST_REMEMBERED_BYTES = 2048
"""Longer label blocks are parsed each time, so that what is remembered stays under 10 MB."""

_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_VALUE = r'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+'
_PAIR = re.compile(rf'({_NAME})[ \t]*+=[ \t]*+"({_VALUE})"')
_DIGITS = r"(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+"
_LABEL_BLOCK = re.compile(
    rf'[ \t]*+(\{{[ \t]*+(?:{_NAME}[ \t]*+=[ \t]*+"{_VALUE}"[ \t]*+(?:,[ \t]*+|(?=\}})))*+\}})?+'.encode()
)
_REST_OF_SAMPLE = re.compile(
    (
        rf"[ \t]*+([+-]?(?:{_DIGITS}|(?i:inf(?:inity)?|nan)))"  # the value
        r"(?:[ \t]++[+-]?[0-9][0-9.eE+-]*+)?+"  # a timestamp
        r"[ \t]*+(?:(?<=[ \t])#[^\n]*+)?+"  # an exemplar
        r"\r?(?:\n|\Z)"
    ).encode()
)
_ESCAPE = re.compile(r'\\([\\n"])')
_ANY_LINE = re.compile(
    rb"(?:\A|\n)[ \t]*(?:#[ \t]*(?:HELP|TYPE|EOF|UNIT)\b"
    rb"|[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{[^\n]*\}[ \t]*|[ \t]+)[+-]?(?:[0-9.]|Inf|NaN))"
)

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """One line of a page: the labels of a series, and its value as it stands there (it may be NaN or infinite)."""

    labels: Labels
    value: float


class Samples(NamedTuple):
    """What was found on one page.

    Attributes:
        families: Samples by name, in the order of the page; a name without samples is absent.
        bad_lines: Lines that begin with a wanted name and are no sample (cut off, or not of the grammar); they are left out.
    """

    families: Mapping[str, list[Sample]]
    bad_lines: int


class SampleFinder:
    """Finds the samples of certain names, matched exactly, on any number of pages."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {name.encode(): name for name in names}
        alternatives = b"|".join(re.escape(name) for name in sorted(self._names))
        self._first = re.compile(rb"[ \t]*+(" + alternatives + rb")(?=[{ \t])")
        self._others = re.compile(rb"\n" + self._first.pattern)
        self._labels: dict[bytes, Labels] = {}

    def find(self, page: bytes) -> Samples:
        """The samples of the wanted names. Any bytes may be given; what is no sample is counted, never raised."""
        families: dict[str, list[Sample]] = {}
        bad_lines = 0
        if not self._names:
            return Samples(families, 0)
        first = self._first.match(page)
        heads = self._others.finditer(page)
        for head in heads if first is None else chain((first,), heads):
            labels, end = self._labels_at(page, head.end())
            rest = _REST_OF_SAMPLE.match(page, end)
            if rest is None:
                bad_lines += 1
                continue
            families.setdefault(self._names[head[1]], []).append(Sample(labels, float(rest[1])))
        return Samples(families, bad_lines)

    def _labels_at(self, page: bytes, start: int) -> tuple[Labels, int]:
        """The labels that stand at `start`, and where they end; none and `start` when there is no whole block of them."""
        end = page.find(b"}", start, start + LONGEST_REMEMBERED_BYTES) + 1
        known = self._labels.get(page[start:end])
        if known is not None:  # only whole blocks are remembered, so the first brace ended this one
            return known, end
        block = _LABEL_BLOCK.match(page, start)
        if block is None or block[1] is None:
            return {}, start
        labels = {name: _unescape(value) for name, value in _PAIR.findall(block[1].decode(errors="replace"))}
        if len(block[1]) <= LONGEST_REMEMBERED_BYTES:
            if len(self._labels) >= REMEMBERED_LABELS:
                self._labels.clear()
            self._labels[block[1]] = labels
        return labels, block.end()


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], value)


def looks_like_exposition(page: bytes) -> bool:
    """Whether any line of the page is a sample or a comment of the exposition formats."""
    return _ANY_LINE.search(page) is not None
